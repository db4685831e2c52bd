package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
)

func (a *app) clientCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "client", Short: "Ask connected clients for something", Args: noSubcommand, RunE: showHelp}
	cmd.AddCommand(a.clientReconnect())
	return a.addEndpoint(cmd)
}

func (a *app) clientReconnect() *cobra.Command {
	var all bool
	var percent int32
	cmd := &cobra.Command{
		Use: "reconnect [CLIENT-ID...]", Short: "Ask clients to connect anew, so that a balancer spreads them over the servers there are now",
		Long: `Ask clients to connect anew, so that a balancer spreads them over the servers there are now.

The Java SDK replaces its connection, the Node.js SDK its stream; with the Go SDK the application can ask
whether it should reconnect. Other SDKs stay where they are. Nothing is lost or interrupted by it.`,
		RunE: func(cmd *cobra.Command, ids []string) error {
			switch {
			case len(ids) == 0 && !all:
				return usagef("name clients, or all of them with --all")
			case len(ids) > 0 && (all || cmd.Flags().Changed("percent")):
				return usagef("--all and --percent are for when no client is named")
			case percent < 1 || percent > 100:
				return usagef("percent %d: must lie between 1 and 100", percent)
			}
			req := &adminpb.ReconnectClientsRequest{ClientIds: ids}
			if all {
				req.Percent = percent
			}
			return a.withAdmin(cmd, func(ctx context.Context, admin adminpb.AdminServiceClient) error {
				resp, err := call(ctx, method(admin.ReconnectClients), req)
				if err != nil {
					return err
				}
				unreachable := append([]string{}, resp.GetUnreachable()...)
				err = a.print(struct {
					Asked       int32    `json:"asked"`
					Unreachable []string `json:"unreachable"`
				}{resp.GetAsked(), unreachable}, func(w io.Writer) {
					fmt.Fprintf(w, "clients asked: %d\n", resp.GetAsked())
					for _, id := range unreachable {
						fmt.Fprintf(w, "not reachable: %s\n", id)
					}
				})
				if err == nil && len(ids) > 0 && len(unreachable) > 0 {
					err = fmt.Errorf("%d of %d clients are not connected to this server", len(unreachable), len(unreachable)+int(resp.GetAsked()))
				}
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "ask all clients of the server")
	cmd.Flags().Int32Var(&percent, "percent", 100, "with --all: ask this `share` of them, chosen at random")
	return cmd
}

package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/internal/client"
	"github.com/perigee-mq/perigee/mq"
)

func (a *app) clientCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "client", Short: "Show who is connected, and ask clients to connect anew", Args: noSubcommand, RunE: showHelp}
	cmd.AddCommand(a.clientList(), a.clientReconnect())
	return a.addEndpoint(cmd)
}

// clientView is how a client is printed.
type clientView struct {
	ID            string             `json:"id"`
	Address       string             `json:"address"`
	Language      string             `json:"language"`
	Version       string             `json:"version"`
	Type          string             `json:"type"`
	State         string             `json:"state"`
	Namespace     string             `json:"namespace"`
	Group         string             `json:"group"`
	Subscriptions []subscriptionView `json:"subscriptions"`
	Streams       int32              `json:"streams"`
	RenewedLeases int64              `json:"renewed_leases"`
	LastSeen      time.Time          `json:"last_seen"`
	Node          string             `json:"node"`
}

type subscriptionView struct {
	Namespace  string `json:"namespace"`
	Topic      string `json:"topic"`
	Expression string `json:"expression,omitempty"`
}

func viewClient(c *adminpb.Client) clientView {
	v := clientView{
		ID: c.GetId(), Address: c.GetAddress(), Language: c.GetLanguage(), Version: c.GetVersion(),
		Type:      strings.TrimPrefix(c.GetType().String(), "CLIENT_TYPE_"),
		State:     strings.TrimPrefix(c.GetState().String(), "CLIENT_STATE_"),
		Namespace: c.GetNamespace(), Group: c.GetGroup(), Subscriptions: []subscriptionView{},
		Streams: c.GetStreams(), RenewedLeases: c.GetRenewedLeases(), LastSeen: c.GetLastSeen().AsTime(), Node: c.GetNode(),
	}
	for _, s := range c.GetSubscriptions() {
		v.Subscriptions = append(v.Subscriptions, subscriptionView{s.GetNamespace(), s.GetTopic(), s.GetExpression()})
	}
	return v
}

// topics returns the topics with their filters, as a person would write them.
func (v clientView) topics() string {
	if len(v.Subscriptions) == 0 {
		return "-"
	}
	list := make([]string, len(v.Subscriptions))
	for i, s := range v.Subscriptions {
		list[i] = mq.Resource{Namespace: s.Namespace, Name: s.Topic}.String()
		if s.Expression != "" && s.Expression != "*" {
			list[i] += "(" + s.Expression + ")"
		}
	}
	return strings.Join(list, ",")
}

// dash returns the text, or a dash for none, so that columns stay what they are.
func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func (a *app) clientList() *cobra.Command {
	req := &adminpb.ListClientsRequest{}
	cmd := &cobra.Command{
		Use: "list", Short: "List the clients that are connected, or were a moment ago", Args: arguments(),
		Long: "List the clients that are connected, or were a moment ago: of a consumer group, of a topic, or all.\n" +
			"The state is CONNECTED with a telemetry stream, CALLING without one but with calls, and LOST when the\n" +
			"stream has ended and no call came since.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			req.Namespace = a.endpoint.namespace
			return a.withConn(func(conn *client.Conn) error {
				views, err := listClients(cmd.Context(), adminpb.NewClientServiceClient(conn), req)
				if err != nil {
					return err
				}
				return printAll(a, views, "ID ADDRESS SDK TYPE STATE GROUP TOPICS RENEWED SEEN", func(v clientView) []any {
					group := "-"
					if v.Group != "" {
						group = mq.Resource{Namespace: v.Namespace, Name: v.Group}.String()
					}
					return []any{
						v.ID, dash(v.Address), dash(strings.TrimSpace(v.Language + " " + v.Version)), v.Type, v.State, group, v.topics(),
						v.RenewedLeases, v.LastSeen.Local().Format(time.TimeOnly),
					}
				})
			})
		},
	}
	cmd.Flags().StringVar(&req.Group, "group", "", "only clients of this consumer `group`")
	cmd.Flags().StringVar(&req.Topic, "topic", "", "only clients that receive from or send to this `topic`")
	return cmd
}

// listClients returns the clients of all pages.
func listClients(ctx context.Context, service adminpb.ClientServiceClient, req *adminpb.ListClientsRequest) ([]clientView, error) {
	views := []clientView{}
	for {
		resp, err := call(ctx, method(service.ListClients), req)
		if err != nil {
			return nil, err
		}
		for _, c := range resp.GetClients() {
			views = append(views, viewClient(c))
		}
		if !resp.GetMore() || len(resp.GetClients()) == 0 {
			return views, nil
		}
		req.After = views[len(views)-1].ID
	}
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

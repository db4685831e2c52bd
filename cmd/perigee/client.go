package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/internal/client"
	"github.com/perigee-mq/perigee/mq"
)

func (a *app) clientCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "client", Short: "Show who is connected", Args: noSubcommand, RunE: showHelp}
	cmd.AddCommand(a.clientList())
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

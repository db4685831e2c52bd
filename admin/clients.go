package admin

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/mq"
)

// maxClients is how many clients one answer holds: some may have thousands of
// topics.
const maxClients = 1000

// nobody has no clients.
type nobody struct{}

// Clients implements Clients.
func (nobody) Clients(mq.ClientSelection) ([]mq.Client, bool) { return nil, false }

// Reconnect implements Clients.
func (nobody) Reconnect(ids []string, _ int) (int, []string) {
	return 0, slices.Compact(slices.Sorted(slices.Values(ids)))
}

// ListClients answers the clients of a group or topic, or all, in the order of
// their ids.
func (s *Server) ListClients(ctx context.Context, req *adminpb.ListClientsRequest) (*adminpb.ListClientsResponse, error) {
	sel, err := clientSelection(req)
	if err != nil {
		return nil, s.refusal(ctx, err)
	}
	resp := &adminpb.ListClientsResponse{}
	list, more := s.clients.Clients(sel)
	resp.More = more
	for i := range list {
		resp.Clients = append(resp.Clients, clientProto(&list[i], s.node))
	}
	return resp, nil
}

func clientSelection(req *adminpb.ListClientsRequest) (sel mq.ClientSelection, err error) {
	if n := req.GetPageSize(); n < 0 || n > maxClients {
		return sel, invalid("page_size", fmt.Sprint(n), fmt.Sprintf("must lie between 0 and %d", maxClients))
	}
	if err := mq.ValidateNamespace(req.GetNamespace()); err != nil {
		return sel, err
	}
	sel = mq.ClientSelection{After: req.GetAfter(), Max: int(req.GetPageSize())}
	if sel.Max == 0 {
		sel.Max = maxClients
	}
	if req.GetGroup() != "" {
		sel.Group = mq.Resource{Namespace: req.GetNamespace(), Name: req.GetGroup()}
	}
	if req.GetTopic() != "" {
		sel.Topic = mq.Resource{Namespace: req.GetNamespace(), Name: req.GetTopic()}
	}
	return sel, nil
}

func clientProto(c *mq.Client, node string) *adminpb.Client {
	p := &adminpb.Client{
		Id: c.ID, Address: c.Address, Language: c.Language, Version: c.Version,
		Type: adminpb.ClientType(c.Type), State: stateOf(c),
		Namespace: c.Group.Namespace, Group: c.Group.Name,
		Streams: int32(c.Streams), RenewedLeases: int64(c.Renewing), LastSeen: timestamppb.New(c.Seen), Node: node,
	}
	for _, sub := range c.Subscriptions {
		p.Subscriptions = append(p.Subscriptions, &adminpb.Subscription{
			Namespace: sub.Topic.Namespace, Topic: sub.Topic.Name, Expression: sub.Expression,
		})
	}
	return p
}

func stateOf(c *mq.Client) adminpb.ClientState {
	switch {
	case c.Streams > 0:
		return adminpb.ClientState_CLIENT_STATE_CONNECTED
	case c.Lost:
		return adminpb.ClientState_CLIENT_STATE_LOST
	default:
		return adminpb.ClientState_CLIENT_STATE_CALLING
	}
}

package admin

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/mq"
)

// front answers every selection with its clients, and keeps the last selection.
type front struct {
	nobody
	list  []mq.Client
	asked mq.ClientSelection
}

func (f *front) Clients(sel mq.ClientSelection) ([]mq.Client, bool) {
	f.asked = sel
	return f.list, true
}

func TestClientsAreListedAsTheFrontKnowsThem(t *testing.T) {
	seen := time.Unix(1000, 5)
	f := &front{list: []mq.Client{
		{
			ID: "a", Address: "h:1", Language: "GO", Version: "5.1", Type: mq.ClientSimpleConsumer, Group: mq.Resource{Namespace: "n", Name: "g"},
			Subscriptions: []mq.Subscription{{Topic: mq.Resource{Namespace: "n", Name: "t"}, Expression: "x"}}, Streams: 2, Renewing: 3, Seen: seen,
		},
		{ID: "b", Lost: true},
		{ID: "c"},
	}}
	s := New(Options{Clients: f, Node: "node-1"})
	resp, err := s.ListClients(t.Context(), &adminpb.ListClientsRequest{Namespace: "n", Group: "g", Topic: "t", After: "0"})
	require.NoError(t, err)
	require.Equal(t, mq.ClientSelection{
		Group: mq.Resource{Namespace: "n", Name: "g"}, Topic: mq.Resource{Namespace: "n", Name: "t"}, After: "0", Max: maxClients,
	}, f.asked)
	require.True(t, resp.GetMore())
	require.Len(t, resp.GetClients(), 3)
	require.True(t, proto.Equal(&adminpb.Client{
		Id: "a", Address: "h:1", Language: "GO", Version: "5.1", Type: adminpb.ClientType_CLIENT_TYPE_SIMPLE_CONSUMER,
		State: adminpb.ClientState_CLIENT_STATE_CONNECTED, Namespace: "n", Group: "g", Streams: 2, RenewedLeases: 3,
		Subscriptions: []*adminpb.Subscription{{Namespace: "n", Topic: "t", Expression: "x"}},
		LastSeen:      timestamppb.New(seen), Node: "node-1",
	}, resp.GetClients()[0]), resp.GetClients()[0])
	require.Equal(t, adminpb.ClientState_CLIENT_STATE_LOST, resp.GetClients()[1].GetState())
	require.Equal(t, adminpb.ClientState_CLIENT_STATE_CALLING, resp.GetClients()[2].GetState())
}

func TestAPageOfClientsHasALimit(t *testing.T) {
	s := New(Options{Clients: &front{}})
	for _, size := range []int32{-1, maxClients + 1} {
		_, err := s.ListClients(t.Context(), &adminpb.ListClientsRequest{PageSize: size})
		requireCode(t, codes.InvalidArgument, err, "page_size")
	}
	_, err := s.ListClients(t.Context(), &adminpb.ListClientsRequest{Namespace: "a/b"})
	requireCode(t, codes.InvalidArgument, err, "namespace")
	resp, err := New(Options{}).ListClients(t.Context(), &adminpb.ListClientsRequest{})
	require.NoError(t, err)
	require.Empty(t, resp.GetClients())
}

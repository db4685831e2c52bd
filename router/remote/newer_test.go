package remote

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	routerpb "github.com/perigee-mq/perigee/gen/perigee/router/v1"
	"github.com/perigee-mq/perigee/internal/newer"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

// TestEveryCallWorksBetweenVersionsThatKnowMoreAndLess has an end, for each end, that sends
// fields which nobody knows yet, in every message.
func TestEveryCallWorksBetweenVersionsThatKnowMoreAndLess(t *testing.T) {
	inWorld(t, "r1", func(w *world) {
		h, ctx := w.hosts["r1"], w.Context()
		lis := bufconn.Listen(1 << 16)
		between, err := newer.Serve(lis, func(ctx context.Context, _ string) (net.Conn, error) { return w.network.dial(ctx, "r1") })
		require.NoError(w, err)
		w.network.set("newer", lis)
		c := w.open(w.options("newer"))
		require.NoError(w, c.Ready(ctx))
		c.Register(router.Node{Name: "n1", Tier: router.TierStore, Address: "n1:1", Shards: []string{"s7"}, Version: "v9", Started: time.Now().UTC()})
		w.settle(time.Second)
		require.Equal(w, []string{"n1"}, nodeNames(c))
		require.Contains(w, c.Shards(), router.Shard{Name: "s7", State: router.ShardActive})

		_, created, err := c.CreateTopic(ctx, router.TopicSpec{Resource: named("t"), Queues: 3})
		require.NoError(w, err)
		require.True(w, created)
		_, err = c.UpdateTopic(ctx, named("t"), router.TopicUpdate{ReadQueues: new(int32(1))})
		require.NoError(w, err)
		_, _, err = c.CreateGroup(ctx, router.GroupSpec{Resource: named("g"), FIFO: true})
		require.NoError(w, err)
		_, err = c.UpdateGroup(ctx, named("g"), router.GroupUpdate{Start: &mq.StartPosition{Policy: mq.StartLatest}})
		require.NoError(w, err)
		requireSame(w, h.router, c)
		_, err = c.Topic(ctx, named("missing"))
		require.ErrorIs(w, err, mq.ErrTopicNotFound)
		_, err = c.Group(ctx, named("missing"))
		require.ErrorIs(w, err, mq.ErrGroupNotFound)
		_, _, err = c.CreateTopic(ctx, router.TopicSpec{Resource: named("a b")})
		in := &mq.InvalidError{}
		require.ErrorAs(w, err, &in, "an error keeps its meaning")
		require.Equal(w, "topic", in.Field)
		_, err = c.SetShard(ctx, "s1", router.ShardDraining)
		require.NoError(w, err)
		require.NoError(w, c.ShardClosed(ctx, "s1", []router.ClosedTopic{{ID: 1, Placed: 1}}))
		_, err = c.DeleteTopic(ctx, named("t"))
		require.NoError(w, err)
		_, err = c.DeleteGroup(ctx, named("g"))
		require.NoError(w, err)
		_, err = c.RemoveShard(ctx, "s1", false)
		require.NoError(w, err)
		_, err = c.EnsureTopic(ctx, named("made"))
		require.NoError(w, err)
		_, err = c.EnsureSystemGroup(ctx, router.GroupSpec{Resource: named(mq.RedriveGroup)})
		require.NoError(w, err)
		requireSame(w, h.router, c)

		// What no client of the same version asks by itself.
		conn, err := grpc.NewClient("passthrough:///newer", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(w.network.dial))
		require.NoError(w, err)
		rpc := routerpb.NewRouterServiceClient(conn)
		_, err = rpc.ListNodes(ctx, &routerpb.ListNodesRequest{})
		require.NoError(w, err)
		_, err = rpc.ListShards(ctx, &routerpb.ListShardsRequest{})
		require.NoError(w, err)
		_, err = rpc.FindTopic(ctx, &routerpb.FindTopicRequest{Name: &routerpb.Resource{Name: "made"}, Known: &routerpb.Known{}})
		require.NoError(w, err)
		_, err = rpc.FindGroup(ctx, &routerpb.FindGroupRequest{Name: &routerpb.Resource{Name: mq.RedriveGroup}, Known: &routerpb.Known{}})
		require.NoError(w, err)
		require.NoError(w, conn.Close())
		c.Leave()
		w.settle(time.Second)
		require.Empty(w, h.nodes.Nodes().List)
		w.network.set("newer", nil)
		require.NoError(w, between.Stop())
		require.Empty(w, between.Missed(routerpb.File_perigee_router_v1_router_proto.Services().ByName("RouterService")))
	})
}

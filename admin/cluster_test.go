package admin

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

// twoStores is a deployment with a node for each shard of the fixture.
type twoStores struct {
	*router.Router
	routers []RouterStatus
	nodes   []NodeStatus
}

func (c *twoStores) Routers(context.Context) []RouterStatus { return c.routers }

func (c *twoStores) Nodes(_ context.Context, reach bool) []NodeStatus {
	list := append([]NodeStatus{}, c.nodes...)
	for i := range list {
		if !reach {
			list[i].Unreachable = nil
		}
	}
	return list
}

// deploy makes the fixture one of several processes: its shards are written down, and one
// that nobody serves.
func (f *fixture) deploy(t *testing.T) *twoStores {
	t.Helper()
	c := &twoStores{Router: f.router}
	for i, name := range shards {
		_, err := f.router.AddShard(t.Context(), name)
		require.NoError(t, err)
		c.nodes = append(c.nodes, NodeStatus{Node: router.Node{
			Name: "n" + name, Tier: router.TierStore, Address: name + ":8083", Shards: []string{name}, Version: "v1", Started: time.Unix(int64(i), 0),
		}})
	}
	_, err := f.router.AddShard(t.Context(), "spare")
	require.NoError(t, err)
	f.cluster = c
	return c
}

func TestADeploymentIsShownAsTheProxySeesIt(t *testing.T) {
	f := newFixture(t)
	c := f.deploy(t)
	f.topic(t, "a")
	c.routers = []RouterStatus{{Address: "r1:8082", Followed: true, Life: "l", Revision: 9}, {Address: "r2:8082", Err: errors.New("cannot be reached")}}
	c.nodes[1].Unreachable = errors.New("connection refused")
	c.nodes = append(c.nodes, NodeStatus{Node: router.Node{Name: "p", Tier: router.TierProxy, Started: time.Unix(5, 0)}})
	got, err := f.GetCluster(t.Context(), &adminpb.GetClusterRequest{})
	require.NoError(t, err)
	want := &adminpb.GetClusterResponse{
		Routers: []*adminpb.Router{{Address: "r1:8082", Followed: true, Life: "l", Revision: 9}, {Address: "r2:8082", Error: "cannot be reached"}},
		Nodes: []*adminpb.Node{
			{Name: "ns1", Tier: adminpb.Tier_TIER_STORE, Address: "s1:8083", Shards: []string{"s1"}, Version: "v1", Started: timestamppb.New(time.Unix(0, 0))},
			{
				Name: "ns2", Tier: adminpb.Tier_TIER_STORE, Address: "s2:8083", Shards: []string{"s2"}, Version: "v1", Started: timestamppb.New(time.Unix(1, 0)),
				Unreachable: "connection refused",
			},
			{Name: "p", Tier: adminpb.Tier_TIER_PROXY, Started: timestamppb.New(time.Unix(5, 0))},
		},
		Shards: []*adminpb.Shard{
			{Name: "s1", State: adminpb.ShardState_SHARD_STATE_ACTIVE, Node: "ns1", Topics: 1},
			{Name: "s2", State: adminpb.ShardState_SHARD_STATE_ACTIVE, Node: "ns2", Topics: 1},
			{Name: "spare", State: adminpb.ShardState_SHARD_STATE_ACTIVE},
		},
		Revision: f.router.Revision(),
	}
	require.True(t, proto.Equal(want, got), got)
	nodes, err := f.ListNodes(t.Context(), &adminpb.ListNodesRequest{})
	require.NoError(t, err)
	require.True(t, proto.Equal(&adminpb.ListNodesResponse{Nodes: want.Nodes}, nodes), nodes)
	list, err := f.ListShards(t.Context(), &adminpb.ListShardsRequest{})
	require.NoError(t, err)
	require.True(t, proto.Equal(&adminpb.ListShardsResponse{Shards: want.Shards}, list), list)
}

func TestShardsAreDrainedAndTakenBack(t *testing.T) {
	f, ctx := newFixture(t), t.Context()
	f.deploy(t)
	set := func(name string, state adminpb.ShardState) (*adminpb.Shard, error) {
		resp, err := f.SetShard(ctx, &adminpb.SetShardRequest{Name: name, State: state})
		return resp.GetShard(), err
	}
	shard, err := set("s2", adminpb.ShardState_SHARD_STATE_DRAINING)
	require.NoError(t, err)
	require.True(t, proto.Equal(&adminpb.Shard{
		Name: "s2", State: adminpb.ShardState_SHARD_STATE_DRAINING, Node: "ns2", Leaving: &adminpb.Leaving{},
	}, shard), shard)
	require.Len(t, f.topic(t, "a").Shards, 1)
	_, err = set("s2", adminpb.ShardState_SHARD_STATE_ACTIVE)
	require.NoError(t, err)
	require.Len(t, f.topic(t, "b").Shards, 2)

	_, err = set("s9", adminpb.ShardState_SHARD_STATE_DRAINING)
	requireCode(t, codes.NotFound, err, `no such shard: "s9"`)
	_, err = set("a/b", adminpb.ShardState_SHARD_STATE_DRAINING)
	requireCode(t, codes.InvalidArgument, err, "a/b")
	_, err = set("s2", adminpb.ShardState_SHARD_STATE_REMOVED)
	requireCode(t, codes.InvalidArgument, err, "must be one of active, draining")
}

// absentStore is a store of which one shard is away.
type absentStore struct {
	Store
	shard string
}

func (s absentStore) away(shard string) error {
	if shard == s.shard {
		return fmt.Errorf("%w: nobody serves shard %s", mq.ErrUnavailable, shard)
	}
	return nil
}

func (s absentStore) Queues(ctx context.Context, shard string, id mq.TopicID) ([]mq.QueueRange, error) {
	if err := s.away(shard); err != nil {
		return nil, err
	}
	return s.Store.Queues(ctx, shard, id)
}

func (s absentStore) Backlogs(ctx context.Context, shard string, group mq.GroupID) ([]mq.Backlog, error) {
	if err := s.away(shard); err != nil {
		return nil, err
	}
	return s.Store.Backlogs(ctx, shard, group)
}

func (s absentStore) Positions(ctx context.Context, shard string, topic mq.TopicID, group mq.GroupID) ([]mq.Position, error) {
	if err := s.away(shard); err != nil {
		return nil, err
	}
	return s.Store.Positions(ctx, shard, topic, group)
}

func (s absentStore) TimersOf(ctx context.Context, shard string, id mq.TopicID) (int64, error) {
	if err := s.away(shard); err != nil {
		return 0, err
	}
	return s.Store.TimersOf(ctx, shard, id)
}

func (s absentStore) Timers(ctx context.Context, shard string, q mq.PendingQuery) ([]mq.PendingMessage, mq.PendingMark, error) {
	if err := s.away(shard); err != nil {
		return nil, mq.PendingMark{}, err
	}
	return s.Store.Timers(ctx, shard, q)
}

func (s absentStore) Transactions(ctx context.Context, shard string, q mq.PendingQuery, stage mq.HalfStage) ([]mq.PendingMessage, mq.PendingMark, error) {
	if err := s.away(shard); err != nil {
		return nil, mq.PendingMark{}, err
	}
	return s.Store.Transactions(ctx, shard, q, stage)
}

func (s absentStore) Receive(ctx context.Context, shard string, r mq.Receive) ([]mq.Delivery, error) {
	if err := s.away(shard); err != nil {
		return nil, err
	}
	return s.Store.Receive(ctx, shard, r)
}

func (s absentStore) Append(ctx context.Context, shard string, topic *mq.Topic, queue mq.QueueID, msgs []*mq.Message) ([]mq.Appended, error) {
	if err := s.away(shard); err != nil {
		return nil, err
	}
	return s.Store.Append(ctx, shard, topic, queue, msgs)
}

// TestAShardIsRemovedWhenNothingIsLostByIt: a topic on it, a dead letter that has outlived
// its topic there, and a store that cannot be asked are in the way.
func TestAShardIsRemovedWhenNothingIsLostByIt(t *testing.T) {
	f, ctx := newFixture(t), t.Context()
	f.deploy(t)
	orders := f.topic(t, "orders")
	g := f.group(t, "g")
	for g.DeadLetterShard == "s2" { // another one has its home elsewhere
		_, err := f.router.DeleteGroup(ctx, g.Resource)
		require.NoError(t, err)
		g = f.group(t, "g")
	}
	f.dieOn(t, "s2", orders, g, "1")
	_, err := f.RemoveShard(ctx, &adminpb.RemoveShardRequest{Name: "spare"})
	requireCode(t, codes.Unavailable, err, "whether dead letters are on shard spare cannot be asked")
	_, err = f.RemoveShard(ctx, &adminpb.RemoveShardRequest{Name: "spare", LoseDeadLetters: true})
	require.NoError(t, err)

	remove := func(lose bool) error {
		_, err := f.RemoveShard(ctx, &adminpb.RemoveShardRequest{Name: "s2", LoseDeadLetters: lose})
		return err
	}
	requireCode(t, codes.InvalidArgument, remove(false), "1 are on it")
	requireCode(t, codes.InvalidArgument, remove(true), "1 are on it")
	_, err = f.router.DeleteTopic(ctx, orders.Resource)
	require.NoError(t, err)
	requireCode(t, codes.InvalidArgument, remove(false), "1 of group g are on it; send them back and purge topic %DLQ%g")

	all := f.Server.store
	f.Server.store = absentStore{all, "s2"}
	requireCode(t, codes.Unavailable, remove(false), "whether dead letters are on shard s2 cannot be asked")
	f.Server.store = all
	_, err = f.PurgeTopic(ctx, &adminpb.PurgeTopicRequest{Name: "%DLQ%g"})
	require.NoError(t, err)
	require.NoError(t, remove(false))
	require.NoError(t, remove(false), "again")
	list, err := f.ListShards(ctx, &adminpb.ListShardsRequest{})
	require.NoError(t, err)
	require.Equal(t, adminpb.ShardState_SHARD_STATE_REMOVED, list.GetShards()[1].GetState())
	_, err = f.RemoveShard(ctx, &adminpb.RemoveShardRequest{Name: "s9"})
	requireCode(t, codes.NotFound, err, "s9")
}

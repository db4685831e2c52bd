package admin

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
	"github.com/perigee-mq/perigee/store"
)

var shards = []string{"s1", "s2"}

type fixture struct {
	*Server
	store  *store.Store
	router *router.Router
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	return newFixtureOn(t, shards)
}

func newFixtureOn(t *testing.T, shards []string) *fixture {
	t.Helper()
	fs := vfs.NewMem()
	st, err := store.Open(store.Options{FS: fs, Dir: "data", Shards: shards, SegmentSize: 64 << 20, ZeroFill: 1 << 20})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, st.Close()) })
	r, err := router.Open(router.Options{FS: fs, Dir: "meta", Shards: shards})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return &fixture{New(Options{Router: r, Store: st, Clients: oneClient("c"), Shards: func() []string { return shards }}), st, r}
}

// oneClient is the only client that is connected.
type oneClient string

func (c oneClient) Clients(sel mq.ClientSelection) ([]mq.Client, bool) {
	one := mq.Client{ID: string(c)}
	if one.ID <= sel.After || !sel.Has(&one) {
		return nil, false
	}
	return []mq.Client{one}, false
}

func (c oneClient) Reconnect(ids []string, percent int) (asked int, unreachable []string) {
	if len(ids) == 0 && percent > 0 {
		return 1, nil
	}
	for _, id := range ids {
		if id == string(c) {
			asked++
		} else {
			unreachable = append(unreachable, id)
		}
	}
	return asked, unreachable
}

func requireCode(t *testing.T, want codes.Code, err error, text string) {
	t.Helper()
	require.Equal(t, want, status.Code(err), "%v", err)
	require.ErrorContains(t, err, text)
}

func TestATopicLivesFromCreationToDeletion(t *testing.T) {
	s, ctx := newFixture(t), t.Context()
	created, err := s.CreateTopic(ctx, &adminpb.CreateTopicRequest{Name: "a", Queues: 3})
	require.NoError(t, err)
	require.True(t, created.GetCreated())
	want := &adminpb.Topic{
		Name: "a", Type: adminpb.TopicType_TOPIC_TYPE_NORMAL, Id: created.GetTopic().GetId(), Version: 1,
		Permission: adminpb.Permission_PERMISSION_READ_WRITE, Dedup: durationpb.New(5 * time.Minute),
		Shards: []*adminpb.ShardQueues{
			{Shard: "s1", ReadQueues: 3, WriteQueues: 3}, {Shard: "s2", ReadQueues: 3, WriteQueues: 3},
		},
	}
	require.True(t, proto.Equal(want, created.GetTopic()), created)
	again, err := s.CreateTopic(ctx, &adminpb.CreateTopicRequest{Name: "a", Queues: 3, Type: adminpb.TopicType_TOPIC_TYPE_NORMAL})
	require.NoError(t, err)
	require.False(t, again.GetCreated())
	require.True(t, proto.Equal(want, again.GetTopic()))
	_, err = s.CreateTopic(ctx, &adminpb.CreateTopicRequest{Name: "a", Queues: 4})
	requireCode(t, codes.AlreadyExists, err, `"a"`)

	read, perm := int32(2), adminpb.Permission_PERMISSION_READ
	updated, err := s.UpdateTopic(ctx, &adminpb.UpdateTopicRequest{Name: "a", ReadQueues: &read, Permission: &perm})
	require.NoError(t, err)
	require.EqualValues(t, 2, updated.GetTopic().GetVersion())
	require.Equal(t, perm, updated.GetTopic().GetPermission())
	require.EqualValues(t, 2, updated.GetTopic().GetShards()[1].GetReadQueues())
	require.EqualValues(t, 3, updated.GetTopic().GetShards()[1].GetWriteQueues())

	got, err := s.GetTopic(ctx, &adminpb.GetTopicRequest{Name: "a"})
	require.NoError(t, err)
	require.True(t, proto.Equal(updated.GetTopic(), got.GetTopic()))
	_, err = s.DeleteTopic(ctx, &adminpb.DeleteTopicRequest{Name: "a"})
	require.NoError(t, err)
	_, err = s.DeleteTopic(ctx, &adminpb.DeleteTopicRequest{Name: "a"})
	requireCode(t, codes.NotFound, err, `"a"`)
	_, err = s.GetTopic(ctx, &adminpb.GetTopicRequest{Name: "a"})
	requireCode(t, codes.NotFound, err, `"a"`)
}

func TestTheQueuesOfATopicShowTheirOffsets(t *testing.T) {
	s, ctx := newFixture(t), t.Context()
	_, err := s.CreateTopic(ctx, &adminpb.CreateTopicRequest{Name: "a", Queues: 2})
	require.NoError(t, err)
	topic, err := s.router.Topic(ctx, mq.Resource{Name: "a"})
	require.NoError(t, err)
	for i := range 3 {
		_, err := s.store.Append(ctx, "s2", topic, 1, []*mq.Message{{ID: fmt.Sprint(i), Type: mq.Normal}})
		require.NoError(t, err)
	}
	got, err := s.GetTopic(ctx, &adminpb.GetTopicRequest{Name: "a"})
	require.NoError(t, err)
	var lines []string
	for _, q := range got.GetQueues() {
		lines = append(lines, fmt.Sprint(q.GetShard(), " ", q.GetQueue(), ": ", q.GetMinOffset(), "-", q.GetMaxOffset()))
	}
	require.Equal(t, []string{"s1 0: 0-0", "s1 1: 0-0", "s2 0: 0-0", "s2 1: 0-3"}, lines)
}

func TestAPurgeCountsWhatItRemovesOnEveryShard(t *testing.T) {
	s, ctx := newFixture(t), t.Context()
	_, err := s.CreateTopic(ctx, &adminpb.CreateTopicRequest{Name: "a", Queues: 2})
	require.NoError(t, err)
	topic, err := s.router.Topic(ctx, mq.Resource{Name: "a"})
	require.NoError(t, err)
	purge := func(name string) (int64, []string) {
		resp, err := s.PurgeTopic(ctx, &adminpb.PurgeTopicRequest{Name: name})
		require.NoError(t, err)
		var lines []string
		for _, q := range resp.GetQueues() {
			lines = append(lines, fmt.Sprint(q.GetShard(), " ", q.GetQueue(), ": ", q.GetMinOffset(), "-", q.GetMaxOffset()))
		}
		return resp.GetPurged(), lines
	}
	n, lines := purge("a")
	require.Zero(t, n, "a topic that the store has not heard of")
	require.Len(t, lines, 4)
	sent := 0
	send := func(shard string, queue mq.QueueID, n int) {
		for range n {
			sent++
			_, err := s.store.Append(ctx, shard, topic, queue, []*mq.Message{{ID: fmt.Sprint(sent), Type: mq.Normal}})
			require.NoError(t, err)
		}
	}
	send("s1", 0, 3)
	send("s2", 1, 2)
	n, lines = purge("a")
	require.EqualValues(t, 5, n)
	require.Equal(t, []string{"s1 0: 3-3", "s1 1: 0-0", "s2 0: 0-0", "s2 1: 2-2"}, lines)
	send("s1", 0, 1)
	n, _ = purge("a")
	require.EqualValues(t, 1, n)

	_, err = s.CreateGroup(ctx, &adminpb.CreateGroupRequest{Name: "g"})
	require.NoError(t, err)
	n, _ = purge("%DLQ%g")
	require.Zero(t, n)
	_, err = s.PurgeTopic(ctx, &adminpb.PurgeTopicRequest{Name: "b"})
	requireCode(t, codes.NotFound, err, `"b"`)
}

func TestListsKeepToTheirNamespaceAndOrder(t *testing.T) {
	s, ctx := newFixture(t), t.Context()
	for _, name := range []string{"b", "a"} {
		_, err := s.CreateTopic(ctx, &adminpb.CreateTopicRequest{Name: name})
		require.NoError(t, err)
		_, err = s.CreateGroup(ctx, &adminpb.CreateGroupRequest{Name: "g" + name})
		require.NoError(t, err)
	}
	_, err := s.CreateTopic(ctx, &adminpb.CreateTopicRequest{Namespace: "n", Name: "c"})
	require.NoError(t, err)
	topics := func(ns string, system bool) (names []string) {
		list, err := s.ListTopics(ctx, &adminpb.ListTopicsRequest{Namespace: ns, IncludeSystem: system})
		require.NoError(t, err)
		for _, tp := range list.GetTopics() {
			names = append(names, tp.GetName())
		}
		return names
	}
	require.Equal(t, []string{"a", "b"}, topics("", false))
	require.Equal(t, []string{"%DLQ%ga", "%DLQ%gb", "a", "b"}, topics("", true))
	require.Equal(t, []string{"c"}, topics("n", true))
	groups, err := s.ListGroups(ctx, &adminpb.ListGroupsRequest{})
	require.NoError(t, err)
	require.Len(t, groups.GetGroups(), 2)
	require.Equal(t, "ga", groups.GetGroups()[0].GetName())
	groups, err = s.ListGroups(ctx, &adminpb.ListGroupsRequest{Namespace: "n"})
	require.NoError(t, err)
	require.Empty(t, groups.GetGroups())
	_, err = s.ListTopics(ctx, &adminpb.ListTopicsRequest{Namespace: "a b"})
	requireCode(t, codes.InvalidArgument, err, "namespace")
	_, err = s.ListGroups(ctx, &adminpb.ListGroupsRequest{Namespace: "a b"})
	requireCode(t, codes.InvalidArgument, err, "namespace")
}

func TestTopicsThatAreRefused(t *testing.T) {
	s, ctx := newFixture(t), t.Context()
	for _, c := range []struct {
		req  *adminpb.CreateTopicRequest
		code codes.Code
		text string
	}{
		{&adminpb.CreateTopicRequest{}, codes.InvalidArgument, "topic"},
		{&adminpb.CreateTopicRequest{Name: "a b"}, codes.InvalidArgument, "topic"},
		{&adminpb.CreateTopicRequest{Name: "%DLQ%g"}, codes.InvalidArgument, "topic"},
		{&adminpb.CreateTopicRequest{Name: "a", Namespace: "a b"}, codes.InvalidArgument, "namespace"},
		{&adminpb.CreateTopicRequest{Name: "a", Queues: -1}, codes.InvalidArgument, "queues"},
		{&adminpb.CreateTopicRequest{Name: "a", Queues: mq.MaxQueues + 1}, codes.InvalidArgument, "queues"},
		{&adminpb.CreateTopicRequest{Name: "a", Permission: 9}, codes.InvalidArgument, "permission"},
		{&adminpb.CreateTopicRequest{Name: "a", Type: 9}, codes.InvalidArgument, "type"},
	} {
		_, err := s.CreateTopic(ctx, c.req)
		requireCode(t, c.code, err, c.text)
	}
	_, err := s.CreateTopic(ctx, &adminpb.CreateTopicRequest{Name: "urgent", Type: adminpb.TopicType_TOPIC_TYPE_PRIORITY})
	require.NoError(t, err)
	_, err = s.CreateTopic(ctx, &adminpb.CreateTopicRequest{Name: "a"})
	require.NoError(t, err)
	bad, none := adminpb.Permission(9), adminpb.Permission_PERMISSION_UNSPECIFIED
	queues := int32(-1)
	for field, req := range map[string]*adminpb.UpdateTopicRequest{
		"permission":  {Name: "a", Permission: &bad},
		"READ_WRITE":  {Name: "a", Permission: &none},
		"queues":      {Name: "a", WriteQueues: &queues},
		"read_queues": {Name: "a", ReadQueues: &queues},
	} {
		_, err := s.UpdateTopic(ctx, req)
		require.Equal(t, codes.InvalidArgument, status.Code(err), "%s: %v", field, err)
	}
	_, err = s.UpdateTopic(ctx, &adminpb.UpdateTopicRequest{Name: "b"})
	requireCode(t, codes.NotFound, err, `"b"`)
	for _, d := range []*durationpb.Duration{
		durationpb.New(time.Second), durationpb.New(-time.Hour), {Seconds: 315_576_000_000}, {Nanos: -1, Seconds: 1},
	} {
		_, err := s.CreateTopic(ctx, &adminpb.CreateTopicRequest{Name: "c", Retention: d})
		requireCode(t, codes.InvalidArgument, err, "retention")
		_, err = s.UpdateTopic(ctx, &adminpb.UpdateTopicRequest{Name: "a", Retention: d})
		requireCode(t, codes.InvalidArgument, err, "retention")
	}
}

func TestTheRetentionOfATopicIsSetAndShown(t *testing.T) {
	s, ctx := newFixture(t), t.Context()
	created, err := s.CreateTopic(ctx, &adminpb.CreateTopicRequest{Name: "a", Retention: durationpb.New(10 * time.Minute)})
	require.NoError(t, err)
	require.Equal(t, 10*time.Minute, created.GetTopic().GetRetention().AsDuration())
	_, err = s.CreateTopic(ctx, &adminpb.CreateTopicRequest{Name: "a"})
	requireCode(t, codes.AlreadyExists, err, "retention 10m0s, not 0s")
	updated, err := s.UpdateTopic(ctx, &adminpb.UpdateTopicRequest{Name: "a", Retention: durationpb.New(time.Hour)})
	require.NoError(t, err)
	require.Equal(t, time.Hour, updated.GetTopic().GetRetention().AsDuration())
	queues := int32(2)
	updated, err = s.UpdateTopic(ctx, &adminpb.UpdateTopicRequest{Name: "a", WriteQueues: &queues})
	require.NoError(t, err)
	require.Equal(t, time.Hour, updated.GetTopic().GetRetention().AsDuration(), "what is not named stays")
	updated, err = s.UpdateTopic(ctx, &adminpb.UpdateTopicRequest{Name: "a", Retention: durationpb.New(0)})
	require.NoError(t, err)
	require.Nil(t, updated.GetTopic().GetRetention(), "back to the node's default")
}

func TestAGroupLivesFromCreationToDeletion(t *testing.T) {
	s, ctx := newFixture(t), t.Context()
	start := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	req := &adminpb.CreateGroupRequest{
		Namespace: "n", Name: "g",
		Retry: &adminpb.RetryPolicy{MaxAttempts: 5, Initial: durationpb.New(time.Second), Max: durationpb.New(time.Minute), Multiplier: 2},
		Start: &adminpb.StartPosition{Policy: adminpb.StartPosition_POLICY_TIMESTAMP, Time: timestamppb.New(start)},
	}
	created, err := s.CreateGroup(ctx, req)
	require.NoError(t, err)
	require.True(t, created.GetCreated())
	want := &adminpb.Group{
		Namespace: "n", Name: "g", Id: created.GetGroup().GetId(), Version: 1, Retry: req.GetRetry(), Start: req.GetStart(),
		DeadLetterTopic: "%DLQ%g",
	}
	require.True(t, proto.Equal(want, created.GetGroup()), created)
	again, err := s.CreateGroup(ctx, req)
	require.NoError(t, err)
	require.False(t, again.GetCreated())
	_, err = s.CreateGroup(ctx, &adminpb.CreateGroupRequest{Namespace: "n", Name: "g"})
	requireCode(t, codes.AlreadyExists, err, "n/g")

	policy := &adminpb.RetryPolicy{MaxAttempts: 2, Customized: []*durationpb.Duration{durationpb.New(3 * time.Second)}}
	updated, err := s.UpdateGroup(ctx, &adminpb.UpdateGroupRequest{
		Namespace: "n", Name: "g", Retry: policy, Start: &adminpb.StartPosition{Policy: adminpb.StartPosition_POLICY_LATEST},
	})
	require.NoError(t, err)
	require.EqualValues(t, 2, updated.GetGroup().GetVersion())
	require.True(t, proto.Equal(policy, updated.GetGroup().GetRetry()), updated)
	require.Equal(t, adminpb.StartPosition_POLICY_LATEST, updated.GetGroup().GetStart().GetPolicy())
	got, err := s.GetGroup(ctx, &adminpb.GetGroupRequest{Namespace: "n", Name: "g"})
	require.NoError(t, err)
	require.True(t, proto.Equal(updated.GetGroup(), got.GetGroup()))
	require.Empty(t, got.GetTopics())
	_, err = s.DeleteGroup(ctx, &adminpb.DeleteGroupRequest{Namespace: "n", Name: "g"})
	require.NoError(t, err)
	_, err = s.DeleteGroup(ctx, &adminpb.DeleteGroupRequest{Namespace: "n", Name: "g"})
	requireCode(t, codes.NotFound, err, "n/g")
	_, err = s.GetGroup(ctx, &adminpb.GetGroupRequest{Namespace: "n", Name: "g"})
	requireCode(t, codes.NotFound, err, "n/g")
}

func TestAGroupWithoutAPolicyGetsTheDefault(t *testing.T) {
	s, ctx := newFixture(t), t.Context()
	for name, p := range map[string]*adminpb.RetryPolicy{"none": nil, "empty": {}, "attempts": {MaxAttempts: 3}} {
		created, err := s.CreateGroup(ctx, &adminpb.CreateGroupRequest{Name: name, Retry: p})
		require.NoError(t, err)
		attempts := int32(mq.DefaultMaxAttempts)
		if p.GetMaxAttempts() != 0 {
			attempts = p.GetMaxAttempts()
		}
		require.Equal(t, attempts, created.GetGroup().GetRetry().GetMaxAttempts())
		require.Len(t, created.GetGroup().GetRetry().GetCustomized(), 18)
		require.Equal(t, adminpb.StartPosition_POLICY_EARLIEST, created.GetGroup().GetStart().GetPolicy())
	}
}

func TestGroupsThatAreRefused(t *testing.T) {
	s, ctx := newFixture(t), t.Context()
	retry := func(p *adminpb.RetryPolicy) *adminpb.CreateGroupRequest {
		return &adminpb.CreateGroupRequest{Name: "g", Retry: p}
	}
	start := func(p adminpb.StartPosition_Policy, at *timestamppb.Timestamp) *adminpb.CreateGroupRequest {
		return &adminpb.CreateGroupRequest{Name: "g", Start: &adminpb.StartPosition{Policy: p, Time: at}}
	}
	sec := durationpb.New(time.Second)
	for _, c := range []struct {
		req  *adminpb.CreateGroupRequest
		code codes.Code
		text string
	}{
		{&adminpb.CreateGroupRequest{}, codes.InvalidArgument, "group"},
		{retry(&adminpb.RetryPolicy{MaxAttempts: -1}), codes.InvalidArgument, "max_attempts"},
		{retry(&adminpb.RetryPolicy{MaxAttempts: 1001}), codes.InvalidArgument, "max-attempts"},
		{retry(&adminpb.RetryPolicy{Customized: []*durationpb.Duration{sec, durationpb.New(-1)}}), codes.InvalidArgument, "customized[1]"},
		{retry(&adminpb.RetryPolicy{Customized: []*durationpb.Duration{{Seconds: math.MaxInt64}}}), codes.InvalidArgument, "customized[0]"},
		{retry(&adminpb.RetryPolicy{Initial: durationpb.New(13 * time.Hour)}), codes.InvalidArgument, "initial"},
		{retry(&adminpb.RetryPolicy{Initial: sec, Max: durationpb.New(-time.Second)}), codes.InvalidArgument, "max"},
		{retry(&adminpb.RetryPolicy{Initial: sec}), codes.InvalidArgument, "max"},
		{retry(&adminpb.RetryPolicy{Initial: sec, Max: sec, Multiplier: math.NaN()}), codes.InvalidArgument, "multiplier"},
		{start(9, nil), codes.InvalidArgument, "start.policy"},
		{start(adminpb.StartPosition_POLICY_TIMESTAMP, nil), codes.InvalidArgument, "start.time"},
		{start(adminpb.StartPosition_POLICY_LATEST, timestamppb.Now()), codes.InvalidArgument, "start.time"},
		{start(adminpb.StartPosition_POLICY_TIMESTAMP, &timestamppb.Timestamp{Seconds: -1}), codes.InvalidArgument, "start.time"},
		{start(adminpb.StartPosition_POLICY_TIMESTAMP, &timestamppb.Timestamp{Seconds: 1 << 62}), codes.InvalidArgument, "start.time"},
		{start(adminpb.StartPosition_POLICY_TIMESTAMP, &timestamppb.Timestamp{Nanos: -1}), codes.InvalidArgument, "start.time"},
	} {
		_, err := s.CreateGroup(ctx, c.req)
		requireCode(t, c.code, err, c.text)
		if c.req.Name == "" {
			continue
		}
		fifo := c.req.Fifo
		_, err = s.UpdateGroup(ctx, &adminpb.UpdateGroupRequest{Name: "g", Fifo: &fifo, Retry: c.req.Retry, Start: c.req.Start})
		require.NotEqual(t, codes.OK, status.Code(err))
	}
}

func TestTheProgressOfAGroupIsSummedOverShards(t *testing.T) {
	s, ctx := newFixture(t), t.Context()
	for _, name := range []string{"b", "a"} {
		_, err := s.CreateTopic(ctx, &adminpb.CreateTopicRequest{Name: name})
		require.NoError(t, err)
	}
	_, err := s.CreateGroup(ctx, &adminpb.CreateGroupRequest{Name: "g"})
	require.NoError(t, err)
	group, err := s.router.Group(ctx, mq.Resource{Name: "g"})
	require.NoError(t, err)
	for _, name := range []string{"b", "a"} {
		topic, err := s.router.Topic(ctx, mq.Resource{Name: name})
		require.NoError(t, err)
		for _, shard := range shards {
			var msgs []*mq.Message
			for i := range 5 {
				msgs = append(msgs, &mq.Message{ID: fmt.Sprint(i), Type: mq.Normal})
			}
			_, err = s.store.Append(ctx, shard, topic, 0, msgs)
			require.NoError(t, err)
			got, err := s.store.Receive(ctx, shard, mq.Receive{Topic: topic, Group: group, Max: 2, Invisible: time.Minute})
			require.NoError(t, err)
			require.Len(t, got, 2)
		}
	}
	resp, err := s.GetGroup(ctx, &adminpb.GetGroupRequest{Name: "g"})
	require.NoError(t, err)
	require.Len(t, resp.GetTopics(), 2)
	for i, name := range []string{"a", "b"} {
		require.True(t, proto.Equal(&adminpb.GroupTopic{Name: name, Ready: 6, InFlight: 4}, resp.GetTopics()[i]), resp)
	}
	_, err = s.DeleteTopic(ctx, &adminpb.DeleteTopicRequest{Name: "a"})
	require.NoError(t, err)
	resp, err = s.GetGroup(ctx, &adminpb.GetGroupRequest{Name: "g"})
	require.NoError(t, err)
	require.Len(t, resp.GetTopics(), 1)
}

func TestEverySentinelHasAStatusOfItsOwn(t *testing.T) {
	s := newFixture(t)
	for _, err := range []error{
		mq.ErrInvalid, mq.ErrIllegalTopic, mq.ErrIllegalGroup, mq.ErrTopicNotFound, mq.ErrTopicExists, mq.ErrGroupNotFound,
		mq.ErrGroupExists, mq.ErrQueueNotFound, mq.ErrShardNotFound, mq.ErrForbidden, mq.ErrInvalidReceipt, mq.ErrLeaseEnded,
		mq.ErrTooLarge, mq.ErrBusy, mq.ErrStopped, mq.ErrUnavailable, mq.ErrNotImplemented, context.Canceled, context.DeadlineExceeded,
	} {
		got := s.refusal(t.Context(), fmt.Errorf("about x: %w", err))
		require.NotContains(t, []codes.Code{codes.OK, codes.Unknown, codes.Internal}, status.Code(got), "%v", err)
		// What stopped a store names files of the server: that is not for clients.
		require.Equal(t, !errors.Is(err, mq.ErrStopped), strings.Contains(got.Error(), "about x"), "%v", err)
	}
	got := s.refusal(t.Context(), errors.New("secret"))
	require.Equal(t, codes.Internal, status.Code(got))
	require.NotContains(t, got.Error(), "secret")
}

func TestTheServiceIsRegistered(t *testing.T) {
	g := grpc.NewServer()
	newFixture(t).Register(g)
	require.Len(t, g.GetServiceInfo()["perigee.admin.v1.AdminService"].Methods, 14)
}

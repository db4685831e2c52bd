package admin

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

func TestTheLifeOfLiteTopicsIsSetAndShown(t *testing.T) {
	s, ctx := newFixture(t), t.Context()
	create := func(kind adminpb.TopicType, ttl time.Duration) (*adminpb.CreateTopicResponse, error) {
		return s.CreateTopic(ctx, &adminpb.CreateTopicRequest{Name: "a", Type: kind, LiteTtl: durationpb.New(ttl)})
	}
	const lite = adminpb.TopicType_TOPIC_TYPE_LITE
	for _, ttl := range []time.Duration{-1, time.Second, 31 * 24 * time.Hour} {
		_, err := create(lite, ttl)
		requireCode(t, codes.InvalidArgument, err, "lite-ttl")
	}
	_, err := create(adminpb.TopicType_TOPIC_TYPE_NORMAL, time.Hour)
	requireCode(t, codes.InvalidArgument, err, "lite-ttl")
	created, err := create(lite, time.Hour)
	require.NoError(t, err)
	require.Equal(t, time.Hour, created.GetTopic().GetLiteTtl().AsDuration())
	_, err = create(lite, 0)
	requireCode(t, codes.AlreadyExists, err, "lite-ttl 1h0m0s, not 0s")
	updated, err := s.UpdateTopic(ctx, &adminpb.UpdateTopicRequest{Name: "a", LiteTtl: durationpb.New(0)})
	require.NoError(t, err)
	require.Nil(t, updated.GetTopic().GetLiteTtl(), "for ever")
	queues := int32(2)
	_, err = s.UpdateTopic(ctx, &adminpb.UpdateTopicRequest{Name: "a", WriteQueues: &queues})
	requireCode(t, codes.InvalidArgument, err, "write_queues")
}

func TestAGroupIsBoundToTheLiteTopicsOfOneTopic(t *testing.T) {
	s, ctx := newFixture(t), t.Context()
	_, err := s.CreateGroup(ctx, &adminpb.CreateGroupRequest{Name: "g", LiteTopic: "a.b"})
	requireCode(t, codes.InvalidArgument, err, "lite-topic")
	created, err := s.CreateGroup(ctx, &adminpb.CreateGroupRequest{Name: "g", LiteTopic: "parent", LiteExclusive: true})
	require.NoError(t, err)
	require.Equal(t, "parent", created.GetGroup().GetLiteTopic())
	require.True(t, created.GetGroup().GetLiteExclusive())
	_, err = s.CreateGroup(ctx, &adminpb.CreateGroupRequest{Name: "g", LiteTopic: "parent"})
	requireCode(t, codes.AlreadyExists, err, "lite-exclusive")
	_, err = s.CreateGroup(ctx, &adminpb.CreateGroupRequest{Name: "g", LiteExclusive: true})
	requireCode(t, codes.AlreadyExists, err, "lite-topic")
	updated, err := s.UpdateGroup(ctx, &adminpb.UpdateGroupRequest{Name: "g", LiteTopic: new(""), LiteExclusive: new(false)})
	require.NoError(t, err)
	require.EqualValues(t, 2, updated.GetGroup().GetVersion())
	require.Empty(t, updated.GetGroup().GetLiteTopic())
	require.False(t, updated.GetGroup().GetLiteExclusive())
}

func TestDeadLettersOfLiteTopicsGoBackThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixtureOn(t, shards[:1])
		topic, _, err := f.router.CreateTopic(t.Context(), router.TopicSpec{Resource: mq.Resource{Name: "parent"}, Type: mq.TopicLite, Queues: 2})
		require.NoError(t, err)
		group, _, err := f.router.CreateGroup(t.Context(), router.GroupSpec{Resource: mq.Resource{Name: "workers"}})
		require.NoError(t, err)
		_, err = f.store.SyncLite(t.Context(), mq.LiteSync{Topic: topic, Group: group, Client: "c"}, map[string][]string{shards[0]: {"a", "b"}})
		require.NoError(t, err)
		for _, lite := range []string{"a", "b"} {
			for _, n := range []string{"1", "2"} {
				system, err := proto.Marshal(&rmqpb.SystemProperties{MessageId: lite + n, MessageType: rmqpb.MessageType_LITE, LiteTopic: &lite})
				require.NoError(t, err)
				_, err = f.store.Append(t.Context(), shards[0], topic, 0, []*mq.Message{
					{ID: lite + n, Type: mq.Lite, Lite: lite, System: system, Body: []byte(lite + n)},
				})
				require.NoError(t, err)
			}
		}
		receive := func() []mq.Delivery {
			got, err := f.store.Receive(t.Context(), shards[0], mq.Receive{Topic: topic, Group: group, Lite: "c", Max: 32, Invisible: time.Hour})
			require.NoError(t, err)
			require.Len(t, got, 4)
			return got
		}
		for _, d := range receive() {
			require.NoError(t, f.store.DeadLetter(t.Context(), d.Lease))
		}
		described, err := f.GetTopic(t.Context(), &adminpb.GetTopicRequest{Name: "parent"})
		require.NoError(t, err)
		require.EqualValues(t, 2, described.GetLiteTopics())
		resp := f.redrive(t, "workers", 100)
		require.EqualValues(t, 4, resp.GetRedriven(), "%v", resp)
		order := map[string][]string{}
		for _, d := range receive() {
			var system rmqpb.SystemProperties
			require.NoError(t, proto.Unmarshal(d.System, &system))
			require.Equal(t, rmqpb.MessageType_LITE, system.GetMessageType())
			order[system.GetLiteTopic()] = append(order[system.GetLiteTopic()], d.ID)
		}
		require.Equal(t, map[string][]string{"a": {"a1", "a2"}, "b": {"b1", "b2"}}, order)
	})
}

func TestWhatWaitsInLiteTopicsIsShownAndPurged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixtureOn(t, shards)
		topic, _, err := f.router.CreateTopic(t.Context(), router.TopicSpec{Resource: mq.Resource{Name: "parent"}, Type: mq.TopicLite, Queues: 2})
		require.NoError(t, err)
		group, _, err := f.router.CreateGroup(t.Context(), router.GroupSpec{Resource: mq.Resource{Name: "workers"}})
		require.NoError(t, err)
		names := map[string][]string{shards[0]: {"a", "b"}, shards[1]: {"c"}}
		_, err = f.store.SyncLite(t.Context(), mq.LiteSync{Topic: topic, Group: group, Client: "c"}, names)
		require.NoError(t, err)
		round := 0
		send := func(n int) {
			round++
			for shard, list := range names {
				for _, lite := range list {
					for i := range n {
						_, err := f.store.Append(t.Context(), shard, topic, 0, []*mq.Message{{ID: fmt.Sprint(lite, round, i), Type: mq.Lite, Lite: lite}})
						require.NoError(t, err)
					}
				}
			}
		}
		describe := func() (*adminpb.GetTopicResponse, *adminpb.GroupTopic) {
			described, err := f.GetTopic(t.Context(), &adminpb.GetTopicRequest{Name: "parent"})
			require.NoError(t, err)
			groups, err := f.GetGroup(t.Context(), &adminpb.GetGroupRequest{Name: "workers"})
			require.NoError(t, err)
			require.Len(t, groups.GetTopics(), 1)
			return described, groups.GetTopics()[0]
		}
		send(3)
		time.Sleep(time.Minute)
		got, err := f.store.Receive(t.Context(), shards[1], mq.Receive{Topic: topic, Group: group, Lite: "c", Max: 2, Invisible: time.Hour})
		require.NoError(t, err)
		require.Len(t, got, 2)
		described, p := describe()
		require.Equal(t, [...]int64{3, 9}, [...]int64{described.GetLiteTopics(), described.GetLiteMessages()})
		require.Equal(t, [...]int64{7, 2, 3}, [...]int64{p.GetReady(), p.GetInFlight(), p.GetLiteTopics()})
		require.InDelta(t, 60, p.GetLiteOldestAge().AsDuration().Seconds(), 1)

		purged, err := f.PurgeTopic(t.Context(), &adminpb.PurgeTopicRequest{Name: "parent"})
		require.NoError(t, err)
		require.EqualValues(t, 9, purged.GetPurged())
		described, p = describe()
		require.Zero(t, described.GetLiteTopics()+described.GetLiteMessages())
		require.Zero(t, p.GetReady()+p.GetInFlight()+p.GetLiteTopics())
		require.Nil(t, p.GetLiteOldestAge())

		// What comes afterwards is received, by those who had subscribed before.
		send(1)
		for shard, list := range names {
			got, err := f.store.Receive(t.Context(), shard, mq.Receive{Topic: topic, Group: group, Lite: "c", Max: 32, Invisible: time.Hour})
			require.NoError(t, err)
			require.Len(t, got, len(list))
		}
	})
}

// Its ordinary queues are always empty: to set offsets there would do nothing, and say that
// it has.
func TestOffsetsOfALiteTopicsQueuesAreNotSet(t *testing.T) {
	s, ctx := newFixture(t), t.Context()
	_, err := s.CreateTopic(ctx, &adminpb.CreateTopicRequest{Name: "parent", Type: adminpb.TopicType_TOPIC_TYPE_LITE})
	require.NoError(t, err)
	_, err = s.CreateGroup(ctx, &adminpb.CreateGroupRequest{Name: "g"})
	require.NoError(t, err)
	_, err = s.ResetOffset(ctx, &adminpb.ResetOffsetRequest{Group: "g", Topic: "parent", Target: &adminpb.ResetOffsetRequest_End_{End: adminpb.ResetOffsetRequest_END_LATEST}})
	requireCode(t, codes.InvalidArgument, err, "SyncLiteSubscription")
}

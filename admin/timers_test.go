package admin

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/receipt"
)

// delay sends a delayed message to a queue of a shard, and returns its recall handle.
func (f *fixture) delay(t *testing.T, topic, shard, id string, in time.Duration) string {
	tp, err := f.router.Topic(t.Context(), mq.Resource{Name: topic})
	require.NoError(t, err)
	a, err := f.store.Append(t.Context(), shard, tp, 0, []*mq.Message{{ID: id, Type: mq.Delay, Body: []byte("x"), DeliverAt: time.Now().Add(in)}})
	require.NoError(t, err)
	return receipt.EncodePending(mq.PendingHandle{Shard: shard, Topic: tp.ID, ID: a[0].Pending, MessageID: id})
}

func (f *fixture) timers(t *testing.T, req *adminpb.ListTimersRequest) (list []*adminpb.Timer) {
	for {
		resp, err := f.ListTimers(t.Context(), req)
		require.NoError(t, err)
		list = append(list, resp.GetTimers()...)
		if req.PageToken = resp.GetNextPageToken(); req.PageToken == "" {
			return list
		}
	}
}

func (f *fixture) delayed(t *testing.T) (handles map[string]string) {
	for _, name := range []string{"a", "b"} {
		_, err := f.CreateTopic(t.Context(), &adminpb.CreateTopicRequest{Name: name, Type: adminpb.TopicType_TOPIC_TYPE_DELAY})
		require.NoError(t, err)
	}
	handles = map[string]string{}
	for i := range 10 {
		id := fmt.Sprint("m", i)
		handles[id] = f.delay(t, "a", shards[i%2], id, time.Duration(10-i)*time.Minute)
	}
	handles["other"] = f.delay(t, "b", "s1", "other", time.Hour)
	return handles
}

func TestDelayedMessagesOfATopicAreListedCountedAndFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFixture(t)
		s.delayed(t)
		for _, size := range []int32{0, 1, 3, 5, 1000} {
			var ids []string
			for _, timer := range s.timers(t, &adminpb.ListTimersRequest{Topic: "a", PageSize: size}) {
				ids = append(ids, timer.GetMessageId())
			}
			require.Equal(t, []string{"m8", "m6", "m4", "m2", "m0", "m9", "m7", "m5", "m3", "m1"}, ids, "page of %d", size)
		}
		resp, err := s.ListTimers(t.Context(), &adminpb.ListTimersRequest{Topic: "a", PageSize: 1})
		require.NoError(t, err)
		require.EqualValues(t, 10, resp.GetPending())
		one := s.timers(t, &adminpb.ListTimersRequest{Topic: "a", MessageId: "m3"})
		require.Len(t, one, 1)
		require.Equal(t, time.Now().Add(7*time.Minute).UTC(), one[0].GetDeliverAt().AsTime())
		require.Equal(t, "s2", one[0].GetShard())
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		require.Len(t, s.timers(t, &adminpb.ListTimersRequest{Topic: "a"}), 5)
		_, err = s.ListTimers(t.Context(), &adminpb.ListTimersRequest{Topic: "c"})
		requireCode(t, codes.NotFound, err, `"c"`)
		for _, token := range []string{"x", "0.1", "2.1.1", "-1.1.1", "0.01.1", "0.x.1"} {
			_, err = s.ListTimers(t.Context(), &adminpb.ListTimersRequest{Topic: "a", PageToken: token})
			requireCode(t, codes.InvalidArgument, err, "page_token")
		}
	})
}

func TestDelayedMessagesAreCancelledAndPostponedByIDOrHandle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFixture(t)
		handles := s.delayed(t)
		byID := map[string]string{}
		for _, timer := range s.timers(t, &adminpb.ListTimersRequest{Topic: "a"}) {
			byID[timer.GetMessageId()] = timer.GetId()
		}
		ids := []string{byID["m0"], handles["m1"], handles["other"], "s1/999", "nonsense", "s9/7", byID["m0"]}
		resp, err := s.CancelTimers(t.Context(), &adminpb.CancelTimersRequest{Topic: "a", Ids: ids})
		require.NoError(t, err)
		for i, want := range []string{"", "", "another topic", "not pending", "invalid handle", "must be a shard of the topic", ""} {
			got := resp.GetResults()[i]
			require.Equal(t, ids[i], got.GetId())
			require.Contains(t, got.GetError(), want)
			require.Equal(t, want == "", got.GetError() == "", got.GetError())
		}
		require.Len(t, s.timers(t, &adminpb.ListTimersRequest{Topic: "a"}), 8)

		until := time.Now().Add(40 * 24 * time.Hour)
		post, err := s.PostponeTimers(t.Context(), &adminpb.PostponeTimersRequest{
			Topic: "a", Ids: []string{byID["m2"], handles["m1"]}, DeliverAt: timestamppb.New(until),
		})
		require.NoError(t, err)
		require.Empty(t, post.GetResults()[0].GetError())
		require.Contains(t, post.GetResults()[1].GetError(), "recalled")
		require.Equal(t, until.UTC(), s.timers(t, &adminpb.ListTimersRequest{Topic: "a", MessageId: "m2"})[0].GetDeliverAt().AsTime())
		_, err = s.PostponeTimers(t.Context(), &adminpb.PostponeTimersRequest{Topic: "a", Ids: ids, DeliverAt: timestamppb.New(until.Add(time.Second))})
		requireCode(t, codes.InvalidArgument, err, "max_delay")
		_, err = s.PostponeTimers(t.Context(), &adminpb.PostponeTimersRequest{Topic: "a", Ids: ids})
		requireCode(t, codes.InvalidArgument, err, "deliver_at")
		for _, bad := range []*adminpb.PostponeTimersRequest{
			{Delay: durationpb.New(-1)}, {Delay: &durationpb.Duration{Seconds: 1, Nanos: -1}}, {Delay: durationpb.New(time.Hour), DeliverAt: timestamppb.New(until)},
		} {
			bad.Topic, bad.Ids = "a", ids
			_, err = s.PostponeTimers(t.Context(), bad)
			requireCode(t, codes.InvalidArgument, err, "delay")
		}
		_, err = s.PostponeTimers(t.Context(), &adminpb.PostponeTimersRequest{Topic: "a", Ids: ids, Delay: durationpb.New(961 * time.Hour)})
		requireCode(t, codes.InvalidArgument, err, "max_delay")
		post, err = s.PostponeTimers(t.Context(), &adminpb.PostponeTimersRequest{Topic: "a", Ids: []string{byID["m2"]}, Delay: durationpb.New(3 * time.Hour)})
		require.NoError(t, err)
		require.Empty(t, post.GetResults()[0].GetError())
		require.Equal(t, time.Now().Add(3*time.Hour).UTC(), s.timers(t, &adminpb.ListTimersRequest{Topic: "a", MessageId: "m2"})[0].GetDeliverAt().AsTime(),
			"by the clock of the server")
		_, err = s.CancelTimers(t.Context(), &adminpb.CancelTimersRequest{Topic: "a"})
		requireCode(t, codes.InvalidArgument, err, "ids")

		_, err = s.PostponeTimers(t.Context(), &adminpb.PostponeTimersRequest{Topic: "a", Ids: []string{byID["m4"]}, DeliverAt: timestamppb.Now()})
		require.NoError(t, err)
		synctest.Wait()
		require.Empty(t, s.timers(t, &adminpb.ListTimersRequest{Topic: "a", MessageId: "m4"}), "delivered at once")
		purged, err := s.PurgeTopic(t.Context(), &adminpb.PurgeTopicRequest{Name: "a"})
		require.NoError(t, err)
		require.EqualValues(t, 1, purged.GetPurged())
		require.Empty(t, s.timers(t, &adminpb.ListTimersRequest{Topic: "a"}))
		require.Len(t, s.timers(t, &adminpb.ListTimersRequest{Topic: "b"}), 1)
	})
}

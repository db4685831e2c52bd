package admin

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

// sendOn stores n messages in a queue of a shard.
func (f *fixture) sendOn(t *testing.T, shard string, topic *mq.Topic, queue mq.QueueID, n int) {
	t.Helper()
	for i := range n {
		_, err := f.store.Append(t.Context(), shard, topic, queue, []*mq.Message{{ID: fmt.Sprint(shard, queue, i, time.Now()), Type: mq.Normal, Body: []byte("body")}})
		require.NoError(t, err)
	}
}

func (f *fixture) receive(t *testing.T, shard string, topic *mq.Topic, group *mq.Group, most int) []mq.Delivery {
	t.Helper()
	got, err := f.store.Receive(t.Context(), shard, mq.Receive{Topic: topic, Group: group, Max: most, Invisible: time.Minute})
	require.NoError(t, err)
	return got
}

// lines returns the positions as a person would write them.
func (f *fixture) lines(t *testing.T, group, topic string) (lines []string) {
	t.Helper()
	resp, err := f.ListPositions(t.Context(), &adminpb.ListPositionsRequest{Group: group, Topic: topic})
	require.NoError(t, err)
	for _, of := range resp.GetTopics() {
		for _, q := range of.GetQueues() {
			at := "nowhere"
			if q.Offset != nil {
				at = fmt.Sprint(q.GetOffset())
			}
			lines = append(lines, fmt.Sprintf("%s %s/%d %d-%d at %s: %d ready, %d in flight, %d used up",
				of.GetTopic(), q.GetShard(), q.GetQueue(), q.GetMinOffset(), q.GetMaxOffset(), at, q.GetReady(), q.GetInFlight(), q.GetUsedUp()))
		}
	}
	return lines
}

func TestAResetEndsWhatIsUnderWayAndGoesOnFromThereOnEveryShard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, ctx := newFixture(t), t.Context()
		topic, _, err := s.router.CreateTopic(ctx, router.TopicSpec{Resource: mq.Resource{Name: "t"}, Queues: 1})
		require.NoError(t, err)
		group := s.group(t, "g")
		reset := func(req *adminpb.ResetOffsetRequest) []string {
			t.Helper()
			req.Group, req.Topic = "g", "t"
			resp, err := s.ResetOffset(ctx, req)
			require.NoError(t, err)
			var lines []string
			for _, q := range resp.GetQueues() {
				lines = append(lines, fmt.Sprintf("%s/%d to %d", q.GetBefore().GetShard(), q.GetBefore().GetQueue(), q.GetOffset()))
			}
			return lines
		}
		s.sendOn(t, "s1", topic, 0, 5)
		s.sendOn(t, "s2", topic, 0, 2)
		time.Sleep(time.Hour)
		middle := time.Now()
		s.sendOn(t, "s1", topic, 0, 3)
		require.Equal(t, []string{
			"t s1/0 0-8 at nowhere: 0 ready, 0 in flight, 0 used up", "t s2/0 0-2 at nowhere: 0 ready, 0 in flight, 0 used up",
		}, s.lines(t, "g", "t"))
		require.Empty(t, s.lines(t, "g", ""), "it has a place in no topic")

		first := s.receive(t, "s1", topic, group, 4)
		require.NoError(t, s.store.Ack(ctx, []mq.Lease{first[0].Lease})[0])
		s.receive(t, "s2", topic, group, 2)
		before := []string{
			"t s1/0 0-8 at 4: 4 ready, 3 in flight, 0 used up", "t s2/0 0-2 at 2: 0 ready, 2 in flight, 0 used up",
		}
		require.Equal(t, before, s.lines(t, "g", ""))

		toMiddle := func(dry bool) *adminpb.ResetOffsetRequest {
			return &adminpb.ResetOffsetRequest{Target: &adminpb.ResetOffsetRequest_Time{Time: timestamppb.New(middle)}, DryRun: dry}
		}
		want := []string{"s1/0 to 5", "s2/0 to 2"}
		require.Equal(t, want, reset(toMiddle(true)))
		require.Equal(t, before, s.lines(t, "g", ""), "a dry run changes nothing")
		require.Equal(t, want, reset(toMiddle(false)))
		require.Equal(t, []string{
			"t s1/0 0-8 at 5: 3 ready, 0 in flight, 0 used up", "t s2/0 0-2 at 2: 0 ready, 0 in flight, 0 used up",
		}, s.lines(t, "g", ""))
		require.ErrorIs(t, s.store.Ack(ctx, []mq.Lease{first[1].Lease})[0], mq.ErrLeaseEnded)
		again := s.receive(t, "s1", topic, group, 32)
		require.Len(t, again, 3, "those since then, once each")
		time.Sleep(2 * time.Minute)
		require.Len(t, s.receive(t, "s1", topic, group, 32), 3, "and again only because nobody acknowledged them")

		end := func(end adminpb.ResetOffsetRequest_End) *adminpb.ResetOffsetRequest {
			return &adminpb.ResetOffsetRequest{Target: &adminpb.ResetOffsetRequest_End_{End: end}}
		}
		require.Equal(t, []string{"s1/0 to 8", "s2/0 to 2"}, reset(end(adminpb.ResetOffsetRequest_END_LATEST)))
		time.Sleep(2 * time.Minute)
		require.Empty(t, s.receive(t, "s1", topic, group, 32), "the old backlog, what was in flight and the retries have stopped")
		require.Equal(t, []string{"s1/0 to 0", "s2/0 to 0"}, reset(end(adminpb.ResetOffsetRequest_END_EARLIEST)))
		require.Len(t, s.receive(t, "s1", topic, group, 32), 8)

		require.Equal(t, []string{"s2/0 to 1"}, reset(&adminpb.ResetOffsetRequest{
			Target: &adminpb.ResetOffsetRequest_Offset{Offset: 1}, Shard: "s2", Queue: new(int32(0)),
		}))
		require.Len(t, s.receive(t, "s2", topic, group, 32), 1)
	})
}

func TestResetsThatAreRefused(t *testing.T) {
	s, ctx := newFixture(t), t.Context()
	topic, _ := s.topic(t, "t"), s.group(t, "g")
	s.sendOn(t, "s1", topic, 0, 2)
	latest := &adminpb.ResetOffsetRequest_End_{End: adminpb.ResetOffsetRequest_END_LATEST}
	for _, c := range []struct {
		req  *adminpb.ResetOffsetRequest
		code codes.Code
		text string
	}{
		{&adminpb.ResetOffsetRequest{Group: "g", Topic: "t"}, codes.InvalidArgument, "target"},
		{&adminpb.ResetOffsetRequest{Group: "g", Topic: "t", Target: &adminpb.ResetOffsetRequest_End_{}}, codes.InvalidArgument, "end"},
		{&adminpb.ResetOffsetRequest{Group: "g", Topic: "t", Target: &adminpb.ResetOffsetRequest_Time{}}, codes.InvalidArgument, "time"},
		{&adminpb.ResetOffsetRequest{Group: "none", Topic: "t", Target: latest}, codes.NotFound, "none"},
		{&adminpb.ResetOffsetRequest{Group: "g", Topic: "none", Target: latest}, codes.NotFound, "none"},
		{&adminpb.ResetOffsetRequest{Group: mq.RedriveGroup, Topic: "t", Target: latest}, codes.InvalidArgument, "reserved"},
		{&adminpb.ResetOffsetRequest{Group: "g", Topic: "t", Target: latest, Shard: "s9"}, codes.NotFound, "s9"},
		{&adminpb.ResetOffsetRequest{Group: "g", Topic: "t", Target: latest, Queue: new(int32(9))}, codes.NotFound, "queue 9"},
		{&adminpb.ResetOffsetRequest{Group: "g", Topic: "t", Shard: "s1", Target: &adminpb.ResetOffsetRequest_Offset{}}, codes.InvalidArgument, "queue"},
		{&adminpb.ResetOffsetRequest{Group: "g", Topic: "t", Queue: new(int32(0)), Target: &adminpb.ResetOffsetRequest_Offset{}}, codes.InvalidArgument, "shard"},
		{&adminpb.ResetOffsetRequest{Group: "g", Topic: "t", Shard: "s1", Queue: new(int32(0)), Target: &adminpb.ResetOffsetRequest_Offset{Offset: 3}}, codes.OutOfRange, "between 0"},
		{&adminpb.ResetOffsetRequest{Group: "g", Topic: "t", Shard: "s1", Queue: new(int32(0)), Target: &adminpb.ResetOffsetRequest_Offset{Offset: -1}}, codes.OutOfRange, "offset -1"},
	} {
		for _, dry := range []bool{true, false} {
			c.req.DryRun = dry
			_, err := s.ResetOffset(ctx, c.req)
			requireCode(t, c.code, err, c.text)
		}
	}
	require.Empty(t, s.lines(t, "g", ""), "nothing was set")
	_, err := s.ListPositions(ctx, &adminpb.ListPositionsRequest{Group: "none"})
	requireCode(t, codes.NotFound, err, "none")
	_, err = s.ListPositions(ctx, &adminpb.ListPositionsRequest{Group: "g", Topic: "none"})
	requireCode(t, codes.NotFound, err, "none")
}

// TestADeletedTopicIsLeftOutOfThePositions: its store may hear of it later.
func TestADeletedTopicIsLeftOutOfThePositions(t *testing.T) {
	s := newFixture(t)
	topic, group := s.topic(t, "t"), s.group(t, "g")
	s.sendOn(t, "s1", topic, 0, 1)
	s.receive(t, "s1", topic, group, 1)
	require.NotEmpty(t, s.lines(t, "g", ""))
	_, err := s.router.DeleteTopic(t.Context(), mq.Resource{Name: "t"})
	require.NoError(t, err)
	require.Empty(t, s.lines(t, "g", ""))
}

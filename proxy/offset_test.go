package proxy

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

// queryOffsetIn returns what QueryOffset says of queue 0.
func (s *testServer) queryOffsetIn(t testing.TB, topic string, policy rmqpb.QueryOffsetPolicy, at time.Time) int64 {
	t.Helper()
	req := &rmqpb.QueryOffsetRequest{MessageQueue: queueNumber(topic, 0), QueryOffsetPolicy: policy}
	if !at.IsZero() {
		req.Timestamp = timestamppb.New(at)
	}
	res, err := s.QueryOffset(as(t, "c"), req)
	require.NoError(t, err)
	require.Equal(t, rmqpb.Code_OK, res.GetStatus().GetCode(), res.GetStatus().GetMessage())
	return res.GetOffset()
}

// offsetIn returns what GetOffset says of a queue, -1 for OFFSET_NOT_FOUND.
func (s *testServer) offsetIn(t testing.TB, topic, group string, queue int32) int64 {
	t.Helper()
	res, err := s.GetOffset(as(t, "c"), &rmqpb.GetOffsetRequest{Group: named(group), MessageQueue: queueNumber(topic, queue)})
	require.NoError(t, err)
	if res.GetStatus().GetCode() == rmqpb.Code_OFFSET_NOT_FOUND {
		require.Contains(t, res.GetStatus().GetMessage(), group)
		return -1
	}
	require.Equal(t, rmqpb.Code_OK, res.GetStatus().GetCode(), res.GetStatus().GetMessage())
	return res.GetOffset()
}

func (s *testServer) setOffset(t testing.TB, topic, group string, queue int32, offset int64) *rmqpb.Status {
	t.Helper()
	res, err := s.UpdateOffset(as(t, "c"), &rmqpb.UpdateOffsetRequest{Group: named(group), MessageQueue: queueNumber(topic, queue), Offset: offset})
	require.NoError(t, err)
	return res.GetStatus()
}

// TestOffsetsTellAndMoveWhereAGroupIs: of a hundred messages forty are acknowledged.
func TestOffsetsTellAndMoveWhereAGroupIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a", router.TopicSpec{Queues: 1})
		start := time.Now()
		for range 100 {
			s.sendIn(t, "a", 1)
			time.Sleep(time.Millisecond)
		}
		require.EqualValues(t, 0, s.queryOffsetIn(t, "a", rmqpb.QueryOffsetPolicy_BEGINNING, time.Time{}))
		require.EqualValues(t, 100, s.queryOffsetIn(t, "a", rmqpb.QueryOffsetPolicy_END, time.Time{}))
		for i := range int64(100) {
			at := start.Add(time.Duration(i) * time.Millisecond)
			require.Equal(t, i, s.queryOffsetIn(t, "a", rmqpb.QueryOffsetPolicy_TIMESTAMP, at), "right to the millisecond")
		}
		require.EqualValues(t, 0, s.queryOffsetIn(t, "a", rmqpb.QueryOffsetPolicy_TIMESTAMP, start.Add(-time.Hour)))
		require.EqualValues(t, 100, s.queryOffsetIn(t, "a", rmqpb.QueryOffsetPolicy_TIMESTAMP, start.Add(time.Hour)))
		require.EqualValues(t, -1, s.offsetIn(t, "a", "g", 0), "the group does not even exist")

		c := s.consumer("a", "g")
		var handles []string
		for _, most := range []int32{32, 8} {
			got := c.receive(t, c.simple(most, time.Minute, 0))
			require.Len(t, got.messages, int(most))
			for i := range got.messages {
				handles = append(handles, got.handle(i))
			}
		}
		c.acked(t, handles...)
		require.EqualValues(t, 40, s.offsetIn(t, "a", "g", 0))

		require.Equal(t, rmqpb.Code_OK, s.setOffset(t, "a", "g", 0, 10).GetCode())
		require.EqualValues(t, 10, s.offsetIn(t, "a", "g", 0))
		got := c.receive(t, c.simple(32, time.Minute, 0))
		require.Equal(t, "m11", got.ids()[0], "from there on, acknowledged or not")
		require.EqualValues(t, 1, got.attempts()[0])
		require.Equal(t, rmqpb.Code_OK, s.setOffset(t, "a", "g", 0, 100).GetCode())
		require.Equal(t, rmqpb.Code_OK, s.setOffset(t, "a", "g", 0, 99).GetCode(), "the last one wins")
		require.Equal(t, []string{"m100"}, c.receive(t, c.simple(32, time.Minute, 0)).ids())
		c.acked(t, got.handle(0))
	})
}

func TestAGroupThatPullsHasAPlaceOnlyWhereItHasSetOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a", router.TopicSpec{Queues: 2})
		require.Equal(t, rmqpb.Code_OK, s.setOffset(t, "a", "g", 1, 0).GetCode(), "of an empty queue")
		require.EqualValues(t, 0, s.offsetIn(t, "a", "g", 1))
		require.EqualValues(t, -1, s.offsetIn(t, "a", "g", 0))
		_, err := s.meta.Group(t.Context(), mq.Resource{Name: "g"})
		require.NoError(t, err, "it was made by its first use")
		require.Equal(t, rmqpb.Code_ILLEGAL_OFFSET, s.setOffset(t, "a", "g2", 1, 1).GetCode())
		_, err = s.meta.Group(t.Context(), mq.Resource{Name: "g2"})
		require.ErrorIs(t, err, mq.ErrGroupNotFound, "what is refused makes none")
	})
}

func TestEveryCodeOfTheOffsetCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t, func(o *testOptions) { o.router.AutoCreateGroups = false })
		s.topic(t, "a", router.TopicSpec{Queues: 1})
		s.group(t, "g")
		s.sendIn(t, "a", 3)
		require.NoError(t, s.nodes.PurgeTopic(t.Context(), s.topicNamed(t, "a").ID))
		s.sendIn(t, "a", 2)
		policy, end := rmqpb.QueryOffsetPolicy(3), rmqpb.QueryOffsetPolicy_TIMESTAMP
		for _, c := range []struct {
			what string
			req  any
			code rmqpb.Code
			text string
		}{
			{"set below", &rmqpb.UpdateOffsetRequest{Group: named("g"), MessageQueue: queueNumber("a", 0), Offset: 2}, rmqpb.Code_ILLEGAL_OFFSET, "offset 2: of queue 0 of topic a it must lie between 3, the oldest message, and 5, behind the newest"},
			{"set beyond", &rmqpb.UpdateOffsetRequest{Group: named("g"), MessageQueue: queueNumber("a", 0), Offset: 6}, rmqpb.Code_ILLEGAL_OFFSET, "offset 6"},
			{"set negative", &rmqpb.UpdateOffsetRequest{Group: named("g"), MessageQueue: queueNumber("a", 0), Offset: -1}, rmqpb.Code_ILLEGAL_OFFSET, "offset -1"},
			{"set at the beginning", &rmqpb.UpdateOffsetRequest{Group: named("g"), MessageQueue: queueNumber("a", 0), Offset: 3}, rmqpb.Code_OK, "OK"},
			{"set at the end", &rmqpb.UpdateOffsetRequest{Group: named("g"), MessageQueue: queueNumber("a", 0), Offset: 5}, rmqpb.Code_OK, "OK"},
			{"set by no group", &rmqpb.UpdateOffsetRequest{Group: named("none"), MessageQueue: queueNumber("a", 0), Offset: 3}, rmqpb.Code_CONSUMER_GROUP_NOT_FOUND, "none"},
			{"set by an illegal group", &rmqpb.UpdateOffsetRequest{Group: named("a.b"), MessageQueue: queueNumber("a", 0), Offset: 3}, rmqpb.Code_ILLEGAL_CONSUMER_GROUP, "a.b"},
			{"set in no topic", &rmqpb.UpdateOffsetRequest{Group: named("g"), MessageQueue: queueNumber("none", 0)}, rmqpb.Code_TOPIC_NOT_FOUND, "none"},
			{"set in an illegal topic", &rmqpb.UpdateOffsetRequest{Group: named("g"), MessageQueue: queueNumber("a.b", 0)}, rmqpb.Code_ILLEGAL_TOPIC, "a.b"},
			{"set in no queue", &rmqpb.UpdateOffsetRequest{Group: named("g"), MessageQueue: queueNumber("a", 1)}, rmqpb.Code_TOPIC_NOT_FOUND, "message_queue.id 1"},
			{"get", &rmqpb.GetOffsetRequest{Group: named("g"), MessageQueue: queueNumber("a", 0)}, rmqpb.Code_OK, "OK"},
			{"get of no group", &rmqpb.GetOffsetRequest{Group: named("none"), MessageQueue: queueNumber("a", 0)}, rmqpb.Code_OFFSET_NOT_FOUND, "none"},
			{"get of an illegal group", &rmqpb.GetOffsetRequest{MessageQueue: queueNumber("a", 0)}, rmqpb.Code_ILLEGAL_CONSUMER_GROUP, "group"},
			{"get in no topic", &rmqpb.GetOffsetRequest{Group: named("g"), MessageQueue: queueNumber("none", 0)}, rmqpb.Code_TOPIC_NOT_FOUND, "none"},
			{"get in no queue", &rmqpb.GetOffsetRequest{Group: named("g"), MessageQueue: queueNumber("a", -1)}, rmqpb.Code_TOPIC_NOT_FOUND, "message_queue.id -1"},
			{"query without a time", &rmqpb.QueryOffsetRequest{MessageQueue: queueNumber("a", 0), QueryOffsetPolicy: end}, rmqpb.Code_BAD_REQUEST, "timestamp"},
			{"query at no time", &rmqpb.QueryOffsetRequest{MessageQueue: queueNumber("a", 0), QueryOffsetPolicy: end, Timestamp: &timestamppb.Timestamp{Nanos: -1}}, rmqpb.Code_BAD_REQUEST, "timestamp"},
			{"query by no policy", &rmqpb.QueryOffsetRequest{MessageQueue: queueNumber("a", 0), QueryOffsetPolicy: policy}, rmqpb.Code_BAD_REQUEST, "query_offset_policy 3"},
			{"query in no topic", &rmqpb.QueryOffsetRequest{MessageQueue: queueNumber("none", 0)}, rmqpb.Code_TOPIC_NOT_FOUND, "none"},
			{"query in no queue", &rmqpb.QueryOffsetRequest{MessageQueue: queueNumber("a", 9)}, rmqpb.Code_TOPIC_NOT_FOUND, "message_queue.id 9"},
		} {
			var st *rmqpb.Status
			switch req := c.req.(type) {
			case *rmqpb.UpdateOffsetRequest:
				res, err := s.UpdateOffset(as(t, "c"), req)
				require.NoError(t, err)
				st = res.GetStatus()
			case *rmqpb.GetOffsetRequest:
				res, err := s.GetOffset(as(t, "c"), req)
				require.NoError(t, err)
				st = res.GetStatus()
			case *rmqpb.QueryOffsetRequest:
				res, err := s.QueryOffset(as(t, "c"), req)
				require.NoError(t, err)
				st = res.GetStatus()
			}
			require.Equal(t, c.code, st.GetCode(), "%s: %s", c.what, st.GetMessage())
			require.Contains(t, st.GetMessage(), c.text, c.what)
		}
		require.EqualValues(t, 3, s.queryOffsetIn(t, "a", rmqpb.QueryOffsetPolicy_BEGINNING, time.Time{}))
		require.EqualValues(t, 3, s.queryOffsetIn(t, "a", rmqpb.QueryOffsetPolicy_TIMESTAMP, time.Unix(0, 0)), "never what is gone")
	})
}

// TestNamesThatAreDeletedAndMadeAgainBeginAnew: offsets, leases and receipts of another
// life mean nothing.
func TestNamesThatAreDeletedAndMadeAgainBeginAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		deleted := func(what string) {
			t.Helper()
			switch what {
			case "topic":
				topic, err := s.meta.DeleteTopic(t.Context(), mq.Resource{Name: "a"})
				require.NoError(t, err)
				require.NoError(t, s.nodes.DeleteTopic(t.Context(), topic.ID))
				s.topic(t, "a", router.TopicSpec{Queues: 1})
			case "group":
				group, err := s.meta.DeleteGroup(t.Context(), mq.Resource{Name: "g"})
				require.NoError(t, err)
				require.NoError(t, s.nodes.DeleteGroup(t.Context(), group.ID))
			}
		}
		s.topic(t, "a", router.TopicSpec{Queues: 1})
		c := s.consumer("a", "g")
		for _, what := range []string{"topic", "group", "topic"} {
			s.sendIn(t, "a", 8)
			got := c.receive(t, c.simple(3, time.Minute, 0))
			require.Len(t, got.messages, 3)
			before := s.queryOffsetIn(t, "a", rmqpb.QueryOffsetPolicy_END, time.Time{})
			deleted(what)
			require.EqualValues(t, -1, s.offsetIn(t, "a", "g", 0))
			require.EqualValues(t, -1, s.offsetIn(t, "a", "other", 0))
			st := c.ack(t, got.handle(0)).GetEntries()[0].GetStatus()
			require.Equal(t, rmqpb.Code_INVALID_RECEIPT_HANDLE, st.GetCode(), "an acknowledgement of another life")
			end := s.queryOffsetIn(t, "a", rmqpb.QueryOffsetPolicy_END, time.Time{})
			if what == "topic" {
				require.Zero(t, end)
				s.sendIn(t, "a", 1)
				again := c.receive(t, c.simple(32, time.Minute, 0))
				require.EqualValues(t, []int64{0}, []int64{again.messages[0].GetSystemProperties().GetQueueOffset()})
				require.EqualValues(t, 1, s.offsetIn(t, "a", "g", 0))
				c.acked(t, again.handle(0))
				continue
			}
			require.Equal(t, before, end)
			again := c.receive(t, c.simple(32, time.Minute, 0))
			require.Len(t, again.messages, int(end), "the new group begins at the beginning")
			require.EqualValues(t, 1, again.attempts()[0])
			for i := range again.messages {
				c.acked(t, again.handle(i))
			}
		}
		// The ends of leases of other lives come, and change nothing.
		time.Sleep(2 * time.Minute)
		require.Empty(t, c.receive(t, c.simple(32, time.Minute, 0)).messages)
		positions, err := s.nodes.Positions(t.Context(), testShard, s.topicNamed(t, "a").ID, s.groupNamed(t, "g").ID)
		require.NoError(t, err)
		require.Equal(t, []mq.Position{{QueueRange: mq.QueueRange{Next: 1}, Known: true, Offset: 1}}, positions)
	})
}

func (s *testServer) groupNamed(t testing.TB, name string) *mq.Group {
	t.Helper()
	group, err := s.meta.Group(t.Context(), mq.Resource{Name: name})
	require.NoError(t, err)
	return group
}

// A group that starts at the end is given what comes after its first receive, on every
// queue, and all of queues that are added later.
func TestAGroupThatStartsAtTheEndMissesNothingFromThereOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a", router.TopicSpec{Queues: 4})
		s.group(t, "late", router.GroupSpec{Start: mq.StartPosition{Policy: mq.StartLatest}})
		for name, before := range map[string]int{"late": 0, "new": 4} {
			c := s.consumer("a", name)
			require.NoError(t, s.nodes.PurgeTopic(t.Context(), s.topicNamed(t, "a").ID))
			sendRound := func() (ids []string) {
				for range 4 { // each request goes to the next queue
					s.sent++
					id := fmt.Sprint("m", s.sent)
					s.send(t, message("a", id, "x"))
					ids = append(ids, id)
				}
				return ids
			}
			sendRound()
			time.Sleep(time.Second)
			got := c.receive(t, c.simple(32, time.Minute, 0))
			require.Len(t, got.ids(), before, name)
			time.Sleep(time.Second)
			want := sendRound()
			require.ElementsMatch(t, want, c.receive(t, c.simple(32, time.Minute, 0)).ids(), name)
		}
		c := s.consumer("a", "late")
		_, err := s.meta.UpdateTopic(t.Context(), mq.Resource{Name: "a"}, router.TopicUpdate{ReadQueues: new(int32(8)), WriteQueues: new(int32(8))})
		require.NoError(t, err)
		queues := map[int32]bool{}
		for range 8 {
			s.sendIn(t, "a", 1)
		}
		time.Sleep(2 * time.Minute) // what is under delivery comes again with it
		for {
			got := c.receive(t, c.simple(32, time.Minute, 0))
			if len(got.messages) == 0 {
				break
			}
			for i, m := range got.messages {
				queues[m.GetSystemProperties().GetQueueId()] = true
				c.acked(t, got.handle(i))
			}
		}
		require.Len(t, queues, 8)
	})
}

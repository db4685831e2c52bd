package proxy

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

// grouped returns a FIFO message: the text before the number is its message group.
func grouped(topic, id string) *rmqpb.Message {
	m := message(topic, id, "body of "+id)
	group := strings.TrimRight(id, "0123456789")
	m.SystemProperties.MessageType = rmqpb.MessageType_FIFO
	m.SystemProperties.MessageGroup = &group
	return m
}

// newFIFOServer has a FIFO topic "orders" and a group "g" that is FIFO.
func newFIFOServer(t testing.TB, queues int32, change ...func(*testOptions)) (*testServer, *consumer) {
	s := newTestServer(t, change...)
	s.topic(t, "orders", router.TopicSpec{Queues: queues, Type: mq.TopicFIFO})
	s.group(t, "g", router.GroupSpec{FIFO: true})
	return s, s.consumer("orders", "g")
}

func (s *testServer) sendGrouped(t testing.TB, ids ...string) {
	t.Helper()
	for _, id := range ids {
		s.send(t, grouped("orders", id))
	}
}

func TestAMessageGroupIsDeliveredInOrderAndBlocksNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := newFIFOServer(t, 1)
		s.sendGrouped(t, "a1", "a2", "b1")
		first := c.receive(t, c.simple(2, time.Minute, 0))
		require.Equal(t, []string{"a1", "a2"}, first.ids())
		s.sendGrouped(t, "a3")
		second := c.receive(t, c.simple(32, time.Minute, 0))
		require.Equal(t, []string{"b1"}, second.ids())

		c.acked(t, first.handle(0))
		require.Empty(t, c.receive(t, c.simple(32, time.Minute, 0)).messages)
		c.acked(t, first.handle(1))
		third := c.receive(t, c.simple(32, time.Minute, 0))
		require.Equal(t, []string{"a3"}, third.ids())
		c.acked(t, second.handle(0), third.handle(0))
		require.Empty(t, c.receive(t, c.simple(32, 2*time.Minute, 3*time.Minute)).messages)
	})
}

func TestAFailedMessageComesBeforeItsSuccessors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := newFIFOServer(t, 1)
		s.sendGrouped(t, "a1", "a2", "a3")
		got := c.receive(t, c.simple(1, time.Minute, 0))
		require.Equal(t, rmqpb.Code_OK, c.change(t, got.handle(0), 5*time.Second).GetStatus().GetCode())
		start := time.Now()
		got = c.receive(t, c.simple(32, time.Minute, 20*time.Second))
		require.Equal(t, []string{"a1", "a2", "a3"}, got.ids())
		require.Equal(t, []int32{2, 1, 1}, got.attempts(), "each message has its own attempts")
		require.InDelta(t, 5*time.Second, time.Since(start), float64(100*time.Millisecond), "it was woken when the message was due")
		// The whole batch is lost: it comes again in order.
		time.Sleep(50 * time.Second)
		got = c.receive(t, c.simple(2, time.Minute, 20*time.Second))
		require.Equal(t, []string{"a1", "a2"}, got.ids())
		require.Equal(t, []int32{3, 2}, got.attempts())
	})
}

func TestAWaitingReceiveIsWokenWhenItsMessageGroupIsFree(t *testing.T) {
	for what, settle := range map[string]func(*testing.T, *consumer, string){
		"ack":         func(t *testing.T, c *consumer, handle string) { c.acked(t, handle) },
		"dead letter": func(t *testing.T, c *consumer, handle string) { require.Equal(t, rmqpb.Code_OK, c.forward(t, handle)) },
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, c := newFIFOServer(t, 1)
				s.sendGrouped(t, "a1", "a2")
				got := c.receive(t, c.simple(1, time.Minute, 0))
				waiting := make(chan *answer, 1)
				go func() { waiting <- c.receive(t, c.simple(32, time.Minute, 20*time.Second)) }()
				synctest.Wait()
				time.Sleep(7 * time.Second)
				start := time.Now()
				settle(t, c, got.handle(0))
				require.Equal(t, []string{"a2"}, (<-waiting).ids())
				require.Less(t, time.Since(start), 100*time.Millisecond)
			})
		})
	}
}

// What arrives in a blocked message group concerns nobody yet: a crowd of polls is neither
// woken nor writes anything.
func TestArrivalsInABlockedMessageGroupWakeNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := newFIFOServer(t, 1)
		s.sendGrouped(t, "a1")
		c.receive(t, c.simple(1, time.Hour, 0))
		const polls, sends = 200, 2000
		ended := make(chan time.Duration, polls)
		start := time.Now()
		for range polls {
			go func() {
				require.Empty(t, c.receive(t, c.simple(32, time.Minute, 20*time.Second)).messages)
				ended <- time.Since(start)
			}()
		}
		synctest.Wait()
		before := s.nodes.Stats()[testShard]
		for i := range sends {
			s.sendGrouped(t, fmt.Sprint("a", i+2))
		}
		after := s.nodes.Stats()[testShard]
		require.Equal(t, before.Woken, after.Woken)
		require.EqualValues(t, sends, after.Records-before.Records, "the sends are all there is to do")
		for range polls {
			require.Equal(t, 20*time.Second, <-ended)
		}
	})
}

func TestTheSameAttemptIDGetsTheSameBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := newFIFOServer(t, 1)
		s.sendGrouped(t, "a1", "a2", "a3")
		req := func(attempt string, push bool) *rmqpb.ReceiveMessageRequest {
			r := c.simple(2, time.Minute, 0)
			if push {
				r = c.push(2, 0)
			}
			r.AttemptId = &attempt
			return r
		}
		for _, push := range []bool{false, true} {
			first := c.receive(t, req("x", push))
			require.Len(t, first.ids(), 2)
			require.Empty(t, c.receive(t, req("y", push)).messages, "another attempt")
			time.Sleep(30 * time.Second)
			for range 3 {
				again := c.receive(t, req("x", push))
				require.Equal(t, first.ids(), again.ids())
				require.Equal(t, first.attempts(), again.attempts())
				require.Equal(t, first.handle(0), again.handle(0))
			}
			time.Sleep(40 * time.Second) // beyond the first lease
			require.Empty(t, c.receive(t, req("z", push)).messages)
			c.acked(t, first.handle(0), first.handle(1))
			next := c.receive(t, req("x", push))
			require.Equal(t, []string{"a3"}, next.ids())
			c.acked(t, next.handle(0))
			time.Sleep(10 * time.Minute) // the ids are forgotten
			s.sendGrouped(t, "a1", "a2", "a3")
		}
	})
}

// A retry of a lost answer meets a crowd of receives of the group: it gets its messages at
// once, and nobody else does.
func TestAnAttemptFindsItsBatchAmongAHundredOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := newFIFOServer(t, 1)
		s.sendGrouped(t, "a1", "a2", "a3")
		req := func(attempt string, wait time.Duration) *rmqpb.ReceiveMessageRequest {
			r := c.simple(2, time.Minute, wait)
			r.AttemptId = &attempt
			return r
		}
		first := c.receive(t, req("x", 0))
		require.Equal(t, []string{"a1", "a2"}, first.ids())
		others := make(chan []string, 100)
		for i := range cap(others) {
			go func() { others <- c.receive(t, req(fmt.Sprint("y", i), 20*time.Second)).ids() }()
		}
		start := time.Now()
		for range 50 {
			again := c.receive(t, req("x", 20*time.Second))
			require.Equal(t, first.ids(), again.ids())
			require.Equal(t, first.attempts(), again.attempts())
			require.Equal(t, first.handle(1), again.handle(1))
		}
		require.Less(t, time.Since(start), time.Second)
		c.acked(t, first.handle(0), first.handle(1))
		got := map[string]int{}
		for range cap(others) {
			for _, id := range <-others {
				got[id]++
			}
		}
		require.Equal(t, map[string]int{"a3": 1}, got)
		require.Empty(t, c.receive(t, req("x", 0)).ids(), "a3 is with another attempt")
	})
}

// One message group has a handler that takes ten seconds; one in another queue does not
// notice.
func TestASlowMessageGroupDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := newFIFOServer(t, 4)
		require.Len(t, s.assignmentsOf(t, "orders", "g").GetAssignments(), 4, "one for each queue")
		s.sendGrouped(t, "slow1", "slow2", "slow3")
		for round := range 3 {
			slow := c.receive(t, c.simple(1, time.Minute, time.Second))
			require.Contains(t, slow.ids()[0], "slow")
			for i := range 10 {
				got := make(chan []string)
				go func() {
					a := c.receive(t, c.simple(32, time.Minute, 20*time.Second))
					for n := range a.messages {
						c.acked(t, a.handle(n))
					}
					got <- a.ids()
				}()
				time.Sleep(time.Second)
				start, id := time.Now(), fmt.Sprint("fast", 10*round+i)
				s.sendGrouped(t, id)
				require.Equal(t, []string{id}, <-got)
				require.Less(t, time.Since(start), 100*time.Millisecond)
			}
			c.acked(t, slow.handle(0))
		}
	})
}

func TestAnAttemptIDThatIsTooLongIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := newFIFOServer(t, 1)
		r, long := c.simple(1, time.Minute, 0), strings.Repeat("x", maxAttemptID+1)
		r.AttemptId = &long
		got := c.receive(t, r)
		require.Equal(t, rmqpb.Code_BAD_REQUEST, got.code)
		require.Contains(t, got.text, "attempt_id has 256 bytes, the limit is 255")
	})
}

func TestUsedUpMessagesOfAMessageGroupMakeWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "orders", router.TopicSpec{Queues: 1, Type: mq.TopicFIFO})
		s.group(t, "g", router.GroupSpec{FIFO: true, Retry: mq.RetryPolicy{MaxAttempts: 3, Customized: []time.Duration{time.Second}}})
		c := s.consumer("orders", "g")
		s.sendGrouped(t, "a1", "a2")
		for attempt := range 3 {
			got := c.receive(t, c.simple(1, 10*time.Second, 20*time.Second))
			require.Equal(t, []string{"a1"}, got.ids())
			require.Equal(t, []int32{int32(attempt + 1)}, got.attempts())
		}
		got := c.receive(t, c.simple(1, 10*time.Second, 20*time.Second))
		require.Equal(t, []string{"a2"}, got.ids())
		dead := s.consumer("%DLQ%g", "undertakers")
		letters := dead.receive(t, dead.simple(10, time.Minute, 5*time.Second))
		require.Equal(t, []string{"a1"}, letters.ids())
		require.Equal(t, "a", letters.messages[0].GetSystemProperties().GetMessageGroup())
	})
}

func TestMessageGroupsKeepTheirQueueWhateverTheClientChose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := newFIFOServer(t, 8)
		topic, err := s.meta.Topic(t.Context(), mq.Resource{Name: "orders"})
		require.NoError(t, err)
		used := map[mq.QueueID]bool{}
		for i := range 40 {
			group := fmt.Sprint("g", string(rune('a'+i%20)))
			m := grouped("orders", fmt.Sprint(group, i))
			m.SystemProperties.QueueId = int32(i % 7)
			s.send(t, m)
			_, queue, ok := topic.QueueOf(group)
			require.True(t, ok)
			used[queue] = true
		}
		require.Greater(t, len(used), 4)
		for len(used) > 0 {
			got := s.leased(t, "orders", "elsewhere", 32, 0)
			require.NotEmpty(t, got)
			for _, d := range got {
				_, queue, _ := topic.QueueOf(d.Group)
				require.Equal(t, queue, d.Lease.Queue)
				delete(used, queue)
			}
		}
	})
}

func TestABatchHasOneMessageGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := newFIFOServer(t, 4)
		s.send(t, grouped("orders", "a1"), grouped("orders", "a2"), grouped("orders", "a3"))
		res, err := s.SendMessage(as(t, "sender"), &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{grouped("orders", "a4"), grouped("orders", "b1")}})
		require.NoError(t, err)
		require.Equal(t, rmqpb.Code_ILLEGAL_MESSAGE_GROUP, res.GetStatus().GetCode())
		require.Contains(t, res.GetStatus().GetMessage(), `message_group "b": the messages of one request must have one message group`)
		require.Equal(t, []string{"a1", "a2", "a3"}, c.receive(t, c.simple(32, time.Minute, 0)).ids())
	})
}

// lines collects what is logged.
type lines struct{ strings.Builder }

func TestAGroupThatIsNotFIFOReadsAFIFOTopicInAnyOrderAndIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &lines{}
		s := newTestServer(t, func(o *testOptions) { o.Logger = slog.New(slog.NewTextHandler(log, nil)) })
		s.topic(t, "orders", router.TopicSpec{Queues: 1, Type: mq.TopicFIFO})
		c := s.consumer("orders", "g")
		s.sendGrouped(t, "a1", "a2", "a3")
		got := c.receive(t, c.simple(1, time.Minute, 0))
		require.Equal(t, rmqpb.Code_OK, got.code)
		require.Contains(t, got.text, `topic "orders" is FIFO, and group "g" is not`)
		require.Contains(t, got.text, "perigee group update g --fifo")
		require.Equal(t, []string{"a2"}, c.receive(t, c.simple(1, time.Minute, 0)).ids(), "it overtakes")
		require.Equal(t, uint64(2), s.Stats().Unordered)
		require.Equal(t, 1, strings.Count(log.String(), "FIFO topic is read in any order"))

		yes := true
		_, err := s.meta.UpdateGroup(t.Context(), mq.Resource{Name: "g"}, router.GroupUpdate{FIFO: &yes})
		require.NoError(t, err)
		got = c.receive(t, c.simple(1, time.Minute, 0))
		require.Empty(t, got.messages, "a1 and a2 are in flight")
		require.Equal(t, uint64(2), s.Stats().Unordered)
	})
}

// With auto-renewal, an answer that never arrived must not keep its message group blocked.
func TestACutOffReceiveFreesItsMessageGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := newFIFOServer(t, 1)
		s.sendGrouped(t, "a1", "a2", "b1")
		stream := &frameStream{ctx: c.ctx(t), t: t, before: func(frame int) error {
			if frame == 2 {
				return errors.New("cut off")
			}
			return nil
		}}
		require.Error(t, s.ReceiveMessage(c.push(2, 0), stream))
		start := time.Now()
		got := c.receive(t, c.simple(32, time.Minute, 20*time.Second))
		require.Less(t, time.Since(start), 5*time.Second)
		require.Contains(t, got.ids(), "b1")
		if !slices.Contains(got.ids(), "a1") {
			got = c.receive(t, c.simple(32, time.Minute, 20*time.Second))
			require.Less(t, time.Since(start), 5*time.Second)
		}
		require.Equal(t, []string{"a1", "a2"}, slices.DeleteFunc(got.ids(), func(id string) bool { return id == "b1" }))
	})
}

package proxy

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

func TestTheSameMessageForwardedTwiceAtOnceHasOneCopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a")
		s.fill(t, "a", 50)
		c := s.consumer("a", "g")
		handles := c.takeAll(t, 50, c.push(32, 0))
		var calls sync.WaitGroup
		for _, h := range handles {
			for range 4 {
				calls.Go(func() { require.Equal(t, rmqpb.Code_OK, c.forward(t, h)) })
			}
		}
		calls.Wait()
		require.Zero(t, s.renewals.len())
		undertaker := s.consumer("%DLQ%g", "undertaker")
		require.Len(t, undertaker.takeAll(t, 50, undertaker.simple(32, time.Hour, 0)), 50)
		require.Empty(t, undertaker.receive(t, undertaker.simple(32, time.Hour, 0)).messages)
		c.quiet(t, 5*time.Minute)
	})
}

func TestADeadLetterHasEverythingOfTheOriginalAndItsHistory(t *testing.T) {
	for _, how := range []string{"forwarded", "used up"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newTestServer(t)
				s.topic(t, "a", router.TopicSpec{Queues: 1})
				s.limitOf(t, "g", 3)
				sent := message("a", "the-id", "the body")
				sent.UserProperties = map[string]string{"region": "north"}
				sent.SystemProperties.Keys = []string{"k1", "k2"}
				sent.SystemProperties.Tag = new("the-tag")
				s.send(t, message("a", "first", "x"), sent)
				c := s.consumer("a", "g")
				other := c.receive(t, c.simple(1, time.Hour, 0))
				require.Equal(t, []string{"first"}, other.ids())
				first := time.Now()
				attempts := 0
				for attempts < 3 {
					a := c.receive(t, c.simple(1, 10*time.Second, 20*time.Second))
					require.Equal(t, []string{"the-id"}, a.ids())
					attempts++
					if how == "forwarded" && attempts == 2 {
						require.Equal(t, rmqpb.Code_OK, c.forward(t, a.handle(0)))
						break
					}
				}
				time.Sleep(11 * time.Second)
				undertaker := s.consumer("%DLQ%g", "undertaker")
				a := undertaker.receive(t, undertaker.simple(32, time.Hour, 0))
				require.Equal(t, []string{"the-id"}, a.ids())
				dead := a.messages[0]
				require.Equal(t, "the body", string(dead.GetBody()))
				sys := dead.GetSystemProperties()
				require.Equal(t, "the-tag", sys.GetTag())
				require.Equal(t, []string{"k1", "k2"}, sys.GetKeys())
				require.Equal(t, "a", sys.GetDeadLetterQueue().GetTopic())
				require.Equal(t, "the-id", sys.GetDeadLetterQueue().GetMessageId())
				require.EqualValues(t, 1, sys.GetDeliveryAttempt())
				history := dead.GetUserProperties()
				require.Equal(t, "north", history["region"])
				require.Equal(t, "a", history["perigee.dead-letter.topic"])
				require.Equal(t, "g", history["perigee.dead-letter.group"])
				require.Equal(t, "0", history["perigee.dead-letter.queue"])
				require.Equal(t, "1", history["perigee.dead-letter.offset"])
				require.Equal(t, fmt.Sprint(attempts), history["perigee.dead-letter.attempts"])
				began, err := time.Parse(time.RFC3339Nano, history["perigee.dead-letter.first-delivery"])
				require.NoError(t, err)
				require.WithinDuration(t, first, began, time.Second)
				ended, err := time.Parse(time.RFC3339Nano, history["perigee.dead-letter.time"])
				require.NoError(t, err)
				want := first.Add(30 * time.Second)
				if how == "forwarded" {
					want = first.Add(10 * time.Second)
				}
				require.WithinDuration(t, want, ended, 2*time.Second)
			})
		})
	}
}

// limitOf creates a group with an attempt limit.
func (s *testServer) limitOf(t testing.TB, name string, attempts mq.Attempt) {
	t.Helper()
	s.group(t, name)
	s.limit(t, name, attempts)
}

func TestAChangedAttemptLimitHoldsForTheNextAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a", router.TopicSpec{Queues: 1})
		s.limitOf(t, "g", 2)
		c := s.consumer("a", "g")
		fail := func(want int32) {
			t.Helper()
			a := c.receive(t, c.push(1, 20*time.Second))
			require.Equal(t, []int32{want}, a.attempts())
			require.Equal(t, rmqpb.Code_OK, c.change(t, a.handle(0), time.Second).GetStatus().GetCode())
		}
		s.send(t, message("a", "raised", "x"))
		fail(1)
		s.limit(t, "g", 4)
		fail(2)
		fail(3)
		require.Empty(t, c.deadLetters(t))
		fail(4)
		time.Sleep(time.Second)
		require.Equal(t, []string{"raised"}, c.deadLetters(t))

		s.send(t, message("a", "lowered", "x"))
		fail(1)
		a := c.receive(t, c.push(1, 20*time.Second)) // the second attempt is under way
		require.Equal(t, []int32{2}, a.attempts())
		s.limit(t, "g", 2)
		require.Equal(t, rmqpb.Code_OK, c.change(t, a.handle(0), time.Hour).GetStatus().GetCode())
		time.Sleep(time.Second)
		require.Equal(t, []string{"lowered"}, c.deadLetters(t))

		// Lowered below what a message has had that waits for its next attempt.
		s.limit(t, "g", 5)
		s.send(t, message("a", "waiting", "x"))
		fail(1)
		fail(2)
		s.limit(t, "g", 1)
		require.Empty(t, c.receive(t, c.push(1, 20*time.Second)).messages)
		require.Equal(t, []string{"waiting"}, c.deadLetters(t))
	})
}

package proxy

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/router"
)

// Acks that meet the renewal of their message: neither brings it back.
func TestAcksAndRenewalsAtTheSameMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 10_000
		if testing.Short() {
			n = 1_000
		}
		s, store := withFaults(t)
		s.topic(t, "a")
		c := s.consumer("a", "g")
		s.fill(t, "a", n)
		start := time.Now()
		handles := c.takeAll(t, n, c.push(32, 0))
		c.live(t, 30*time.Second)
		done := make(chan struct{})
		for i, h := range handles {
			go func() {
				time.Sleep(time.Until(start.Add(40*time.Second + time.Duration(i%101-50)*time.Millisecond)))
				c.acked(t, h)
				done <- struct{}{}
			}()
		}
		for range handles {
			<-done
		}
		synctest.Wait()
		require.Zero(t, s.renewals.len())
		require.Empty(t, s.renewals.mu.clients)
		require.Empty(t, s.renewals.mu.due)
		require.NotZero(t, store.renewed(), "or nothing was tried")
		before := store.renewed()
		c.quiet(t, 5*time.Minute)
		require.Equal(t, before, store.renewed())
	})
}

// fill sends n messages, in batches.
func (s *testServer) fill(t testing.TB, topic string, n int) {
	t.Helper()
	for i := 0; i < n; {
		var batch []*rmqpb.Message
		for ; i < n && len(batch) < 100; i++ {
			batch = append(batch, message(topic, fmt.Sprint(i), "x"))
		}
		s.send(t, batch...)
	}
}

// takeAll receives n messages with requests like req and returns their handles.
func (c *consumer) takeAll(t testing.TB, n int, req *rmqpb.ReceiveMessageRequest) (handles []string) {
	t.Helper()
	for len(handles) < n {
		a := c.receive(t, req)
		require.NotEmpty(t, a.messages)
		for i := range a.messages {
			handles = append(handles, a.handle(i))
		}
	}
	return handles
}

func TestAThousandConsumersThatLeaveTogetherAreServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const clients, each = 1000, 8
		s := newTestServer(t)
		s.topic(t, "a")
		s.fill(t, "a", clients*each)
		var leaving sync.WaitGroup
		for i := range clients {
			c := s.consumer("a", "g")
			c.id = fmt.Sprint("client-", i)
			a := c.receive(t, c.push(each, 0))
			require.Len(t, a.messages, each)
			leaving.Go(func() {
				time.Sleep(time.Duration(i) * 10 * time.Millisecond)
				c.terminate(t)
				time.Sleep(5 * time.Second)
				c.acked(t, a.handle(0))
			})
		}
		goodbyes := time.Now()
		leaving.Wait()
		require.Zero(t, s.renewals.len())
		heir := s.consumer("a", "g")
		heir.id = "heir"
		time.Sleep(time.Until(goodbyes.Add(10*time.Second + 10*time.Second)))
		rest := heir.takeAll(t, clients*(each-1), heir.simple(32, time.Hour, 0))
		require.Len(t, rest, clients*(each-1))
		require.Empty(t, heir.receive(t, heir.simple(32, time.Hour, 0)).messages, "what was acknowledged after the goodbye")
	})
}

func TestAHundredReceivesOfOneQueueWithCancelsLoseNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 10_000
		if testing.Short() {
			n = 2_000
		}
		s := newTestServer(t)
		s.topic(t, "a", router.TopicSpec{Queues: 1})
		s.fill(t, "a", n)
		var mu sync.Mutex
		got := map[string]int{}
		cancelled := 0
		var running sync.WaitGroup
		for i := range 100 {
			random := rand.New(rand.NewPCG(uint64(i), 7))
			c := s.consumer("a", "g")
			c.id = fmt.Sprint("client-", i)
			running.Go(func() {
				for {
					ctx, cancel := context.WithCancel(c.ctx(t))
					stream := &frameStream{ctx: ctx, t: t}
					if random.IntN(3) == 0 { // at any frame, or before any
						at := random.IntN(6)
						stream.before = func(frame int) error {
							if frame == at {
								cancel()
							}
							return nil
						}
						if at == 5 {
							cancel()
						}
					}
					err := s.ReceiveMessage(c.simple(int32(1+random.IntN(8)), time.Hour, 20*time.Second), stream)
					cancel()
					mu.Lock()
					if err != nil {
						cancelled++
						// What was written before may have been seen, and stays leased.
						for _, id := range stream.answer.ids() {
							got[id] = 1
						}
						mu.Unlock()
						continue
					}
					a := &stream.answer
					for _, id := range a.ids() {
						got[id]++
					}
					left := n - len(got)
					mu.Unlock()
					if len(a.messages) == 0 {
						if left != 0 {
							t.Errorf("a receive ended empty with %d messages left", left)
						}
						return
					}
					var handles []string
					for i := range a.messages {
						handles = append(handles, a.handle(i))
					}
					c.acked(t, handles...)
				}
			})
		}
		running.Wait()
		require.NotZero(t, cancelled)
		c := s.consumer("a", "g")
		require.Empty(t, c.receive(t, c.simple(32, time.Hour, 0)).messages)
		s.send(t, message("a", "one more", "x"))
		require.Equal(t, []string{"one more"}, c.receive(t, c.simple(32, time.Hour, 0)).ids())
		require.Len(t, got, n)
		for id, times := range got {
			require.Equal(t, 1, times, "message %s", id)
		}
	})
}

// While messages are ready no receive ends empty, however many there are at once.
func TestReceivesThatMeetAreAllServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a", router.TopicSpec{Queues: 1})
		s.fill(t, "a", 3200)
		answers := make(chan int, 100)
		for range 100 {
			c := s.consumer("a", "g")
			go func() { answers <- len(c.receive(t, c.simple(32, time.Hour, 0)).messages) }()
		}
		for range 100 {
			require.Equal(t, 32, <-answers)
		}
	})
}

func TestNothingOfADeletedTopicComesBackInTheNextOfThatName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a")
		s.topic(t, "b")
		c, other := s.consumer("a", "g"), s.consumer("b", "g")
		s.fill(t, "a", 40)
		s.fill(t, "b", 5)
		old := c.takeAll(t, 40, c.simple(32, 30*time.Second, 0))
		pushed := s.consumer("a", "h")
		pushed.takeAll(t, 40, pushed.push(32, 0))
		other.takeAll(t, 5, other.simple(32, 40*time.Second, 0))
		s.deleteTopic(t, "a")
		s.topic(t, "a")
		for i := range 60 { // more than there were
			s.send(t, message("a", fmt.Sprint("new ", i), "x"))
		}
		seen := map[string]bool{}
		for start := time.Now(); time.Since(start) < 10*time.Minute; {
			c.heartbeat(t)
			a := c.receive(t, c.simple(32, time.Hour, 5*time.Second))
			for i, id := range a.ids() {
				require.Contains(t, id, "new ")
				require.False(t, seen[id], "%s came twice", id)
				require.EqualValues(t, 1, a.attempts()[i])
				seen[id] = true
			}
			if time.Since(start) > time.Minute {
				require.Equal(t, rmqpb.Code_INVALID_RECEIPT_HANDLE, c.ack(t, old[0]).GetStatus().GetCode())
			}
			if d := time.Since(start); d > 41*time.Second && d < 47*time.Second {
				require.Len(t, other.receive(t, other.simple(32, time.Hour, 0)).messages, 5, "another topic's come back on time")
			}
		}
		require.Len(t, seen, 60)
		require.Zero(t, s.renewals.len())
	})
}

func TestIdlePollsEndWellBeforeTheDeadlineOfTheirClient(t *testing.T) {
	for _, most := range []time.Duration{20 * time.Second, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			s := newTestServer(t, func(o *testOptions) { o.MaxPolling = most })
			s.topic(t, "a")
			conn := s.dial(t)
			margins := make(chan time.Duration, 200)
			for i := range 200 {
				go func() {
					id := fmt.Sprint("client-", i)
					c := s.consumer("a", "g")
					ctx, cancel := context.WithTimeout(from(t, id), 30*time.Second)
					defer cancel()
					a, err := receiveOver(t, ctx, conn, c.simple(1, time.Minute, 30*time.Second))
					if err != nil || a.code != rmqpb.Code_MESSAGE_NOT_FOUND {
						t.Error(err, a.code)
					}
					deadline, _ := ctx.Deadline()
					margins <- time.Until(deadline)
				}()
			}
			for range 200 {
				require.GreaterOrEqual(t, <-margins, 100*time.Millisecond)
			}
		})
	}
}

func TestAReceiveWaitsOnEveryQueueWhicheverItNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a", router.TopicSpec{Queues: 16})
		s.group(t, "fifo", router.GroupSpec{FIFO: true})
		for i, queue := range []int32{-1, 0, 3, 15, 99, -1, 3} {
			c := s.consumer("a", "g")
			if i >= 5 {
				c = s.consumer("a", "fifo")
				for range 5 * 16 { // what is there already
					a := c.receive(t, c.simple(1, time.Minute, 0))
					for n := range a.messages {
						c.acked(t, a.handle(n))
					}
				}
			}
			seen := map[int32]bool{}
			for i := range 16 { // each request goes to the next queue
				got := make(chan *answer, 1)
				go func() {
					got <- c.receive(t, &rmqpb.ReceiveMessageRequest{
						Group: named(c.group), MessageQueue: &rmqpb.MessageQueue{Topic: named("a"), Id: queue},
						BatchSize: 1, InvisibleDuration: durationpb.New(time.Minute), LongPollingTimeout: durationpb.New(20 * time.Second),
					})
				}()
				time.Sleep(5 * time.Second)
				sent := time.Now()
				s.send(t, message("a", fmt.Sprint(c.group, queue, "-", i), "x"))
				a := <-got
				require.Len(t, a.messages, 1)
				require.Less(t, time.Since(sent), 200*time.Millisecond)
				seen[a.messages[0].GetSystemProperties().GetQueueId()] = true
				c.acked(t, a.handle(0))
			}
			require.Len(t, seen, 16)
		}
	})
}

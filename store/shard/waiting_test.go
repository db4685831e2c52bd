package shard_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/shard"
)

// A leavingContext ends when it is asked for the first time whether it has,
// once that is wanted: a caller that leaves in the middle of a look.
type leavingContext struct {
	context.Context
	leave  context.CancelFunc
	wanted atomic.Bool
}

func (c *leavingContext) Err() error {
	if c.wanted.Load() {
		c.leave()
	}
	return c.Context.Err()
}

func TestReceiveThatLeavesInTheMiddleOfItsLookPassesItsWakeUpOn(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s := open(t, vfs.NewMem(), mode)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(1), groupOf(9)
		wanted := mq.Receive{Topic: topic, Group: group, Tags: []string{"A"}, Max: 1, Invisible: time.Minute, Wait: time.Hour}

		ctx := &leavingContext{}
		ctx.Context, ctx.leave = context.WithCancel(t.Context())
		left := make(chan error)
		go func() {
			_, err := s.Receive(ctx, wanted)
			left <- err
		}()
		synctest.Wait() // it is the first in the queue
		done := make(chan []mq.Delivery)
		go func() { done <- receive(t, s, wanted) }()
		synctest.Wait()
		require.Equal(t, 2, s.Stats().Waiting)

		ctx.wanted.Store(true)
		var msgs []*mq.Message
		for i := range 5000 { // more than one pop looks at
			msgs = append(msgs, message(fmt.Sprint("b", i), "B"))
		}
		start := time.Now()
		for batch := range slices.Chunk(append(msgs, message("a", "A")), command.MaxSend) {
			send(t, s, topic, 0, batch...)
		}
		require.ErrorIs(t, <-left, context.Canceled)
		require.Equal(t, []string{"a"}, ids(<-done))
		require.Less(t, time.Since(start), time.Minute, "not when its time is over")
	})
}

// An endingContext calls at when somebody is about to wait for its end, the first time, and
// has ended then.
type endingContext struct {
	context.Context
	leave context.CancelFunc
	at    func()
	once  sync.Once
}

func (c *endingContext) Done() <-chan struct{} {
	c.once.Do(func() {
		c.at()
		c.leave()
	})
	return c.Context.Done()
}

// A receive whose caller leaves at the very moment at which a message wakes it may go either
// way. When it goes, the message is for the next one that waits.
func TestReceiveThatLeavesAtTheMomentItIsWokenPassesItsWakeUpOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, vfs.NewMem(), shard.FlushSync)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(1), groupOf(100)
		r := mq.Receive{Topic: topic, Group: group, Max: 1, Invisible: 24 * time.Hour, Wait: time.Minute}
		for i := range 50 {
			var next chan outcome
			ctx := &endingContext{}
			ctx.Context, ctx.leave = context.WithCancel(t.Context())
			ctx.at = func() {
				next = start(t, s, r)
				require.Equal(t, 2, s.Stats().Waiting)
				send(t, s, topic, 0, message(fmt.Sprint(i), ""))
			}
			_, err := s.Receive(ctx, r)
			require.ErrorIs(t, err, context.Canceled)
			out := <-next
			require.NoError(t, out.err)
			require.Equal(t, []string{fmt.Sprint(i)}, ids(out.got), "the next one sleeps beside its message")
			require.Less(t, out.took, time.Second)
		}
	})
}

func TestPollAtTheMomentALeaseEndsFindsTheMessage(t *testing.T) {
	for range 50 { // poll and timer come in either order
		synctest.Test(t, func(t *testing.T) {
			s := open(t, vfs.NewMem(), shard.FlushSync)
			defer func() { require.NoError(t, s.Close()) }()
			topic, group := topicOf(1), groupOf(9)
			send(t, s, topic, 0, message("a", ""))
			got := receive(t, s, mq.Receive{Topic: topic, Group: group, Invisible: 10 * time.Second})
			time.Sleep(time.Until(time.Unix(0, int64(got[0].Lease.PopID)).Add(10 * time.Second)))
			require.Len(t, receive(t, s, mq.Receive{Topic: topic, Group: group}), 1)
		})
	}
}

func TestFiltersThatReadAlikeAreToldApart(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s := open(t, vfs.NewMem(), mode)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(1), groupOf(9)
		wait := func(tags ...string) chan []mq.Delivery {
			done := make(chan []mq.Delivery, 1)
			go func() {
				done <- receive(t, s, mq.Receive{Topic: topic, Group: group, Tags: tags, Wait: time.Minute})
			}()
			synctest.Wait()
			return done
		}
		// In the queue of the first, the second would not be woken.
		two, one := wait("a", "b"), wait("a|b")
		send(t, s, topic, 0, message("1", "a|b"))
		require.Equal(t, []string{"1"}, ids(<-one))
		require.Empty(t, <-two)
	})
}

// A message arrives while a receive looks, registers or goes to sleep: it is
// found, whichever comes first.
func TestAReceiveAndASendThatStartTogetherMeet(t *testing.T) {
	rounds := 20_000
	if testing.Short() {
		rounds = 2_000
	}
	synctest.Test(t, func(t *testing.T) {
		s := open(t, vfs.NewMem(), shard.FlushSync)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(4), groupOf(9)
		random := rand.New(rand.NewPCG(1, 2))
		type found struct {
			ids []string
			at  time.Time
		}
		got := make(chan found)
		for i := range rounds {
			receiveAt, sendAt := time.Duration(random.IntN(2000))*time.Microsecond, time.Duration(random.IntN(2000))*time.Microsecond
			if i%4 == 0 {
				sendAt = receiveAt
			}
			go func() {
				time.Sleep(receiveAt)
				d, err := s.Receive(context.Background(), mq.Receive{Topic: topic, Group: group, Max: 1, Invisible: 24 * time.Hour, Wait: 20 * time.Second})
				if err != nil {
					t.Error(err)
				}
				got <- found{ids(d), time.Now()}
			}()
			time.Sleep(sendAt)
			id := fmt.Sprint(i)
			send(t, s, topic, mq.QueueID(i%4), message(id, ""))
			sent := time.Now()
			f := <-got
			require.Equal(t, []string{id}, f.ids)
			require.Less(t, f.at.Sub(sent), 10*time.Millisecond)
		}
	})
}

// The same with goroutines that really overlap: many receives and sends at once,
// in both directions of the race. One that was not woken would end empty.
func TestNoReceiveOfManySleepsThroughItsMessage(t *testing.T) {
	rounds, each := 300, 16
	if testing.Short() {
		rounds = 50
	}
	s := open(t, vfs.NewMem(), shard.FlushAsync)
	defer func() { require.NoError(t, s.Close()) }()
	topic, group := topicOf(4), groupOf(9)
	for i := range rounds {
		results := make(chan int, each)
		var sends sync.WaitGroup
		for j := range each {
			receive := func() {
				d, err := s.Receive(context.Background(), mq.Receive{Topic: topic, Group: group, Max: 1, Invisible: 24 * time.Hour, Wait: time.Minute})
				if err != nil {
					t.Error(err)
				}
				results <- len(d)
			}
			send := func() {
				if _, err := s.Append(context.Background(), topic, mq.QueueID(j%4), []*mq.Message{message(fmt.Sprint(i, "-", j), "")}); err != nil {
					t.Error(err)
				}
			}
			if (i+j)%2 == 0 {
				go receive()
				sends.Go(send)
			} else {
				sends.Go(send)
				go receive()
			}
		}
		sends.Wait()
		limit := time.NewTimer(30 * time.Second)
		for range each {
			select {
			case n := <-results:
				require.Equal(t, 1, n)
			case <-limit.C:
				require.FailNow(t, "a receive sleeps beside its message", "round %d", i)
			}
		}
		limit.Stop()
	}
}

// A group moves past what it does not want, once: neither a later receive nor one
// after a restart looks at it again.
func TestWhatAFilterHasPassedIsNotLookedAtAgain(t *testing.T) {
	n := 100_000
	if testing.Short() {
		n = 10_000
	}
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		opts := shard.Options{Name: shardName, FS: fs, Dir: "shard", Flush: shard.FlushAsync, SegmentSize: 64 << 20, ZeroFill: -1}
		s, err := shard.Open(opts)
		require.NoError(t, err)
		topic, group := topicOf(4), groupOf(9)
		wanted := mq.Receive{Topic: topic, Group: group, Tags: []string{"A"}, Max: 32, Invisible: time.Hour}
		require.Empty(t, receive(t, s, wanted))
		for i := 0; i < n; i += 500 {
			var msgs []*mq.Message
			for j := range 500 {
				msgs = append(msgs, message(fmt.Sprint(i+j), "B"))
			}
			send(t, s, topic, mq.QueueID(i/500%4), msgs...)
		}
		require.Empty(t, receive(t, s, wanted))
		backlogs, err := s.Backlogs(t.Context(), group.ID)
		require.NoError(t, err)
		require.Equal(t, []mq.Backlog{{Topic: topic.ID}}, backlogs, "nothing is left to do")
		for range 2 {
			records := s.Stats().Records
			for range 10 {
				require.Empty(t, receive(t, s, wanted))
			}
			require.Equal(t, records, s.Stats().Records, "an empty receive writes nothing")
			require.NoError(t, s.Close())
			s, err = shard.Open(opts)
			require.NoError(t, err)
		}
		defer func() { require.NoError(t, s.Close()) }()
		done := make(chan []mq.Delivery)
		go func() {
			wanted.Wait = 20 * time.Second
			done <- receive(t, s, wanted)
		}()
		time.Sleep(5 * time.Second)
		start := time.Now()
		send(t, s, topic, 2, message("a", "A"))
		require.Equal(t, []string{"a"}, ids(<-done))
		require.Less(t, time.Since(start), time.Second)
	})
}

package shard_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
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
		send(t, s, topic, 0, append(msgs, message("a", "A"))...)
		require.ErrorIs(t, <-left, context.Canceled)
		require.Equal(t, []string{"a"}, ids(<-done))
		require.Less(t, time.Since(start), time.Minute, "not when its time is over")
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

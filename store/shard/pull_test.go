package shard_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/shard"
)

func pull(t *testing.T, s *shard.Shard, p mq.Pull) mq.Pulled {
	t.Helper()
	if p.Max == 0 {
		p.Max = 32
	}
	got, err := s.Pull(t.Context(), p)
	require.NoError(t, err)
	return got
}

func TestAPullReadsFromItsOffsetAndLeavesNoTrace(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s := open(t, vfs.NewMem(), mode)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(2), groupOf(9)
		stored := time.Now()
		for i := range 5 {
			send(t, s, topic, 1, message(fmt.Sprint("m", i), []string{"A", "B"}[i%2]))
		}
		records := s.Stats().Records

		got := pull(t, s, mq.Pull{Topic: topic, Queue: 1, Offset: 1, Max: 3})
		require.Equal(t, []string{"m1", "m2", "m3"}, ids(got.Messages))
		require.Equal(t, mq.QueueOffset(4), got.Next)
		first := got.Messages[0]
		require.Equal(t, mq.Lease{Shard: shardName, Topic: 1, Queue: 1, Offset: 1, Attempt: 1}, first.Lease)
		require.Equal(t, "body of m1", string(first.Body))
		require.WithinDuration(t, stored, first.StoreTime, time.Millisecond)

		got = pull(t, s, mq.Pull{Topic: topic, Queue: 1, Tags: []string{"B"}})
		require.Equal(t, []string{"m1", "m3"}, ids(got.Messages))
		require.Equal(t, mq.QueueOffset(5), got.Next, "behind all that was looked at")
		got = pull(t, s, mq.Pull{Topic: topic, Queue: 1, Tags: []string{"C"}})
		require.Empty(t, got.Messages)
		require.Equal(t, mq.QueueOffset(5), got.Next)
		require.Empty(t, pull(t, s, mq.Pull{Topic: topic, Queue: 0}).Messages)

		require.Equal(t, records, s.Stats().Records, "nothing was written")
		require.Equal(t, uint64(5), s.Stats().Pulled)
		require.Equal(t, uint64(0), s.Stats().Delivered)
		require.Len(t, receive(t, s, mq.Receive{Topic: topic, Group: group}), 5, "the group gets all of them")
	})
}

func TestAPullOutsideOfTheQueueIsToldWhereItGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, vfs.NewMem(), shard.FlushSync)
		defer func() { require.NoError(t, s.Close()) }()
		topic := topicOf(2)
		at := func(queue mq.QueueID, offset mq.QueueOffset) error {
			_, err := s.Pull(t.Context(), mq.Pull{Topic: topic, Queue: queue, Offset: offset, Max: 1})
			return err
		}
		require.NoError(t, at(0, 0), "a queue that the shard has not heard of is empty")
		for range 4 {
			send(t, s, topic, 0, message("m", ""))
		}
		require.NoError(t, s.PurgeTopic(t.Context(), topic.ID))
		send(t, s, topic, 0, message("m", ""))
		for offset, nearest := range map[mq.QueueOffset]mq.QueueOffset{-1: 4, 3: 4, 6: 5, 1 << 40: 5} {
			var outside *mq.OffsetError
			err := at(0, offset)
			require.ErrorAs(t, err, &outside)
			require.ErrorIs(t, err, mq.ErrIllegalOffset)
			require.Equal(t, nearest, outside.Nearest())
			require.EqualError(t, err, fmt.Sprintf(
				"offset %d: of queue 0 of topic orders it must lie between 4, the oldest message, and 5, behind the newest: illegal offset", offset))
		}
		require.NoError(t, at(0, 4))
		require.NoError(t, at(0, 5))
		require.ErrorIs(t, at(2, 0), mq.ErrQueueNotFound)
		require.ErrorIs(t, at(-1, 0), mq.ErrQueueNotFound)
		require.ErrorContains(t, at(2, 0), "orders")
		require.NoError(t, s.DeleteTopic(t.Context(), topic.ID))
		require.ErrorIs(t, at(0, 4), mq.ErrTopicNotFound)
		_, err := s.Pull(t.Context(), mq.Pull{Topic: topic})
		require.ErrorIs(t, err, mq.ErrInvalid)
	})
}

// TestAWaitingPullIsWokenByItsQueueAlone: a hundred readers of one queue all get what
// arrives there, at once, and nothing else makes them look.
func TestAWaitingPullIsWokenByItsQueueAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, vfs.NewMem(), shard.FlushSync)
		defer func() { require.NoError(t, s.Close()) }()
		topic := topicOf(2)
		start := time.Now()
		const readers = 100
		done := make(chan mq.Pulled)
		for range readers {
			go func() { done <- pull(t, s, mq.Pull{Topic: topic, Queue: 1, Tags: []string{"A"}, Wait: time.Hour}) }()
		}
		synctest.Wait()
		require.Equal(t, readers, s.Stats().Waiting)

		time.Sleep(time.Minute)
		send(t, s, topic, 0, message("elsewhere", "A"))
		send(t, s, topic, 1, message("other tag", "B"))
		synctest.Wait()
		require.Equal(t, uint64(0), s.Stats().Woken, "nothing of that is for them")

		send(t, s, topic, 1, message("m1", "A"), message("m2", "A"))
		for range readers {
			got := <-done
			require.Equal(t, []string{"m1", "m2"}, ids(got.Messages))
			require.Equal(t, mq.QueueOffset(3), got.Next)
		}
		require.Equal(t, time.Minute, time.Since(start))
		require.Equal(t, uint64(readers), s.Stats().Woken)
		require.Zero(t, s.Stats().Waiting)
	})
}

func TestAPullThatWaitsEndsWithItsTimeItsCallerItsTopicAndTheShard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, vfs.NewMem(), shard.FlushSync)
		topic := topicOf(1)
		send(t, s, topic, 0, message("m", "A"))
		type end struct {
			got mq.Pulled
			err error
		}
		wait := func(ctx context.Context, d time.Duration, waited *time.Duration) chan end {
			c := make(chan end, 1)
			go func() {
				got, err := s.Pull(ctx, mq.Pull{Topic: topic, Offset: 0, Tags: []string{"B"}, Max: 1, Wait: d, Waited: waited})
				c <- end{got, err}
			}()
			synctest.Wait()
			return c
		}

		start := time.Now()
		var waited time.Duration
		got := <-wait(t.Context(), 10*time.Second, &waited)
		require.NoError(t, got.err)
		require.Equal(t, mq.QueueOffset(1), got.got.Next, "it went past what it does not want")
		require.Equal(t, 10*time.Second, time.Since(start))
		require.Equal(t, 10*time.Second, waited)

		ctx, cancel := context.WithCancelCause(t.Context())
		c := wait(ctx, time.Hour, nil)
		gone := errors.New("gone")
		cancel(gone)
		require.ErrorIs(t, (<-c).err, gone)

		c = wait(t.Context(), time.Hour, nil)
		require.NoError(t, s.DeleteTopic(t.Context(), topic.ID))
		require.ErrorIs(t, (<-c).err, mq.ErrTopicNotFound)

		topic = topicOf(1)
		topic.ID = 2
		c = wait(t.Context(), time.Hour, nil)
		require.NoError(t, s.Close())
		require.NoError(t, (<-c).err)
		require.Zero(t, s.Stats().Waiting)
		_, err := s.Pull(t.Context(), mq.Pull{Topic: topic, Max: 1})
		require.ErrorIs(t, err, mq.ErrStopped)
	})
}

func TestPullsCountAmongThoseThatMayWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := shard.Open(shard.Options{Name: shardName, FS: vfs.NewMem(), Dir: "shard", SegmentSize: 1 << 20, ZeroFill: -1, MaxWaiting: 1})
		require.NoError(t, err)
		defer func() { require.NoError(t, s.Close()) }()
		topic := topicOf(1)
		done := make(chan error, 1)
		go func() {
			_, err := s.Pull(t.Context(), mq.Pull{Topic: topic, Max: 1, Wait: time.Second})
			done <- err
		}()
		synctest.Wait()
		_, err = s.Pull(t.Context(), mq.Pull{Topic: topic, Max: 1, Wait: time.Second})
		require.ErrorIs(t, err, mq.ErrBusy)
		_, err = s.Pull(t.Context(), mq.Pull{Topic: topic, Max: 1})
		require.NoError(t, err, "one that does not wait may")
		require.NoError(t, <-done)
	})
}

func TestAPullAsksBeforeItReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, vfs.NewMem(), shard.FlushSync)
		defer func() { require.NoError(t, s.Close()) }()
		topic := topicOf(1)
		send(t, s, topic, 0, message("m", ""))
		full := errors.New("full")
		_, err := s.Pull(t.Context(), mq.Pull{Topic: topic, Max: 1, Reserve: func(_ context.Context, bytes int) error {
			require.Positive(t, bytes)
			return full
		}})
		require.ErrorIs(t, err, full)
	})
}

// TestAPullGoesPastManyMessagesThatItDoesNotWant: it looks at more than one page.
func TestAPullGoesPastManyMessagesThatItDoesNotWant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, vfs.NewMem(), shard.FlushAsync)
		defer func() { require.NoError(t, s.Close()) }()
		topic := topicOf(1)
		for range 5 {
			var msgs []*mq.Message
			for range 1000 {
				msgs = append(msgs, message("b", "B"))
			}
			send(t, s, topic, 0, msgs...)
		}
		send(t, s, topic, 0, message("a", "A"))
		got := pull(t, s, mq.Pull{Topic: topic, Tags: []string{"A"}})
		require.Equal(t, []string{"a"}, ids(got.Messages))
		require.Equal(t, mq.QueueOffset(5001), got.Next)
	})
}

// TestAPullWithAFilterGetsWhatItWantsInOrder: pages of any size lose and repeat nothing,
// and the place to go on from is never behind a message that was not returned.
func TestAPullWithAFilterGetsWhatItWantsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, vfs.NewMem(), shard.FlushAsync)
		defer func() { require.NoError(t, s.Close()) }()
		topic := topicOf(1)
		sendNumbers(t, s, topic, 0, 1000)
		for _, expression := range []string{"n >= 400 AND n < 700", "n = 999", "n < 0", "n BETWEEN 255 AND 257"} {
			f := sql(t, expression)
			var want, got []string
			for n := range 1000 {
				if m := with("", "n", fmt.Sprint(n)); f.Filter.Matches(m.Properties, m.System) {
					want = append(want, fmt.Sprint("0-", n))
				}
			}
			for next := mq.QueueOffset(0); next < 1000; {
				page := pull(t, s, mq.Pull{Topic: topic, Offset: next, Filter: f, Max: 7})
				require.Greater(t, page.Next, next)
				require.LessOrEqual(t, len(page.Messages), 7)
				got, next = append(got, ids(page.Messages)...), page.Next
			}
			require.Equal(t, want, got, expression)
		}

		var page mq.Pulled
		go func() {
			page = pull(t, s, mq.Pull{Topic: topic, Offset: 1000, Filter: sql(t, "n > 5"), Wait: time.Minute})
		}()
		synctest.Wait()
		send(t, s, topic, 0, with("small", "n", "5"), with("large", "n", "6"))
		synctest.Wait()
		require.Equal(t, []string{"large"}, ids(page.Messages))
		require.Equal(t, mq.QueueOffset(1002), page.Next)
	})
}

// TestAPullWhoseMessagesLeaveMeanwhileIsToldWhereItGoesOn: between the look and the
// reading nothing holds them.
func TestAPullWhoseMessagesLeaveMeanwhileIsToldWhereItGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := keeping(t, vfs.NewMem(), shard.FlushSync, shard.Retention{Age: time.Hour})
		defer func() { require.NoError(t, s.Close()) }()
		topic := topicOf(2)
		fill(t, s, topic, 100)
		asked := 0
		_, err := s.Pull(t.Context(), mq.Pull{Topic: topic, Max: 32, Wait: time.Minute, Reserve: func(context.Context, int) error {
			asked++
			time.Sleep(3 * time.Hour)
			fill(t, s, topic, 20)
			time.Sleep(time.Minute)
			return nil
		}})
		var outside *mq.OffsetError
		require.ErrorAs(t, err, &outside)
		require.Equal(t, 1, asked)
		require.Equal(t, mq.QueueOffset(50), outside.Nearest())
		require.Len(t, pull(t, s, mq.Pull{Topic: topic, Offset: outside.Nearest()}).Messages, 10)
		require.Zero(t, s.Stats().Unreadable)
	})
}

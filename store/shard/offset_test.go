package shard_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/commitlog"
	"github.com/perigee-mq/perigee/store/machine"
	"github.com/perigee-mq/perigee/store/shard"
)

func TestOffsetsAreFoundByTheTimeOfTheirMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, vfs.NewMem(), shard.FlushSync)
		defer func() { require.NoError(t, s.Close()) }()
		topic := topicOf(2)
		at := func(when time.Time) mq.QueueOffset {
			t.Helper()
			offset, err := s.OffsetAt(topic, 0, when)
			require.NoError(t, err)
			return offset
		}
		require.Zero(t, at(time.Now()), "of an empty queue")
		start := time.Now()
		for i := range 20 {
			// Two messages with one time.
			send(t, s, topic, 0, message("m", ""), message("m", ""))
			require.Equal(t, mq.QueueOffset(2*i), at(start.Add(time.Duration(i)*time.Millisecond)))
			time.Sleep(time.Millisecond)
		}
		for i := range 20 {
			when := start.Add(time.Duration(i) * time.Millisecond)
			require.Equal(t, mq.QueueOffset(2*i), at(when.Truncate(time.Millisecond)))
			require.Equal(t, mq.QueueOffset(2*i), at(when.Add(-time.Microsecond)))
			require.Equal(t, mq.QueueOffset(2*i+2), at(when.Add(500*time.Microsecond)))
		}
		require.Zero(t, at(time.Time{}), "before all that can be said in nanoseconds")
		require.Equal(t, mq.QueueOffset(40), at(start.AddDate(8000, 0, 0)))
		require.NoError(t, s.PurgeTopic(t.Context(), topic.ID))
		require.Equal(t, mq.QueueOffset(40), at(start))
		r, err := s.Range(topic, 0)
		require.NoError(t, err)
		require.Equal(t, mq.QueueRange{Min: 40, Next: 40}, r)
		_, err = s.OffsetAt(topic, 2, start)
		require.ErrorIs(t, err, mq.ErrQueueNotFound)
	})
}

func TestAResetTakesEffectForReceivesThatWaitAndForReceipts(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s := open(t, vfs.NewMem(), mode)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(1), groupOf(9)
		for range 4 {
			send(t, s, topic, 0, message("m", ""))
		}
		got := receive(t, s, mq.Receive{Topic: topic, Group: group})
		require.NoError(t, ack(t, s, got[0].Lease))
		done := make(chan []mq.Delivery)
		go func() { done <- receive(t, s, mq.Receive{Topic: topic, Group: group, Wait: time.Hour}) }()
		synctest.Wait()
		dropped, err := s.SetOffset(t.Context(), mq.OffsetSet{
			Topic: topic, Group: group, Drop: true, Offsets: map[mq.QueueID]mq.QueueOffset{0: 0},
		})
		require.NoError(t, err)
		require.Equal(t, 3, dropped)
		again := <-done
		require.Len(t, again, 4)
		for _, d := range again {
			require.Equal(t, mq.Attempt(1), d.Lease.Attempt)
		}
		require.ErrorIs(t, ack(t, s, got[1].Lease), mq.ErrLeaseEnded)
		require.NoError(t, ack(t, s, again[1].Lease))
		time.Sleep(time.Minute)
		require.Len(t, receive(t, s, mq.Receive{Topic: topic, Group: group}), 3, "the leases of before the reset end nothing")
		list, err := s.Positions(t.Context(), topic.ID, group.ID)
		require.NoError(t, err)
		require.Equal(t, []mq.Position{{QueueRange: mq.QueueRange{Next: 4}, Known: true, Offset: 4, InFlight: 3}}, list)
		survey, err := s.Survey(t.Context())
		require.NoError(t, err)
		require.Equal(t, machine.SubStatus{InFlight: 3}, survey.Groups[0].SubStatus, "and so say the metrics")
	})
}

// TestReceivesAtTheirLimitGoOnWhenAResetHasEndedWhatWasInFlight: the limit counts what
// is under lease, and that is over.
func TestReceivesAtTheirLimitGoOnWhenAResetHasEndedWhatWasInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, vfs.NewMem(), shard.FlushSync)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(1), groupOf(9)
		for range 4 {
			send(t, s, topic, 0, message("m", ""))
		}
		wanted := mq.Receive{Topic: topic, Group: group, Max: 2, InFlight: 2, Invisible: time.Hour}
		require.Len(t, receive(t, s, wanted), 2)
		wanted.Wait = time.Hour
		done := make(chan []mq.Delivery)
		go func() { done <- receive(t, s, wanted) }()
		synctest.Wait()
		_, err := s.SetOffset(t.Context(), mq.OffsetSet{Topic: topic, Group: group, Drop: true, Offsets: map[mq.QueueID]mq.QueueOffset{0: 3}})
		require.NoError(t, err)
		got := <-done
		require.Len(t, got, 1)
		require.Equal(t, mq.QueueOffset(3), got[0].Lease.Offset)
	})
}

func TestOffsetsThatWereSetSurviveARestart(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		fs := vfs.NewMem()
		s := open(t, fs, mode)
		topic, group := topicOf(2), groupOf(9)
		send(t, s, topic, 1, message("m", ""), message("m", ""))
		_, err := s.SetOffset(t.Context(), mq.OffsetSet{Topic: topic, Group: group, Offsets: map[mq.QueueID]mq.QueueOffset{1: 1}})
		require.NoError(t, err)
		for range 2 {
			list, err := s.Positions(t.Context(), topic.ID, group.ID)
			require.NoError(t, err)
			require.Equal(t, []mq.Position{
				{QueueRange: mq.QueueRange{Queue: 0}},
				{QueueRange: mq.QueueRange{Queue: 1, Next: 2}, Known: true, Offset: 1},
			}, list)
			require.NoError(t, s.Close())
			s = open(t, fs, mode)
		}
		defer func() { require.NoError(t, s.Close()) }()
		_, err = s.SetOffset(t.Context(), mq.OffsetSet{Topic: topic, Group: group, Offsets: map[mq.QueueID]mq.QueueOffset{1: 3}})
		require.ErrorIs(t, err, mq.ErrIllegalOffset)
		require.NoError(t, s.DeleteGroup(t.Context(), group.ID))
		_, err = s.SetOffset(t.Context(), mq.OffsetSet{Topic: topic, Group: group, Offsets: map[mq.QueueID]mq.QueueOffset{1: 0}})
		require.ErrorIs(t, err, mq.ErrGroupNotFound, "its id never comes back")
		list, err := s.Positions(t.Context(), topic.ID, group.ID)
		require.NoError(t, err)
		require.False(t, list[1].Known)
	})
}

// blockedGroup returns a group of which as many messages wait for the first one, which is
// under lease, and others are under lease in another queue.
func blockedGroup(t *testing.T, s *shard.Shard, topic *mq.Topic, blocked int) *mq.Group {
	t.Helper()
	group := orderedGroup()
	for i := 0; i < blocked; {
		var msgs []*mq.Message
		for ; i < blocked && len(msgs) < 500; i++ {
			msgs = append(msgs, inGroup(fmt.Sprint(i), "a"))
		}
		send(t, s, topic, 0, msgs...)
	}
	send(t, s, topic, 1, inGroup("other", "b"), inGroup("another", "c"))
	require.Len(t, receive(t, s, mq.Receive{Topic: topic, Group: group, Max: 1, Invisible: time.Hour}), 1)
	for {
		b := backlog(t, s, group)
		if b.Ready == 0 {
			return group
		}
		receive(t, s, mq.Receive{Topic: topic, Group: group, Max: 1, Invisible: time.Hour})
	}
}

// records calls fn for each command of the log.
func records(t *testing.T, fs vfs.FS, fn func(kind command.Kind, payload []byte)) {
	t.Helper()
	log, err := commitlog.Open(commitlog.Options{FS: fs, Dir: shard.LogDir(fs, "shard"), SegmentSize: 1 << 20, ZeroFill: -1})
	require.NoError(t, err)
	require.NoError(t, log.Scan(log.Segments()[0].Base, func(rec commitlog.Record) error {
		fn(command.Kind(rec.Kind), rec.Payload)
		return nil
	}))
	require.NoError(t, log.Close())
}

func TestAGroupWithManyDeliveriesIsSetInSmallCommands(t *testing.T) {
	const blocked = 5000
	for name, to := range map[string]mq.QueueOffset{"back": 0, "on": blocked, "to the middle": 2500} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fs := vfs.NewMem()
				s := open(t, fs, shard.FlushAsync)
				topic := topicOf(2)
				group := blockedGroup(t, s, topic, blocked)
				waiting := make(chan []mq.Delivery, 1)
				go func() { waiting <- receive(t, s, mq.Receive{Topic: topic, Group: group, Max: 3, Wait: time.Hour}) }()
				synctest.Wait()
				dropped, err := s.SetOffset(t.Context(), mq.OffsetSet{
					Topic: topic, Group: group, Drop: true, Offsets: map[mq.QueueID]mq.QueueOffset{0: to, 1: 2},
				})
				require.NoError(t, err)
				require.Equal(t, blocked+2, dropped)
				require.Equal(t, mq.Backlog{Topic: topic.ID, Ready: int64(blocked - to)}, settleAll(t, s, topic, group, waiting))
				require.NoError(t, s.Close())
				n := 0
				records(t, fs, func(kind command.Kind, payload []byte) {
					if kind == command.KindEndDeliveries {
						c, err := command.DecodeEndDeliveries(payload)
						require.NoError(t, err)
						require.LessOrEqual(t, c.Limit, uint32(1000))
						n++
					}
				})
				require.GreaterOrEqual(t, n, blocked/1000)
			})
		})
	}
}

// settleAll sends one message, for which a receive waits that may have got others by now,
// and returns the backlog of what was there before.
func settleAll(t *testing.T, s *shard.Shard, topic *mq.Topic, group *mq.Group, waiting chan []mq.Delivery) mq.Backlog {
	t.Helper()
	synctest.Wait()
	if len(waiting) == 0 {
		b := backlog(t, s, group)
		send(t, s, topic, 1, inGroup("last", "z"))
		require.Equal(t, []string{"last"}, ids(<-waiting))
		return b
	}
	got := <-waiting
	for _, d := range got {
		require.Equal(t, mq.Attempt(1), d.Lease.Attempt)
	}
	b := backlog(t, s, group)
	b.Ready += b.InFlight
	b.InFlight = 0
	return b
}

// Whoever asked may go away on the way: then the group is between its places, has lost
// nothing, and goes on.
func TestAResetThatIsLeftOnTheWayLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, vfs.NewMem(), shard.FlushAsync)
		defer func() { require.NoError(t, s.Close()) }()
		topic := topicOf(2)
		const blocked = 5000
		group := blockedGroup(t, s, topic, blocked)
		ctx := &endsAfter{Context: context.Background(), calls: 3, done: make(chan struct{})}
		_, err := s.SetOffset(ctx, mq.OffsetSet{Topic: topic, Group: group, Drop: true, Offsets: map[mq.QueueID]mq.QueueOffset{0: 0}})
		require.ErrorIs(t, err, context.Canceled)
		b := backlog(t, s, group)
		require.Positive(t, b.Ready)
		require.Less(t, b.Ready, int64(blocked))
		require.EqualValues(t, blocked+2, b.Ready+b.Blocked+b.InFlight)
		time.Sleep(2 * time.Hour)
		var got []string
		for {
			list := receive(t, s, mq.Receive{Topic: topic, Group: group, Max: 500})
			if len(list) == 0 {
				break
			}
			leases := make([]mq.Lease, len(list))
			for i, d := range list {
				leases[i] = d.Lease
				if d.Group == "a" {
					got = append(got, d.ID)
				}
			}
			ackAll(t, s, leases)
		}
		require.Len(t, got, blocked)
		for i, id := range got {
			require.Equal(t, fmt.Sprint(i), id)
		}
	})
}

// An endsAfter ends when it was asked so often whether it has.
type endsAfter struct {
	context.Context
	calls int
	done  chan struct{}
}

func (c *endsAfter) Done() <-chan struct{} {
	if c.calls--; c.calls == 0 {
		close(c.done)
	}
	return c.done
}

func (c *endsAfter) Err() error {
	if c.calls <= 0 {
		return context.Canceled
	}
	return nil
}

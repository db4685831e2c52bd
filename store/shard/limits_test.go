package shard_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/shard"
)

// openSmall opens a shard whose log takes records of less than 8 KiB.
func openSmall(t *testing.T, fs vfs.FS, mode shard.FlushMode) *shard.Shard {
	t.Helper()
	s, err := shard.Open(shard.Options{
		Name: shardName, FS: fs, Dir: "shard", Flush: mode, SegmentSize: 8 << 10, ZeroFill: -1,
	})
	require.NoError(t, err)
	return s
}

func TestRequestThatFitsNoRecordIsRefusedAndStopsNothing(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s := openSmall(t, vfs.NewMem(), mode)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(1), groupOf(9)
		send(t, s, topic, 0, message("a", ""))
		got := receive(t, s, mq.Receive{Topic: topic, Group: group})
		records := s.Stats().Records

		large := message("large", "")
		large.Body = make([]byte, 8<<10)
		_, err := s.Append(t.Context(), topic, 0, []*mq.Message{large})
		require.ErrorIs(t, err, mq.ErrTooLarge)
		_, err = s.Ack(t.Context(), topic.ID, group.ID, make([]command.LeaseRef, 1000))
		require.ErrorIs(t, err, mq.ErrTooLarge)
		_, err = s.Change(t.Context(), topic.ID, group.ID, make([]command.LeaseChange, 1000))
		require.ErrorIs(t, err, mq.ErrTooLarge)
		_, err = s.Receive(t.Context(), mq.Receive{Topic: topic, Group: group, Max: 1, Invisible: 1, Tags: []string{strings.Repeat("t", 8<<10)}})
		require.ErrorIs(t, err, mq.ErrTooLarge)

		require.Equal(t, records, s.Stats().Records)
		require.NoError(t, ack(t, s, got[0].Lease))
	})
}

func TestMessageWhoseDeadLetterFitsNoRecordHoldsUpNothing(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		fs := vfs.NewMem()
		s := openSmall(t, fs, mode)
		topic, group := topicOf(1), groupOf(1)
		large := message("large", "")
		large.Body = make([]byte, 7900)
		send(t, s, topic, 0, large)
		send(t, s, topic, 0, message("small", ""))
		require.Len(t, receive(t, s, mq.Receive{Topic: topic, Group: group, Invisible: time.Second}), 2)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.NoError(t, s.Err())
		require.Equal(t, uint64(1), s.Stats().DeadLettered)
		list, err := s.Backlogs(t.Context(), group.ID)
		require.NoError(t, err)
		require.Equal(t, []mq.Backlog{{Topic: topic.ID, UsedUp: 1}}, list, "it is kept")
		require.NoError(t, s.Close())

		s = open(t, fs, mode) // with larger segments
		defer func() { require.NoError(t, s.Close()) }()
		synctest.Wait()
		require.Equal(t, uint64(1), s.Stats().DeadLettered)
	})
}

func TestReceiveOfNothingOrForNoTimeIsRefused(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s := open(t, vfs.NewMem(), mode)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(1), groupOf(9)
		send(t, s, topic, 0, message("a", ""))
		records := s.Stats().Records
		for _, bad := range []struct {
			max       int
			invisible time.Duration
		}{{0, time.Second}, {-1, time.Second}, {math.MaxInt32 + 1, time.Second}, {1, 0}, {1, -time.Second}} {
			r := mq.Receive{Topic: topic, Group: group, Max: bad.max, Invisible: bad.invisible, Wait: time.Minute}
			_, err := s.Receive(t.Context(), r)
			require.ErrorIs(t, err, mq.ErrInvalid, fmt.Sprint(bad))
		}
		require.Equal(t, records, s.Stats().Records)
	})
}

func TestLeaseForEverLeavesTheShardIdle(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s := open(t, vfs.NewMem(), mode)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(1), groupOf(9)
		send(t, s, topic, 0, message("a", ""))
		got := receive(t, s, mq.Receive{Topic: topic, Group: group, Invisible: math.MaxInt64})
		records := s.Stats().Records
		time.Sleep(time.Hour)
		require.Equal(t, records, s.Stats().Records)
		require.NoError(t, ack(t, s, got[0].Lease))
	})
}

func TestMessagesThatFindNoRoomInMemoryAreGivenBackUncounted(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s := open(t, vfs.NewMem(), mode)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(1), groupOf(3)
		send(t, s, topic, 0, message("a", strings.Repeat("x", 1000)))
		send(t, s, topic, 0, message("b", strings.Repeat("x", 1000)))
		asked := 0
		r := mq.Receive{Topic: topic, Group: group, Max: 10, Invisible: time.Minute}
		for range 5 {
			r.Reserve = func(_ context.Context, bytes int) error {
				asked = bytes
				return mq.ErrBusy
			}
			_, err := s.Receive(t.Context(), r)
			require.ErrorIs(t, err, mq.ErrBusy)
			require.Greater(t, asked, 2000)
		}
		r.Reserve = func(context.Context, int) error { return nil }
		got, err := s.Receive(t.Context(), r)
		require.NoError(t, err)
		require.Len(t, got, 2)
		for _, d := range got {
			require.EqualValues(t, 1, d.Lease.Attempt)
		}
	})
}

func TestAReceiveThatAStopCutsOffGivesItsMessagesBackUncounted(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		fs := vfs.NewMem()
		s := open(t, fs, mode)
		topic, group := topicOf(1), groupOf(3)
		send(t, s, topic, 0, message("a", ""))
		ended := make(chan error, 1)
		go func() {
			_, err := s.Receive(t.Context(), mq.Receive{
				Topic: topic, Group: group, Max: 1, Invisible: time.Hour,
				Reserve: func(ctx context.Context, _ int) error {
					<-ctx.Done()
					return context.Cause(ctx)
				},
			})
			ended <- err
		}()
		synctest.Wait()
		require.NoError(t, s.Close())
		require.ErrorIs(t, <-ended, mq.ErrStopped)
		_, err := s.Receive(t.Context(), mq.Receive{Topic: topic, Group: group, Max: 1, Invisible: time.Hour})
		require.ErrorIs(t, err, mq.ErrStopped)

		s = open(t, fs, mode)
		defer func() { require.NoError(t, s.Close()) }()
		got := receive(t, s, mq.Receive{Topic: topic, Group: group, Invisible: time.Minute})
		require.Len(t, got, 1)
		require.EqualValues(t, 1, got[0].Lease.Attempt)
	})
}

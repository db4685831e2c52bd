package shard_test

import (
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

var watermarks = shard.Retention{
	Clean: shard.Watermark{Used: 0.75}, Force: shard.Watermark{Used: 0.85}, Refuse: shard.Watermark{Used: 0.9},
}

const diskSize = 20 * smallSegment

// refusedFrom is 90 % of 1 GiB.
const refusedFrom uint64 = (1 << 30) * 9 / 10

func TestExpiredMessagesLeaveAtOnceWhenTheDiskIsFillingUp(t *testing.T) {
	for _, full := range []bool{false, true} {
		t.Run(fmt.Sprint("disk filling up: ", full), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk := &smallDisk{FS: vfs.NewMem(), capacity: 1 << 40}
				r := watermarks
				r.Age = 10 * time.Hour
				s := keeping(t, disk, shard.FlushSync, r)
				defer func() { require.NoError(t, s.Close()) }()
				topic := topicOf(2)
				fill(t, s, topic, 4) // a quarter of a segment, over four seconds
				time.Sleep(10*time.Hour - time.Minute)
				fill(t, s, numbered(2), 1)
				if full {
					disk.others.Store(8 << 37)
				}
				time.Sleep(time.Minute + 20*time.Second)
				if full {
					require.EqualValues(t, 4, s.Stats().Trimmed)
				}
				require.Equal(t, 1, segments(t, disk), "one message is not past its age")
				time.Sleep(11 * time.Hour)
				require.EqualValues(t, 5, s.Stats().Trimmed)
				require.Equal(t, 1, segments(t, disk))
				require.Equal(t, full, s.Stats().LogFirst > smallSegment/16, "the active segment was left so that it could go")
				at := s.Stats().LogFirst
				time.Sleep(11 * time.Hour)
				require.Equal(t, at, s.Stats().LogFirst, "the new one is hardly used")
			})
		})
	}
}

func TestOldestMessagesGoWhenTheDiskIsNearlyFullButNeverThoseUnderDelivery(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		disk := &smallDisk{FS: vfs.NewMem(), capacity: diskSize}
		s := keeping(t, disk, mode, watermarks)
		topic, group := topicOf(2), groupOf(3)
		require.Empty(t, receive(t, s, mq.Receive{Topic: topic, Group: group}))
		fill(t, s, topic, 100)
		time.Sleep(time.Minute)
		require.Zero(t, s.Stats().Trimmed)

		// What is under delivery holds the log, whoever else needs the disk.
		got := receive(t, s, mq.Receive{Topic: topic, Group: group, Max: 2, Invisible: time.Hour})
		require.Len(t, got, 2)
		full := segments(t, disk)
		disk.others.Store(diskSize*88/100 - size(disk, "shard"))
		time.Sleep(30 * time.Second)
		require.Equal(t, full, segments(t, disk))
		require.NoError(t, change(t, s, got[1].Lease, 0, mq.Extend)) // it waits to be delivered again
		require.NoError(t, ack(t, s, got[0].Lease))
		time.Sleep(30 * time.Second)
		st := s.Stats()
		require.Less(t, st.DiskUsed, uint64(diskSize*85/100))
		require.Greater(t, st.DiskUsed, uint64(diskSize*75/100), "no more goes than must")
		require.EqualValues(t, 1, st.Lost, "the redelivery")
		require.Positive(t, st.Evicted)
		require.Zero(t, st.StoreFull)
		left := receiveAll(t, s, topic, group)
		require.Len(t, left, int(100-st.Evicted))
		require.NoError(t, s.Close())
	})
}

func TestSendsAreRefusedWhileTheDiskIsFullAndEverythingElseGoesOn(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		disk := &smallDisk{FS: vfs.NewMem(), capacity: 1 << 30}
		s := keeping(t, disk, mode, watermarks)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(2), groupOf(3)
		fill(t, s, topic, 10)
		disk.others.Store(1 << 30 * 92 / 100)
		time.Sleep(15 * time.Second)
		start := time.Now()
		for range 3 {
			_, err := s.Append(t.Context(), topic, 0, []*mq.Message{message("x", "")})
			require.ErrorIs(t, err, mq.ErrStoreFull)
			require.NotErrorIs(t, err, mq.ErrStopped)
			st := s.Stats()
			require.ErrorContains(t, err, fmt.Sprintf("%d of %d bytes", st.DiskUsed, 1<<30))
			require.ErrorContains(t, err, fmt.Sprint("from ", refusedFrom, " on"))
			require.ErrorContains(t, err, "the file system of shard has")
			require.Equal(t, refusedFrom, st.DiskRefuse)
			require.EqualValues(t, 1<<30, st.DiskCapacity)
		}
		require.EqualValues(t, 3, s.Stats().StoreFull)
		require.ErrorIs(t, s.AdmitNew(), mq.ErrStoreFull)
		unknown := topicOf(1)
		unknown.ID = 77
		_, err := s.Append(t.Context(), unknown, 0, []*mq.Message{message("x", "")})
		require.ErrorIs(t, err, mq.ErrStoreFull)
		topics, _, err := s.Registered(t.Context())
		require.NoError(t, err)
		require.NotContains(t, topics, unknown.ID, "a refused send leaves nothing behind")

		got := receive(t, s, mq.Receive{Topic: topic, Group: group, Max: 10})
		require.Len(t, got, 10)
		require.NoError(t, change(t, s, got[0].Lease, time.Minute, mq.Renew))
		require.NoError(t, s.DeadLetter(t.Context(), got[1].Lease))
		for _, d := range got[2:] {
			require.NoError(t, ack(t, s, d.Lease))
		}
		require.NoError(t, s.PurgeTopic(t.Context(), topic.ID))
		require.NoError(t, s.DeleteTopic(t.Context(), topic.ID))
		require.NoError(t, s.Err())

		// Room again: within one look, without anybody's help.
		disk.others.Store(1 << 30 * 89 / 100)
		time.Sleep(10*time.Second - time.Since(start)%(10*time.Second))
		synctest.Wait()
		require.NoError(t, s.AdmitNew())
		send(t, s, numbered(2), 0, message("y", ""))
	})
}

func TestReserveIsForAcknowledgementsOnly(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		disk := &smallDisk{FS: vfs.NewMem(), capacity: 1 << 30}
		s := keeping(t, disk, mode, watermarks)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(2), groupOf(3)
		fill(t, s, topic, 10)
		got := receive(t, s, mq.Receive{Topic: topic, Group: group, Max: 2})
		require.Empty(t, receive(t, s, mq.Receive{Topic: numbered(2), Group: group}))
		disk.others.Store(1 << 30 * 975 / 1000)
		time.Sleep(15 * time.Second)
		_, err := s.Receive(t.Context(), mq.Receive{Topic: topic, Group: group, Max: 1, Invisible: time.Minute})
		require.ErrorIs(t, err, mq.ErrStoreFull)
		require.ErrorContains(t, err, "receives are refused from")
		require.ErrorIs(t, s.DeadLetter(t.Context(), got[1].Lease), mq.ErrStoreFull)
		require.NoError(t, ack(t, s, got[0].Lease))
		require.NoError(t, ack(t, s, got[1].Lease))
		require.Empty(t, receive(t, s, mq.Receive{Topic: numbered(2), Group: group, Wait: time.Hour}),
			"one that has nothing to write is not refused")
		disk.others.Store(1 << 30 * 96 / 100)
		time.Sleep(15 * time.Second)
		require.Len(t, receiveAll(t, s, topic, group), 8)
	})
}

func TestFullDiskEndsEvenDeliveriesUnderWayAndCountsThem(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		disk := &smallDisk{FS: vfs.NewMem(), capacity: diskSize}
		s := keeping(t, disk, mode, watermarks)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(2), groupOf(3)
		fill(t, s, topic, 50)
		got := receive(t, s, mq.Receive{Topic: topic, Group: group, Max: 30, Invisible: 10 * time.Hour})
		require.Len(t, got, 30)
		require.NoError(t, s.UpdateGroup(t.Context(), groupOf(3)))
		full := segments(t, disk)
		disk.others.Store(diskSize*91/100 - size(disk, "shard"))
		time.Sleep(15 * time.Second)
		st := s.Stats()
		require.Equal(t, full-1, segments(t, disk), "one segment takes the disk below the level")
		require.Greater(t, st.Lost, uint64(5))
		require.Less(t, st.Lost, uint64(20))
		lost := 0
		for _, d := range got {
			if err := ack(t, s, d.Lease); err != nil {
				require.ErrorIs(t, err, mq.ErrLeaseEnded)
				require.NotErrorIs(t, err, mq.ErrLeaseSuperseded)
				lost++
			}
		}
		require.EqualValues(t, st.Lost, lost)
		send(t, s, topic, 0, message("new", ""))
		require.Contains(t, receiveAll(t, s, topic, group), "new")
		requireBacklog(t, s, group.ID, mq.Backlog{Topic: topic.ID})
		require.EqualValues(t, st.Lost, s.Stats().Lost, "each is counted once")
		require.Equal(t, st.Lost, survey(t, s).Groups[0].Lost)
	})
}

func TestRoomIsWatchedBetweenTheLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &smallDisk{FS: vfs.NewMem(), capacity: 1 << 30}
		r := watermarks
		r.Interval = time.Hour
		s := keeping(t, disk, shard.FlushSync, r)
		defer func() { require.NoError(t, s.Close()) }()
		topic := topicOf(1)
		synctest.Wait()
		disk.others.Store(1<<30*9/10 - 20<<10) // somebody else was quick
		send(t, s, topic, 0, message("a", ""))
		time.Sleep(time.Hour + time.Second)
		synctest.Wait()
		big := message("b", "")
		big.Body = make([]byte, 30<<10)
		send(t, s, topic, 0, big)
		_, err := s.Append(t.Context(), topic, 0, []*mq.Message{message("c", "")})
		require.ErrorIs(t, err, mq.ErrStoreFull, "what was sent since the look counts")
		synctest.Wait()
		disk.others.Store(1 << 29)
		_, err = s.Append(t.Context(), topic, 0, []*mq.Message{message("c", "")})
		require.ErrorIs(t, err, mq.ErrStoreFull)
		time.Sleep(time.Hour + time.Second)
		synctest.Wait()
		send(t, s, topic, 0, message("c", ""))

		// What was sent may have been room that somebody else has given back since.
		disk.others.Store(1<<30*9/10 - 100<<10)
		time.Sleep(time.Hour + time.Second)
		synctest.Wait()
		disk.others.Store(1 << 29)
		for err = nil; err == nil; {
			again := message("d", "")
			again.Body = make([]byte, 10<<10)
			_, err = s.Append(t.Context(), topic, 0, []*mq.Message{again})
		}
		require.ErrorIs(t, err, mq.ErrStoreFull)
		synctest.Wait()
		send(t, s, topic, 0, message("e", ""))
	})
}

func TestFreeBytesAreAWatermarkToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &smallDisk{FS: vfs.NewMem(), capacity: 1 << 40}
		s := keeping(t, disk, shard.FlushSync, shard.Retention{Refuse: shard.Watermark{Used: 0.99, Free: 1 << 37}})
		defer func() { require.NoError(t, s.Close()) }()
		disk.others.Store(1<<40 - 1<<37 - 1<<20)
		time.Sleep(15 * time.Second)
		send(t, s, topicOf(1), 0, message("a", ""))
		disk.others.Store(1<<40 - 1<<37)
		time.Sleep(15 * time.Second)
		_, err := s.Append(t.Context(), topicOf(1), 0, []*mq.Message{message("b", "")})
		require.ErrorIs(t, err, mq.ErrStoreFull)
		require.NoError(t, s.Close())

		// At once after a start as well.
		s = keeping(t, disk, shard.FlushSync, shard.Retention{Refuse: shard.Watermark{Free: 1 << 37}})
		_, err = s.Append(t.Context(), topicOf(1), 0, []*mq.Message{message("b", "")})
		require.ErrorIs(t, err, mq.ErrStoreFull)
	})
}

func TestWithoutForceAFullDiskRefusesSendsAndRemovesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &smallDisk{FS: vfs.NewMem(), capacity: 1 << 40}
		s := keeping(t, disk, shard.FlushSync, shard.Retention{Clean: watermarks.Clean, Refuse: watermarks.Refuse})
		defer func() { require.NoError(t, s.Close()) }()
		topic := topicOf(8)
		sent := fill(t, s, topic, 40)
		before := segments(t, disk)
		require.Greater(t, before, 2)
		disk.others.Store(1 << 40)
		time.Sleep(time.Hour)
		_, err := s.Append(t.Context(), topic, 0, []*mq.Message{message("late", "")})
		require.ErrorIs(t, err, mq.ErrStoreFull)
		require.Equal(t, before, segments(t, disk))
		disk.others.Store(0)
		time.Sleep(time.Minute)
		require.ElementsMatch(t, sent, receiveAll(t, s, topic, groupOf(16)))
	})
}

func TestFileSystemThatDoesNotTellItsUsageLimitsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &smallDisk{FS: vfs.NewMem(), capacity: 1 << 30}
		s := keeping(t, disk, shard.FlushSync, watermarks)
		broken := errors.New("no idea")
		disk.unknown.Store(&broken)
		disk.others.Store(1 << 30)
		time.Sleep(time.Minute)
		send(t, s, topicOf(1), 0, message("a", ""))
		disk.unknown.Store(nil)
		time.Sleep(time.Minute)
		_, err := s.Append(t.Context(), topicOf(1), 0, []*mq.Message{message("b", "")})
		require.ErrorIs(t, err, mq.ErrStoreFull)
		disk.unknown.Store(&broken)
		time.Sleep(time.Minute)
		_, err = s.Append(t.Context(), topicOf(1), 0, []*mq.Message{message("b", "")})
		require.ErrorIs(t, err, mq.ErrStoreFull, "what was last known holds")
		require.NoError(t, s.Close())

		s = keeping(t, vfs.NewMem(), shard.FlushSync, watermarks) // does not support it
		send(t, s, topicOf(1), 0, message("a", ""))
		require.NoError(t, s.Close())
	})
}

package shard_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/shard"
)

// A smallDisk tells how full it is: what the files take, and what others have put there.
type smallDisk struct {
	vfs.FS
	capacity uint64
	others   atomic.Uint64
	unknown  atomic.Pointer[error]
}

func (d *smallDisk) GetDiskUsage(path string) (vfs.DiskUsage, error) {
	if err := d.unknown.Load(); err != nil {
		return vfs.DiskUsage{}, *err
	}
	used := d.others.Load() + size(d.FS, path)
	return vfs.DiskUsage{TotalBytes: d.capacity, UsedBytes: used, AvailBytes: d.capacity - min(used, d.capacity)}, nil
}

// size returns what the files below path take.
func size(fs vfs.FS, path string) (sum uint64) {
	names, err := fs.List(path)
	if err != nil {
		return 0
	}
	for _, name := range names {
		if info, err := fs.Stat(fs.PathJoin(path, name)); err != nil {
			continue // removed meanwhile
		} else if info.IsDir() {
			sum += size(fs, fs.PathJoin(path, name))
		} else {
			sum += uint64(info.Size())
		}
	}
	return sum
}

const smallSegment = 64 << 10

func keeping(t *testing.T, fs vfs.FS, mode shard.FlushMode, r shard.Retention) *shard.Shard {
	t.Helper()
	s, err := shard.Open(shard.Options{
		Name: shardName, FS: fs, Dir: "shard", Flush: mode, SegmentSize: smallSegment, ZeroFill: -1, Retention: r,
	})
	require.NoError(t, err)
	return s
}

func numbered(id mq.TopicID) *mq.Topic {
	topic := topicOf(2)
	topic.ID, topic.Name = id, fmt.Sprint("t", id)
	return topic
}

// fill sends n messages of 4 KiB, a second apart.
func fill(t *testing.T, s *shard.Shard, topic *mq.Topic, n int) []string {
	t.Helper()
	var sent []string
	for i := range n {
		m := message(fmt.Sprint(topic.Name, "-", time.Now().UnixNano()), "")
		m.Body = []byte("body of " + m.ID + strings.Repeat(" ", 4<<10))
		sent = append(sent, m.ID)
		send(t, s, topic, mq.QueueID(i%2), m)
		time.Sleep(time.Second)
	}
	return sent
}

// receiveAll receives and acknowledges what there is.
func receiveAll(t *testing.T, s *shard.Shard, topic *mq.Topic, group *mq.Group) []string {
	t.Helper()
	var all []string
	for {
		got := receive(t, s, mq.Receive{Topic: topic, Group: group})
		if len(got) == 0 {
			return all
		}
		for _, d := range got {
			require.NoError(t, ack(t, s, d.Lease))
		}
		all = append(all, ids(got)...)
	}
}

func segments(t *testing.T, fs vfs.FS) int {
	t.Helper()
	n := 0
	for _, name := range filesIn(t, fs, shard.LogDir(fs, "shard")) {
		if strings.HasPrefix(fs.PathBase(name), "0") {
			n++
		}
	}
	return n
}

func TestEveryTopicKeepsItsMessagesAsLongAsItIsToldTo(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		short, long, forever, unknown := numbered(1), numbered(2), numbered(3), numbered(4)
		r := shard.Retention{Age: time.Nanosecond, Interval: 5 * time.Minute, Of: func(id mq.TopicID) (time.Duration, bool) {
			switch id {
			case short.ID:
				return 10 * time.Minute, true
			case long.ID:
				return 7 * 24 * time.Hour, true
			case forever.ID:
				return 0, true
			}
			return 0, false
		}}
		fs := vfs.NewCrashableMem()
		s := keeping(t, fs, mode, r)
		group := groupOf(3)
		sent := map[mq.TopicID][]string{}
		for _, topic := range []*mq.Topic{short, long, forever, unknown} {
			require.Empty(t, receive(t, s, mq.Receive{Topic: topic, Group: group}))
			sent[topic.ID] = fill(t, s, topic, 10)
		}
		time.Sleep(9 * time.Minute)
		backlogs, err := s.Backlogs(t.Context(), group.ID)
		require.NoError(t, err)
		for _, b := range backlogs {
			require.EqualValues(t, 10, b.Ready, "topic %d", b.Topic)
		}
		time.Sleep(21 * time.Minute)
		for range 2 {
			requireBacklog(t, s, group.ID, mq.Backlog{Topic: 1}, mq.Backlog{Topic: 2, Ready: 10}, mq.Backlog{Topic: 3, Ready: 10}, mq.Backlog{Topic: 4, Ready: 10})
			ranges, err := s.Queues(t.Context(), short.ID)
			require.NoError(t, err)
			require.Equal(t, []mq.QueueRange{{Queue: 0, Min: 5, Next: 5}, {Queue: 1, Min: 5, Next: 5}}, ranges)
			if mode == shard.FlushAsync {
				time.Sleep(time.Second)
			}
			crashed := fs.CrashClone(vfs.CrashCloneCfg{})
			require.NoError(t, s.Close())
			fs = crashed
			s = keeping(t, fs, mode, r)
		}
		defer func() { require.NoError(t, s.Close()) }()
		require.Empty(t, receiveAll(t, s, short, group))
		fresh := fill(t, s, short, 1)
		require.Equal(t, fresh, receiveAll(t, s, short, group))
		for _, topic := range []*mq.Topic{long, forever, unknown} {
			require.ElementsMatch(t, sent[topic.ID], receiveAll(t, s, topic, group))
		}
		time.Sleep(8 * 24 * time.Hour)
		late := groupOf(3)
		late.ID, late.Name, late.DeadLetter = 2, "late", 101
		require.Empty(t, receiveAll(t, s, long, late))
		require.ElementsMatch(t, sent[forever.ID], receiveAll(t, s, forever, late))
		require.ElementsMatch(t, sent[unknown.ID], receiveAll(t, s, unknown, late))
		require.Zero(t, s.Stats().Lost+s.Stats().Evicted)
	})
}

func TestNothingIsEverRemovedWithoutRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		s := keeping(t, fs, shard.FlushSync, shard.Retention{})
		sent := fill(t, s, topicOf(2), 100)
		time.Sleep(10 * 365 * 24 * time.Hour)
		require.Greater(t, segments(t, fs), 5)
		require.ElementsMatch(t, sent, receiveAll(t, s, topicOf(2), groupOf(2)))
		require.NoError(t, s.Close())
	})
}

func TestSegmentsGoWithTheLastMessageThatIsKeptInThem(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		fs := vfs.NewCrashableMem()
		r := shard.Retention{Age: time.Hour}
		s := keeping(t, fs, mode, r)
		topic, group := topicOf(2), groupOf(2)
		fill(t, s, topic, 100)
		full := segments(t, fs)
		require.Greater(t, full, 5)
		time.Sleep(30 * time.Minute)
		kept := fill(t, s, topic, 50)
		require.Greater(t, segments(t, fs), full)
		time.Sleep(42 * time.Minute) // the first are past their age, the others are not
		require.LessOrEqual(t, segments(t, fs), 6)
		require.Positive(t, s.Stats().LogFirst)
		require.EqualValues(t, 100, s.Stats().Trimmed)
		for range 3 {
			time.Sleep(time.Second)
			crashed := fs.CrashClone(vfs.CrashCloneCfg{})
			require.NoError(t, s.Close())
			fs = crashed
			s = keeping(t, fs, mode, r)
		}
		defer func() { require.NoError(t, s.Close()) }()
		require.ElementsMatch(t, kept, receiveAll(t, s, topic, group))
		require.Zero(t, s.Stats().Lost+s.Stats().Unreadable)
		time.Sleep(2 * time.Hour)
		require.Equal(t, 1, segments(t, fs))
		sent := fill(t, s, topic, 1)
		require.Equal(t, sent, receiveAll(t, s, topic, group))
	})
}

func TestMessageUnderDeliveryIsKeptPastItsAgeWithItsSegment(t *testing.T) {
	for _, queue := range []mq.QueueID{0, 2} { // the others of the topic keep nothing
		messageUnderDeliveryIsKept(t, queue)
	}
}

func messageUnderDeliveryIsKept(t *testing.T, queue mq.QueueID) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		fs := vfs.NewMem()
		s := keeping(t, fs, mode, shard.Retention{Age: time.Hour})
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(3), groupOf(2)
		send(t, s, topic, queue, message("a", ""), message("b", ""))
		require.Len(t, receive(t, s, mq.Receive{Topic: topic, Group: group, Max: 1, Invisible: 4 * time.Hour}), 1)
		fill(t, s, numbered(2), 50)
		time.Sleep(3 * time.Hour)
		full := segments(t, fs)
		require.Greater(t, full, 3, "the first segment has a message that is needed")
		requireBacklog(t, s, group.ID, mq.Backlog{Topic: topic.ID, InFlight: 1})
		time.Sleep(time.Hour + time.Minute) // nobody came back for it: it is delivered again
		got := receive(t, s, mq.Receive{Topic: topic, Group: group, Invisible: time.Hour})
		require.Equal(t, []string{"a"}, ids(got))
		require.Equal(t, mq.Attempt(2), got[0].Lease.Attempt)
		time.Sleep(time.Hour + time.Minute) // and used up
		synctest.Wait()
		require.EqualValues(t, 1, s.Stats().DeadLettered)
		time.Sleep(5 * time.Minute)
		require.Less(t, segments(t, fs), full)
		require.Zero(t, s.Stats().Lost+s.Stats().Abandoned)
	})
}

func TestGroupThatNobodyWorksForHoldsNothingForEver(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		fs := vfs.NewMem()
		s := keeping(t, fs, mode, shard.Retention{Age: time.Hour})
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(1), groupOf(9)
		send(t, s, topic, 0, message("a", ""), message("b", ""))
		time.Sleep(50 * time.Minute)
		got := receive(t, s, mq.Receive{Topic: topic, Group: group, Max: 2, Invisible: time.Second})
		require.Len(t, got, 2)
		fill(t, s, numbered(2), 50)
		full := segments(t, fs)
		time.Sleep(50 * time.Minute) // 1 h 40 min old, and delivered less than an hour ago
		requireBacklog(t, s, group.ID, mq.Backlog{Topic: topic.ID, Ready: 2})
		require.Equal(t, full, segments(t, fs))
		time.Sleep(30 * time.Minute)
		requireBacklog(t, s, group.ID, mq.Backlog{Topic: topic.ID})
		require.EqualValues(t, 2, s.Stats().Abandoned)
		require.Zero(t, s.Stats().Lost+s.Stats().Settled)
		require.Less(t, segments(t, fs), full)
		require.ErrorIs(t, ack(t, s, got[0].Lease), mq.ErrLeaseEnded)
		require.Empty(t, receive(t, s, mq.Receive{Topic: topic, Group: group}))
	})
}

func TestIdleShardWritesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &smallDisk{FS: vfs.NewMem(), capacity: 1 << 40}
		disk.others.Store(8 << 37) // the disk is full of other things, so nothing is put off
		s := keeping(t, disk, shard.FlushSync, shard.Retention{
			Age: time.Hour, Size: 1 << 30, Clean: shard.Watermark{Used: 0.75},
		})
		defer func() { require.NoError(t, s.Close()) }()
		for id := range mq.TopicID(10) {
			fill(t, s, numbered(id+1), 3)
		}
		require.Empty(t, receive(t, s, mq.Receive{Topic: numbered(11), Group: groupOf(1)}))
		time.Sleep(3 * time.Hour)
		records := s.Stats().Records
		require.EqualValues(t, 30, s.Stats().Trimmed)
		time.Sleep(24 * time.Hour)
		require.Equal(t, records, s.Stats().Records)
	})
}

func TestTopicThatIsToldAnotherAgeFollowsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var age atomic.Int64
		age.Store(int64(365 * 24 * time.Hour))
		s := keeping(t, vfs.NewMem(), shard.FlushSync, shard.Retention{
			Of: func(mq.TopicID) (time.Duration, bool) { return time.Duration(age.Load()), true },
		})
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(2), groupOf(1)
		require.Empty(t, receive(t, s, mq.Receive{Topic: topic, Group: group}))
		fill(t, s, topic, 10)
		time.Sleep(time.Hour)
		requireBacklog(t, s, group.ID, mq.Backlog{Topic: topic.ID, Ready: 10})
		age.Store(int64(time.Minute))
		time.Sleep(20 * time.Second)
		requireBacklog(t, s, group.ID, mq.Backlog{Topic: topic.ID})
		age.Store(int64(2 * time.Hour))
		fill(t, s, topic, 10)
		time.Sleep(time.Hour)
		requireBacklog(t, s, group.ID, mq.Backlog{Topic: topic.ID, Ready: 10})
	})
}

func TestDeletedTopicsAndPurgedOnesDoNotHoldTheLog(t *testing.T) {
	for name, empty := range map[string]func(*shard.Shard, context.Context, mq.TopicID) error{
		"deleted": (*shard.Shard).DeleteTopic,
		"purged":  (*shard.Shard).PurgeTopic,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fs := vfs.NewMem()
				s := keeping(t, fs, shard.FlushSync, shard.Retention{Age: 365 * 24 * time.Hour})
				defer func() { require.NoError(t, s.Close()) }()
				fill(t, s, numbered(1), 60)
				held := receive(t, s, mq.Receive{Topic: numbered(1), Group: groupOf(1), Max: 1, Invisible: 10 * time.Hour})
				require.Len(t, held, 1)
				kept := fill(t, s, numbered(2), 20)
				fill(t, s, numbered(1), 20)
				full := segments(t, fs)
				time.Sleep(time.Hour)
				require.Equal(t, full, segments(t, fs))
				require.NoError(t, empty(s, t.Context(), 1))
				time.Sleep(2 * time.Minute)
				require.Less(t, segments(t, fs), full)
				require.ElementsMatch(t, kept, receiveAll(t, s, numbered(2), groupOf(1)))
			})
		})
	}
}

func TestLogIsKeptBelowItsSize(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		fs := vfs.NewMem()
		r := shard.Retention{Size: 5 * smallSegment}
		s := keeping(t, fs, mode, r)
		topic, group := topicOf(2), groupOf(2)
		require.Empty(t, receive(t, s, mq.Receive{Topic: topic, Group: group}))
		first := fill(t, s, topic, 40)
		time.Sleep(time.Hour)
		require.Zero(t, s.Stats().Trimmed, "there is room")
		sent := append(first, fill(t, s, topic, 60)...)
		time.Sleep(20 * time.Second)
		st := s.Stats()
		require.LessOrEqual(t, st.LogAppended-st.LogFirst, uint64(5*smallSegment))
		require.Greater(t, st.LogAppended-st.LogFirst, uint64(3*smallSegment), "no more goes than must")
		require.Equal(t, st.Trimmed, st.Evicted)
		require.Positive(t, st.Evicted)
		require.NoError(t, s.Close())
		s = keeping(t, fs, mode, r)
		defer func() { require.NoError(t, s.Close()) }()
		requireBacklog(t, s, group.ID, mq.Backlog{Topic: topic.ID, Ready: int64(100 - st.Evicted)})
		require.ElementsMatch(t, sent[st.Evicted:], receiveAll(t, s, topic, group))
		require.Zero(t, s.Stats().Lost)
	})
}

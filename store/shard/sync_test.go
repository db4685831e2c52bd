package shard_test

import (
	"context"
	"fmt"
	"hash/crc32"
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

// A syncFS calls sync before each sync of a file of the log.
type syncFS struct {
	vfs.FS
	sync atomic.Pointer[func() error]
}

func (fs *syncFS) onSync(fn func() error) { fs.sync.Store(&fn) }

func (fs *syncFS) file(f vfs.File, name string, err error) (vfs.File, error) {
	if err != nil || !strings.Contains(name, "/log/") {
		return f, err
	}
	return &syncFile{f, fs}, nil
}

func (fs *syncFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.Create(name, category)
	return fs.file(f, name, err)
}

func (fs *syncFS) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := fs.FS.OpenReadWrite(name, category, opts...)
	return fs.file(f, name, err)
}

type syncFile struct {
	vfs.File
	fs *syncFS
}

func (f *syncFile) before() error {
	if fn := f.fs.sync.Load(); fn != nil {
		return (*fn)()
	}
	return nil
}

func (f *syncFile) Sync() error {
	if err := f.before(); err != nil {
		return err
	}
	return f.File.Sync()
}

func (f *syncFile) SyncData() error {
	if err := f.before(); err != nil {
		return err
	}
	return f.File.SyncData()
}

// openSlow opens a shard on a disk that takes that long for a sync of the log.
func openSlow(t *testing.T, d time.Duration) *shard.Shard {
	t.Helper()
	fs := &syncFS{FS: vfs.NewMem()}
	fs.onSync(func() error {
		time.Sleep(d)
		return nil
	})
	s, err := shard.Open(shard.Options{Name: shardName, FS: fs, Dir: "shard", SegmentSize: 64 << 20, ZeroFill: -1})
	require.NoError(t, err)
	return s
}

func TestNothingIsDeliveredOrCountedBeforeItsSyncHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := &syncFS{FS: vfs.NewMem()}
		s, err := shard.Open(shard.Options{Name: shardName, FS: fs, Dir: "shard", ZeroFill: -1})
		require.NoError(t, err)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(1), groupOf(9)
		send(t, s, topic, 0, message("durable", ""))
		require.Equal(t, []string{"durable"}, ids(receive(t, s, mq.Receive{Topic: topic, Group: group, Invisible: time.Hour})))

		syncing, released := make(chan struct{}), make(chan struct{})
		fs.onSync(func() error {
			close(syncing)
			<-released
			return nil
		})
		acknowledged := make(chan mq.Appended, 1)
		go func() { acknowledged <- send(t, s, topic, 0, message("held", "")) }()
		<-syncing
		fs.onSync(func() error { return nil })
		received := make(chan []mq.Delivery, 1)
		go func() { received <- receive(t, s, mq.Receive{Topic: topic, Group: group, Wait: time.Hour}) }()
		queues := make(chan []mq.QueueRange, 1)
		go func() {
			ranges, err := s.Queues(context.Background(), topic.ID)
			require.NoError(t, err)
			queues <- ranges
		}()
		time.Sleep(time.Minute)
		require.Empty(t, acknowledged, "not durable, not acknowledged")
		require.Empty(t, received, "not durable, not delivered")
		require.Empty(t, queues, "not durable, not counted")
		start := time.Now()
		close(released)
		require.Equal(t, mq.QueueOffset(1), (<-acknowledged).Offset)
		require.Equal(t, []string{"held"}, ids(<-received))
		require.Equal(t, mq.QueueOffset(2), (<-queues)[0].Next)
		require.Less(t, time.Since(start), time.Second)
	})
}

// Each copy is a write that must be on disk before the original is settled. One
// after the other they would take as many syncs as there are messages.
func TestABurstOfUsedUpMessagesSharesItsSyncs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, syncTime = 10_000, 5 * time.Millisecond
		s := openSlow(t, syncTime)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(4), groupOf(1)
		for i := 0; i < n; i += 500 {
			var msgs []*mq.Message
			for j := range 500 {
				msgs = append(msgs, message(fmt.Sprint(i+j), ""))
			}
			send(t, s, topic, mq.QueueID(i/500%4), msgs...)
		}
		end := time.Now().Add(time.Minute)
		for got := 0; got < n; {
			d := receive(t, s, mq.Receive{Topic: topic, Group: group, Max: 500, Invisible: time.Until(end)})
			require.NotEmpty(t, d)
			got += len(d)
		}
		time.Sleep(time.Until(end))
		start := time.Now()
		for s.Stats().DeadLettered < n {
			require.Less(t, time.Since(start), 10*time.Second, "%d of %d", s.Stats().DeadLettered, n)
			time.Sleep(10 * time.Millisecond)
		}
		t.Logf("%d dead letters in %v, one sync takes %v", n, time.Since(start), syncTime)
		require.Less(t, time.Since(start), 4*time.Second)
		other := groupOf(3)
		other.ID, other.Name, other.DeadLetter = 2, "drain", 101
		seen := map[string]bool{}
		for len(seen) < n {
			d := receive(t, s, mq.Receive{Topic: deadLetterTopic(group), Group: other, Max: 500, Invisible: time.Hour})
			require.NotEmpty(t, d)
			for _, id := range ids(d) {
				require.False(t, seen[id], "a second copy of %s", id)
				seen[id] = true
			}
		}
	})
}

func TestMessagesWhoseBodyHasAChecksumOfZeroSurviveARestart(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		fs := vfs.NewMem()
		s := open(t, fs, mode)
		zero := []byte{0x9d, 0x0a, 0xd9, 0x6d}
		require.Zero(t, crc32.ChecksumIEEE(zero))
		var msgs []*mq.Message
		for i := range 3 { // in one record
			m := message(fmt.Sprint(i), "")
			m.Body = zero
			msgs = append(msgs, m)
		}
		empty := message("empty", "")
		empty.Body = nil
		send(t, s, topicOf(1), 0, append(msgs, empty)...)
		require.NoError(t, s.Close())
		s = open(t, fs, mode)
		defer func() { require.NoError(t, s.Close()) }()
		got := receive(t, s, mq.Receive{Topic: topicOf(1), Group: groupOf(3)})
		require.Equal(t, []string{"0", "1", "2", "empty"}, ids(got))
		for _, d := range got[:3] {
			require.Equal(t, zero, d.Body)
		}
		require.Empty(t, got[3].Body)
	})
}

func TestSendsAreRefusedWhileTheDiskDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := &syncFS{FS: vfs.NewMem()}
		s, err := shard.Open(shard.Options{Name: shardName, FS: fs, Dir: "shard", ZeroFill: -1})
		require.NoError(t, err)
		defer func() { require.NoError(t, s.Close()) }()
		topic := topicOf(1)
		send(t, s, topic, 0, message("before", ""))

		released := make(chan struct{})
		fs.onSync(func() error {
			<-released
			return nil
		})
		held := make(chan mq.Appended, 2)
		go func() { held <- send(t, s, topic, 0, message("held", "")) }()
		synctest.Wait()
		time.Sleep(4 * time.Second)
		go func() { held <- send(t, s, topic, 0, message("waits", "")) }() // disks have such moments
		synctest.Wait()
		time.Sleep(2 * time.Second)
		began := time.Now()
		_, err = s.Append(t.Context(), topic, 0, []*mq.Message{message("refused", "")})
		require.ErrorIs(t, err, mq.ErrUnavailable)
		require.NotErrorIs(t, err, mq.ErrOutcomeUnknown)
		require.ErrorContains(t, err, "6s")
		require.Equal(t, began, time.Now())
		require.Equal(t, 6*time.Second, s.Stats().Turn)

		close(released)
		<-held
		<-held
		send(t, s, topic, 0, message("after", ""))
		synctest.Wait()
		require.Zero(t, s.Stats().Turn)
		got := receive(t, s, mq.Receive{Topic: topic, Group: groupOf(9), Max: 10, Invisible: time.Hour})
		require.Equal(t, []string{"before", "held", "waits", "after"}, ids(got))
	})
}

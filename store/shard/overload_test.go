package shard_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/shard"
)

// A slowFS lets syncs of the log wait, once that is wanted, until released is closed.
type slowFS struct {
	vfs.FS
	wanted   atomic.Bool
	released chan struct{}
}

type slowFile struct {
	vfs.File
	fs *slowFS
}

func (fs *slowFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	file, err := fs.FS.OpenReadWrite(name, c, opts...)
	return slowFile{file, fs}, err
}

func (f slowFile) SyncData() error {
	if f.fs.wanted.Load() {
		<-f.fs.released
	}
	return f.File.SyncData()
}

// stalled opens a shard whose loop hangs in the sync of its first append, and
// returns what lets it go on.
func stalled(t *testing.T, opts shard.Options) (s *shard.Shard, release func()) {
	t.Helper()
	fs := &slowFS{FS: vfs.NewMem(), released: make(chan struct{})}
	opts.Name, opts.FS, opts.Dir, opts.ZeroFill = shardName, fs, "shard", -1
	s, err := shard.Open(opts)
	require.NoError(t, err)
	fs.wanted.Store(true)
	return s, func() { close(fs.released) }
}

func TestAppendsBeyondTheirMemoryAreRefusedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, release := stalled(t, shard.Options{QueueBytes: 10 << 20})
		topic := topicOf(1)
		large := func() []*mq.Message {
			return []*mq.Message{{ID: "large", Type: mq.Normal, Body: make([]byte, 3<<20)}}
		}
		done := make(chan error, 10)
		appendLarge := func(ctx context.Context) {
			_, err := s.Append(ctx, topic, 0, large())
			done <- err
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for range 3 {
			go appendLarge(ctx)
		}
		synctest.Wait()
		start := time.Now()
		_, err := s.Append(t.Context(), topic, 0, large())
		require.ErrorIs(t, err, mq.ErrBusy)
		require.ErrorContains(t, err, "10485760 bytes")
		require.Zero(t, time.Since(start))

		// Who gives up waiting leaves his message in memory.
		for range 3 {
			require.ErrorIs(t, <-done, context.DeadlineExceeded)
		}
		_, err = s.Append(t.Context(), topic, 0, large())
		require.ErrorIs(t, err, mq.ErrBusy)

		release()
		synctest.Wait()
		_, err = s.Append(t.Context(), topic, 0, large())
		require.NoError(t, err)
		huge := []*mq.Message{{ID: "huge", Type: mq.Normal, Body: make([]byte, 20<<20)}}
		_, err = s.Append(t.Context(), topic, 0, huge)
		require.NoError(t, err, "alone, one is taken whatever its size")
		require.NoError(t, s.Close())
	})
}

func TestFullQueueRefusesNewWorkBeforeItsCallersGiveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, release := stalled(t, shard.Options{})
		topic, group := topicOf(1), groupOf(9)
		const queue = 4096
		answered := make(chan error, 2*queue)
		for range queue + 100 {
			go func() {
				_, err := s.Append(t.Context(), topic, 0, []*mq.Message{message("a", "")})
				answered <- err
			}()
			synctest.Wait() // the loop takes what it can before it hangs
			if s.Stats().Queued == queue {
				break
			}
		}
		start := time.Now()
		_, err := s.Append(t.Context(), topic, 0, []*mq.Message{message("late", "")})
		require.ErrorIs(t, err, mq.ErrBusy)
		require.ErrorContains(t, err, "was full for 500ms")
		require.Equal(t, 500*time.Millisecond, time.Since(start))
		_, err = s.Receive(t.Context(), mq.Receive{Topic: topic, Group: group, Max: 1, Invisible: time.Second})
		require.ErrorIs(t, err, mq.ErrBusy)

		settled := make(chan error, 1)
		go func() {
			_, err := s.Ack(t.Context(), topic.ID, group.ID, nil)
			settled <- err
		}()
		time.Sleep(10 * time.Second) // what ends work waits
		release()
		require.NoError(t, <-settled)
		synctest.Wait()
		for len(answered) > 0 {
			require.NoError(t, <-answered)
		}
		require.NoError(t, s.Close())
	})
}

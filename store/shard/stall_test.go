package shard_test

import (
	"context"
	"errors"
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

// A hangingFS lets the creation of tables wait, once that is wanted, until
// released is closed, and then answers with err.
type hangingFS struct {
	vfs.FS
	wanted   atomic.Bool
	released chan struct{}
	err      error
}

func (fs *hangingFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if fs.wanted.Load() && strings.HasSuffix(name, ".sst") {
		<-fs.released
		if fs.err != nil {
			return nil, fs.err
		}
	}
	return fs.FS.Create(name, category)
}

// hang fills the views until the shard waits for the disk, lets the disk answer
// with diskErr, and returns what became of the sender, which sends batches.
func hang(t *testing.T, diskErr error, batches int) (*shard.Shard, error) {
	fs := &hangingFS{FS: vfs.NewMem(), released: make(chan struct{}), err: diskErr}
	s, err := shard.Open(shard.Options{Name: shardName, FS: fs, Dir: "shard", Flush: shard.FlushAsync, MemTableSize: 1 << 20})
	require.NoError(t, err)
	fs.wanted.Store(true)
	tag := strings.Repeat("t", 32<<10) // the views keep it
	sent := 0
	done := make(chan error, 1)
	go func() {
		for ; sent < batches; sent++ {
			var msgs []*mq.Message
			for i := range 10 {
				msgs = append(msgs, message(fmt.Sprint(i), tag))
			}
			if _, err := s.Append(context.Background(), topicOf(1), 0, msgs); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	time.Sleep(time.Hour)
	synctest.Wait()
	require.Less(t, sent, batches, "the sender must wait for the disk")
	close(fs.released)
	return s, <-done
}

func TestShardThatWaitsForADiskThatFailsAnswersAndCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := hang(t, errors.New("disk gone"), 100)
		require.ErrorIs(t, err, mq.ErrStopped)
		require.ErrorIs(t, s.Close(), mq.ErrStopped)
	})
}

func TestShardThatWaitsForASlowDiskGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := hang(t, nil, 100)
		require.NoError(t, err)
		require.NoError(t, s.Close())
	})
}

func TestReplayOntoADiskThatFailsIsAnErrorOfOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := vfs.NewMem()
		opts := shard.Options{Name: shardName, FS: mem, Dir: "shard", MemTableSize: 1 << 20}
		s, err := shard.Open(opts)
		require.NoError(t, err)
		tag := strings.Repeat("t", 32<<10)
		for range 300 {
			send(t, s, topicOf(1), 0, message("a", tag))
		}
		require.NoError(t, s.Close())
		require.NoError(t, mem.RemoveAll(shard.ViewsDir(mem, "shard")))

		fs := &hangingFS{FS: mem, released: make(chan struct{}), err: errors.New("disk gone")}
		close(fs.released)
		fs.wanted.Store(true)
		opts.FS = fs
		_, err = shard.Open(opts)
		require.ErrorIs(t, err, fs.err)
	})
}

func TestLeasesEndWhileTheViewsAreFarBehindTheDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := &hangingFS{FS: vfs.NewMem(), released: make(chan struct{})}
		s, err := shard.Open(shard.Options{Name: shardName, FS: fs, Dir: "shard", MemTableSize: 1 << 20, ZeroFill: -1})
		require.NoError(t, err)
		topic, group := topicOf(1), groupOf(9)
		sendMany(t, s, topic, 0, 100, "")
		leased := 0
		for leased < 100 {
			leased += len(receive(t, s, mq.Receive{Topic: topic, Group: group, Max: 100, Invisible: time.Minute}))
		}
		fs.wanted.Store(true)
		tag := strings.Repeat("t", 32<<10) // the views keep it
		for range 75 {
			send(t, s, topic, 0, message("x", tag))
		}
		time.Sleep(61 * time.Second)
		backlog, err := s.Backlogs(t.Context(), group.ID)
		require.NoError(t, err)
		require.Zero(t, backlog[0].InFlight)
		close(fs.released)
		require.NoError(t, s.Close())
	})
}

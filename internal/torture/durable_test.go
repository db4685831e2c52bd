package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store"
	"github.com/perigee-mq/perigee/store/shard"
)

func orders(queues int32) *mq.Topic {
	return &mq.Topic{
		ID: 1, Resource: mq.Resource{Name: "orders"}, Type: mq.TopicNormal, Permission: mq.PermReadWrite,
		Shards: []mq.ShardQueues{{Shard: shardName, Read: queues, Write: queues}}, Version: 1,
	}
}

func readers(attempts mq.Attempt) *mq.Group {
	g := &mq.Group{ID: 1, Resource: mq.Resource{Name: "readers"}, Retry: mq.DefaultRetryPolicy(), DeadLetter: 100, Version: 1}
	g.Retry.MaxAttempts = attempts
	return g
}

// slowDisk holds syncs or reads of the log for as long as it is told to.
type slowDisk struct {
	vfs.FS
	holdSyncs, holdReads atomic.Pointer[chan struct{}]
}

func hold(p *atomic.Pointer[chan struct{}]) (release func()) {
	c := make(chan struct{})
	p.Store(&c)
	return func() {
		p.Store(nil)
		close(c)
	}
}

func wait(p *atomic.Pointer[chan struct{}]) {
	if c := p.Load(); c != nil {
		<-*c
	}
}

func (d *slowDisk) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := d.FS.OpenReadWrite(name, category, opts...)
	if err != nil || !strings.Contains(name, "/log/") {
		return f, err
	}
	return slowFile{f, d}, nil
}

type slowFile struct {
	vfs.File
	disk *slowDisk
}

func (f slowFile) SyncData() error {
	wait(&f.disk.holdSyncs)
	return f.File.SyncData()
}

func (f slowFile) ReadAt(p []byte, off int64) (int, error) {
	wait(&f.disk.holdReads)
	return f.File.ReadAt(p, off)
}

func mustOpen(t *testing.T, fs vfs.FS, flush shard.FlushMode) *store.Store {
	t.Helper()
	s, err := openStore(fs, settings{flush: flush, segment: 64 << 10, fill: -1})
	require.NoError(t, err)
	return s
}

func receive(t *testing.T, s *store.Store, wait time.Duration) []mq.Delivery {
	t.Helper()
	got, err := s.Receive(t.Context(), shardName, mq.Receive{Topic: orders(1), Group: readers(5), Max: 10, Invisible: 10 * time.Second, Wait: wait})
	require.NoError(t, err)
	return got
}

// In sync mode nobody sees a message, nor that its offset is taken, before the fsync
// that makes it durable has ended.
func TestAMessageIsNotSeenBeforeItIsDurable(t *testing.T) {
	bubble(t, t.Name(), func(t *testing.T) {
		mem := vfs.NewCrashableMem()
		disk := &slowDisk{FS: mem}
		s := mustOpen(t, disk, shard.FlushSync)
		_, err := s.Append(t.Context(), shardName, orders(1), 0, []*mq.Message{message("a", "")})
		require.NoError(t, err)
		require.Len(t, receive(t, s, 0), 1)

		var sent, seen, asked atomic.Bool
		var waiting []mq.Delivery
		go func() {
			waiting = receive(t, s, 24*time.Hour)
			seen.Store(true)
		}()
		synctest.Wait()
		release := hold(&disk.holdSyncs)
		go func() {
			_, err := s.Append(context.Background(), shardName, orders(1), 0, []*mq.Message{message("b", "")})
			if err == nil {
				sent.Store(true)
			}
		}()
		synctest.Wait()
		go func() {
			ranges, err := s.Queues(context.Background(), shardName, 1)
			asked.Store(err != nil || ranges[0].Next > 1)
		}()
		time.Sleep(5 * time.Second) // shorter than the lease of the first message
		synctest.Wait()
		require.False(t, sent.Load(), "answered before it is durable")
		require.False(t, seen.Load(), "delivered before it is durable")
		require.False(t, asked.Load(), "its offset is exposed before it is durable")
		lost := mem.CrashClone(vfs.CrashCloneCfg{})

		release()
		synctest.Wait()
		require.True(t, sent.Load())
		require.True(t, seen.Load())
		require.True(t, asked.Load())
		require.Equal(t, "b", waiting[0].ID)
		require.NoError(t, s.Close())

		// Had the power gone while the fsync ran, another message would have got the
		// offset, and nobody would have seen the first one there.
		s = mustOpen(t, lost, shard.FlushSync)
		a, err := s.Append(t.Context(), shardName, orders(1), 0, []*mq.Message{message("c", "")})
		require.NoError(t, err)
		require.Equal(t, mq.QueueOffset(1), a[0].Offset)
		require.Equal(t, "c", receive(t, s, 0)[0].ID)
		require.NoError(t, s.Close())
	})
}

// Messages whose lease is durable are still read and delivered when the store stops
// for good in the meantime.
func TestWhatIsLeasedAlreadyIsDeliveredAfterAFailure(t *testing.T) {
	bubble(t, t.Name(), func(t *testing.T) {
		disk := &slowDisk{FS: vfs.NewCrashableMem()}
		failing := &failingSyncs{slowDisk: disk}
		s := mustOpen(t, failing, shard.FlushSync)
		_, err := s.Append(t.Context(), shardName, orders(1), 0, []*mq.Message{message("a", ""), message("b", "")})
		require.NoError(t, err)
		release := hold(&disk.holdReads)
		var got []mq.Delivery
		done := make(chan struct{})
		go func() {
			got = receive(t, s, 0)
			close(done)
		}()
		synctest.Wait() // it has leased them and reads
		failing.on.Store(true)
		_, err = s.Append(t.Context(), shardName, orders(1), 0, []*mq.Message{message("c", "")})
		require.ErrorIs(t, err, mq.ErrStopped)
		require.ErrorIs(t, err, syscall.EIO)
		require.ErrorIs(t, s.Err(), mq.ErrStopped)
		release()
		<-done
		require.Len(t, got, 2)
		require.ErrorIs(t, s.Ack(t.Context(), []mq.Lease{got[0].Lease})[0], mq.ErrStopped)
		require.ErrorIs(t, s.Close(), mq.ErrStopped)
	})
}

// failingSyncs lets syncs of the log fail.
type failingSyncs struct {
	*slowDisk
	on atomic.Bool
}

func (d *failingSyncs) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := d.slowDisk.OpenReadWrite(name, category, opts...)
	return failingSyncFile{f, d}, err
}

type failingSyncFile struct {
	vfs.File
	disk *failingSyncs
}

func (f failingSyncFile) SyncData() error {
	if f.disk.on.Load() {
		return syscall.EIO
	}
	return f.File.SyncData()
}

// Two hundred power cuts: whatever of what was not synced is lost, each message
// answered OK is delivered, and no offset is ever seen with two bodies.
func TestNoOffsetIsUsedForTwoBodiesAcrossPowerCuts(t *testing.T) {
	cuts := 200
	if testing.Short() {
		cuts = 30
	}
	bubble(t, t.Name(), func(t *testing.T) {
		rng := rand.New(rand.NewPCG(1, 2))
		mem := vfs.NewCrashableMem()
		seen := map[mq.QueueOffset]string{}
		answered := map[string]bool{}
		n := 0
		for range cuts {
			s := mustOpen(t, mem, shard.FlushSync)
			var left *vfs.MemFS
			for range 1 + rng.IntN(4) {
				id := newIDs(&n, 1)[0]
				_, err := s.Append(t.Context(), shardName, orders(1), 0, []*mq.Message{message(id, "")})
				require.NoError(t, err)
				answered[id] = true
			}
			if rng.IntN(2) == 0 {
				for _, d := range receive(t, s, 0) {
					if id, ok := seen[d.Lease.Offset]; ok {
						require.Equal(t, id, d.ID, "offset %d", d.Lease.Offset)
					}
					seen[d.Lease.Offset] = d.ID
					delete(answered, d.ID)
					require.NoError(t, errors.Join(s.Ack(t.Context(), []mq.Lease{d.Lease})...))
				}
			}
			go func() {
				_, _ = s.Append(context.Background(), shardName, orders(1), 0, []*mq.Message{message("unanswered", "")})
			}()
			left = mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})
			require.NoError(t, s.Close())
			mem = left
		}
		s := mustOpen(t, mem, shard.FlushSync)
		for {
			got := receive(t, s, 11*time.Second)
			if len(got) == 0 {
				break
			}
			for _, d := range got {
				delete(answered, d.ID)
				require.NoError(t, errors.Join(s.Ack(t.Context(), []mq.Lease{d.Lease})...))
			}
		}
		require.Empty(t, answered)
		require.NoError(t, s.Close())
	})
}

//go:build unix

package shard_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/store/shard"
)

// An inodeDisk is a real file system of which the files below a folder are all there is, each
// counted once however many names it has.
type inodeDisk struct {
	vfs.FS
	root     string
	capacity uint64
	others   atomic.Uint64
}

func (d *inodeDisk) files() (sum uint64) {
	seen := map[uint64]bool{}
	_ = filepath.WalkDir(d.root, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return nil // gone meanwhile
		}
		info, err := entry.Info()
		if err != nil {
			return nil
		}
		if stat := info.Sys().(*syscall.Stat_t); !seen[stat.Ino] {
			seen[stat.Ino] = true
			sum += uint64(info.Size())
		}
		return nil
	})
	return sum
}

func (d *inodeDisk) GetDiskUsage(string) (vfs.DiskUsage, error) {
	used := d.files() + d.others.Load()
	return vfs.DiskUsage{TotalBytes: d.capacity, UsedBytes: used, AvailBytes: d.capacity - min(used, d.capacity)}, nil
}

// TestWhatABackupHasIsNotRemovedForRoom: files make no room when they are removed while a
// backup has links to them, however many go. They go when it is gone.
func TestWhatABackupHasIsNotRemovedForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &inodeDisk{FS: vfs.Default, root: t.TempDir(), capacity: 1 << 30}
		dir, links := filepath.Join(disk.root, "shard"), filepath.Join(disk.root, "backup")
		s, err := shard.Open(shard.Options{Name: shardName, FS: disk, Dir: dir, SegmentSize: smallSegment, ZeroFill: -1, Retention: watermarks})
		require.NoError(t, err)
		defer func() { require.NoError(t, s.Close()) }()
		topic := topicOf(2)
		fill(t, s, topic, 100)
		require.NoError(t, os.Mkdir(links, 0o755))
		log := shard.LogDir(disk, dir)
		names, err := disk.List(log)
		require.NoError(t, err)
		for _, name := range names {
			require.NoError(t, os.Link(filepath.Join(log, name), filepath.Join(links, name)))
		}
		// over lets so many bytes more be in use than may be without a removal.
		over := func(n uint64) {
			disk.others.Store(0)
			disk.others.Store(uint64(watermarks.Force.Used*float64(disk.capacity)) - disk.files() + n)
		}
		over(smallSegment)
		time.Sleep(10 * time.Minute)
		require.Zero(t, s.Stats().Evicted)
		require.NoError(t, os.RemoveAll(links)) // the files have one name again, and take as much room
		time.Sleep(10 * time.Minute)
		first := s.Stats().Evicted
		require.Positive(t, first)
		require.Less(t, first, uint64(50), "two segments have about 30 messages")
		require.Len(t, receiveAll(t, s, topic, groupOf(16)), int(100-first))
	})
}

package shard_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/internal/faultfs"
	"github.com/perigee-mq/perigee/store/commitlog"
	"github.com/perigee-mq/perigee/store/shard"
)

// trimmed returns a file system with a shard whose log does not begin with record 1.
func trimmed(t *testing.T) *vfs.MemFS {
	fs := vfs.NewCrashableMem()
	s := keeping(t, fs, shard.FlushSync, shard.Retention{Age: time.Hour})
	fill(t, s, topicOf(2), 60)
	time.Sleep(2 * time.Hour)
	fill(t, s, topicOf(2), 60)
	require.Positive(t, s.Stats().LogFirst)
	require.NoError(t, s.Close())
	return fs
}

func reopened(fs vfs.FS) error {
	s, err := shard.Open(shard.Options{Name: shardName, FS: fs, Dir: "shard", SegmentSize: smallSegment, ZeroFill: -1})
	if err != nil {
		return err
	}
	return s.Close()
}

func TestLogThatBeginsLaterThanItMayIsDamagedAndNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := trimmed(t)
		require.NoError(t, reopened(fs))
		files := filesIn(t, fs, shard.LogDir(fs, "shard"))
		require.Greater(t, len(files), 2)
		reach, err := shard.ReadReach(fs, "shard")
		require.NoError(t, err)
		require.Greater(t, reach.Begin.Index, uint64(1))
		require.NoError(t, fs.Remove(files[0]))
		for range 2 {
			err := reopened(fs)
			var corrupt *commitlog.CorruptionError
			require.ErrorAs(t, err, &corrupt)
			require.Equal(t, files[1], corrupt.File)
			require.ErrorContains(t, err, "missing")
		}
	})
}

func TestMissingViewsCannotBeRebuiltFromATrimmedLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := trimmed(t)
		views := shard.ViewsDir(fs, "shard")
		require.NoError(t, fs.RemoveAll(views))
		files := filesIn(t, fs, shard.LogDir(fs, "shard"))
		for range 2 {
			err := reopened(fs)
			require.ErrorContains(t, err, views)
			require.ErrorContains(t, err, files[0])
			require.ErrorContains(t, err, "cannot be rebuilt from a log that was trimmed")
			_, err = fs.Stat(views)
			require.Error(t, err, "nothing is begun in their place")
		}
	})
}

// TestInterruptedDropGoesOn: the command is there, and the files are too.
func TestInterruptedDropGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := vfs.NewCrashableMem()
		fs := faultfs.New(mem)
		var left *vfs.MemFS
		fs.Trace(func(op faultfs.Op) {
			if op.Kind == faultfs.Remove && strings.HasSuffix(op.Path, ".log") && left == nil {
				left = mem.CrashClone(vfs.CrashCloneCfg{})
			}
		})
		s := keeping(t, fs, shard.FlushSync, shard.Retention{Age: time.Hour})
		fill(t, s, topicOf(2), 60)
		time.Sleep(2 * time.Hour)
		require.NoError(t, s.Close())
		reach, err := shard.ReadReach(left, "shard")
		require.NoError(t, err)
		require.Greater(t, reach.Begin.Index, uint64(1))
		full := segments(t, left)
		require.NoError(t, reopened(left))
		require.Equal(t, full, segments(t, left), "without retention nothing is removed")

		s = keeping(t, left, shard.FlushSync, shard.Retention{Age: 1000 * time.Hour})
		time.Sleep(time.Second)
		require.Less(t, segments(t, left), full)
		require.Greater(t, s.Stats().LogFirst, reach.Begin.Pos)
		require.Less(t, s.Stats().LogFirst, reach.Begin.Pos+100)
		require.NoError(t, s.Close())
		require.NoError(t, reopened(left))
	})
}

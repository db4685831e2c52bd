package shard_test

import (
	"os"
	"path"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/internal/faultfs"
	"github.com/perigee-mq/perigee/store/shard"
)

// based returns a file system with a trimmed shard, the messages that it still has, and
// the path of its base.
func based(t *testing.T) (fs *vfs.MemFS, kept []string, base string) {
	fs = vfs.NewCrashableMem()
	s := keeping(t, fs, shard.FlushSync, shard.Retention{Age: time.Hour, Interval: time.Minute})
	for range 3 { // each time the log is trimmed
		fill(t, s, topicOf(2), 60)
		time.Sleep(2 * time.Hour)
	}
	kept = fill(t, s, topicOf(2), 60)
	require.NoError(t, s.Close())
	for _, name := range filesIn(t, fs, "shard") {
		if strings.Contains(name, "base") {
			require.Empty(t, base, "old bases are removed")
			base = name
		}
	}
	require.NotEmpty(t, base)
	return fs, kept, base
}

func requireAll(t *testing.T, fs vfs.FS, kept []string) {
	t.Helper()
	s := keeping(t, fs, shard.FlushSync, shard.Retention{})
	defer s.Close() // also after a failed check, so that the bubble ends
	require.ElementsMatch(t, kept, receiveAll(t, s, topicOf(2), groupOf(2)))
	require.NoError(t, s.Close())
}

// flip changes a byte in the middle of every file of the folder whose name ends so.
func flip(t *testing.T, fs vfs.FS, dir, suffix string) {
	n := 0
	for _, name := range filesIn(t, fs, dir) {
		if strings.HasSuffix(name, suffix) {
			b := contents(t, fs, name)
			b[len(b)/3] ^= 0x10
			require.NoError(t, fs.Remove(name)) // a link would share the damage
			rewrite(t, fs, name, b)
			n++
		}
	}
	require.Positive(t, n)
}

func TestLostOrDamagedViewsAreRestoredFromTheirBase(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, fs vfs.FS, views string){
		"gone":    func(t *testing.T, fs vfs.FS, views string) { require.NoError(t, fs.RemoveAll(views)) },
		"damaged": func(t *testing.T, fs vfs.FS, views string) { flip(t, fs, views, ".sst") },
		"emptied": func(t *testing.T, fs vfs.FS, views string) {
			require.NoError(t, fs.RemoveAll(views))
			require.NoError(t, fs.MkdirAll(views, 0o755))
		},
		"without a manifest": func(t *testing.T, fs vfs.FS, views string) {
			for _, file := range filesIn(t, fs, views) {
				if strings.HasPrefix(path.Base(file), "MANIFEST") {
					require.NoError(t, fs.Remove(file))
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fs, kept, base := based(t)
				views := shard.ViewsDir(fs, "shard")
				damage(t, fs, views)
				if err := reopened(fs); err != nil {
					require.ErrorContains(t, err, views)
				}
				for round := range 2 { // once more makes no difference
					r, err := shard.RestoreViews(fs, "shard")
					require.NoError(t, err)
					require.Equal(t, base, r.Base)
					require.Greater(t, r.First, uint64(1))
					require.GreaterOrEqual(t, r.Applied, r.First)
					if name == "gone" && round == 0 {
						require.Empty(t, r.Aside)
					} else {
						_, err := fs.Stat(r.Aside)
						require.NoError(t, err)
					}
				}
				requireAll(t, fs, kept)
				_, err := fs.Stat(base)
				require.NoError(t, err, "the base stays")
			})
		})
	}
}

func TestViewsWithoutBaseAreRebuiltFromAWholeLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		s := keeping(t, fs, shard.FlushSync, shard.Retention{})
		kept := fill(t, s, topicOf(2), 30)
		require.NoError(t, s.Close())
		flip(t, fs, shard.ViewsDir(fs, "shard"), ".sst")
		err := reopened(fs)
		require.ErrorContains(t, err, "perigee restore-views")
		require.ErrorContains(t, err, ".sst: pebble: ")
		require.NotContains(t, err.Error(), "\n", "one line, without the stacks of the database")
		r, err := shard.RestoreViews(fs, "shard")
		require.NoError(t, err)
		require.Empty(t, r.Base)
		require.EqualValues(t, 1, r.First)
		require.NotEmpty(t, r.Aside)
		requireAll(t, fs, kept)
	})
}

func TestBaseThatIsDamagedIsNamedAndNothingIsMoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs, _, base := based(t)
		flip(t, fs, base, ".sst")
		before := filesIn(t, fs, "shard")
		_, err := shard.RestoreViews(fs, "shard")
		require.ErrorContains(t, err, base)
		require.Equal(t, before, filesIn(t, fs, "shard"))
		require.NoError(t, reopened(fs), "the views were good")

		require.NoError(t, fs.RemoveAll(base))
		_, err = shard.RestoreViews(fs, "shard")
		require.ErrorContains(t, err, "there is nothing to rebuild the views from")
	})
}

func TestRestoreMayBeInterruptedAnywhereAndRepeated(t *testing.T) {
	first, step := eachOperation(t)
	for k, done := first, false; !done; k += step {
		synctest.Test(t, func(t *testing.T) {
			mem, kept, _ := based(t)
			flip(t, mem, shard.ViewsDir(mem, "shard"), ".sst")
			fs := faultfs.New(mem)
			var left *vfs.MemFS
			fs.CrashAfter(k, -1, func() { left = mem.CrashClone(vfs.CrashCloneCfg{}) })
			_, err := shard.RestoreViews(fs, "shard")
			if !fs.Fired() {
				require.NoError(t, err)
				require.Greater(t, k, 10)
				done = true
				return
			}
			require.ErrorIs(t, err, faultfs.ErrCrashed)
			if k%2 == 0 {
				left = mem // the process ended, the machine did not
			}
			_, err = shard.RestoreViews(left, "shard")
			require.NoError(t, err, "crash after operation %d", k)
			requireAll(t, left, kept)
		})
	}
}

// TestTrimAndRestoreOnADisk: links, renames and usage as an operating system has them.
func TestTrimAndRestoreOnADisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		opts := shard.Options{
			Name: shardName, Dir: dir, SegmentSize: smallSegment, ZeroFill: 8 << 10,
			Retention: shard.Retention{Age: time.Hour, Clean: shard.Watermark{Used: 1e-9}, Refuse: shard.Watermark{Free: 1}},
		}
		s, err := shard.Open(opts)
		require.NoError(t, err)
		fill(t, s, topicOf(2), 60)
		time.Sleep(2 * time.Hour)
		kept := fill(t, s, topicOf(2), 30)
		require.Positive(t, s.Stats().LogFirst)
		require.Positive(t, s.Stats().DiskCapacity)
		require.NoError(t, s.Close())
		require.NoError(t, os.RemoveAll(shard.ViewsDir(vfs.Default, dir)))
		r, err := shard.RestoreViews(vfs.Default, dir)
		require.NoError(t, err)
		require.NotEmpty(t, r.Base)
		s, err = shard.Open(opts)
		require.NoError(t, err)
		require.ElementsMatch(t, kept, receiveAll(t, s, topicOf(2), groupOf(2)))
		require.NoError(t, s.Close())
	})
}

func TestViewsAreNotRestoredFromADamagedLog(t *testing.T) {
	for name, tt := range map[string]struct {
		harm func(t *testing.T, fs vfs.FS, segment string)
		want string
	}{
		"a changed byte": {func(t *testing.T, fs vfs.FS, segment string) {
			b := contents(t, fs, segment)
			b[100] ^= 1 // in the first record of the file
			rewrite(t, fs, segment, b)
		}, ".log:"},
		"a lost end, with the file SYNCED": {func(t *testing.T, fs vfs.FS, segment string) {
			rewrite(t, fs, segment, contents(t, fs, segment)[:64])
			require.NoError(t, fs.Remove("node/shard/log/SYNCED"))
		}, "the views have applied record"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fs := filled(t)
				var segment string
				for _, file := range filesIn(t, fs, shard.LogDir(fs, "node/shard")) {
					if strings.HasSuffix(file, ".log") {
						segment = file // the last one
					}
				}
				tt.harm(t, fs, segment)
				before := size(fs, "node/shard")
				_, err := shard.RestoreViews(fs, "node/shard")
				require.ErrorContains(t, err, "the log is damaged")
				require.ErrorContains(t, err, tt.want)
				_, err = fs.Stat(shard.ViewsDir(fs, "node/shard"))
				require.NoError(t, err, "they stay")
				require.Equal(t, before, size(fs, "node/shard"))
			})
		})
	}
}

package shard_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/commitlog"
	"github.com/perigee-mq/perigee/store/shard"
)

func TestFullDiskStopsTheShardAndCloseReturns(t *testing.T) {
	for _, suffix := range []string{".log", ".sst", "MANIFEST"} {
		for _, mode := range []shard.FlushMode{shard.FlushSync, shard.FlushAsync} {
			t.Run(fmt.Sprint(suffix, " ", mode), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					mem := vfs.NewCrashableMem()
					full := &fullDisk{FS: mem, part: suffix}
					s := open(t, full, mode)
					topic, group := topicOf(1), groupOf(2)
					send(t, s, topic, 0, message("a", ""))
					full.full.Store(true)
					_, err := s.Append(t.Context(), topic, 0, []*mq.Message{message("b", "")})
					if suffix == ".log" {
						require.ErrorIs(t, err, mq.ErrStopped)
						require.ErrorIs(t, err, syscall.ENOSPC)
					} else {
						require.NoError(t, err)
					}
					err = s.Close()
					require.ErrorIs(t, err, mq.ErrStopped)
					require.ErrorContains(t, err, syscall.ENOSPC.Error())
					full.full.Store(false)
					s = open(t, mem, mode)
					defer s.Close()
					got := receive(t, s, mq.Receive{Topic: topic, Group: group})
					require.Contains(t, ids(got), "a")
					require.NoError(t, s.Close())
				})
			})
		}
	}
}

func TestOpenOnAFullDiskFailsInsteadOfTryingForEver(t *testing.T) {
	for _, part := range []string{"MANIFEST", ".dbtmp", "/views/"} {
		t.Run(part, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // no goroutine is left behind
				full := &fullDisk{FS: vfs.NewMem(), part: part}
				s := open(t, full, shard.FlushSync)
				send(t, s, topicOf(1), 0, message("a", ""))
				require.NoError(t, s.Close())
				full.full.Store(true)
				_, err := shard.Open(shard.Options{Name: shardName, FS: full, Dir: "shard", SegmentSize: 1 << 20, ZeroFill: -1})
				require.ErrorContains(t, err, syscall.ENOSPC.Error())
			})
		})
	}
}

// fullDisk has no room for the files whose path holds part.
type fullDisk struct {
	vfs.FS
	part string
	full atomic.Bool
}

func (d *fullDisk) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := d.FS.Create(name, category)
	return &fullFile{f, d, strings.Contains(name, d.part)}, err
}

func (d *fullDisk) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := d.FS.OpenReadWrite(name, category, opts...)
	return &fullFile{f, d, strings.Contains(name, d.part)}, err
}

type fullFile struct {
	vfs.File
	disk *fullDisk
	hit  bool
}

func (f *fullFile) Write(p []byte) (int, error) {
	if f.hit && f.disk.full.Load() {
		return 0, syscall.ENOSPC
	}
	return f.File.Write(p)
}

func (f *fullFile) WriteAt(p []byte, off int64) (int, error) {
	if f.hit && f.disk.full.Load() {
		return 0, syscall.ENOSPC
	}
	return f.File.WriteAt(p, off)
}

// filled returns the files of a shard that has been at work twice: its log has several
// segments, some of its messages are under delivery, acknowledged, given back or dead
// letters, and its views were written at the end.
func filled(t *testing.T) *vfs.MemFS {
	fs := vfs.NewCrashableMem()
	topic, group := topicOf(2), groupOf(2)
	n := 0
	fill := func(s *shard.Shard, queue mq.QueueID, count int) {
		var msgs []*mq.Message
		for range count {
			n++
			m := message(fmt.Sprint("m", n), "")
			m.Properties = make([]byte, 1000) // no valid properties, and not looked at
			msgs = append(msgs, m)
		}
		send(t, s, topic, queue, msgs...)
	}
	s := openFilled(t, fs)
	fill(s, 0, 6)
	fill(s, 1, 5)
	got := receive(t, s, mq.Receive{Topic: topic, Group: group, Max: 5, Invisible: 10 * time.Second})
	require.NoError(t, ack(t, s, got[0].Lease))
	require.NoError(t, change(t, s, got[1].Lease, 0, mq.Nack))
	require.NoError(t, s.DeadLetter(t.Context(), got[2].Lease))
	synctest.Wait()
	require.NoError(t, s.Close())
	s = openFilled(t, fs)
	fill(s, 1, 3)
	require.NotEmpty(t, receive(t, s, mq.Receive{Topic: topic, Group: group, Max: 2, Invisible: time.Hour}))
	require.NoError(t, s.Close())
	return fs
}

func openFilled(t *testing.T, fs vfs.FS) *shard.Shard {
	t.Helper()
	s, err := shard.Open(filledOptions(fs))
	require.NoError(t, err)
	return s
}

func filledOptions(fs vfs.FS) shard.Options {
	return shard.Options{Name: shardName, FS: fs, Dir: "node/shard", SegmentSize: 8 << 10, ZeroFill: -1, CacheSize: 1 << 20}
}

// everything returns all that a filled shard tells: backlogs, and what its group and one
// that has not read yet are given, as long as there is anything.
func everything(t *testing.T, s *shard.Shard) (all []string) {
	t.Helper()
	group := groupOf(2)
	auditor := &mq.Group{ID: 2, Resource: mq.Resource{Name: "audit"}, Retry: mq.DefaultRetryPolicy(), DeadLetter: 102, Version: 1}
	backlogs, err := s.Backlogs(t.Context(), group.ID)
	require.NoError(t, err)
	all = append(all, fmt.Sprintf("%+v", backlogs))
	for _, from := range []mq.Receive{
		{Topic: topicOf(2), Group: group, Wait: 2 * time.Hour},
		{Topic: topicOf(2), Group: auditor},
		{Topic: deadLetterTopic(group), Group: auditor},
	} {
		for {
			got := receive(t, s, from)
			if len(got) == 0 {
				break
			}
			for _, d := range got {
				all = append(all, fmt.Sprintf("%s of %d/%d to %d, attempt %d: %s", d.ID, d.Lease.Queue, d.Lease.Offset, d.Lease.Group, d.Lease.Attempt, d.Body))
				require.NoError(t, ack(t, s, d.Lease))
			}
		}
	}
	return all
}

func filesIn(t *testing.T, fs vfs.FS, dir string) []string {
	t.Helper()
	names, err := fs.List(dir)
	require.NoError(t, err)
	slices.Sort(names)
	var files []string
	for _, name := range names {
		files = append(files, path.Join(dir, name))
	}
	return files
}

func contents(t *testing.T, fs vfs.FS, name string) []byte {
	t.Helper()
	f, err := fs.Open(name)
	require.NoError(t, err)
	defer f.Close()
	b, err := io.ReadAll(f)
	require.NoError(t, err)
	return b
}

func rewrite(t *testing.T, fs vfs.FS, name string, b []byte) {
	t.Helper()
	f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	_, err = f.Write(b)
	require.NoError(t, err)
	require.NoError(t, errors.Join(f.Sync(), f.Close()))
}

// logBytes returns the files of the log.
func logBytes(t *testing.T, fs vfs.FS) map[string][]byte {
	files := map[string][]byte{}
	for _, name := range filesIn(t, fs, shard.LogDir(fs, "node/shard")) {
		files[name] = contents(t, fs, name)
	}
	return files
}

func TestViewsAheadOfTheLogAreNamedAndNothingIsTouched(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, fs vfs.FS, segments []string){
		"last segment gone": func(t *testing.T, fs vfs.FS, segments []string) {
			require.NoError(t, fs.Remove(segments[len(segments)-1]))
		},
		"all segments gone": func(t *testing.T, fs vfs.FS, segments []string) {
			for _, segment := range segments {
				require.NoError(t, fs.Remove(segment))
			}
		},
		"last segment cut": func(t *testing.T, fs vfs.FS, segments []string) {
			last := segments[len(segments)-1]
			b := contents(t, fs, last)
			rewrite(t, fs, last, b[:len(b)/2])
		},
		"a bit of the last record flipped": func(t *testing.T, fs vfs.FS, segments []string) {
			last := segments[len(segments)-1]
			b := contents(t, fs, last)
			b = bytes.TrimRight(b, "\x00")
			b[len(b)-1] ^= 4
			rewrite(t, fs, last, b)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := filled(t)
				// What the log itself remembers of its syncs may be lost in a power cut.
				require.NoError(t, mem.Remove("node/shard/log/SYNCED"))
				damage(t, mem, filesIn(t, mem, shard.LogDir(mem, "node/shard")))
				before := logBytes(t, mem)
				for range 2 { // the failed open heals nothing
					s, err := shard.Open(filledOptions(mem))
					if err == nil {
						_ = s.Close()
					}
					var corrupt *commitlog.CorruptionError
					require.ErrorAs(t, err, &corrupt)
					require.Contains(t, err.Error(), "node/shard/log")
					require.Equal(t, before, logBytes(t, mem), "the log is left as it was")
				}
			})
		})
	}
}

func TestDeletedViewsAreRebuiltFromTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept := filled(t)
		lost := kept.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
		require.NoError(t, lost.RemoveAll(shard.ViewsDir(lost, "node/shard")))
		var want, got []string
		var both sync.WaitGroup // at the same time, so that leases end alike
		for fs, all := range map[vfs.FS]*[]string{kept: &want, lost: &got} {
			s := openFilled(t, fs)
			defer s.Close() // also after a failed check, so that the bubble ends
			both.Go(func() { *all = everything(t, s) })
		}
		both.Wait()
		require.Len(t, want, 1+12+14+1) // backlogs, what two are settled of, all, a dead letter
		require.Equal(t, want, got)
	})
}

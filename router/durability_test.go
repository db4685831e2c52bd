package router

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/perigee-mq/perigee/mq"
	"github.com/stretchr/testify/require"
)

// contents is all that a restart must bring back.
type contents struct {
	Topics   []*mq.Topic
	Groups   []*mq.Group
	Shards   []Shard
	Revision uint64
	Last     [2]uint32
}

func contentsOf(r *Router) contents { return contentsOfView(&r.View) }

func contentsOfView(v *View) contents {
	all := Selection{AllNamespaces: true, DeadLetters: true, SystemGroups: true}
	s := v.current.Load()
	return contents{s.listTopics(all), s.listGroups(all), s.shards, s.revision, [2]uint32{uint32(s.lastTopic), uint32(s.lastGroup)}}
}

// changesOfAllKinds are run one after the other.
func changesOfAllKinds() []func(context.Context, *Router) error {
	res := func(s string) mq.Resource { return mq.Resource{Namespace: "n", Name: s} }
	create := func(spec TopicSpec) func(context.Context, *Router) error {
		return func(ctx context.Context, r *Router) error { _, _, err := r.CreateTopic(ctx, spec); return err }
	}
	group := func(spec GroupSpec) func(context.Context, *Router) error {
		return func(ctx context.Context, r *Router) error { _, _, err := r.CreateGroup(ctx, spec); return err }
	}
	return []func(context.Context, *Router) error{
		create(TopicSpec{Resource: res("a"), Type: mq.TopicDelay, Permission: mq.PermWrite, Queues: 3, Retention: 10 * time.Minute}),
		group(GroupSpec{
			Resource: res("g"), FIFO: true, Retry: mq.RetryPolicy{MaxAttempts: 2, Initial: 1, Max: time.Hour, Multiplier: 1.1},
			Start: mq.StartPosition{Policy: mq.StartTimestamp, Time: time.Unix(12345, 6789)},
		}),
		create(TopicSpec{Resource: name("b")}),
		func(ctx context.Context, r *Router) error {
			_, err := r.UpdateTopic(ctx, res("a"), TopicUpdate{WriteQueues: new(int32(1)), Retention: new(time.Hour)})
			return err
		},
		func(ctx context.Context, r *Router) error { _, err := r.DeleteTopic(ctx, name("b")); return err },
		func(ctx context.Context, r *Router) error {
			_, err := r.UpdateGroup(ctx, res("g"), GroupUpdate{Start: &mq.StartPosition{Policy: mq.StartLatest}})
			return err
		},
		group(GroupSpec{Resource: name("h")}),
		func(ctx context.Context, r *Router) error { _, err := r.DeleteGroup(ctx, res("g")); return err },
		func(ctx context.Context, r *Router) error {
			_, err := r.EnsureSystemGroup(ctx, GroupSpec{Resource: res(mq.RedriveGroup)})
			return err
		},
		func(ctx context.Context, r *Router) error { _, err := r.AddShard(ctx, "s9"); return err },
		func(ctx context.Context, r *Router) error { _, err := r.SetShard(ctx, "s9", ShardDraining); return err },
		func(ctx context.Context, r *Router) error { _, err := r.RemoveShard(ctx, "s9", false); return err },
	}
}

func TestARestartBringsEverythingBack(t *testing.T) {
	for _, c := range []struct {
		name string
		fs   vfs.FS
		dir  string
	}{{"memory", vfs.NewMem(), "meta"}, {"disk", nil, filepath.Join(t.TempDir(), "deep", "meta")}} {
		t.Run(c.name, func(t *testing.T) {
			setDir := func(o *Options) { o.FS, o.Dir = c.fs, c.dir }
			for i, change := range changesOfAllKinds() {
				r := mustOpen(t, nil, setDir)
				require.NoError(t, change(t.Context(), r))
				want := contentsOf(r)
				require.NoError(t, r.Close())
				require.Equal(t, want, contentsOf(mustOpenAndClose(t, setDir)), "after change %d", i)
			}
		})
	}
}

func mustOpenAndClose(t *testing.T, edit func(*Options)) *Router {
	r := mustOpen(t, nil, edit)
	require.NoError(t, r.Close())
	return r
}

func TestWhatWasAnsweredSurvivesACrash(t *testing.T) {
	fs := vfs.NewCrashableMem()
	r := mustOpen(t, fs)
	for i, change := range changesOfAllKinds() {
		require.NoError(t, change(t.Context(), r))
		require.Equal(t, contentsOf(r), contentsOf(mustOpen(t, fs.CrashClone(vfs.CrashCloneCfg{}))), "after change %d", i)
	}
}

// TestACrashAtAnyWriteLeavesAChangeWhollyThereOrAbsent cuts the power in front
// of every single write of the file system.
func TestACrashAtAnyWriteLeavesAChangeWhollyThereOrAbsent(t *testing.T) {
	type clone struct {
		fs       *vfs.MemFS
		answered int // changes, the opening included
	}
	mem := vfs.NewCrashableMem()
	var clones []clone
	var answered atomic.Int64
	recording := true
	states := []contents{}
	mutex := make(chan struct{}, 1) // Pebble writes from several goroutines
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			mutex <- struct{}{}
			if recording {
				// Counted first: another goroutine may be answered meanwhile.
				n := int(answered.Load())
				clones = append(clones, clone{mem.CrashClone(vfs.CrashCloneCfg{}), n})
			}
			<-mutex
		}
		return nil
	}))
	r := mustOpen(t, fs)
	note := func() { states = append(states, contentsOf(r)); answered.Add(1) }
	note()
	for _, change := range changesOfAllKinds() {
		require.NoError(t, change(t.Context(), r))
		note()
	}
	require.NoError(t, r.Close())
	mutex <- struct{}{}
	recording = false
	<-mutex
	require.NotEmpty(t, clones)
	for i, c := range clones {
		got := contentsOf(mustOpen(t, c.fs))
		allowed := states[max(c.answered-1, 0):min(c.answered+2, len(states))]
		require.Contains(t, allowed, got, "crash before write %d", i)
	}
}

// TestAFailedOperationLosesNothingAnswered fails one operation after the other
// until a run meets no failure.
func TestAFailedOperationLosesNothingAnswered(t *testing.T) {
	for i := 0; ; i++ {
		mem := vfs.NewCrashableMem()
		var writes atomic.Int64
		fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && writes.Add(1) == int64(i+1) {
				return errorfs.ErrInjected
			}
			return nil
		}))
		failed := false
		var before contents
		told := 0
		r, err := Open(Options{FS: fs, Dir: "meta", Shards: []string{"s1"}, OnFailure: func() { told++ }})
		if err != nil {
			failed = true
		} else {
			before = contentsOf(r)
			for _, change := range changesOfAllKinds() {
				if err := change(t.Context(), r); err != nil {
					failed = true
					require.ErrorIs(t, err, mq.ErrStopped)
					require.ErrorIs(t, err, errorfs.ErrInjected)
					require.Error(t, r.Err())
					require.ErrorIs(t, change(t.Context(), r), mq.ErrStopped)
					require.Equal(t, 1, told)
					break
				}
				before = contentsOf(r)
			}
			require.Equal(t, before, contentsOf(r))
			_ = r.Close()
		}
		again := mustOpen(t, mem.CrashClone(vfs.CrashCloneCfg{}))
		if before.Revision > 0 {
			got := contentsOf(again)
			require.GreaterOrEqual(t, got.Revision, before.Revision, "operation %d", i)
			require.LessOrEqual(t, got.Revision, before.Revision+1, "operation %d", i)
			if got.Revision == before.Revision {
				require.Equal(t, before, got)
			}
		}
		if writes.Load() <= int64(i) {
			require.False(t, failed)
			require.Greater(t, i, 20)
			return
		}
	}
}

// TestADiskThatStaysFullEndsEveryCallWithAnError lets every write fail from one on,
// and each later one: nothing hangs, and what was answered is there on a disk with
// room again.
func TestADiskThatStaysFullEndsEveryCallWithAnError(t *testing.T) {
	for i := 0; ; i++ {
		clean := false
		synctest.Test(t, func(t *testing.T) { // no goroutine is left behind
			mem := vfs.NewCrashableMem()
			var writes atomic.Int64
			var full atomic.Bool
			full.Store(true)
			fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
				if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && writes.Add(1) > int64(i) && full.Load() {
					return syscall.ENOSPC
				}
				return nil
			}))
			told := 0
			open := func() (*Router, error) {
				return Open(Options{FS: fs, Dir: "meta", Shards: []string{"s1"}, OnFailure: func() { told++ }})
			}
			var before contents
			r, err := open()
			for _, change := range changesOfAllKinds() {
				if err != nil {
					break
				}
				before = contentsOf(r)
				if err = change(t.Context(), r); err != nil {
					require.ErrorIs(t, err, mq.ErrStopped)
					require.Equal(t, 1, told)
				}
			}
			if clean = err == nil; clean {
				before = contentsOf(r)
			} else {
				require.ErrorIs(t, err, syscall.ENOSPC, "from write %d on", i)
				_, again := open()
				require.Error(t, again)
			}
			if r != nil {
				_ = r.Close() // repeats the failure
			}
			full.Store(false)
			r, err = open()
			require.NoError(t, err, "from write %d on", i)
			got := contentsOf(r)
			require.NoError(t, r.Close())
			require.Contains(t, []uint64{before.Revision, before.Revision + 1}, got.Revision)
			if got.Revision == before.Revision && before.Revision > 0 {
				require.Equal(t, before, got)
			}
		})
		if clean {
			require.Greater(t, i, 40)
			return
		}
	}
}

// putRaw writes an entry behind the router's back.
func putRaw(t *testing.T, fs vfs.FS, key, value string) {
	t.Helper()
	db, err := pebble.Open("meta", &pebble.Options{FS: fs, FormatMajorVersion: pebble.FormatWALSyncChunks, Logger: quiet{}})
	require.NoError(t, err)
	if value == "" {
		require.NoError(t, db.Delete([]byte(key), pebble.Sync))
	} else {
		require.NoError(t, db.Set([]byte(key), []byte(value), pebble.Sync))
	}
	require.NoError(t, db.Close())
}

type quiet struct{}

func (quiet) Infof(string, ...any)         {}
func (quiet) Errorf(string, ...any)        {}
func (quiet) Fatalf(f string, args ...any) { panic(fmt.Sprintf(f, args...)) }

func filled(t *testing.T) *vfs.MemFS {
	fs := vfs.NewMem()
	r := mustOpen(t, fs)
	createTopic(t, r, TopicSpec{Resource: name("a")})
	createGroup(t, r, GroupSpec{Resource: name("g")})
	require.NoError(t, r.Close())
	return fs
}

func TestMetadataOfANewerVersionIsRefused(t *testing.T) {
	for key, value := range map[string]string{
		"v2/topic//a": `anything`,
		"v1/topic//a": `{"v":2,"id":"a thing of the future"}`,
		"v1/group//g": `{"v":2}`,
		"v1/shard/s":  `{"v":2}`,
		"v1/counters": `{"v":7}`,
	} {
		fs := filled(t)
		putRaw(t, fs, key, value)
		_, err := Open(Options{FS: fs, Dir: "meta", Shards: []string{"s1"}})
		var version *VersionError
		require.ErrorAs(t, err, &version, key)
		require.Equal(t, "meta", version.File)
		require.Equal(t, key, version.Entry)
		require.ErrorContains(t, err, "newer version")
	}
}

func TestDamagedEntriesAreRefusedAndNamed(t *testing.T) {
	topic := `{"v":1,"id":%s,"type":"NORMAL","permission":4,"shards":[{"shard":"s1","read":1,"write":1}],"version":1}`
	for _, c := range []struct{ key, value string }{
		{"v1/counters", ""},
		{"v1/counters", `{"v":1,"revision":3,"lastTopic":1,"lastGroup":1}`},
		{"v1/counters", `{"v":1,"revision":3,"lastTopic":2}`},
		{"v1/topic//a", `{`},
		{"v1/topic//a", `{"id":1}`},
		{"v1/topic//a", fmt.Sprintf(topic, "0")},
		{"v1/topic//b", fmt.Sprintf(topic, "1")},
		{"v1/topic//a", strings.Replace(fmt.Sprintf(topic, "1"), "NORMAL", "STRANGE", 1)},
		{"v1/topic//a", strings.Replace(fmt.Sprintf(topic, "1"), `"read":1`, `"read":0`, 1)},
		{"v1/topic//a", strings.Replace(fmt.Sprintf(topic, "1"), `"version"`, `"retention":1,"version"`, 1)},
		{"v1/topic//%DLQ%g", fmt.Sprintf(topic, "1")},
		{"v1/topic/a b", fmt.Sprintf(topic, "1")},
		{"v1/group//g", `{"v":1,"id":1}`},
		{"v1/user//u", `{"v":1}`},
		{"v1/shard/a b", `{"v":1,"state":"active"}`},
		{"v1/shard/s", `{"v":1,"state":"strange"}`},
		{"x", `{"v":1}`},
	} {
		fs := filled(t)
		putRaw(t, fs, c.key, c.value)
		_, err := Open(Options{FS: fs, Dir: "meta", Shards: []string{"s1"}})
		var damage *DamageError
		require.ErrorAs(t, err, &damage, c.key+c.value)
		require.Equal(t, "meta", damage.File)
		require.Contains(t, []string{c.key, "v1/group//g"}, damage.Entry)
	}
}

func TestUnknownFieldsArePassedOver(t *testing.T) {
	fs := filled(t)
	putRaw(t, fs, "v1/topic//a", `{"v":1,"id":1,"type":"NORMAL","permission":4,"shards":[{"shard":"s1","read":1,"write":1}],"version":5,"colour":"red"}`)
	topic, err := mustOpen(t, fs).Topic(t.Context(), name("a"))
	require.NoError(t, err)
	require.EqualValues(t, 5, topic.Version)
}

func TestADirectoryThatLostFilesIsRefusedAndLeftAlone(t *testing.T) {
	for _, lost := range []string{"marker.manifest.", ".log", "MANIFEST-"} {
		fs := filled(t)
		names, err := fs.List("meta")
		require.NoError(t, err)
		removed := 0
		for _, n := range names {
			if strings.Contains(n, lost) {
				require.NoError(t, fs.Remove("meta/"+n))
				removed++
			}
		}
		require.Positive(t, removed)
		before, err := fs.List("meta")
		require.NoError(t, err)
		_, err = Open(Options{FS: fs, Dir: "meta", Shards: []string{"s1"}})
		require.ErrorContains(t, err, "meta")
		after, err := fs.List("meta")
		require.NoError(t, err)
		require.ElementsMatch(t, before, after, lost)
	}
}

// TestAFlippedBitInTheLogIsRefused flips single bits all over the log.
func TestAFlippedBitInTheLogIsRefused(t *testing.T) {
	fs := vfs.NewCrashableMem()
	r := mustOpen(t, fs)
	for _, change := range changesOfAllKinds() {
		require.NoError(t, change(t.Context(), r))
	}
	want := contentsOf(r)
	require.NoError(t, r.Close())
	names, err := fs.List("meta")
	require.NoError(t, err)
	var log string
	for _, n := range names {
		if strings.HasSuffix(n, ".log") {
			log = "meta/" + n
		}
	}
	refused := 0
	for at := int64(0); ; at += 37 {
		clone := fs.CrashClone(vfs.CrashCloneCfg{})
		f, err := clone.OpenReadWrite(log, vfs.WriteCategoryUnspecified)
		require.NoError(t, err)
		var b [1]byte
		if _, err := f.ReadAt(b[:], at); errors.Is(err, io.EOF) {
			break
		}
		b[0] ^= 4
		_, err = f.WriteAt(b[:], at)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		r, err := Open(Options{FS: clone, Dir: "meta", Shards: []string{"s1"}})
		if err != nil {
			require.ErrorContains(t, err, "meta")
			refused++
			// Whoever repairs the file finds everything: the open deleted nothing.
			f, err := clone.OpenReadWrite(log, vfs.WriteCategoryUnspecified)
			require.NoError(t, err, "bit flipped at %d", at)
			b[0] ^= 4
			_, err = f.WriteAt(b[:], at)
			require.NoError(t, err)
			require.NoError(t, f.Close())
			r, err = Open(Options{FS: clone, Dir: "meta", Shards: []string{"s1"}})
			require.NoError(t, err, "bit flipped at %d", at)
		}
		require.Equal(t, want, contentsOf(r), "bit flipped at %d", at)
		require.NoError(t, r.Close())
	}
	require.Greater(t, refused, 10)
}

func TestALostOrDamagedRevisionFileIsRefused(t *testing.T) {
	damage := map[string]func(t *testing.T, fs vfs.FS, path string){
		"missing": func(t *testing.T, fs vfs.FS, path string) { require.NoError(t, fs.Remove(path)) },
		"empty": func(t *testing.T, fs vfs.FS, path string) {
			f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
			require.NoError(t, err)
			require.NoError(t, f.Close())
		},
	}
	for what, spoil := range damage {
		fs := filled(t)
		spoil(t, fs, "meta/REVISION")
		_, err := Open(Options{FS: fs, Dir: "meta", Shards: []string{"s1"}})
		var damaged *DamageError
		require.ErrorAs(t, err, &damaged, what)
		require.Equal(t, "meta/REVISION", damaged.File)
	}
	fs := filled(t)
	f, err := fs.OpenReadWrite("meta/REVISION", vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte("perigee-revision 2 9 0"), 0)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	_, err = Open(Options{FS: fs, Dir: "meta", Shards: []string{"s1"}})
	var version *VersionError
	require.ErrorAs(t, err, &version)
}

func TestOneTornRevisionLineIsTolerated(t *testing.T) {
	for slot := range 2 {
		fs := filled(t)
		f, err := fs.OpenReadWrite("meta/REVISION", vfs.WriteCategoryUnspecified)
		require.NoError(t, err)
		_, err = f.WriteAt([]byte("#"), int64(slot*guardSlot+20))
		require.NoError(t, err)
		require.NoError(t, f.Close())
		require.Len(t, mustOpen(t, fs).ListTopics(t.Context(), Selection{}), 1)
	}
}

func TestADamagedTableIsNamedInOneLine(t *testing.T) {
	fs := filled(t)
	require.NoError(t, mustOpen(t, fs).Close()) // what was in the log is in a table then
	names, err := fs.List("meta")
	require.NoError(t, err)
	hit := false
	for _, n := range names {
		if !strings.HasSuffix(n, ".sst") {
			continue
		}
		hit = true
		f, err := fs.OpenReadWrite("meta/"+n, vfs.WriteCategoryUnspecified)
		require.NoError(t, err)
		_, err = f.WriteAt([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, 4)
		require.NoError(t, err)
		require.NoError(t, f.Close())
	}
	require.True(t, hit)
	var lines bytes.Buffer
	_, err = Open(Options{FS: fs, Dir: "meta", Shards: []string{"s1"}, Logger: slog.New(slog.NewTextHandler(&lines, nil))})
	var damaged *DamageError
	require.ErrorAs(t, err, &damaged)
	require.True(t, strings.HasPrefix(damaged.File, "meta/") && strings.HasSuffix(damaged.File, ".sst"), damaged.File)
	require.NotContains(t, err.Error(), "\n")
	require.NotContains(t, err.Error(), "detail carrier")
	require.NotContains(t, lines.String(), ".go:", "no stack")

	// The listener words what is found behind the start.
	log := &pebbleLogger{log: slog.New(slog.NewTextHandler(&lines, nil))}
	log.damaged(pebble.DataCorruptionInfo{Path: "meta/1.sst", Details: pebble.ErrCorruption})
	require.ErrorAs(t, log.failure(), &damaged)
	require.Equal(t, "meta/1.sst", damaged.File)
	require.NotContains(t, lines.String(), ".go:", "no stack")
}

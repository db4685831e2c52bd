package backup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/internal/durable"
	"github.com/perigee-mq/perigee/internal/faultfs"
)

func put(t *testing.T, fsys vfs.FS, name, text string) {
	t.Helper()
	require.NoError(t, fsys.MkdirAll(fsys.PathDir(name), 0o755))
	f, err := fsys.Create(name, vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	_, err = f.Write([]byte(text))
	require.NoError(t, err)
	require.NoError(t, errors.Join(f.Sync(), f.Close()))
	for dir := fsys.PathDir(name); ; dir = fsys.PathDir(dir) {
		require.NoError(t, durable.SyncDir(fsys, dir))
		if dir == fsys.PathDir(dir) {
			return
		}
	}
}

func text(t *testing.T, fsys vfs.FS, name string) string {
	t.Helper()
	f, err := fsys.Open(name)
	require.NoError(t, err)
	defer f.Close()
	info, err := f.Stat()
	require.NoError(t, err)
	b := make([]byte, info.Size())
	if len(b) > 0 {
		_, err = f.ReadAt(b, 0)
		require.NoError(t, err)
	}
	return string(b)
}

// makeBackup makes a backup of a file that is linked, one that is copied, and one that is written.
func makeBackup(ctx context.Context, fsys vfs.FS, target string) (Manifest, error) {
	w, err := Begin(fsys, target)
	if err != nil {
		return Manifest{}, err
	}
	err = w.LinkOrCopy(ctx, "data/store/sealed", "store/sealed")
	if err == nil {
		err = w.CopyFile(ctx, "data/store/open", "store/deep/open")
	}
	if err == nil {
		err = w.Write(ctx, "store/deep/note", []byte("note"))
	}
	m := Manifest{Tier: "store", Program: "v1", Began: time.Unix(1, 0).UTC(), Ended: time.Unix(2, 0).UTC(), Shards: []Shard{{Name: "s", First: 64, End: 100}}}
	if err == nil {
		m, err = w.Finish(ctx, m)
	}
	if err != nil {
		return m, errors.Join(err, w.Abandon())
	}
	return m, nil
}

func source(t *testing.T) *vfs.MemFS {
	mem := vfs.NewCrashableMem()
	put(t, mem, "data/store/sealed", "sealed for ever")
	put(t, mem, "data/store/open", strings.Repeat("still open", 300_000))
	return mem
}

// wrong returns what Verify finds.
func wrong(t *testing.T, fsys vfs.FS, dir string) (found []string) {
	t.Helper()
	m, err := Read(fsys, dir)
	if err != nil {
		return []string{err.Error()}
	}
	require.NoError(t, Verify(fsys, dir, m, func(err error) { found = append(found, err.Error()) }))
	return found
}

func TestABackupIsRestoredAsItWas(t *testing.T) {
	mem := source(t)
	made, err := makeBackup(t.Context(), mem, "backups/one")
	require.NoError(t, err)
	require.Len(t, made.Files, 3)
	require.Empty(t, wrong(t, mem, "backups/one"))
	read, err := Read(mem, "backups/one")
	require.NoError(t, err)
	require.Equal(t, &made, read)
	names, err := mem.List("backups")
	require.NoError(t, err)
	require.Equal(t, []string{"one"}, names)

	_, err = makeBackup(t.Context(), mem, "backups/one")
	require.ErrorIs(t, err, ErrExists)

	require.NoError(t, mem.MkdirAll("restored/lost+found", 0o755))
	finished := false
	require.NoError(t, Restore(t.Context(), mem, "backups/one", "restored", func(m *Manifest) error {
		finished = true
		require.Equal(t, read, m)
		_, err := mem.Stat("restored/" + RestoringName)
		return err
	}))
	require.True(t, finished)
	for _, f := range made.Files {
		require.Equal(t, text(t, mem, "backups/one/"+f.Name), text(t, mem, "restored/"+f.Name))
	}
	_, err = mem.Stat("restored/" + RestoringName)
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = mem.Stat("restored/" + ManifestName)
	require.ErrorIs(t, err, os.ErrNotExist, "a data folder is no backup")
	nothing := func(*Manifest) error { return nil }
	require.ErrorIs(t, Restore(t.Context(), mem, "backups/one", "restored", nothing), ErrNotEmpty)
	require.ErrorContains(t, Restore(t.Context(), mem, "data", "elsewhere", nothing), "it is no backup")
}

func TestEveryDamageOfABackupIsNamedAndNothingIsRestored(t *testing.T) {
	for name, damage := range map[string]func(mem *vfs.MemFS){
		"store/sealed: has 3 bytes, 15 were written": func(mem *vfs.MemFS) { put(t, mem, "b/store/sealed", "cut") },
		"store/sealed: is missing":                   func(mem *vfs.MemFS) { require.NoError(t, mem.Remove("b/store/sealed")) },
		"store/deep/note: has other bytes than were": func(mem *vfs.MemFS) { put(t, mem, "b/store/deep/note", "nose") },
		"store/more: is not in BACKUP":               func(mem *vfs.MemFS) { put(t, mem, "b/store/more", "x") },
		"b: has no BACKUP: it is no backup":          func(mem *vfs.MemFS) { require.NoError(t, mem.Remove("b/BACKUP")) },
		"BACKUP: is no manifest of a backup":         func(mem *vfs.MemFS) { put(t, mem, "b/BACKUP", "what?") },
		"BACKUP: has other bytes than were written":  func(mem *vfs.MemFS) { put(t, mem, "b/BACKUP", text(t, mem, "b/BACKUP")+" ") },
		"BACKUP was written by a newer version of perigee: it has version 2, this one reads up to 1": func(mem *vfs.MemFS) {
			put(t, mem, "b/BACKUP", strings.Replace(text(t, mem, "b/BACKUP"), "perigee-backup 1", "perigee-backup 2", 1))
		},
	} {
		mem := source(t)
		_, err := makeBackup(t.Context(), mem, "b")
		require.NoError(t, err)
		damage(mem)
		found := wrong(t, mem, "b")
		require.Len(t, found, 1, name)
		require.Contains(t, found[0], name)
		err = Restore(t.Context(), mem, "b", "restored", func(*Manifest) error { t.Error("finished"); return nil })
		require.ErrorContains(t, err, name)
		_, err = mem.Stat("restored")
		require.ErrorIs(t, err, os.ErrNotExist, name)
	}
}

// TestABackupIsWholeOrHasNotItsName interrupts a backup after, and at, every operation.
func TestABackupIsWholeOrHasNotItsName(t *testing.T) {
	for _, crash := range []bool{true, false} {
		for at := 0; ; at++ {
			mem := source(t)
			fsys := faultfs.New(mem)
			left := mem
			if crash {
				fsys.CrashAfter(at, -1, func() { left = mem.CrashClone(vfs.CrashCloneCfg{}) })
			} else {
				fsys.FailFrom(at, syscall.ENOSPC)
			}
			_, err := makeBackup(t.Context(), fsys, "backups/b")
			if !fsys.Fired() {
				require.NoError(t, err)
				require.Greater(t, at, 15)
				break
			}
			if _, statErr := left.Stat("backups/b"); statErr == nil {
				require.Empty(t, wrong(t, left, "backups/b"), "operation %d", at)
			} else {
				require.Error(t, err, "operation %d", at)
			}
			// What is left does not keep the next one.
			if _, statErr := left.Stat("backups/b"); statErr != nil {
				_, err = makeBackup(t.Context(), left, "backups/b")
				require.NoError(t, err, "operation %d", at)
			}
			require.Empty(t, wrong(t, left, "backups/b"))
		}
	}
}

// TestARestoreIsWholeOrSaysThatItIsNot interrupts a restore after every operation.
func TestARestoreIsWholeOrSaysThatItIsNot(t *testing.T) {
	for at := 0; ; at++ {
		mem := source(t)
		_, err := makeBackup(t.Context(), mem, "b")
		require.NoError(t, err)
		fsys := faultfs.New(mem)
		left := mem
		fsys.CrashAfter(at, -1, func() { left = mem.CrashClone(vfs.CrashCloneCfg{}) })
		nothing := func(*Manifest) error { return nil }
		err = Restore(t.Context(), fsys, "b", "deep/data", nothing)
		if !fsys.Fired() {
			require.NoError(t, err)
			require.Greater(t, at, 10)
			return
		}
		require.Empty(t, wrong(t, left, "b"), "the backup stays as it is")
		names, err := left.List("deep/data")
		if err != nil || len(names) == 0 {
			continue
		}
		if _, err := left.Stat("deep/data/" + RestoringName); err == nil {
			require.ErrorContains(t, Restore(t.Context(), left, "b", "deep/data", nothing), "an earlier restore", "operation %d", at)
			continue
		}
		require.Equal(t, "sealed for ever", text(t, left, "deep/data/store/sealed"), "operation %d", at)
		require.Equal(t, "note", text(t, left, "deep/data/store/deep/note"), "operation %d", at)
	}
}

func TestTwoBackupsToOneFolderDoNotMeet(t *testing.T) {
	mem := source(t)
	w, err := Begin(mem, "b")
	require.NoError(t, err)
	_, err = Begin(mem, "b")
	require.ErrorContains(t, err, "another one")
	require.NoError(t, w.Abandon())
	_, err = makeBackup(t.Context(), mem, "b")
	require.NoError(t, err)
}

func TestABackupEndsWithItsContext(t *testing.T) {
	mem := source(t)
	why := errors.New("nobody waits")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	_, err := makeBackup(ctx, mem, "b")
	require.ErrorIs(t, err, why)
	names, err := mem.List("")
	require.NoError(t, err)
	require.Equal(t, []string{"data"}, names)
}

// TestABackupCopiesAtItsPace: what is linked takes no time, and who ends the backup does not wait.
func TestABackupCopiesAtItsPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fsys := vfs.NewMem()
		put(t, fsys, "data/file", strings.Repeat("x", 11*chunk))
		begin := func(rate int64) *Writer {
			w, err := Begin(fsys, "backup")
			require.NoError(t, err)
			w.Pace(rate)
			return w
		}
		w, start := begin(chunk), time.Now()
		require.NoError(t, w.LinkOrCopy(t.Context(), "data/file", "linked"))
		require.Zero(t, time.Since(start))
		require.NoError(t, w.CopyFile(t.Context(), "data/file", "first"))
		require.NoError(t, w.CopyFile(t.Context(), "data/file", "second"))
		require.InDelta(t, 21, time.Since(start).Seconds(), 0.01, "all but the first chunk wait")
		require.EqualValues(t, 22*chunk, w.Copied())

		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(3*time.Second, func() { cancel(errors.New("enough")) })
		start = time.Now()
		require.ErrorContains(t, w.CopyFile(ctx, "data/file", "third"), "enough")
		require.Equal(t, 3*time.Second, time.Since(start))
		require.NoError(t, w.Abandon())

		w, start = begin(0), time.Now()
		require.NoError(t, w.CopyFile(t.Context(), "data/file", "at once"))
		require.Zero(t, time.Since(start))
		require.NoError(t, w.Abandon())
	})
}

func TestNamesOfAManifestStayInItsFolder(t *testing.T) {
	for _, name := range []string{"../x", "/etc/passwd", "a/../../x", "", ".", "a//b", "a\\b", ManifestName, ".."} {
		m := Manifest{Files: []File{{Name: name, Size: 1}}}
		data, err := m.encode()
		require.NoError(t, err)
		_, err = decode("BACKUP", data)
		require.Error(t, err, fmt.Sprintf("%q", name))
	}
}

func FuzzDecodeManifest(f *testing.F) {
	m := Manifest{Tier: "store", Files: []File{{Name: "a/b", Size: 3}}}
	data, err := m.encode()
	require.NoError(f, err)
	f.Add(data)
	f.Add([]byte("perigee-backup 1 00000000 0\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := decode("BACKUP", data)
		if err != nil {
			return
		}
		again, err := m.encode()
		require.NoError(t, err)
		back, err := decode("BACKUP", again)
		require.NoError(t, err)
		require.Equal(t, m, back)
	})
}

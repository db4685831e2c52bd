package shard

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/perigee-mq/perigee/internal/backup"
	"github.com/perigee-mq/perigee/internal/durable"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/commitlog"
)

// A backup is a copy of the log up to a position that is durable, and of views that have
// applied no more than that. Segments that nothing is added to are linked where the
// file system of the target lets them be; views are put aside by links first, so that what
// is copied of them does not change. The loop notices none of it but a flush of the views.

// spareDir is the folder, in that of the shard, in which views are put aside for a backup.
const spareDir = "views.backup"

// errBackup says that a backup of the shard is being made.
var errBackup = errors.New("another backup of the shard is being made")

// Backup puts a copy of the shard into a backup, below dir. Everything that was acknowledged
// before the call is in it. Its failure, also that of a disk that is full, is not one of the
// shard. Retention is not held up: a segment that it drops meanwhile takes room until it is
// copied. The first error ends it, as does the end of ctx, or Close.
func (s *Shard) Backup(ctx context.Context, w *backup.Writer, dir string) (sum backup.Shard, err error) {
	sum.Name = s.opts.Name
	if !s.beginReceive() { // Close waits for it
		return sum, context.Cause(s.serving)
	}
	defer s.receiving.Done()
	if err := s.Err(); err != nil {
		return sum, err
	}
	if !s.backingUp.TryLock() {
		return sum, fmt.Errorf("shard %s: %w: %w", s.opts.Name, mq.ErrBusy, errBackup)
	}
	defer s.backingUp.Unlock()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.serving, func() { cancel(context.Cause(s.serving)) })()

	// The segments first: those that the views need are there then.
	hold, err := s.log.Hold()
	if err != nil {
		return sum, err
	}
	defer func() { err = errors.Join(err, hold.Release()) }()
	fsys := s.opts.FS
	spare := fsys.PathJoin(s.opts.Dir, spareDir)
	defer func() {
		if err := fsys.RemoveAll(spare); err != nil { // the next backup, or the next start, tries again
			s.logger.Warn("what a backup has left cannot be removed", "error", err)
		}
	}()
	if err := s.rollForLinks(w); err != nil {
		return sum, err
	}
	base, err := s.spareViews(spare)
	if err != nil {
		return sum, fmt.Errorf("shard %s: views: %w", s.opts.Name, err)
	}
	if err := hold.Freeze(); err != nil {
		return sum, err
	}
	sum.First, sum.End = uint64(hold.First()), uint64(hold.End())
	if err := s.backUpLog(ctx, hold, w, LogDir(fsys, dir)); err != nil {
		return sum, err
	}
	if base != "" {
		if err := backUpViews(ctx, fsys, fsys.PathJoin(spare, base), w, fsys.PathJoin(dir, base)); err != nil {
			return sum, err
		}
	}
	return sum, backUpViews(ctx, fsys, fsys.PathJoin(spare, spareViewsDir), w, ViewsDir(fsys, dir))
}

// backUpViews copies views that were put aside. Tables never change; other files do, in
// what is restored.
func backUpViews(ctx context.Context, fsys vfs.FS, views string, w *backup.Writer, dir string) error {
	names, err := fsys.List(views)
	if err != nil {
		return err
	}
	for _, name := range names {
		put := w.CopyFile
		if strings.HasSuffix(name, ".sst") || strings.HasSuffix(name, ".blob") {
			put = w.LinkOrCopy
		}
		if err := put(ctx, fsys.PathJoin(views, name), fsys.PathJoin(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// linkFrom is how much must be in the active segment for it to be sealed for a backup: less is
// copied in no time, and small segments would pile up.
const linkFrom = 16 << 20

// rollForLinks seals the active segment where that saves a copy.
func (s *Shard) rollForLinks(w *backup.Writer) error {
	segments := s.log.Segments()
	active := segments[len(segments)-1]
	if active.End-active.First < linkFrom || !w.Links(active.File) {
		return nil
	}
	return s.log.Roll()
}

// spareViewsDir is the folder of the views in that of what is put aside, which Pebble makes.
const spareViewsDir = "views"

// spareViews puts the views on disk aside, and their base, whose name it returns; empty: the
// log was never trimmed.
func (s *Shard) spareViews(spare string) (base string, err error) {
	fsys := s.opts.FS
	if err := fsys.RemoveAll(spare); err != nil { // left by a crash
		return "", err
	}
	if err := durable.MakeDir(fsys, spare); err != nil {
		return "", err
	}
	if base, err = s.spareBase(spare); err != nil {
		return "", err
	}
	if err := s.flushViews(); err != nil {
		return "", err
	}
	err = s.checkpoint(fsys.PathJoin(spare, spareViewsDir))
	if failure := s.Err(); failure != nil {
		return "", failure // after one Pebble is told that all goes well
	}
	return base, err
}

// baseTries is how often a base is sought that retention replaces each time.
const baseTries = 100

// spareBase puts the newest base of the views aside. The log is held: it begins where that
// base lets it, or before.
func (s *Shard) spareBase(spare string) (string, error) {
	fsys := s.opts.FS
	for tries := 1; ; tries++ {
		list, err := bases(fsys, s.opts.Dir)
		if err != nil || len(list) == 0 {
			return "", err
		}
		name := baseName(list[0])
		err = linkDir(fsys, fsys.PathJoin(s.opts.Dir, name), fsys.PathJoin(spare, name))
		if err != nil && (!errors.Is(err, fs.ErrNotExist) || tries == baseTries) {
			return "", err
		}
		if now, listErr := bases(fsys, s.opts.Dir); listErr != nil {
			return "", listErr
		} else if err == nil && slices.Equal(now[:min(1, len(now))], list[:1]) {
			return name, nil
		}
		// A newer one has come, and this one may have been going while it was linked.
		if err := fsys.RemoveAll(fsys.PathJoin(spare, name)); err != nil {
			return "", err
		}
		if tries == baseTries {
			return "", fmt.Errorf("the base of the views was replaced %d times while it was copied", tries)
		}
	}
}

// linkDir links the files of a folder into a new one.
func linkDir(fsys vfs.FS, from, to string) error {
	names, err := fsys.List(from)
	if err != nil {
		return err
	}
	if err := fsys.MkdirAll(to, 0o755); err != nil {
		return err
	}
	for _, name := range names {
		if err := vfs.LinkOrCopy(fsys, fsys.PathJoin(from, name), fsys.PathJoin(to, name)); err != nil {
			return err
		}
	}
	return nil
}

// backUpLog copies the log, oldest segment first, for that is the one that retention drops
// first.
func (s *Shard) backUpLog(ctx context.Context, hold *commitlog.Hold, w *backup.Writer, dir string) error {
	fsys := s.opts.FS
	segments := hold.Segments()
	for i, seg := range segments {
		if !seg.Sealed {
			continue
		}
		linked, err := w.Link(seg.File, fsys.PathJoin(dir, seg.Name), seg.Size)
		if err != nil {
			return err
		}
		if !linked {
			continue
		}
		segments[i].Size = 0
		if err := hold.Let(seg); err != nil {
			return err
		}
	}
	for _, seg := range segments {
		if seg.Size == 0 {
			continue
		}
		if err := w.Copy(ctx, seg, fsys.PathJoin(dir, seg.Name), seg.Size); err != nil {
			return err
		}
		if err := hold.Let(seg); err != nil {
			return err
		}
	}
	return w.Write(ctx, fsys.PathJoin(dir, commitlog.SyncedName), commitlog.EncodeSynced(hold.End()))
}

// spareFS sends what happens in the folder of spare views around what stands between the
// views and the disk: its failures are none of the views.
type spareFS struct {
	vfs.FS
	plain vfs.FS
	dir   string
}

func (f spareFS) of(name string) vfs.FS {
	if name == f.dir || strings.HasPrefix(name, f.dir+"/") {
		return f.plain
	}
	return f.FS
}

// Create implements vfs.FS.
func (f spareFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return f.of(name).Create(name, category)
}

// Link implements vfs.FS.
func (f spareFS) Link(oldname, newname string) error { return f.of(newname).Link(oldname, newname) }

// OpenDir implements vfs.FS.
func (f spareFS) OpenDir(name string) (vfs.File, error) { return f.of(name).OpenDir(name) }

// MkdirAll implements vfs.FS.
func (f spareFS) MkdirAll(dir string, perm fs.FileMode) error { return f.of(dir).MkdirAll(dir, perm) }

// Rename implements vfs.FS.
func (f spareFS) Rename(oldname, newname string) error { return f.of(newname).Rename(oldname, newname) }

// Remove implements vfs.FS.
func (f spareFS) Remove(name string) error { return f.of(name).Remove(name) }

// RemoveAll implements vfs.FS.
func (f spareFS) RemoveAll(name string) error { return f.of(name).RemoveAll(name) }

// Unwrap implements vfs.FS.
func (f spareFS) Unwrap() vfs.FS { return f.FS }

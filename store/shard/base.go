package shard

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/perigee-mq/perigee/internal/durable"
	"github.com/perigee-mq/perigee/internal/readonly"
	"github.com/perigee-mq/perigee/store/commitlog"
)

// A log that was trimmed cannot rebuild the views from its first record. So before
// segments are removed, the views of that moment are put aside as a base: a folder of
// hard links, from which views that are lost or damaged later can be rebuilt with what
// is left of the log. There is one base, and for a moment two.

// Names in the folder of a shard.
const (
	basePrefix  = "views.base-"     // and the position at which the log may begin, in 20 digits
	baseNew     = "views.base.new"  // a base that is being made
	restoreNew  = "views.restoring" // views that are being put back
	asidePrefix = "views.damaged-"  // and a number: views that were put aside
)

func baseName(begin commitlog.Pos) string { return fmt.Sprintf("%s%020d", basePrefix, uint64(begin)) }

// bases returns the positions of the bases in dir, the newest first.
func bases(fsys vfs.FS, dir string) ([]commitlog.Pos, error) {
	names, err := fsys.List(dir)
	if err != nil {
		return nil, err
	}
	var list []commitlog.Pos
	for _, name := range names {
		digits, ok := strings.CutPrefix(name, basePrefix)
		pos, err := strconv.ParseUint(digits, 10, 64)
		if ok && err == nil && baseName(commitlog.Pos(pos)) == name {
			list = append(list, commitlog.Pos(pos))
		}
	}
	slices.Sort(list)
	slices.Reverse(list)
	return list, nil
}

// Bases returns the folders of the bases of the shard in dir, the newest first. None is
// no error.
func Bases(fsys vfs.FS, dir string) ([]string, error) {
	list, err := bases(fsys, dir)
	var paths []string
	for _, pos := range list {
		paths = append(paths, fsys.PathJoin(dir, baseName(pos)))
	}
	return paths, err
}

// errNotRemoved is a base that is of no use any more and could not be removed. Nothing is
// lost by that.
var errNotRemoved = errors.New("old base of the views not removed")

// saveBase makes the base for a log that begins at begin. The views on disk must have
// applied the command that says so. When it returns the base is durable.
func (s *Shard) saveBase(begin commitlog.Pos) error {
	fsys, dir := s.opts.FS, s.opts.Dir
	list, err := bases(fsys, dir)
	if err != nil || slices.Contains(list, begin) {
		return err // an earlier try came as far as this
	}
	temp := fsys.PathJoin(dir, baseNew)
	if err := fsys.RemoveAll(temp); err != nil { // left by a crash
		return fmt.Errorf("%w: %w", errNotRemoved, err)
	}
	err = s.checkpoint(temp)
	if failure := s.Err(); failure != nil {
		return failure // after one Pebble is told that all goes well
	}
	if err != nil {
		return fmt.Errorf("base of the views: %w", err)
	}
	if err := fsys.Rename(temp, fsys.PathJoin(dir, baseName(begin))); err != nil {
		return fmt.Errorf("base of the views: %w", err)
	}
	return durable.SyncDir(fsys, dir)
}

// checkpoint links what the views have on disk into a new folder, durably. Pebble answers
// a failed sync of that folder with a panic; to the shard it is an error like others.
func (s *Shard) checkpoint(dir string) (err error) {
	defer func() {
		if p := recover(); p != nil {
			cause, ok := p.(error)
			var bug runtime.Error
			if !ok || errors.As(cause, &bug) {
				panic(p)
			}
			err = cause
		}
	}()
	return s.db.Checkpoint(dir)
}

// dropBases removes the bases of logs that began before begin.
func (s *Shard) dropBases(begin commitlog.Pos) error {
	list, err := bases(s.opts.FS, s.opts.Dir)
	if err != nil {
		return err
	}
	for _, pos := range list {
		if pos < begin {
			if err := s.opts.FS.RemoveAll(s.opts.FS.PathJoin(s.opts.Dir, baseName(pos))); err != nil {
				return fmt.Errorf("%w: %w", errNotRemoved, err)
			}
		}
	}
	return nil
}

// Restored says what RestoreViews has done.
type Restored struct {
	// Aside is where the views were put, empty when there were none.
	Aside string
	// Base is the base in their place, empty when none is needed: the log has all.
	Base string
	// Applied is the index of the last record that is in the base, First that of the
	// first record that the log has.
	Applied, First uint64
}

// RestoreViews puts the views of the shard in dir aside, and their base in their place,
// so that the next Open rebuilds them with what the log has since. Without a base it
// only does so when the log still has its first record. Nothing is deleted, and the base
// stays. Nobody may have the shard open. It may be repeated after any failure.
//
// It reads the whole log first, and changes nothing when that is damaged: the error
// names file and offset.
func RestoreViews(fsys vfs.FS, dir string) (Restored, error) {
	if err := checkLog(fsys, dir); err != nil {
		return Restored{}, err
	}
	first, err := commitlog.Oldest(fsys, LogDir(fsys, dir))
	if err != nil {
		return Restored{}, err
	}
	r := Restored{First: first.FirstIndex}
	if r.Base, r.Applied, err = bestBase(fsys, dir, first); err != nil {
		return Restored{}, err
	}
	temp := fsys.PathJoin(dir, restoreNew)
	if err := fsys.RemoveAll(temp); err != nil { // left by an earlier try
		return Restored{}, err
	}
	if r.Base != "" {
		if err := copyDir(fsys, r.Base, temp); err != nil {
			return Restored{}, fmt.Errorf("copy of %s: %w", r.Base, err)
		}
		if err := durable.SyncDir(fsys, dir); err != nil {
			return Restored{}, err
		}
	}
	views := ViewsDir(fsys, dir)
	if _, err := fsys.Stat(views); err == nil {
		r.Aside = freeName(fsys, dir)
		if err := fsys.Rename(views, r.Aside); err != nil {
			return Restored{}, err
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return Restored{}, err
	}
	if r.Base != "" {
		if err := fsys.Rename(temp, views); err != nil {
			return r, err
		}
	}
	return r, durable.SyncDir(fsys, dir)
}

// checkLog returns an error when views that are derived from the log would lack something.
func checkLog(fsys vfs.FS, dir string) error {
	refused := func(err error) error {
		return fmt.Errorf("the log is damaged, and views that are derived from it would be too; nothing was changed: %w", err)
	}
	var damage error
	sum, err := commitlog.Check(readonly.New(fsys), LogDir(fsys, dir), nil, func(err error) { damage = cmp.Or(damage, err) })
	if err := cmp.Or(damage, err); err != nil {
		return refused(err)
	}
	// Views that cannot be read cannot tell.
	var reach Reach
	err = readonly.Catch(func() (err error) {
		reach, err = ReadReach(readonly.New(fsys), dir)
		return err
	})
	if err == nil && reach.State.Index > sum.Last {
		return refused(&commitlog.CorruptionError{File: LogDir(fsys, dir), Offset: int64(sum.End), Reason: fmt.Sprintf(
			"it ends with record %d, and the views have applied record %d", sum.Last, reach.State.Index)})
	}
	return nil
}

// bestBase returns the newest base that a log whose oldest segment is first can be
// replayed on, and the index of the last record that is in it; none when the log has all.
// Every byte of the base is read: a damaged one is passed over, and named when there is
// no other.
func bestBase(fsys vfs.FS, dir string, first commitlog.SegmentInfo) (path string, applied uint64, err error) {
	list, err := bases(fsys, dir)
	if err != nil {
		return "", 0, err
	}
	var damaged []error
	for _, pos := range list {
		path := fsys.PathJoin(dir, baseName(pos))
		reach, err := verifyBase(fsys, path)
		if err == nil {
			err = errors.Join(reach.CheckBegin(first), reach.checkRebuild(path, first))
		}
		if err == nil {
			return path, reach.State.Index, nil
		}
		damaged = append(damaged, fmt.Errorf("base %s: %w", path, err))
	}
	if first.FirstIndex <= 1 {
		return "", 0, nil
	}
	if len(damaged) == 0 {
		return "", 0, fmt.Errorf("%s has no %s*, and the log, whose oldest segment is %s, begins with record %d: there is nothing to rebuild the views from",
			dir, basePrefix, first.File, first.FirstIndex)
	}
	return "", 0, errors.Join(damaged...)
}

// verifyBase reads the whole base.
func verifyBase(fsys vfs.FS, path string) (r Reach, err error) {
	db, err := ReadViewsIn(fsys, path)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	it, err := db.NewIter(nil)
	if err != nil {
		return r, err
	}
	for ok := it.First(); ok; ok = it.Next() {
		if _, err := it.ValueAndErr(); err != nil {
			return r, errors.Join(err, it.Close())
		}
	}
	if err := errors.Join(it.Error(), it.Close()); err != nil {
		return r, err
	}
	return reachOf(db)
}

// freeName returns a name for views that are put aside.
func freeName(fsys vfs.FS, dir string) string {
	for n := 1; ; n++ {
		name := fsys.PathJoin(dir, fmt.Sprint(asidePrefix, n))
		if _, err := fsys.Stat(name); errors.Is(err, fs.ErrNotExist) {
			return name
		}
	}
}

// copyDir copies the files of one folder into a new one, durably. They are copies, not
// links, so that what happens to one happens to no other.
func copyDir(fsys vfs.FS, from, to string) error {
	if err := fsys.MkdirAll(to, 0o755); err != nil {
		return err
	}
	names, err := fsys.List(from)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := vfs.CopyAcrossFS(fsys, fsys.PathJoin(from, name), fsys, fsys.PathJoin(to, name)); err != nil {
			return err
		}
	}
	return durable.SyncDir(fsys, to)
}

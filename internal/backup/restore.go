package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/perigee-mq/perigee/internal/durable"
)

// RestoringName is the name of a file in a data folder into which a backup is being put.
// While it is there the folder is not whole.
const RestoringName = "RESTORING"

// ErrNotEmpty says that a backup is to be put where something is.
var ErrNotEmpty = errors.New("it is not empty; name a folder that is, or that does not exist")

// Restore puts the files of the backup in dir into the folder to, which must be empty or
// missing: files that do not change any more as hard links where the file system has
// them, the others as copies. Everything that has a checksum is verified first. finish is
// called before the folder counts as whole. What a failure leaves has RestoringName in it.
func Restore(ctx context.Context, fsys vfs.FS, dir, to string, finish func(*Manifest) error) error {
	m, err := Read(fsys, dir)
	if err != nil {
		return err
	}
	var found error
	if err := Verify(fsys, dir, m, func(err error) { found = errors.Join(found, err) }); err != nil {
		return err
	}
	if found != nil {
		return fmt.Errorf("%w\nnothing was changed", found)
	}
	if err := mustBeEmpty(fsys, to); err != nil {
		return err
	}
	if err := durable.MakeDir(fsys, to); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	marker := fsys.PathJoin(to, RestoringName)
	f, err := fsys.Create(marker, category)
	if err == nil {
		err = errors.Join(f.Sync(), f.Close(), durable.SyncDir(fsys, to))
	}
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if err := putBack(ctx, fsys, dir, to, m); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if err := finish(m); err != nil {
		return err
	}
	if err := errors.Join(fsys.Remove(marker), durable.SyncDir(fsys, to)); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	return nil
}

// mustBeEmpty returns an error when there is something in dir. What a file system has in
// its own uppermost folder is nothing.
func mustBeEmpty(fsys vfs.FS, dir string) error {
	names, err := fsys.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	names = slices.DeleteFunc(names, func(name string) bool { return name == "lost+found" })
	if slices.Contains(names, RestoringName) {
		return fmt.Errorf("restore: %s: an earlier restore has not come to its end; empty the folder first", dir)
	}
	if len(names) > 0 {
		return fmt.Errorf("restore: %s: %w", dir, ErrNotEmpty)
	}
	return nil
}

func putBack(ctx context.Context, fsys vfs.FS, dir, to string, m *Manifest) error {
	made := map[string]bool{}
	var copied atomic.Int64
	for _, f := range m.Files {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if err := fsys.MkdirAll(fsys.PathJoin(to, path.Dir(f.Name)), 0o755); err != nil {
			return err
		}
		for parent := path.Dir(f.Name); parent != "."; parent = path.Dir(parent) {
			made[parent] = true
		}
		if err := putFile(ctx, fsys, fsys.PathJoin(dir, f.Name), fsys.PathJoin(to, f.Name), f, &copied); err != nil {
			return err
		}
	}
	dirs := []string{""}
	for name := range made {
		dirs = append(dirs, name)
	}
	slices.Sort(dirs)
	for _, name := range slices.Backward(dirs) {
		if err := durable.SyncDir(fsys, fsys.PathJoin(to, name)); err != nil {
			return err
		}
	}
	return nil
}

// putFile puts one file into a data folder. One that was linked into the backup is linked
// again; all others may be written to, and are copied.
func putFile(ctx context.Context, fsys vfs.FS, from, to string, f File, copied *atomic.Int64) (err error) {
	if f.Linked {
		if err := fsys.Link(from, to); err == nil {
			return nil
		}
	}
	file, err := fsys.Open(from)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	sum, err := copyFile(ctx, fsys, io.NewSectionReader(file, 0, f.Size), to, copied)
	if err == nil && f.Sum != nil && sum != *f.Sum {
		err = &DamageError{File: from, Reason: "has other bytes than were written"}
	}
	return err
}

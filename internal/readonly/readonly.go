// Package readonly wraps a vfs.FS so that nothing can be changed through it: for
// looking at the files of a stopped node, where a library that creates, removes or
// renames one would destroy what is looked for. Any tier may use it; it keeps no
// files of its own.
package readonly

import (
	"errors"
	"io"
	"io/fs"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// ErrReadOnly is the error of every operation that would change something.
var ErrReadOnly = errors.New("opened for reading only")

// FS is a vfs.FS without the operations that change it. It is as safe for concurrent
// use as what it wraps.
type FS struct{ vfs.FS }

// New wraps inner.
func New(inner vfs.FS) FS { return FS{inner} }

func refuse(op, name string) error { return &fs.PathError{Op: op, Path: name, Err: ErrReadOnly} }

// Create implements vfs.FS.
func (f FS) Create(name string, _ vfs.DiskWriteCategory) (vfs.File, error) {
	return nil, refuse("create", name)
}

// Link implements vfs.FS.
func (f FS) Link(_, newname string) error { return refuse("link", newname) }

// OpenReadWrite implements vfs.FS.
func (f FS) OpenReadWrite(name string, _ vfs.DiskWriteCategory, _ ...vfs.OpenOption) (vfs.File, error) {
	return nil, refuse("open for writing", name)
}

// Remove implements vfs.FS.
func (f FS) Remove(name string) error { return refuse("remove", name) }

// RemoveAll implements vfs.FS.
func (f FS) RemoveAll(name string) error { return refuse("remove", name) }

// Rename implements vfs.FS.
func (f FS) Rename(oldname, _ string) error { return refuse("rename", oldname) }

// ReuseForWrite implements vfs.FS.
func (f FS) ReuseForWrite(oldname, _ string, _ vfs.DiskWriteCategory) (vfs.File, error) {
	return nil, refuse("reuse", oldname)
}

// MkdirAll implements vfs.FS. A directory that is there already is no change.
func (f FS) MkdirAll(dir string, _ fs.FileMode) error {
	if info, err := f.Stat(dir); err == nil && info.IsDir() {
		return nil
	}
	return refuse("make directory", dir)
}

// Lock implements vfs.FS. A lock file that is not there is not made: whoever has
// the directory open has made it.
func (f FS) Lock(name string) (io.Closer, error) {
	if _, err := f.Stat(name); errors.Is(err, fs.ErrNotExist) {
		return io.NopCloser(nil), nil
	}
	return f.FS.Lock(name)
}

// Unwrap implements vfs.FS.
func (f FS) Unwrap() vfs.FS { return f.FS }

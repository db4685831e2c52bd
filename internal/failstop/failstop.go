// Package failstop stands between a Pebble database and its file system, and ends
// what reaches the disk at the first operation that fails.
//
// Pebble answers a failed write in ways a server cannot live with: a flush that
// fails is tried again at once and for ever, also while the database is opened or
// closed; a failed sync of the directory is a panic; a failed write of the MANIFEST
// is the end of the process. Here the owner of the database is told of the first
// failure and stops for good. From then on nothing changes on the disk any more,
// whatever Pebble does, and Pebble is told that all went well: it finishes what it is
// doing and closes. What is on the disk is what a crash at the moment of the failure
// would have left, which every open must bear anyway.
//
// The owner must look for the failure after everything it asks of Pebble: an answer
// that comes after it means nothing.
package failstop

import (
	"errors"
	"io/fs"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// FS is a vfs.FS whose changes end at the first failure. Reading goes on. It is as
// safe for concurrent use as what it wraps.
type FS struct {
	vfs.FS
	report func(error)
	first  sync.Once // the first failure, until the owner knows of it and all has stopped

	mu struct {
		sync.Mutex
		stopped bool
	}
}

// New wraps inner. report is called once, with the first failure, before Pebble
// sees an answer to it, and before anything else is told that it went well without
// having been done: who finds no failure after an operation may rely on it. It may be
// called with Pebble's locks held, so it must be quick, must not call Pebble and must
// not change anything through the FS but stop it.
func New(inner vfs.FS, report func(error)) *FS { return &FS{FS: inner, report: report} }

// Stop ends all changes, as a failure does, without reporting anything.
func (f *FS) Stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.stopped = true
}

// fail tells the owner of the first failure, and then ends all changes. Others that
// fail meanwhile wait for that.
func (f *FS) fail(err error) {
	f.first.Do(func() {
		if !f.Stopped() {
			f.report(err)
		}
		f.Stop()
	})
}

// Stopped reports whether nothing reaches the disk any more.
func (f *FS) Stopped() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.stopped
}

// change does one operation, unless an earlier one has failed.
func (f *FS) change(do func() error) {
	if f.Stopped() {
		return
	}
	if err := do(); err != nil {
		f.fail(err)
	}
}

// open makes a file, or one that holds nothing when that fails or nothing may
// change any more.
func (f *FS) open(name string, do func() (vfs.File, error)) vfs.File {
	var made vfs.File = nothing{name}
	f.change(func() error {
		inner, err := do()
		if err == nil {
			made = &file{inner, f}
		}
		return err
	})
	return made
}

// Create implements vfs.FS.
func (f *FS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return f.open(name, func() (vfs.File, error) { return f.FS.Create(name, category) }), nil
}

// OpenReadWrite implements vfs.FS.
func (f *FS) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return f.open(name, func() (vfs.File, error) { return f.FS.OpenReadWrite(name, category, opts...) }), nil
}

// ReuseForWrite implements vfs.FS.
func (f *FS) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return f.open(newname, func() (vfs.File, error) { return f.FS.ReuseForWrite(oldname, newname, category) }), nil
}

// Link implements vfs.FS.
func (f *FS) Link(oldname, newname string) error {
	f.change(func() error { return f.FS.Link(oldname, newname) })
	return nil
}

// Rename implements vfs.FS.
func (f *FS) Rename(oldname, newname string) error {
	f.change(func() error { return f.FS.Rename(oldname, newname) })
	return nil
}

// MkdirAll implements vfs.FS.
func (f *FS) MkdirAll(dir string, perm fs.FileMode) error {
	f.change(func() error { return f.FS.MkdirAll(dir, perm) })
	return nil
}

// Remove implements vfs.FS. A removal that fails is no failure of the database: what
// it no longer needs stays, and is removed another time.
func (f *FS) Remove(name string) error {
	if f.Stopped() {
		return nil
	}
	return f.FS.Remove(name)
}

// RemoveAll implements vfs.FS, see Remove.
func (f *FS) RemoveAll(name string) error {
	if f.Stopped() {
		return nil
	}
	return f.FS.RemoveAll(name)
}

// OpenDir implements vfs.FS.
func (f *FS) OpenDir(name string) (vfs.File, error) {
	dir, err := f.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return &file{dir, f}, nil
}

// Unwrap implements vfs.FS.
func (f *FS) Unwrap() vfs.FS { return f.FS }

// file is a file or directory that was opened for changes.
type file struct {
	vfs.File
	fs *FS
}

func (f *file) Write(p []byte) (int, error) {
	f.fs.change(func() error { _, err := f.File.Write(p); return err })
	return len(p), nil
}

func (f *file) WriteAt(p []byte, off int64) (int, error) {
	f.fs.change(func() error { _, err := f.File.WriteAt(p, off); return err })
	return len(p), nil
}

func (f *file) Preallocate(offset, length int64) error {
	f.fs.change(func() error { return f.File.Preallocate(offset, length) })
	return nil
}

func (f *file) Sync() error {
	f.fs.change(f.File.Sync)
	return nil
}

func (f *file) SyncData() error {
	f.fs.change(f.File.SyncData)
	return nil
}

func (f *file) SyncTo(length int64) (full bool, err error) {
	f.fs.change(func() (err error) {
		full, err = f.File.SyncTo(length)
		return err
	})
	return full, nil
}

// Close gives up the handle in any case; what a failed close means for the data the
// sync before it has told.
func (f *file) Close() error {
	err := f.File.Close()
	f.fs.change(func() error { return err })
	return nil
}

// nothing is a file that takes every write and holds none.
type nothing struct{ name string }

var errNothing = errors.New("not written after a failure")

func (n nothing) none(op string) error { return &fs.PathError{Op: op, Path: n.name, Err: errNothing} }

func (n nothing) Close() error                      { return nil }
func (n nothing) Read([]byte) (int, error)          { return 0, n.none("read") }
func (n nothing) ReadAt([]byte, int64) (int, error) { return 0, n.none("read") }
func (n nothing) Write(p []byte) (int, error)       { return len(p), nil }

func (n nothing) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }
func (n nothing) Preallocate(int64, int64) error         { return nil }
func (n nothing) Stat() (vfs.FileInfo, error)            { return empty(n), nil }
func (n nothing) Sync() error                            { return nil }
func (n nothing) SyncTo(int64) (bool, error)             { return false, nil }
func (n nothing) SyncData() error                        { return nil }
func (n nothing) Prefetch(int64, int64) error            { return nil }
func (n nothing) Fd() uintptr                            { return vfs.InvalidFd }

// empty describes an empty file.
type empty struct{ name string }

func (e empty) Name() string           { return e.name }
func (e empty) Size() int64            { return 0 }
func (e empty) Mode() fs.FileMode      { return 0 }
func (e empty) ModTime() time.Time     { return time.Time{} }
func (e empty) IsDir() bool            { return false }
func (e empty) Sys() any               { return nil }
func (e empty) DeviceID() vfs.DeviceID { return vfs.DeviceID{} }

// Package faultfs wraps a vfs.FS to show, fail and interrupt the operations
// that change it, for tests that fail operation i, or crash after operation k,
// for 0, 1, 2, ... until a run is clean. It keeps no files of its own; any test
// of the project may use it.
package faultfs

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// ErrInjected is the error of an operation that was made to fail.
var ErrInjected = errors.New("injected fault")

// ErrCrashed is the error of every operation that comes after a crash.
var ErrCrashed = errors.New("file system has crashed")

// Kind names an operation.
type Kind string

// The operations that count: those after which a crash could leave something
// else than before.
const (
	Create   Kind = "create"
	Link     Kind = "link"
	Remove   Kind = "remove"
	Rename   Kind = "rename"
	MkdirAll Kind = "mkdir-all"
	Write    Kind = "write"
	Sync     Kind = "sync"
	SyncData Kind = "sync-data"
	SyncDir  Kind = "sync-dir"
)

// Op is one mutating operation.
type Op struct {
	Index  int // 0 for the first since New
	Kind   Kind
	Path   string
	Offset int64 // of a WriteAt
	Len    int   // of a write

	handle *file // of a sync
}

// String is one line for a trace.
func (o Op) String() string {
	if o.Kind == Write {
		return fmt.Sprintf("%s %s [%d,%d)", o.Kind, o.Path, o.Offset, o.Offset+int64(o.Len))
	}
	return fmt.Sprintf("%s %s", o.Kind, o.Path)
}

// FS is a vfs.FS that counts and may fail its mutating operations. It is safe
// for concurrent use.
type FS struct {
	vfs.FS

	// linking keeps links and what looks at the whole file system apart: MemFS takes a
	// lock twice in a Link, and a CrashClone that comes in between waits for ever, and so does it.
	// It is taken after mu.
	linking sync.Mutex

	mu struct {
		sync.Mutex
		next    int
		trace   func(Op)
		failAt  int // index of the operation to fail, or -1
		failFor int // how many fail from there on
		short   int // how much of the first one, a write, is done all the same
		failErr error
		crashAt int // index of the last operation to be done, or -1
		cut     int // how much of that one, a write, is done; -1 for all
		onCrash func()
		fired   bool
		crashed bool
		// unsynced is what was replaced in each file since its last sync; nil: that is not
		// of interest.
		unsynced map[string][]unsynced
		dropAt   int
		// dropped is where that happened, which each handle hears of once.
		dropped string
		slow    func(Op)
		reads   func(path string, offset int64, p []byte)
	}
}

// New wraps inner. Until told otherwise it only counts.
func New(inner vfs.FS) *FS {
	f := &FS{FS: inner}
	f.mu.failAt, f.mu.crashAt = -1, -1
	return f
}

// Trace calls fn with every mutating operation, before it is done, one at a
// time. fn must not use the file system.
func (f *FS) Trace(fn func(Op)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.trace = fn
}

// Slow calls fn before every mutating operation that is done, without any lock: fn may
// take its time, as a slow disk does.
func (f *FS) Slow(fn func(Op)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.slow = fn
}

// Reads calls fn with everything that ReadAt has read of a file; fn may take its time, and
// change the bytes, as a disk that reads wrongly does.
func (f *FS) Reads(fn func(path string, offset int64, p []byte)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.reads = fn
}

// FailAt lets the operation with this index fail with err, without being done;
// the ones after it work again. A nil err means ErrInjected.
func (f *FS) FailAt(index int, err error) { f.fail(index, 1, 0, err) }

// FailFrom lets the operation with this index and all after it fail with err, as on
// a disk that is full or gone. A nil err means ErrInjected.
func (f *FS) FailFrom(index int, err error) { f.fail(index, math.MaxInt, 0, err) }

// FailFor lets n operations from this index on fail with err, as on a disk that is full
// for a while. Of the first one, if it is a write, the first short bytes are written all
// the same. A nil err means ErrInjected.
func (f *FS) FailFor(index, n, short int, err error) { f.fail(index, n, short, err) }

func (f *FS) fail(index, n, short int, err error) {
	if err == nil {
		err = ErrInjected
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.failAt, f.mu.failFor, f.mu.short, f.mu.failErr, f.mu.fired = index, n, short, err, false
}

// Heal ends what FailAt and FailFrom have begun: operations work again.
func (f *FS) Heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.failAt = -1
}

// CrashAfter lets the machine die once the operation with this index is done:
// then onCrash is called, when not nil, typically to take a CrashClone, and
// every later operation fails with ErrCrashed. If cut is not negative and the
// operation a write, only its first cut bytes are written. Operations under way
// in other goroutines may or may not be part of what onCrash sees.
func (f *FS) CrashAfter(index, cut int, onCrash func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.crashAt, f.mu.cut, f.mu.onCrash, f.mu.fired = index, cut, onCrash, false
}

// Fired reports whether the planned fault has come: a loop over indexes ends
// with the first run in which it has not.
func (f *FS) Fired() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.fired
}

// Count is the number of mutating operations so far.
func (f *FS) Count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.next
}

// do counts op and does it unless it is to fail. cut is what is left of a write
// of op.Len bytes.
func (f *FS) do(op Op, run func(cut int) error) error {
	f.mu.Lock()
	if f.mu.crashed {
		f.mu.Unlock()
		return ErrCrashed
	}
	op.Index = f.mu.next
	f.mu.next++
	if f.mu.trace != nil {
		f.linking.Lock()
		f.mu.trace(op)
		f.linking.Unlock()
	}
	if f.mu.failAt >= 0 && op.Index >= f.mu.failAt && op.Index-f.mu.failAt < f.mu.failFor {
		f.mu.fired = true
		err, short := f.mu.failErr, f.mu.short
		f.mu.short = 0
		f.mu.Unlock()
		if op.Kind == Write && short > 0 && op.Len > 0 {
			err = errors.Join(err, run(min(short, op.Len-1)))
		}
		return fmt.Errorf("%s: %w", op, err)
	}
	if drops, err := f.dropsLocked(op); drops {
		f.mu.fired = true
		err = errors.Join(f.mu.failErr, err)
		f.mu.Unlock()
		return fmt.Errorf("%s: what it should have made durable is gone: %w", op, err)
	}
	crash, cut := op.Index == f.mu.crashAt, op.Len
	if crash {
		// From here on nobody else gets in.
		f.mu.fired, f.mu.crashed = true, true
		if f.mu.cut >= 0 {
			cut = min(cut, f.mu.cut)
		}
	}
	onCrash, slow := f.mu.onCrash, f.mu.slow
	f.mu.Unlock()
	if slow != nil {
		slow(op)
	}
	if op.Kind == Link {
		f.linking.Lock()
	}
	err := run(cut)
	if op.Kind == Link {
		f.linking.Unlock()
	}
	if crash && onCrash != nil {
		f.linking.Lock()
		onCrash()
		f.linking.Unlock()
	}
	// What was under way when the crash came may have missed it; nobody lives
	// to see the answer.
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.crashed {
		return ErrCrashed
	}
	return err
}

// Create implements vfs.FS.
func (f *FS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return f.open(name, func() (vfs.File, error) { return f.FS.Create(name, category) }, true)
}

// Open implements vfs.FS.
func (f *FS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	return f.open(name, func() (vfs.File, error) { return f.FS.Open(name, opts...) }, false)
}

// OpenReadWrite implements vfs.FS. It counts only when it creates the file.
func (f *FS) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	_, err := f.FS.Stat(name)
	creates := errors.Is(err, fs.ErrNotExist)
	return f.open(name, func() (vfs.File, error) { return f.FS.OpenReadWrite(name, category, opts...) }, creates)
}

func (f *FS) open(name string, open func() (vfs.File, error), counts bool) (vfs.File, error) {
	var inner vfs.File
	var err error
	if counts {
		err = f.do(Op{Kind: Create, Path: name}, func(int) (err error) { inner, err = open(); return err })
	} else {
		inner, err = open()
	}
	if err != nil {
		if inner != nil && errors.Is(err, ErrCrashed) {
			err = errors.Join(err, inner.Close())
		}
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return &file{File: inner, fs: f, path: name, sync: Sync, told: f.mu.dropped == name}, nil
}

// OpenDir implements vfs.FS.
func (f *FS) OpenDir(name string) (vfs.File, error) {
	inner, err := f.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return &file{File: inner, fs: f, path: name, sync: SyncDir}, nil
}

// Link implements vfs.FS.
func (f *FS) Link(oldname, newname string) error {
	return f.do(Op{Kind: Link, Path: newname}, func(int) error { return f.FS.Link(oldname, newname) })
}

// Remove implements vfs.FS.
func (f *FS) Remove(name string) error {
	return f.do(Op{Kind: Remove, Path: name}, func(int) error { return f.FS.Remove(name) })
}

// RemoveAll implements vfs.FS.
func (f *FS) RemoveAll(name string) error {
	return f.do(Op{Kind: Remove, Path: name}, func(int) error { return f.FS.RemoveAll(name) })
}

// Rename implements vfs.FS.
func (f *FS) Rename(oldname, newname string) error {
	return f.do(Op{Kind: Rename, Path: newname}, func(int) error { return f.FS.Rename(oldname, newname) })
}

// ReuseForWrite implements vfs.FS.
func (f *FS) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return f.open(newname, func() (vfs.File, error) { return f.FS.ReuseForWrite(oldname, newname, category) }, true)
}

// MkdirAll implements vfs.FS.
func (f *FS) MkdirAll(dir string, perm fs.FileMode) error {
	return f.do(Op{Kind: MkdirAll, Path: dir}, func(int) error { return f.FS.MkdirAll(dir, perm) })
}

// Unwrap implements vfs.FS.
func (f *FS) Unwrap() vfs.FS { return f.FS }

package faultfs

import (
	"errors"
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// An unsynced write is what a file held where something was written that no sync has made
// durable yet.
type unsynced struct {
	file   vfs.File
	offset int64
	old    []byte
}

// DropAt lets the first sync of a file's data fail with err, from the operation with this
// index on, that has anything to make durable which came by WriteAt; and what it should have
// made durable is gone, as on a system that takes pages for clean which it could not
// write: there are zeros in its place, or what was there before, and the next sync by that handle
// succeeds. Another handle of the file, open at the time, hears of it at its next sync. A nil err means ErrInjected. What was written before DropAt stays.
func (f *FS) DropAt(index int, err error) {
	if err == nil {
		err = ErrInjected
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.dropAt, f.mu.failErr, f.mu.fired, f.mu.unsynced, f.mu.dropped = index, err, false, map[string][]unsynced{}, ""
}

// beforeWrite keeps what a write is about to replace.
func (f *FS) beforeWrite(path string, file vfs.File, offset int64, size int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.unsynced == nil {
		return nil
	}
	old := make([]byte, size)
	if _, err := file.ReadAt(old, offset); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	f.mu.unsynced[path] = append(f.mu.unsynced[path], unsynced{file, offset, old})
	return nil
}

// dropsLocked reports whether the operation is the sync that is to fail, and takes back what it
// should have made durable; or hears that another one did. A sync that does not fail has made it
// so. The caller holds mu.
func (f *FS) dropsLocked(op Op) (bool, error) {
	if op.handle == nil {
		return false, nil
	}
	if op.Path == f.mu.dropped && !op.handle.told {
		op.handle.told = true
		return true, nil
	}
	if f.mu.unsynced == nil {
		return false, nil
	}
	list := f.mu.unsynced[op.Path]
	delete(f.mu.unsynced, op.Path)
	if op.Index < f.mu.dropAt || len(list) == 0 {
		return false, nil
	}
	for i := len(list) - 1; i >= 0; i-- {
		if _, err := list[i].file.WriteAt(list[i].old, list[i].offset); err != nil {
			return true, err
		}
	}
	f.mu.unsynced, f.mu.dropped, op.handle.told = nil, op.Path, true
	return true, nil
}

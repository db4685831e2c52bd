// Package durable makes directories so that a power cut does not take them away. A
// file that is synced in a directory whose own entry is not on the disk is lost with
// it.
package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// MakeDir makes dir with its parents and makes the entries of all of them durable,
// also of those that were there already: whoever made them may have been killed before
// it could. A directory above them that was there and may not be read or synced is
// passed over.
func MakeDir(fsys vfs.FS, dir string) error {
	there := fsys.PathDir(dir) // the first ancestor that is there already
	for there != fsys.PathDir(there) {
		if _, err := fsys.Stat(there); err == nil {
			break
		}
		there = fsys.PathDir(there)
	}
	if err := fsys.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	made := true
	for parent := fsys.PathDir(dir); ; parent = fsys.PathDir(parent) {
		if err := SyncDir(fsys, parent); err != nil && (made || !passable(err)) {
			return err
		}
		made = made && parent != there
		if parent == fsys.PathDir(parent) {
			return nil
		}
	}
}

// passable reports whether err only says that the directory is not ours.
func passable(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) || errors.Is(err, syscall.EINVAL)
}

// SyncDir makes the entries of a directory durable.
func SyncDir(fsys vfs.FS, dir string) error {
	d, err := fsys.OpenDir(dir)
	if err != nil {
		return err
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sync directory %s: %w", dir, err)
	}
	return nil
}

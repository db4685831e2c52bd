package shard

import (
	"errors"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// MakeDir creates dir with its parents and makes the new entries durable: a file
// that is synced in a directory that a power cut takes away is lost too. The
// entry of dir itself is synced even when it was there, because whoever made it
// may have been killed before.
func MakeDir(fs vfs.FS, dir string) error {
	oldest := fs.PathDir(dir) // the first ancestor that is there already
	for oldest != fs.PathDir(oldest) {
		if _, err := fs.Stat(oldest); err == nil {
			break
		}
		oldest = fs.PathDir(oldest)
	}
	if err := fs.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for parent := fs.PathDir(dir); ; parent = fs.PathDir(parent) {
		if err := syncDir(fs, parent); err != nil || parent == oldest {
			return err
		}
	}
}

func syncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

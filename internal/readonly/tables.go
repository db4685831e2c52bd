package readonly

import (
	"context"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Tables reads every block of every table that db, open in dir, is made of, and
// verifies their checksums. Reading all keys would not do: it passes over what
// newer tables hide, which a compaction will read one day. It calls bad for each
// file with damage, and returns the size of all tables in bytes.
func Tables(db *pebble.DB, fs vfs.FS, dir string, bad func(file string, err error)) (size uint64, err error) {
	levels, err := db.SSTables()
	if err != nil {
		return 0, err
	}
	seen := map[string]bool{}
	for _, level := range levels {
		for _, table := range level {
			file := fs.PathJoin(dir, fmt.Sprintf("%s.sst", table.BackingSSTNum))
			if seen[file] {
				continue
			}
			seen[file] = true
			size += table.Size
			if err := verifyTable(fs, file); err != nil {
				bad(file, err)
			}
		}
	}
	return size, nil
}

func verifyTable(fs vfs.FS, file string) (err error) {
	return Catch(func() (err error) {
		f, err := fs.Open(file)
		if err != nil {
			return err
		}
		readable, err := sstable.NewSimpleReadable(f)
		if err != nil {
			return errors.Join(err, f.Close())
		}
		var opts pebble.Options
		opts.EnsureDefaults()
		r, err := sstable.NewReader(context.Background(), readable, opts.MakeReaderOptions())
		if err != nil {
			return errors.Join(err, readable.Close())
		}
		defer func() { err = errors.Join(err, r.Close()) }()
		return r.ValidateBlockChecksums()
	})
}

// Catch runs f and returns a panic of its goroutine as an error. Pebble panics on
// some damage where it finds its own files to contradict each other; whoever looks
// at damaged files must get to the next one.
func Catch(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return f()
}

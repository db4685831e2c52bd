package faultfs

import "github.com/cockroachdb/pebble/v2/vfs"

// file counts the mutating operations of one open file.
type file struct {
	vfs.File
	fs   *FS
	path string
	sync Kind // what a Sync of it is called
	told bool // that what was written is gone; under fs.mu
}

func (f *file) Write(p []byte) (n int, err error) {
	err = f.fs.do(Op{Kind: Write, Path: f.path, Len: len(p)}, func(cut int) (err error) {
		n, err = f.File.Write(p[:cut])
		return err
	})
	return n, err
}

func (f *file) WriteAt(p []byte, off int64) (n int, err error) {
	err = f.fs.do(Op{Kind: Write, Path: f.path, Offset: off, Len: len(p)}, func(cut int) (err error) {
		if err := f.fs.beforeWrite(f.path, f.File, off, cut); err != nil {
			return err
		}
		n, err = f.File.WriteAt(p[:cut], off)
		return err
	})
	return n, err
}

func (f *file) Sync() error {
	return f.fs.do(Op{Kind: f.sync, Path: f.path, handle: f}, func(int) error { return f.File.Sync() })
}

func (f *file) SyncData() error {
	return f.fs.do(Op{Kind: SyncData, Path: f.path, handle: f}, func(int) error { return f.File.SyncData() })
}

func (f *file) SyncTo(length int64) (full bool, err error) {
	err = f.fs.do(Op{Kind: SyncData, Path: f.path, handle: f}, func(int) (err error) {
		full, err = f.File.SyncTo(length)
		return err
	})
	return full, err
}

func (f *file) ReadAt(p []byte, off int64) (n int, err error) {
	n, err = f.File.ReadAt(p, off)
	f.fs.mu.Lock()
	reads := f.fs.mu.reads
	f.fs.mu.Unlock()
	if reads != nil && n > 0 {
		reads(f.path, off, p[:n])
	}
	return n, err
}

// Package backup is the form of a backup: a folder with files of a data folder and a
// manifest, which is written last. It links and copies what it is given, verifies a backup
// and puts one in the place of a data folder. It knows nothing of what is in the files: the
// store and the router hand them over, internal/node puts the parts together.
package backup

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"path"
	"slices"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/time/rate"

	"github.com/perigee-mq/perigee/internal/durable"
)

const (
	// chunk is how much is copied at once; between two the copy may be ended.
	chunk = 1 << 20
	// perSync bounds what waits to be written back: a sync of the log would have to wait for
	// all of it on some file systems.
	perSync = 16 << 20

	unfinished = ".unfinished" // behind the name of a backup that is being made
	lockName   = "LOCK"
)

// ErrExists says that the target of a backup is there already.
var ErrExists = errors.New("it exists; name a folder that does not")

// category labels the writes for the file system's statistics.
const category vfs.DiskWriteCategory = "backup"

// A Writer makes one backup. Its methods are called by one goroutine, but for Copied.
type Writer struct {
	fs           vfs.FS
	target, temp string
	lock         io.Closer // of temp; nil when it was given up
	files        []File
	dirs         map[string]bool // in temp, that were made
	copied       atomic.Int64
	linked       int64
	pace         *rate.Limiter // of what is copied; nil: none
}

// Begin begins a backup in the folder target, which must not exist. Until Finish it is made
// in a folder beside it, whose name has ".unfinished" at its end; what an earlier try has
// left there is removed. Finish or Abandon must follow.
func Begin(fsys vfs.FS, target string) (*Writer, error) {
	w := &Writer{fs: fsys, target: target, temp: target + unfinished, dirs: map[string]bool{}}
	if err := w.free(); err != nil {
		return nil, err
	}
	if err := durable.MakeDir(fsys, w.temp); err != nil {
		return nil, fmt.Errorf("backup: %w", err)
	}
	lock, err := fsys.Lock(fsys.PathJoin(w.temp, lockName))
	if err != nil {
		return nil, fmt.Errorf("backup: another one to %s is being made: %w", target, err)
	}
	w.lock = lock
	if err := w.clear(); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return w, nil
}

// Pace bounds how many bytes are copied in a second from then on, a chunk at a time; 0: any
// number.
func (w *Writer) Pace(bytes int64) {
	if w.pace = nil; bytes > 0 {
		w.pace = rate.NewLimiter(rate.Limit(bytes), chunk)
	}
}

// A pacedReader is read as fast as its limiter lets it, in chunks at most.
type pacedReader struct {
	io.Reader
	ctx  context.Context
	pace *rate.Limiter
}

// Read implements io.Reader.
func (r pacedReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p[:min(len(p), chunk)])
	if n > 0 {
		if err := r.pace.WaitN(r.ctx, n); err != nil {
			return 0, cmp.Or(context.Cause(r.ctx), err)
		}
	}
	return n, err
}

// free returns an error when there is something in the place of the backup.
func (w *Writer) free() error {
	_, err := w.fs.Stat(w.target)
	switch {
	case err == nil:
		return fmt.Errorf("backup: %s: %w", w.target, ErrExists)
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("backup: %w", err)
	}
	return nil
}

// clear removes what is in temp, but for the lock.
func (w *Writer) clear() error {
	names, err := w.fs.List(w.temp)
	for _, name := range names {
		if name != lockName {
			err = errors.Join(err, w.fs.RemoveAll(w.fs.PathJoin(w.temp, name)))
		}
	}
	if err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	return nil
}

// Path returns where a file or folder of the backup is until Finish. Whoever writes a
// folder by itself calls Add afterwards.
func (w *Writer) Path(name string) string { return w.fs.PathJoin(w.temp, name) }

// Copied returns how many bytes were copied so far.
func (w *Writer) Copied() int64 { return w.copied.Load() }

// makeDir makes the folder that a file is to lie in.
func (w *Writer) makeDir(name string) error {
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		w.dirs[dir] = true
	}
	return w.fs.MkdirAll(w.Path(path.Dir(name)), 0o755)
}

// Link puts a file into the backup that will not change any more but for zeros behind its
// first size bytes: as a hard link. It reports false when the file system has none for it,
// or the file is gone, and has done nothing then.
func (w *Writer) Link(from, name string, size int64) (bool, error) {
	if err := w.makeDir(name); err != nil {
		return false, fmt.Errorf("backup: %w", err)
	}
	if err := w.fs.Link(from, w.Path(name)); err != nil {
		return false, nil // it is copied instead, and that says what is wrong
	}
	w.files = append(w.files, File{Name: name, Size: size, Linked: true})
	w.linked += size
	return true, nil
}

// probeName is that of a link that is made to see whether there are any.
const probeName = "PROBE"

// Links reports whether a file can be linked into the backup.
func (w *Writer) Links(file string) bool {
	probe := w.Path(probeName)
	return w.fs.Link(file, probe) == nil && w.fs.Remove(probe) == nil
}

// Copy puts the first size bytes of from into the backup, durably.
func (w *Writer) Copy(ctx context.Context, from io.ReaderAt, name string, size int64) error {
	if err := w.makeDir(name); err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	before := w.copied.Load()
	var content io.Reader = io.NewSectionReader(from, 0, size)
	if w.pace != nil {
		content = pacedReader{content, ctx, w.pace}
	}
	sum, err := copyFile(ctx, w.fs, content, w.Path(name), &w.copied)
	if n := w.copied.Load() - before; err == nil && n != size {
		err = fmt.Errorf("it ends after %d of %d bytes", n, size)
	}
	if err != nil {
		return fmt.Errorf("backup: copy of %s: %w", name, err)
	}
	w.files = append(w.files, File{Name: name, Size: size, Sum: &sum})
	return nil
}

// LinkOrCopy puts a file into the backup that does not change any more.
func (w *Writer) LinkOrCopy(ctx context.Context, from, name string) (err error) {
	info, err := w.fs.Stat(from)
	if err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	if linked, err := w.Link(from, name, info.Size()); linked || err != nil {
		return err
	}
	return w.CopyFile(ctx, from, name)
}

// CopyFile puts a copy of a file into the backup, durably.
func (w *Writer) CopyFile(ctx context.Context, from, name string) (err error) {
	f, err := w.fs.Open(from)
	if err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	return w.Copy(ctx, f, name, info.Size())
}

// Write puts a file with these bytes into the backup, durably.
func (w *Writer) Write(ctx context.Context, name string, data []byte) error {
	return w.Copy(ctx, bytes.NewReader(data), name, int64(len(data)))
}

// copyFile writes what from has into a new file, durably, and returns its CRC-32C.
func copyFile(ctx context.Context, fsys vfs.FS, from io.Reader, to string, copied *atomic.Int64) (sum uint32, err error) {
	f, err := fsys.Create(to, category)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	buf := make([]byte, chunk)
	for waiting := 0; ; {
		if err := ctx.Err(); err != nil {
			return 0, context.Cause(ctx)
		}
		n, err := io.ReadFull(from, buf)
		if n > 0 {
			sum = crc32.Update(sum, castagnoli, buf[:n])
			if _, err := f.Write(buf[:n]); err != nil {
				return 0, err
			}
			copied.Add(int64(n))
		}
		switch {
		case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
			return sum, f.Sync()
		case err != nil:
			return 0, err
		}
		if waiting += n; waiting >= perSync {
			waiting = 0
			if err := f.SyncData(); err != nil {
				return 0, err
			}
		}
	}
}

// Add takes the files of a folder into the manifest that somebody has written by itself, all
// of them durably.
func (w *Writer) Add(dir string) error {
	var names []string
	w.dirs[dir] = true
	if err := walk(w.fs, w.temp, dir, func(name string) { names = append(names, name) }); err != nil {
		return err
	}
	for _, name := range names {
		if path.Base(name) == lockName {
			continue
		}
		for parent := path.Dir(name); parent != "."; parent = path.Dir(parent) {
			w.dirs[parent] = true
		}
		f, err := w.fs.Open(w.Path(name))
		if err != nil {
			return fmt.Errorf("backup: %w", err)
		}
		hash := crc32.New(castagnoli)
		size, err := io.Copy(hash, f)
		if err := errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("backup: read %s: %w", name, err)
		}
		sum := hash.Sum32()
		w.copied.Add(size)
		w.files = append(w.files, File{Name: name, Size: size, Sum: &sum})
	}
	return nil
}

// Finish writes the manifest, with the files that the backup has by now, and gives the
// folder its name: when it returns nil the backup is whole and durable.
func (w *Writer) Finish(ctx context.Context, m Manifest) (Manifest, error) {
	if err := ctx.Err(); err != nil {
		return m, context.Cause(ctx)
	}
	slices.SortFunc(w.files, func(a, b File) int { return cmp.Compare(a.Name, b.Name) })
	m.Files = w.files
	data, err := m.encode()
	if err != nil {
		return m, fmt.Errorf("backup: %w", err)
	}
	dirs := []string{""}
	for dir := range w.dirs {
		dirs = append(dirs, dir)
	}
	slices.Sort(dirs)
	for _, dir := range slices.Backward(dirs) { // all that the manifest names is there before it
		if err := durable.SyncDir(w.fs, w.fs.PathJoin(w.temp, dir)); err != nil {
			return m, fmt.Errorf("backup: %w", err)
		}
	}
	var own atomic.Int64
	if _, err := copyFile(ctx, w.fs, io.NewSectionReader(bytes.NewReader(data), 0, int64(len(data))), w.Path(ManifestName), &own); err != nil {
		return m, fmt.Errorf("backup: %w", err)
	}
	err = errors.Join(durable.SyncDir(w.fs, w.temp), w.free())
	if err == nil {
		err = w.fs.Rename(w.temp, w.target)
	}
	if err == nil {
		err = durable.SyncDir(w.fs, w.fs.PathDir(w.target))
	}
	if err != nil {
		return m, fmt.Errorf("backup: %w", err)
	}
	// Under its own name nobody clears it any more. The file of the lock does no harm.
	lock := w.lock
	w.lock = nil
	_ = w.fs.Remove(w.fs.PathJoin(w.target, lockName))
	return m, lock.Close()
}

// Abandon removes what a backup that failed has left. The folder that is left when this
// fails too is no backup, and the next one to the same target removes it.
func (w *Writer) Abandon() error {
	err := w.clear()
	if w.lock != nil {
		err = errors.Join(err, w.lock.Close())
	}
	return errors.Join(err, w.fs.RemoveAll(w.temp))
}

// Totals returns how many bytes are in files that were linked, and in those that were
// copied.
func (w *Writer) Totals() (linked, copied int64) { return w.linked, w.copied.Load() }

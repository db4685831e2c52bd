package commitlog

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/perigee-mq/perigee/mq"
)

// Open opens the log in opts.Dir, or begins a new one where there is none.
//
// It checks the headers and seals of all segments and every frame of the last
// one, cuts a torn tail, and returns when all that is left is durable. Damage
// is a *CorruptionError, a foreign file ErrNotALog, a newer format ErrVersion;
// the files are then as they were before the call.
func Open(opts Options) (*Log, error) {
	opts = opts.withDefaults()
	if err := opts.validate(); err != nil {
		return nil, err
	}
	bases, err := listSegments(opts.FS, opts.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	reach, turn, err := readSynced(opts.FS, opts.Dir)
	if err != nil {
		return nil, err
	}
	opts.Reach = max(opts.Reach, reach)
	l := &Log{opts: opts}
	l.sync.diskLock = make(diskLock, 1)
	l.table.Store(&table{})
	if opts.ZeroFill > 0 {
		l.fill = newFiller(opts)
	}
	if len(bases) == 0 {
		err = reaches(l.opts.Reach, opts.Dir, 0, 0, "there is no segment")
		if err == nil {
			err = l.create()
		}
	} else {
		err = l.recover(bases)
	}
	if err == nil {
		l.synced, err = openSynced(opts.FS, opts.Dir, l.Flushed(), turn)
	}
	if err != nil {
		return nil, errors.Join(err, l.abandon())
	}
	if l.fill != nil {
		ctx, cancel := context.WithCancel(context.Background())
		l.stopFill = cancel
		l.wg.Go(func() { l.fill.run(ctx, l.fail) })
	}
	return l, nil
}

// abandon closes the files of a log that did not open.
func (l *Log) abandon() error {
	var errs []error
	for _, s := range *l.table.Load() {
		errs = append(errs, s.release())
	}
	if l.fill != nil {
		errs = append(errs, l.fill.close())
	}
	return errors.Join(errs...)
}

// create begins a new log.
func (l *Log) create() error {
	if err := createDir(l.opts.FS, l.opts.Dir); err != nil {
		return err
	}
	seg, err := createSegment(l.opts, 0, firstIndex)
	if err != nil {
		return err
	}
	l.write.next = firstIndex
	return l.activate(seg)
}

// recover opens the segments at bases. Everything is read and checked before
// the first byte is written.
func (l *Log) recover(bases []Pos) error {
	d, err := load(l.opts.FS, l.opts.Dir, bases, true)
	t := table(d.segments)
	l.table.Store(&t) // abandon closes them
	if err != nil {
		return err
	}
	if l.opts.Term < d.next.term {
		return fmt.Errorf("commit log %s: %w: term %d below term %d of the last record",
			l.opts.Dir, mq.ErrInvalid, l.opts.Term, d.next.term)
	}
	l.write.next = d.next.index
	l.index.Store(d.next.index - 1)
	if d.unborn {
		path := l.opts.FS.PathJoin(l.opts.Dir, segmentName(d.next.base))
		if err := reaches(l.opts.Reach, path, 0, d.next.base, "the segment has no header"); err != nil {
			return err
		}
		return l.begin(d.next)
	}

	seg := t[len(t)-1]
	tail, err := readTail(seg, d.size, d.next, nil)
	if err != nil {
		return err
	}
	if l.opts.Term < tail.chain.term {
		return fmt.Errorf("commit log %s: %w: term %d below term %d of the last record",
			l.opts.Dir, mq.ErrInvalid, l.opts.Term, tail.chain.term)
	}
	if err := reaches(l.opts.Reach, seg.path, int64(tail.end-seg.base), tail.end, tail.reason); err != nil {
		return err
	}
	if err := l.settle(seg, d.size, tail); err != nil {
		return err
	}
	l.write.next = tail.chain.index
	l.index.Store(tail.chain.index - 1)
	if tail.sealed {
		return l.begin(segmentHeader{base: tail.end, index: tail.chain.index, term: tail.chain.term})
	}
	l.sync.active = seg
	l.write.out = tail.end
	l.appended.Store(uint64(tail.end))
	l.flushed.Store(uint64(tail.end))
	if l.fill != nil {
		// From the tail's end to the end of the file there are only zeros:
		// readTail has seen them, or settle has written them.
		return l.fill.switchTo(seg, int64(tail.end-seg.base), d.size)
	}
	return nil
}

// reaches returns an error when the log, which ends at end, must have reached further.
func reaches(reach Pos, file string, offset int64, end Pos, reason string) error {
	if end >= reach {
		return nil
	}
	if reason == "" {
		reason = "the file ends"
	}
	return &CorruptionError{File: file, Offset: offset, Reason: fmt.Sprintf(
		"%s, but the log was durable up to position %d and ends here at %d", reason, reach, end)}
}

// begin makes the segment that h describes, of which there may be a file with
// a torn header and nothing else, and activates it.
func (l *Log) begin(h segmentHeader) error {
	seg, err := createSegment(l.opts, h.base, h.index)
	if err != nil {
		return err
	}
	return l.activate(seg)
}

// settle makes the file agree with what readTail found, durably.
func (l *Log) settle(seg *segment, size int64, tail tail) error {
	if tail.dirty {
		// The frames of the cut are not all broken: a later one may be whole.
		// Were they left, new records might one day end just where such a
		// frame begins, and a crash at that moment would bring it back as
		// their successor. So there is nothing but zeros after the end before
		// anything is appended.
		l.opts.Logger.Warn("commit log: torn tail cut",
			"file", seg.path, "offset", int64(tail.end-seg.base), "reason", tail.reason)
		if err := seg.zero(int64(tail.end-seg.base), size); err != nil {
			return err
		}
	}
	// A process that stopped after a failed fsync leaves pages in the cache
	// that look fine, count as clean, and are not on disk; a sync now would
	// not write them. Writing the same bytes again makes them dirty. Below
	// synced some sync is known to have succeeded.
	from := max(tail.chain.synced, seg.firstRecord())
	if err := seg.rewrite(from, tail.end); err != nil {
		return err
	}
	if err := seg.file.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", seg.path, err)
	}
	// The process that created the file may have died before it synced this.
	return syncDir(l.opts.FS, l.opts.Dir)
}

// createSegment creates the segment at base; when it returns header and
// directory entry are durable. A file may be there already if it has no frames.
func createSegment(opts Options, base Pos, index uint64) (*segment, error) {
	var salt [8]byte
	rand.Read(salt[:])
	h := segmentHeader{base: base, index: index, term: opts.Term, salt: binary.LittleEndian.Uint64(salt[:])}
	path := opts.FS.PathJoin(opts.Dir, segmentName(base))
	f, err := opts.FS.OpenReadWrite(path, writeCategory)
	if err != nil {
		return nil, fmt.Errorf("create commit log segment: %w", err)
	}
	if _, err := f.WriteAt(h.encode(), 0); err != nil {
		return nil, errors.Join(fmt.Errorf("write %s:0: %w", path, err), f.Close())
	}
	if err := f.Sync(); err != nil {
		return nil, errors.Join(fmt.Errorf("sync %s: %w", path, err), f.Close())
	}
	if err := syncDir(opts.FS, opts.Dir); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return newSegment(path, f, h), nil
}

// createDir creates dir and makes its entry durable, and those of the parents
// it had to create.
func createDir(fsys vfs.FS, dir string) error {
	made := []string{dir}
	for d := fsys.PathDir(dir); ; d = fsys.PathDir(d) {
		_, err := fsys.Stat(d)
		if err == nil || d == fsys.PathDir(d) {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("create commit log: %w", err)
		}
		made = append(made, d)
	}
	if err := fsys.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("create commit log: %w", err)
	}
	for _, d := range slices.Backward(made) {
		if err := syncDir(fsys, fsys.PathDir(d)); err != nil {
			return err
		}
	}
	return nil
}

func syncDir(fsys vfs.FS, dir string) error {
	d, err := fsys.OpenDir(dir)
	if err != nil {
		return fmt.Errorf("sync directory %s: %w", dir, err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sync directory %s: %w", dir, err)
	}
	return nil
}

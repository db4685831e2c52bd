package commitlog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/perigee-mq/perigee/mq"
)

// Pos is a byte position in the log: the base of a segment plus an offset in
// its file. Positions only grow, across segments and restarts.
type Pos uint64

// Kind says what a record is. The log does not look at it, but 0 is invalid
// and values from 240 are the log's own.
type Kind uint8

const (
	kindReserved Kind = 240
	kindSeal     Kind = 240 // last frame of a segment; payload: the next base
)

// Record is one record as Scan and Verify hand it out. Payload is valid only
// until the callback returns.
type Record struct {
	Pos        Pos // where the frame begins
	Next       Pos // where the frame ends; a Scan may start from here
	Index      uint64
	Term       uint64
	Kind       Kind
	Payload    []byte
	PayloadPos Pos // for ReadAt
}

// Defaults of Options.
const (
	DefaultSegmentSize = 1 << 30
	DefaultZeroFill    = 16 << 20

	minSegmentSize = 4 << 10
	maxSegmentSize = 1 << 40
)

// Options configure Open. Zero values mean the documented defaults.
type Options struct {
	// FS holds the files; vfs.Default when nil.
	FS vfs.FS
	// Dir is the log's own directory, created when missing.
	Dir string
	// SegmentSize is the largest size of a segment file, 1 GiB by default. It
	// may differ from one Open to the next.
	SegmentSize int64
	// ZeroFill is how far ahead of the write position the file is filled with
	// zeros in the background, 16 MiB by default. A new log begins with less.
	// Negative turns it off.
	ZeroFill int64
	// Term is written into new records; 1 by default. It must not be below the
	// term of the last record.
	Term uint64
	// Reach is a position that the log is known to have been durable up to. A log
	// that ends before is damaged, not torn, and Open leaves it as it is.
	Reach Pos
	// Logger receives what an operator should know; silent when nil.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.SegmentSize == 0 {
		o.SegmentSize = DefaultSegmentSize
	}
	if o.ZeroFill == 0 {
		o.ZeroFill = DefaultZeroFill
	}
	if o.Term == 0 {
		o.Term = 1
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

func (o Options) validate() error {
	if o.Dir == "" {
		return fmt.Errorf("commit log: %w: empty directory", mq.ErrInvalid)
	}
	if o.SegmentSize < minSegmentSize || o.SegmentSize > maxSegmentSize {
		return fmt.Errorf("commit log: %w: segment size %d, allowed %d to %d",
			mq.ErrInvalid, o.SegmentSize, int64(minSegmentSize), int64(maxSegmentSize))
	}
	return nil
}

// Log is an open commit log. See the package comment for who may call what.
type Log struct {
	opts Options

	// appended is stored after the bytes below it are in the file and the
	// segment that holds them is in the table; readers load it first.
	appended atomic.Uint64
	// flushed is stored after a sync of everything below it.
	flushed atomic.Uint64
	index   atomic.Uint64 // of the last record
	stopped atomic.Pointer[stopError]
	closed  atomic.Bool
	table   atomic.Pointer[table]

	// write is held by whoever appends or rolls.
	write struct {
		sync.Mutex
		batch Batch // of Append
		out   Pos   // write position; appended once the bytes are there
		next  uint64
	}

	// sync is held during every sync of the active segment, and by a roll
	// while it replaces it. Locked after write.
	sync struct {
		diskLock
		// active is changed with write and sync both held, so either lock
		// suffices to read it. All segments before it are durable.
		active *segment
	}

	// tables is held while the table is replaced: no I/O.
	tables sync.Mutex
	// holds are those that get new segments; guarded by tables.
	holds []*Hold
	// drop is held by DropBefore. Locked before tables.
	drop sync.Mutex

	synced    *syncedFile // written with sync held
	fill      *filler     // nil when zero-filling is off
	stopFill  context.CancelFunc
	wg        sync.WaitGroup
	closeOnce sync.Once
	closeErr  error
}

// stopError is the first failed write or sync.
type stopError struct{ err error }

// Appended is the end of the log: where the last appended frame ends. It may
// be compared with any position of a record.
func (l *Log) Appended() Pos { return Pos(l.appended.Load()) }

// Flushed is the position below which everything is durable.
func (l *Log) Flushed() Pos { return Pos(l.flushed.Load()) }

// LastIndex is the index of the last record, 0 when there has never been one.
func (l *Log) LastIndex() uint64 { return l.index.Load() }

// First is the position of the first record still there, or of the next one to
// be written when there is none.
func (l *Log) First() Pos {
	t := *l.table.Load()
	if len(t) == 0 {
		return 0
	}
	return t[0].firstRecord()
}

// SegmentSize is the largest size of a segment file.
func (l *Log) SegmentSize() int64 { return l.opts.SegmentSize }

// MaxPayload is the size of the largest payload a record may have.
func (l *Log) MaxPayload() int64 { return maxPayload(l.opts.SegmentSize) }

func maxPayload(segmentSize int64) int64 {
	room := segmentSize - segmentHeaderSize - sealFrameSize - frameHeaderSize
	return min(room&^7, maxPayloadSize)
}

// Err is the error that stopped the log for good, or nil. It wraps
// mq.ErrStopped and the failed write or sync.
func (l *Log) Err() error {
	if s := l.stopped.Load(); s != nil {
		return s.err
	}
	return nil
}

// fail stops the log. After a failed fsync the kernel may have thrown the
// pages away and a second fsync would answer with a success that means
// nothing, so the first failure is final; only a restart reads what is there.
func (l *Log) fail(cause error) error {
	err := fmt.Errorf("commit log %s: %w: %w", l.opts.Dir, mq.ErrStopped, cause)
	if l.stopped.CompareAndSwap(nil, &stopError{err}) {
		l.opts.Logger.Error("commit log stopped", "dir", l.opts.Dir, "error", cause)
	}
	return l.Err()
}

// usable is nil while the log takes appends and syncs.
func (l *Log) usable() error {
	if err := l.Err(); err != nil {
		return err
	}
	if l.closed.Load() {
		return l.errClosed()
	}
	return nil
}

func (l *Log) errClosed() error {
	return fmt.Errorf("commit log %s: %w: closed", l.opts.Dir, mq.ErrStopped)
}

// Segments describes the segments, oldest first; the last one is not sealed.
func (l *Log) Segments() []SegmentInfo {
	appended := l.Appended()
	t := *l.table.Load()
	infos := make([]SegmentInfo, len(t))
	for i, s := range t {
		infos[i] = SegmentInfo{
			File: s.path, Base: s.base, First: s.firstRecord(),
			// A roll may have come between the two loads.
			End:        max(t.end(i, appended), s.firstRecord()),
			FirstIndex: s.index, Sealed: i+1 < len(t),
		}
	}
	return infos
}

// Close makes what was appended durable, waits for the background goroutine
// and closes the files. Reads under way finish; later calls fail with
// mq.ErrStopped. It returns the error that stopped the log, if one did.
func (l *Log) Close() error {
	l.closeOnce.Do(func() { l.closeErr = l.close() })
	return l.closeErr
}

func (l *Log) close() error {
	l.write.Lock()
	defer l.write.Unlock()
	err := l.Sync()
	l.sync.Lock()
	l.closed.Store(true)
	l.sync.Unlock()

	var errs []error
	if l.fill != nil {
		l.stopFill()
		l.wg.Wait()
		errs = append(errs, l.fill.close())
	}
	if err == nil {
		err = l.Err() // the filler may have failed since
	}
	errs = append(errs, err, l.synced.close(err == nil))
	l.tables.Lock()
	t := *l.table.Swap(&table{})
	l.tables.Unlock()
	for _, s := range t {
		errs = append(errs, s.release())
	}
	return errors.Join(errs...)
}

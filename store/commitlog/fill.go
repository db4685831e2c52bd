package commitlog

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	// firstFill is how far a new log is filled, so that an idle one stays small.
	firstFill = 1 << 20
	// fillChunk bounds one write of zeros and its sync: a sync of the writer
	// that comes meanwhile waits for no more than this.
	fillChunk = 1 << 20
	fillAlign = 4 << 10
)

// filler writes zeros ahead of the write position, so that a sync of new
// records finds their blocks allocated and the file size right and needs no
// write of metadata.
//
// It never overwrites data: it claims the region it is about to write, always
// beyond what the writer has reserved, and a writer that needs a claimed region
// waits until the zeros are in the file. An idle log is filled once and then
// left alone.
type filler struct {
	fs    vfs.FS
	ahead int64 // how far to be ahead
	limit int64 // size of a segment
	kick  chan struct{}

	mu struct {
		sync.Mutex
		seg  *segment
		file vfs.File
		// reserved is the end of the writer's bytes in seg, filled the end of
		// what need not be filled any more; reserved <= filled.
		reserved, filled int64
		// claimed is the claim whose zeros are not in the file yet; inUse is
		// the segment whose file the goroutine is working on, until its sync
		// is done.
		claimed claim
		inUse   *segment
	}
	written sync.Cond
}

// claim is a region only the filler writes to.
type claim struct {
	seg      *segment
	file     vfs.File
	from, to int64
}

func newFiller(opts Options) *filler {
	f := &filler{fs: opts.FS, ahead: opts.ZeroFill, limit: opts.SegmentSize, kick: make(chan struct{}, 1)}
	f.written.L = &f.mu
	return f
}

// switchTo makes seg the segment to fill: the writer has end bytes of it, and
// up to filled there are zeros already.
//
// The filler has a handle of its own for each segment. The kernel reports a
// failed write-back once to every handle; were there only one, the filler's
// sync could take the error away from a sync of the writer that runs at the
// same time, and that one would call lost records durable.
func (f *filler) switchTo(seg *segment, end int64, filled ...int64) error {
	file, err := f.fs.OpenReadWrite(seg.path, writeCategory)
	if err != nil {
		return fmt.Errorf("open commit log segment: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	old, oldSeg := f.mu.file, f.mu.seg
	f.mu.seg, f.mu.file = seg, file
	f.mu.reserved = end
	f.mu.filled = end
	for _, n := range filled {
		f.mu.filled = max(f.mu.filled, n)
	}
	if old != nil && f.mu.inUse != oldSeg {
		return old.Close()
	}
	return nil
}

// reserve gives the bytes up to end to the writer, after those it had.
func (f *filler) reserve(end int64) {
	f.mu.Lock()
	for f.mu.claimed.seg == f.mu.seg && f.mu.claimed.from < end {
		f.written.Wait()
	}
	f.mu.reserved = end
	f.mu.filled = max(f.mu.filled, end)
	low := f.mu.filled-end < f.aheadLocked()/2 && f.mu.filled < f.limit
	f.mu.Unlock()
	if low {
		select {
		case f.kick <- struct{}{}:
		default:
		}
	}
}

// aheadLocked is how far to be ahead now. The first segment of a log grows with
// its use; later ones belong to a log that is used.
func (f *filler) aheadLocked() int64 {
	if f.mu.seg.base == 0 {
		return min(f.ahead, max(firstFill, f.mu.reserved))
	}
	return f.ahead
}

// claim takes the next region to fill; false when there is none.
func (f *filler) claim() (claim, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	target := min(f.mu.reserved+f.aheadLocked(), f.limit)
	from := f.mu.filled
	to := min(target, from+fillChunk)
	if aligned := to &^ (fillAlign - 1); aligned > from {
		to = aligned
	}
	if from >= to {
		return claim{}, false
	}
	f.mu.claimed = claim{seg: f.mu.seg, file: f.mu.file, from: from, to: to}
	f.mu.inUse = f.mu.seg
	return f.mu.claimed, true
}

// wrote ends the claim c and lets the writer in.
func (f *filler) wrote(c claim) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.claimed = claim{}
	if f.mu.seg == c.seg {
		f.mu.filled = c.to
	}
	f.written.Broadcast()
}

// done ends the use of the file of c, and closes it if the log has gone on to
// the next segment meanwhile.
func (f *filler) done(c claim) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.inUse = nil
	if f.mu.seg != c.seg {
		return c.file.Close()
	}
	return nil
}

// run fills whenever there is need, until ctx is done or something fails.
func (f *filler) run(ctx context.Context, fail func(error) error) {
	var zeros []byte
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.kick:
		}
		for ctx.Err() == nil {
			c, ok := f.claim()
			if !ok {
				break
			}
			if zeros == nil {
				zeros = make([]byte, min(fillChunk, f.ahead))
			}
			_, err := c.file.WriteAt(zeros[:c.to-c.from], c.from)
			f.wrote(c)
			if err == nil {
				err = c.file.SyncData()
			}
			if err := errors.Join(err, f.done(c)); err != nil {
				_ = fail(fmt.Errorf("zero-fill %s:%d: %w", c.seg.path, c.from, err))
				return
			}
		}
	}
}

// close closes the file; run has returned.
func (f *filler) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.file == nil {
		return nil
	}
	return f.mu.file.Close()
}

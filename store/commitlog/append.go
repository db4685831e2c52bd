package commitlog

import (
	"encoding/binary"
	"fmt"

	"github.com/perigee-mq/perigee/mq"
)

// Entry is a record to append. The log copies Payload before Append returns.
type Entry struct {
	Kind    Kind
	Payload []byte
}

// Appended says where a record went.
type Appended struct {
	Pos        Pos // where the frame begins
	Next       Pos // where the frame ends
	PayloadPos Pos // for ReadAt
	Index      uint64
}

// Append writes the records, in order, with one write per segment they go to,
// and without a sync. When it returns they can be read; they are durable after
// the next Sync, or as soon as Flushed passes their Next.
//
// Each record is atomic across a crash, the call as a whole is not. A record
// that no segment could hold fails the call with mq.ErrTooLarge, a reserved
// kind with mq.ErrInvalid; nothing is written then and the log goes on. Any
// other error has stopped the log, and what was asked may or may not be there
// after a restart.
func (l *Log) Append(recs []Entry) ([]Appended, error) {
	l.write.Lock()
	defer l.write.Unlock()
	b := &l.write.batch
	b.Reset()
	for _, r := range recs {
		b.Add(r.Kind, r.Payload)
	}
	out, err := l.appendLocked(b)
	if err != nil {
		return nil, err
	}
	return append([]Appended(nil), out...), nil
}

// AppendBatch is Append for a batch the caller keeps. It allocates nothing:
// the frames are finished and written where they are, and the results belong
// to the batch until its next Reset. A batch is appended once; Reset comes before
// it is filled again, also after an error.
func (l *Log) AppendBatch(b *Batch) ([]Appended, error) {
	l.write.Lock()
	defer l.write.Unlock()
	return l.appendLocked(b)
}

func (l *Log) appendLocked(b *Batch) ([]Appended, error) {
	if err := l.usable(); err != nil {
		return nil, err
	}
	limit := l.MaxPayload()
	for i, r := range b.recs {
		if int64(r.length) > limit {
			return nil, fmt.Errorf("commit log: record %d of the batch: %d bytes, limit %d: %w",
				i, r.length, limit, mq.ErrTooLarge)
		}
		if r.kind == 0 || r.kind >= kindReserved {
			return nil, fmt.Errorf("commit log: record %d of the batch: kind %d: %w", i, r.kind, mq.ErrInvalid)
		}
	}
	out := b.results()
	for first := 0; first < len(b.recs); {
		last := l.fitting(b, first)
		if last == first {
			if err := l.roll(); err != nil {
				return nil, err
			}
			continue
		}
		var err error
		if out, err = l.writeRun(b, first, last, out); err != nil {
			return nil, err
		}
		first = last
	}
	b.out = out
	return out, nil
}

// fitting returns the end of the run of records from first on that fits into
// the active segment and leaves room for its seal.
func (l *Log) fitting(b *Batch, first int) int {
	room := l.opts.SegmentSize - int64(l.write.out-l.sync.active.base) - sealFrameSize
	last := first
	for ; last < len(b.recs); last++ {
		if room -= frameSize(b.recs[last].length); room < 0 {
			break
		}
	}
	return last
}

// writeRun finishes the frames of records [first, last) and writes them at the
// end of the active segment.
func (l *Log) writeRun(b *Batch, first, last int, out []Appended) ([]Appended, error) {
	seg := l.sync.active
	h := frameHeader{term: l.opts.Term, index: l.write.next, synced: l.Flushed()}
	pos := l.write.out
	start, end := b.recs[first].start, len(b.buf)
	for _, r := range b.recs[first:last] {
		h.length, h.kind = r.length, r.kind
		size := h.size()
		end = r.start + int(size)
		encodeFrame(b.buf[r.start:end], seg.crc, pos, h)
		out = append(out, Appended{
			Pos: pos, Next: pos + Pos(size), PayloadPos: pos + frameHeaderSize, Index: h.index,
		})
		pos += Pos(size)
		h.index++
	}
	if err := l.writeAt(seg, b.buf[start:end], l.write.out); err != nil {
		return nil, err
	}
	l.write.out, l.write.next = pos, h.index
	l.index.Store(h.index - 1)
	l.appended.Store(uint64(pos))
	return out, nil
}

// writeAt writes p at pos in the active segment, never over bytes that the
// zero-filler is writing.
func (l *Log) writeAt(seg *segment, p []byte, pos Pos) error {
	off := int64(pos - seg.base)
	if l.fill != nil {
		l.fill.reserve(off + int64(len(p)))
		// The wait may have ended because the filler stopped the log.
		if err := l.Err(); err != nil {
			return err
		}
	}
	if _, err := seg.file.WriteAt(p, off); err != nil {
		return l.fail(fmt.Errorf("write %s:%d: %w", seg.path, off, err))
	}
	return nil
}

// roll seals the active segment and goes on in a new one.
//
// The order of the steps is what recovery relies on: the sealed segment is
// durable to its last byte before the next file exists, and the next file's
// header and directory entry are durable before a frame goes into it. So at
// most the last file has anything torn, and a header is torn only in a file
// without frames.
func (l *Log) roll() error {
	l.sync.Lock()
	defer l.sync.Unlock()
	if err := l.usable(); err != nil {
		return err
	}
	old := l.sync.active
	next := l.write.out + sealFrameSize

	b := make([]byte, sealFrameSize)
	binary.LittleEndian.PutUint64(b[frameHeaderSize:], uint64(next))
	encodeFrame(b, old.crc, l.write.out, frameHeader{
		length: sealPayloadSize, kind: kindSeal, index: l.write.next, term: l.opts.Term, synced: l.Flushed(),
	})
	if err := l.writeAt(old, b, l.write.out); err != nil {
		return err
	}
	if err := old.file.SyncData(); err != nil {
		return l.fail(fmt.Errorf("sync %s: %w", old.path, err))
	}
	l.flushed.Store(uint64(next))

	seg, err := createSegment(l.opts, next, l.write.next)
	if err != nil {
		return l.fail(err)
	}
	if err := l.activate(seg); err != nil {
		return l.fail(err)
	}
	if err := l.remember(l.write.out); err != nil {
		return err
	}
	l.opts.Logger.Debug("commit log segment started", "file", seg.path, "index", l.write.next)
	return nil
}

// activate makes seg, durable and without frames, the active segment.
func (l *Log) activate(seg *segment) error {
	l.tables.Lock()
	t := *l.table.Load()
	t = append(t[:len(t):len(t)], seg)
	l.table.Store(&t)
	l.hold(seg)
	l.tables.Unlock()

	l.sync.active = seg
	l.write.out = seg.firstRecord()
	l.appended.Store(uint64(l.write.out))
	l.flushed.Store(uint64(l.write.out))
	if l.fill != nil {
		return l.fill.switchTo(seg, segmentHeaderSize)
	}
	return nil
}

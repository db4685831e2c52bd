package commitlog

import (
	"errors"
	"fmt"
	"io"

	"github.com/perigee-mq/perigee/mq"
)

// ReadAt fills p with the bytes at pos, which must lie inside one payload; it
// allocates nothing. The bytes are as the file has them: checksums are the
// business of Scan and Verify. A position that has been dropped is ErrTrimmed,
// one that is not there yet ErrOutOfRange.
func (l *Log) ReadAt(p []byte, pos Pos) error {
	// In this order: a segment that holds bytes below appended is in every
	// table loaded later.
	appended := l.Appended()
	for {
		t := *l.table.Load()
		if len(t) == 0 {
			return l.errClosed()
		}
		i := t.find(pos)
		if i < 0 {
			return fmt.Errorf("read commit log at %d: %w (%d)", pos, ErrTrimmed, t[0].firstRecord())
		}
		s := t[i]
		end := t.end(i, appended)
		if pos < s.firstRecord() || pos > end || Pos(len(p)) > end-pos {
			return fmt.Errorf("read %s:%d: %d bytes: %w (%d)", s.path, pos-s.base, len(p), ErrOutOfRange, end)
		}
		if !s.acquire() {
			continue // dropped since; the next table says so
		}
		err := s.readFull(p, int64(pos-s.base))
		return errors.Join(err, s.release())
	}
}

// Place returns the file that holds pos and the offset in it; the log's directory when
// none does any more.
func (l *Log) Place(pos Pos) (file string, offset int64) {
	t := *l.table.Load()
	if i := t.find(pos); i >= 0 {
		return t[i].path, int64(pos - t[i].base)
	}
	return l.opts.Dir, int64(pos)
}

// readFull reads len(p) bytes that the log says are there.
func (s *segment) readFull(p []byte, off int64) error {
	n, err := s.file.ReadAt(p, off)
	switch {
	case n == len(p):
		return nil
	case errors.Is(err, io.EOF):
		return &CorruptionError{File: s.path, Offset: off + int64(n), Reason: "file ends early"}
	case err == nil:
		err = io.ErrNoProgress
	}
	return fmt.Errorf("read %s:%d: %w", s.path, off, err)
}

// Scan calls fn for every record from the frame boundary from on, in order, up
// to Appended as it is at the call, and verifies every frame: checksums,
// indexes without a gap, terms that do not fall. A Pos or Next of a record is a
// boundary, so are First and 0 of a log that never dropped anything. It stops
// at fn's first error and returns it. Damage is a *CorruptionError.
func (l *Log) Scan(from Pos, fn func(Record) error) error {
	appended := l.Appended()
	if l.closed.Load() {
		return l.errClosed()
	}
	if from > appended {
		return fmt.Errorf("scan commit log from %d: %w (%d)", from, ErrOutOfRange, appended)
	}
	var c chain
	known := false // c is what the frames before demand
	for from < appended {
		t := *l.table.Load()
		if len(t) == 0 {
			return l.errClosed()
		}
		i := t.find(from)
		if i < 0 {
			return fmt.Errorf("scan commit log from %d: %w (%d)", from, ErrTrimmed, t[0].firstRecord())
		}
		s := t[i]
		if !s.acquire() {
			continue
		}
		// Beyond appended the table may know more than this scan looks at.
		end := min(t.end(i, appended), appended)
		sealed := i+1 < len(t) && end == t[i+1].base
		if from == s.base || from == s.firstRecord() {
			from = s.firstRecord()
			if !known {
				c, known = chain{index: s.index, term: s.term}, true
			}
		}
		err := s.scan(from, end, &c, known, sealed, fn)
		if err := errors.Join(err, s.release()); err != nil {
			return err
		}
		known, from = true, end
	}
	return nil
}

// scan hands out the records of [from, end). The frames continue c; when it is
// not known yet the first frame founds it.
func (s *segment) scan(from, end Pos, c *chain, known, sealed bool, fn func(Record) error) error {
	if from < s.firstRecord() {
		return fmt.Errorf("scan %s:%d: %w: inside the segment header", s.path, from-s.base, mq.ErrInvalid)
	}
	r := newFrameReader(s, from, end)
	for r.pos < end {
		h, frame, err := r.next()
		if err != nil {
			return err
		}
		if !known {
			*c, known = chain{index: h.index, term: h.term, synced: h.synced}, true
		}
		if reason := c.check(h, r.pos); reason != "" {
			return r.corrupt(reason)
		}
		next := r.pos + Pos(h.size())
		if h.kind == kindSeal {
			if !sealed || next != end || sealedNext(frame) != end {
				return r.corrupt("seal in the wrong place")
			}
		} else {
			if err := fn(record(h, r.pos, frame)); err != nil {
				return err
			}
			if sealed && next == end {
				return r.corrupt("segment ends without a seal")
			}
		}
		c.add(h)
		r.advance(h)
	}
	return nil
}

func record(h frameHeader, pos Pos, frame []byte) Record {
	return Record{
		Pos: pos, Next: pos + Pos(h.size()), Index: h.index, Term: h.term, Kind: h.kind,
		Payload:    frame[frameHeaderSize : frameHeaderSize+h.length : frameHeaderSize+h.length],
		PayloadPos: pos + frameHeaderSize,
	}
}

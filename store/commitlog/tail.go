package commitlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// tail is where the last segment ends.
type tail struct {
	end    Pos    // end of the last valid frame
	chain  chain  // after it
	sealed bool   // it is a seal
	dirty  bool   // there is something else than zeros behind it
	reason string // why the bytes behind it are no frame
}

// readTail reads the last segment, a file of size bytes, and finds its end. fn,
// when not nil, gets every record. Nothing is written.
//
// At the first bytes that are no valid frame, two things may have happened. A
// crash may have come while they were written: then they had never been
// synced, nobody was told they are durable, and they are the tail to be cut. Or
// they were durable and have been damaged since: then to cut them would lose
// acknowledged records without a word. The frames behind them tell: each
// carries the position up to which the log was known to be durable when it was
// written. If one of them knows a position beyond the bad bytes, these had been
// durable. If none does, no sync that covers them was ever followed by a write
// that reached the disk.
//
// That leaves one case undecided by the log alone: damage in what was written
// after the last sync that a later frame knows of, that is in the very last
// batch. There the store compares the log's end with the position its views
// have applied.
func readTail(s *segment, size int64, start segmentHeader, fn func(Record) error) (tail, error) {
	t := tail{end: s.firstRecord(), chain: chain{index: start.index, term: start.term}}
	end := s.base + Pos(size)
	r := newFrameReader(s, t.end, end)
	for r.pos < end && !t.sealed {
		h, frame, err := r.next()
		if err != nil {
			var bad *CorruptionError
			if !errors.As(err, &bad) {
				return tail{}, err
			}
			t.reason = bad.Reason
			break
		}
		// A frame that is valid in this very place was written here by a log
		// that knew what came before it; it cannot be the rest of a cut tail,
		// which is zeroed. If it does not fit, something has been replaced.
		if reason := t.chain.check(h, r.pos); reason != "" {
			return tail{}, r.corrupt(reason)
		}
		if h.kind == kindSeal {
			if t.sealed = sealedNext(frame) == r.pos+sealFrameSize; !t.sealed {
				return tail{}, r.corrupt("seal names a wrong next segment")
			}
		} else if fn != nil {
			if err := fn(record(h, r.pos, frame)); err != nil {
				return tail{}, err
			}
		}
		t.chain.add(h)
		r.advance(h)
		t.end = r.pos
	}
	proof, dirty, err := s.search(t.end, end, t.chain)
	if err != nil {
		return tail{}, err
	}
	t.dirty = dirty
	switch {
	case proof.known > t.end:
		return tail{}, r.corrupt(fmt.Sprintf("%s, but the frame at offset %d knows %d bytes of this file to be durable",
			t.reason, int64(proof.at-s.base), int64(proof.known-s.base)))
	case t.sealed && dirty:
		return tail{}, r.corrupt("bytes after the seal")
	}
	return t, nil
}

// proof is a later frame's knowledge of what is durable.
type proof struct {
	at    Pos
	known Pos
}

// searchStep is how much search, zero and rewrite handle at a time.
const searchStep = 1 << 20

// search looks at the bytes [bad, end), which the chain c does not reach, for
// the frame header that knows the highest durable position, and for anything
// that is not zero. A header is proof enough: its payload may be torn, but what
// it knows was true when it was written. It must be valid where it stands and
// plausible after c, so neither payload bytes nor garbage pass for one.
func (s *segment) search(bad, end Pos, c chain) (best proof, dirty bool, err error) {
	buf := make([]byte, min(end-bad, searchStep+frameHeaderSize))
	scratch := make([]byte, frameHeaderSize)
	for pos := bad; pos < end; {
		b := buf[:min(Pos(len(buf)), end-pos)]
		n, err := s.file.ReadAt(b, int64(pos-s.base))
		if err != nil && !errors.Is(err, io.EOF) {
			return proof{}, false, fmt.Errorf("read %s:%d: %w", s.path, pos-s.base, err)
		}
		b = b[:n]
		dirty = dirty || !allZero(b)
		for i := 0; i+frameHeaderSize <= n; i += 8 {
			at := pos + Pos(i)
			if at == bad || binary.LittleEndian.Uint64(b[i:]) == 0 {
				continue
			}
			index := binary.LittleEndian.Uint64(b[i+8:])
			if index < c.index || index-c.index > uint64(at-bad)/frameHeaderSize+1 {
				continue
			}
			h, reason := decodeFrameHeader(b[i:], scratch, s.crc, at)
			if reason != "" || h.term < c.term || h.synced < c.synced || h.synced > at {
				continue
			}
			if h.synced > best.known {
				best = proof{at: at, known: h.synced}
			}
		}
		if n < len(buf) {
			break
		}
		pos += searchStep
	}
	return best, dirty, nil
}

// zero writes zeros over [from, to) wherever something else stands there.
func (s *segment) zero(from, to int64) error {
	const block = 4 << 10
	buf, zeros := make([]byte, searchStep), make([]byte, block)
	for off := from; off < to; {
		b := buf[:min(to-off, searchStep)]
		if err := s.readFull(b, off); err != nil {
			return err
		}
		for i := 0; i < len(b); i += block {
			part := b[i:min(i+block, len(b))]
			if allZero(part) {
				continue
			}
			if _, err := s.file.WriteAt(zeros[:len(part)], off+int64(i)); err != nil {
				return fmt.Errorf("write %s:%d: %w", s.path, off+int64(i), err)
			}
		}
		off += int64(len(b))
	}
	return nil
}

// rewrite writes the bytes [from, to) over themselves.
func (s *segment) rewrite(from, to Pos) error {
	if from >= to {
		return nil
	}
	buf := make([]byte, min(to-from, searchStep))
	for pos := from; pos < to; {
		b := buf[:min(Pos(len(buf)), to-pos)]
		off := int64(pos - s.base)
		if err := s.readFull(b, off); err != nil {
			return err
		}
		if _, err := s.file.WriteAt(b, off); err != nil {
			return fmt.Errorf("write %s:%d: %w", s.path, off, err)
		}
		pos += Pos(len(b))
	}
	return nil
}

func allZero(b []byte) bool {
	for ; len(b) >= 8; b = b[8:] {
		if binary.LittleEndian.Uint64(b) != 0 {
			return false
		}
	}
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

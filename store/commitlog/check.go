package commitlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A Checked is what Check has seen of a log.
type Checked struct {
	Segments int
	Records  uint64 // handed out
	// First is the index of the first record the log holds or would hold, 1 in one
	// that never dropped a segment; Last that of the last record, First-1 without any.
	First, Last uint64
	// Begin is the position of the first record, End that behind the last whole
	// frame: where an open would go on.
	Begin, End Pos
	// Torn is how many bytes behind End an open would cut: what a crash left of
	// writes that nobody was told of.
	Torn int64
}

// Check reads all segments of a log that is not open, as Verify does, but does not
// end at damage: it calls bad for each place, and goes on behind it with the next
// whole frame. fn, when not nil, gets every whole record, in order. Nothing is
// written. The error is that of fn, or of a directory that cannot be listed.
//
// What it calls bad with is a *CorruptionError, ErrNotALog, ErrVersion or a failed
// read, and names the file.
func Check(fsys vfs.FS, dir string, fn func(Record) error, bad func(error)) (Checked, error) {
	bases, err := listSegments(fsys, dir)
	if err != nil {
		return Checked{}, err
	}
	if fn == nil {
		fn = func(Record) error { return nil }
	}
	c := &logCheck{fs: fsys, dir: dir, fn: fn, bad: bad, want: expected{known: true, index: firstIndex}}
	c.sum.Segments = len(bases)
	for i, base := range bases {
		if err := c.segment(base, i == 0, i == len(bases)-1); err != nil {
			return c.sum, err
		}
	}
	reach, _, err := readSynced(fsys, dir)
	if err == nil {
		file, offset := dir, int64(0)
		if n := len(bases); n > 0 && c.sum.End >= bases[n-1] {
			file, offset = fsys.PathJoin(dir, segmentName(bases[n-1])), int64(c.sum.End-bases[n-1])
		}
		err = reaches(reach, file, offset, c.sum.End, fmt.Sprintf("record %d is the last one", c.sum.Last))
	}
	if err != nil {
		bad(err)
	}
	return c.sum, nil
}

// expected is what the segments before say about the next one.
type expected struct {
	known bool
	base  Pos
	index uint64
	term  uint64
}

// A logCheck walks the segments of one log.
type logCheck struct {
	fs   vfs.FS
	dir  string
	fn   func(Record) error
	bad  func(error)
	want expected
	sum  Checked
}

func (c *logCheck) segment(base Pos, first, last bool) (err error) {
	path := c.fs.PathJoin(c.dir, segmentName(base))
	if first && base > 0 {
		c.want = expected{} // the segments before it were dropped
	}
	if c.want.known && base != c.want.base {
		c.bad(&CorruptionError{
			File:   c.fs.PathJoin(c.dir, segmentName(c.want.base)),
			Reason: fmt.Sprintf("the segment is missing: record %d is followed by the segment at %d", int64(c.want.index)-1, base),
		})
		c.want.known = false
	}
	f, size, err := openFile(c.fs, path, false)
	if err != nil {
		c.bad(err)
		c.want = expected{}
		return nil
	}
	seg, unborn, err := c.header(path, f, size, base, last)
	if err != nil {
		c.bad(err)
	}
	if unborn && first {
		c.sum.First, c.sum.Begin, c.sum.End = c.want.index, base+segmentHeaderSize, base+segmentHeaderSize
	}
	if unborn || seg == nil {
		c.want = expected{}
		return f.Close()
	}
	defer func() { err = errors.Join(err, seg.release()) }()
	if first {
		c.sum.First, c.sum.Last, c.sum.Begin = seg.index, max(seg.index, 1)-1, seg.firstRecord()
	}
	return c.frames(seg, size, last)
}

// header reads the header of a segment. A damaged one is returned with an error:
// its salt may still be good, and with it every frame.
func (c *logCheck) header(path string, f vfs.File, size int64, base Pos, last bool) (seg *segment, unborn bool, err error) {
	want := segmentHeader{base: c.want.base, index: c.want.index, term: c.want.term}
	h, err := readHeader(path, f, size)
	if err == nil {
		err = checkHeader(path, h, base, want, c.want.known, c.want.known && base > 0)
		h.base = base
		return newSegment(path, f, h), false, err
	}
	if last && c.want.known {
		unborn, notUnborn := isUnborn(f, size, want, err)
		if unborn {
			return nil, true, notUnborn
		}
	}
	var newer ErrVersion
	b := make([]byte, segmentHeaderSize)
	if n, _ := f.ReadAt(b, 0); n < len(b) || errors.As(err, &newer) {
		return nil, false, err
	}
	h = segmentHeader{base: base, salt: binary.LittleEndian.Uint64(b[40:])}
	if c.want.known {
		h.index, h.term = c.want.index, c.want.term
	}
	return newSegment(path, f, h), false, err
}

// frames reads the frames of one segment and says what the next one must be.
func (c *logCheck) frames(seg *segment, size int64, last bool) error {
	end := seg.base + Pos(size)
	known := seg.index > 0 // what the first frame must be
	ch := chain{index: seg.index, term: seg.term}
	r := newFrameReader(seg, seg.firstRecord(), end)
	c.sum.End = r.pos
	c.want = expected{}
	for r.pos < end {
		h, frame, err := r.next()
		if err != nil {
			next, err := c.skip(seg, r.pos, end, ch, last, err)
			if err != nil || next == 0 {
				return err
			}
			r, known = newFrameReader(seg, next, end), false
			continue
		}
		if !known {
			// Where the chain has been lost the next whole frame founds it anew.
			ch = chain{index: max(h.index, ch.index), term: max(h.term, ch.term), synced: max(h.synced, ch.synced)}
			known = true
		}
		if reason := ch.check(h, r.pos); reason != "" {
			c.bad(r.corrupt(reason))
			if h.kind > kindSeal {
				h.kind = kindSeal - 1 // a record as far as the numbering goes
			}
			ch.index = h.index
		}
		next := r.pos + Pos(h.size())
		ch.add(h)
		if h.kind == kindSeal {
			if sealedNext(frame) != next {
				c.bad(r.corrupt("seal names a wrong next segment"))
			}
			c.sum.End = next
			c.want = expected{known: true, base: next, index: ch.index, term: ch.term}
			return c.behindSeal(seg, next, end, ch)
		}
		if h.kind < kindReserved {
			c.sum.Records, c.sum.Last = c.sum.Records+1, h.index
			if c.sum.First == 0 { // the header did not say
				c.sum.First = h.index
			}
			if err := c.fn(record(h, r.pos, frame)); err != nil {
				return err
			}
		}
		r.advance(h)
		c.sum.End = next
	}
	if !last {
		c.bad(r.corrupt("segment ends without a seal"))
	}
	return nil
}

// skip deals with what is no frame at pos, for the reason given, and returns where
// the next whole frame is, 0 when the segment is done with. In the last segment
// it judges as readTail does whether this is a torn tail.
func (c *logCheck) skip(seg *segment, pos, end Pos, ch chain, last bool, why error) (Pos, error) {
	var corrupt *CorruptionError
	if !errors.As(why, &corrupt) {
		c.bad(why)
		return 0, nil
	}
	off := int64(pos - seg.base)
	proof, dirty, err := seg.search(pos, end, ch)
	if err != nil {
		c.bad(err)
		return 0, nil
	}
	if last && proof.known <= pos {
		if dirty {
			c.sum.Torn = int64(end - pos)
		}
		return 0, nil
	}
	next, h, err := seg.nextFrame(pos, end, ch.index)
	if err != nil {
		c.bad(err)
		return 0, nil
	}
	reason := corrupt.Reason
	if next == 0 {
		if last {
			reason = fmt.Sprintf("%s, but the frame at offset %d knows %d bytes of this file to be durable; no whole frame follows",
				reason, int64(proof.at-seg.base), int64(proof.known-seg.base))
		} else {
			reason += "; no whole frame follows, and the segment has no seal"
		}
		c.bad(&CorruptionError{File: seg.path, Offset: off, Reason: reason})
		return 0, nil
	}
	c.bad(&CorruptionError{File: seg.path, Offset: off, Reason: fmt.Sprintf(
		"%s; %d bytes with the records from %d to before %d cannot be read", reason, next-pos, ch.index, h.index)})
	return next, nil
}

// behindSeal checks that nothing follows the seal that ends at pos.
func (c *logCheck) behindSeal(seg *segment, pos, end Pos, ch chain) error {
	_, dirty, err := seg.search(pos, end, ch)
	if err == nil && dirty {
		err = &CorruptionError{File: seg.path, Offset: int64(pos - seg.base), Reason: "bytes after the seal"}
	}
	if err != nil {
		c.bad(err)
	}
	return nil
}

// nextFrame returns the first whole frame behind bad whose index is not below
// index, and its position; 0 when there is none before end.
func (s *segment) nextFrame(bad, end Pos, index uint64) (Pos, frameHeader, error) {
	buf := make([]byte, min(end-bad, searchStep+frameHeaderSize))
	scratch := make([]byte, frameHeaderSize)
	for pos := bad; pos < end; pos += searchStep {
		b := buf[:min(Pos(len(buf)), end-pos)]
		n, err := s.file.ReadAt(b, int64(pos-s.base))
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, frameHeader{}, fmt.Errorf("read %s:%d: %w", s.path, pos-s.base, err)
		}
		for i := 0; i+frameHeaderSize <= n; i += 8 {
			at := pos + Pos(i)
			if at == bad || binary.LittleEndian.Uint64(b[i:]) == 0 || binary.LittleEndian.Uint64(b[i+8:]) < index {
				continue
			}
			h, reason := decodeFrameHeader(b[i:n], scratch, s.crc, at)
			if reason != "" || Pos(h.size()) > end-at {
				continue
			}
			r := newFrameReader(s, at, end)
			if _, _, err := r.next(); err == nil {
				return at, h, nil
			}
		}
		if n < len(buf) {
			break
		}
	}
	return 0, frameHeader{}, nil
}

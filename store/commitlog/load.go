package commitlog

import (
	"errors"
	"fmt"
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// loaded is what the headers and seals of a log's segments say.
type loaded struct {
	// segments are open, ascending; the last is the one that may have a tail.
	segments []*segment
	// size is the file size of the last segment.
	size int64
	// unborn says that the last file has no readable header and never had
	// frames; it is not among segments, and next is what its header should be.
	unborn bool
	// next is where the last segment starts from: base, index, term.
	next segmentHeader
}

// load opens the segments at bases (at least one) and checks headers, seals and
// that they follow each other. The caller closes loaded.segments, after an
// error too. Only the last file is opened for writing, if any.
func load(fs vfs.FS, dir string, bases []Pos, writable bool) (loaded, error) {
	var d loaded
	for i, base := range bases {
		last := i == len(bases)-1
		path := fs.PathJoin(dir, segmentName(base))
		f, size, err := openFile(fs, path, last && writable)
		if err != nil {
			return d, err
		}
		// What the segment before says about this one. The first segment of
		// all is known beforehand, except for the term.
		known := i > 0 || base == 0
		if base == 0 {
			d.next = segmentHeader{base: 0, index: firstIndex}
		}
		h, err := readHeader(path, f, size)
		if err != nil && last && known {
			var unborn bool
			if unborn, err = isUnborn(f, size, d.next, err); unborn {
				d.unborn = true
				return d, errors.Join(err, f.Close())
			}
		}
		if err == nil {
			err = checkHeader(path, h, base, d.next, known, i > 0)
		}
		if err != nil {
			return d, errors.Join(err, f.Close())
		}
		seg := newSegment(path, f, h)
		d.segments, d.next, d.size = append(d.segments, seg), h, size
		if !last {
			seal, err := seg.readSeal(bases[i+1])
			if err != nil {
				return d, err
			}
			d.next = segmentHeader{base: bases[i+1], index: seal.index, term: seal.term}
		}
	}
	return d, nil
}

func openFile(fs vfs.FS, path string, writable bool) (vfs.File, int64, error) {
	var f vfs.File
	var err error
	if writable {
		f, err = fs.OpenReadWrite(path, writeCategory)
	} else {
		f, err = fs.Open(path)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("open commit log segment: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("open commit log segment: %w", err), f.Close())
	}
	return f, info.Size(), nil
}

func readHeader(path string, f vfs.File, size int64) (segmentHeader, error) {
	b := make([]byte, min(size, segmentHeaderSize))
	if n, err := f.ReadAt(b, 0); n < len(b) {
		return segmentHeader{}, fmt.Errorf("read %s:0: %w", path, err)
	}
	return decodeSegmentHeader(path, b)
}

func checkHeader(path string, h segmentHeader, base Pos, want segmentHeader, known, sealed bool) error {
	var reason string
	switch {
	case h.base != base:
		reason = fmt.Sprintf("header says base %d", h.base)
	case h.index == 0:
		reason = "first index 0"
	case known && h.index != want.index:
		reason = fmt.Sprintf("first index %d where %d follows", h.index, want.index)
	case sealed && h.term < want.term:
		reason = fmt.Sprintf("term %d after term %d", h.term, want.term)
	default:
		return nil
	}
	return &CorruptionError{File: path, Reason: reason}
}

// isUnborn tells a file whose creation was interrupted from a damaged one,
// after its header could not be read for the reason given, which it returns
// when the file is not unborn. A header is durable before a frame is written,
// so a torn header with anything behind it is damage.
func isUnborn(f vfs.File, size int64, want segmentHeader, reason error) (bool, error) {
	b := make([]byte, min(size, segmentHeaderSize))
	if n, err := f.ReadAt(b, 0); n < len(b) {
		return false, fmt.Errorf("read segment header: %w", err)
	}
	if !tornHeader(b, want) {
		return false, reason
	}
	for off := int64(segmentHeaderSize); off < size; {
		b := make([]byte, min(size-off, readAhead))
		n, err := f.ReadAt(b, off)
		if err != nil && !errors.Is(err, io.EOF) {
			return false, fmt.Errorf("read segment: %w", err)
		}
		if !allZero(b[:n]) {
			return false, reason
		}
		if n == 0 {
			break
		}
		off += int64(n)
	}
	return true, nil
}

// readSeal reads and checks the seal of s, whose successor is at next.
func (s *segment) readSeal(next Pos) (frameHeader, error) {
	pos := next - sealFrameSize
	if next < s.firstRecord()+sealFrameSize {
		return frameHeader{}, &CorruptionError{File: s.path, Reason: fmt.Sprintf("no room before the next segment at %d", next)}
	}
	off := int64(pos - s.base)
	b := make([]byte, sealFrameSize)
	if err := s.readFull(b, off); err != nil {
		return frameHeader{}, err
	}
	h, reason := decodeFrameHeader(b, make([]byte, frameHeaderSize), s.crc, pos)
	switch {
	case reason != "":
	case h.kind != kindSeal || h.length != sealPayloadSize:
		reason = "not a seal"
	case !frameIntact(b):
		reason = "frame checksum mismatch"
	case sealedNext(b) != next:
		reason = fmt.Sprintf("next segment at %d", sealedNext(b))
	case h.index < s.index || h.term < s.term:
		reason = "index or term below the segment's first"
	}
	if reason != "" {
		return frameHeader{}, &CorruptionError{
			File: s.path, Offset: off,
			Reason: fmt.Sprintf("seal before the segment at %d: %s", next, reason),
		}
	}
	return h, nil
}

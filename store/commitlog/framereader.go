package commitlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// readAhead is how much a frameReader reads at a time.
const readAhead = 256 << 10

// frameReader reads frames one after the other from one segment. It checks
// each frame by itself; how frames follow each other is the chain's business.
type frameReader struct {
	seg     *segment
	pos     Pos // of the next frame
	end     Pos // bytes from here on are not looked at
	buf     []byte
	bufPos  Pos // position of buf[0]
	scratch [frameHeaderSize]byte
}

func newFrameReader(s *segment, from, end Pos) *frameReader {
	return &frameReader{seg: s, pos: from, end: end, bufPos: from}
}

// corrupt is a CorruptionError about the frame at pos.
func (r *frameReader) corrupt(reason string) error {
	return &CorruptionError{File: r.seg.path, Offset: int64(r.pos - r.seg.base), Reason: reason}
}

// next returns the frame at pos; the bytes are valid until the next call. What
// is not a frame is a *CorruptionError, whatever the reason: only the caller
// can know whether it may be a torn tail.
func (r *frameReader) next() (frameHeader, []byte, error) {
	b, err := r.window(frameHeaderSize)
	if err != nil {
		return frameHeader{}, nil, err
	}
	if len(b) < frameHeaderSize {
		return frameHeader{}, nil, r.corrupt("file ends inside a frame header")
	}
	h, reason := decodeFrameHeader(b, r.scratch[:], r.seg.crc, r.pos)
	if reason != "" {
		return frameHeader{}, nil, r.corrupt(reason)
	}
	size := int(h.size())
	if Pos(size) > r.end-r.pos {
		return frameHeader{}, nil, r.corrupt("frame reaches past the end")
	}
	if b, err = r.window(size); err != nil {
		return frameHeader{}, nil, err
	}
	if len(b) < size {
		return frameHeader{}, nil, r.corrupt("file ends inside a frame")
	}
	if !frameIntact(b[:size]) {
		return frameHeader{}, nil, r.corrupt("frame checksum mismatch")
	}
	return h, b[:size], nil
}

// advance goes past the frame h that next returned.
func (r *frameReader) advance(h frameHeader) { r.pos += Pos(h.size()) }

// window returns at least n bytes from pos on, less only where end or the file
// comes first.
func (r *frameReader) window(n int) ([]byte, error) {
	have := r.buf[min(len(r.buf), int(r.pos-r.bufPos)):]
	if len(have) >= n {
		return have, nil
	}
	want := int(min(Pos(max(n, readAhead)), r.end-r.pos))
	if len(have) >= want {
		return have, nil
	}
	if cap(r.buf) < want {
		b := make([]byte, len(have), want)
		copy(b, have)
		r.buf = b
	} else {
		r.buf = r.buf[:copy(r.buf[:cap(r.buf)], have)]
	}
	r.bufPos = r.pos
	got := len(r.buf)
	off := int64(r.pos-r.seg.base) + int64(got)
	m, err := r.seg.file.ReadAt(r.buf[got:want], off)
	r.buf = r.buf[:got+m]
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read %s:%d: %w", r.seg.path, off, err)
	}
	return r.buf, nil
}

// sealedNext is the base of the next segment, as the seal frame b has it.
func sealedNext(b []byte) Pos { return Pos(binary.LittleEndian.Uint64(b[frameHeaderSize:])) }

package commitlog

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// Format of version 1; docs/format/commitlog.md has the diagrams. All numbers
// are little-endian.
const (
	magic         = "PERIGEE\n"
	formatVersion = 1

	segmentHeaderSize = 64
	frameHeaderSize   = 40
	sealPayloadSize   = 8
	sealFrameSize     = frameHeaderSize + sealPayloadSize

	// maxPayloadSize caps what a length field may claim, whatever the size of
	// the segment.
	maxPayloadSize = 1 << 30

	firstIndex = 1
)

// castagnoli is a lookup table, never written.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// segmentHeader is what the first 64 bytes of a segment say.
type segmentHeader struct {
	base  Pos    // position of the file's first byte
	index uint64 // index the first record of the segment has or will have
	term  uint64 // term of the last record before the segment; a floor
	salt  uint64 // random; mixed into the checksum of every frame
}

// seed is the checksum state that every frame of the segment starts from.
func (h segmentHeader) seed() uint32 {
	return crc32.Checksum(binary.LittleEndian.AppendUint64(nil, h.salt), castagnoli)
}

func (h segmentHeader) encode() []byte {
	b := make([]byte, segmentHeaderSize)
	copy(b, magic)
	binary.LittleEndian.PutUint32(b[8:], formatVersion)
	binary.LittleEndian.PutUint64(b[16:], uint64(h.base))
	binary.LittleEndian.PutUint64(b[24:], h.index)
	binary.LittleEndian.PutUint64(b[32:], h.term)
	binary.LittleEndian.PutUint64(b[40:], h.salt)
	binary.LittleEndian.PutUint32(b[60:], crc32.Checksum(b[:60], castagnoli))
	return b
}

// decodeSegmentHeader reads b, the first bytes of the file called name. The
// order is fixed: magic, then version, then the checksum, so that a foreign
// file, a file from the future and a damaged file are told apart.
func decodeSegmentHeader(name string, b []byte) (segmentHeader, error) {
	if len(b) < len(magic) || string(b[:len(magic)]) != magic {
		return segmentHeader{}, fmt.Errorf("%s: %w", name, ErrNotALog)
	}
	if len(b) < 12 {
		return segmentHeader{}, &CorruptionError{File: name, Reason: "segment header cut short"}
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v > formatVersion {
		return segmentHeader{}, ErrVersion{File: name, Version: v, Supported: formatVersion}
	} else if v == 0 {
		return segmentHeader{}, &CorruptionError{File: name, Offset: 8, Reason: "segment format version 0"}
	}
	if len(b) < segmentHeaderSize {
		return segmentHeader{}, &CorruptionError{File: name, Reason: "segment header cut short"}
	}
	if binary.LittleEndian.Uint32(b[60:]) != crc32.Checksum(b[:60], castagnoli) {
		return segmentHeader{}, &CorruptionError{File: name, Reason: "segment header checksum mismatch"}
	}
	return segmentHeader{
		base:  Pos(binary.LittleEndian.Uint64(b[16:])),
		index: binary.LittleEndian.Uint64(b[24:]),
		term:  binary.LittleEndian.Uint64(b[32:]),
		salt:  binary.LittleEndian.Uint64(b[40:]),
	}, nil
}

// tornHeader reports whether b, the first bytes of a segment without frames,
// may be what a crash left of the unfinished write of want: every byte that is
// known beforehand is either right or still zero. The term is not: a segment may begin
// a later one than that of the records before, and the first one begins any.
func tornHeader(b []byte, want segmentHeader) bool {
	w := want.encode()
	for i := range min(len(b), segmentHeaderSize) {
		free := i >= 32 && i < 48 || i >= 60 // term, salt and checksum
		if b[i] != 0 && b[i] != w[i] && !free {
			return false
		}
	}
	return true
}

// frameHeader is the fixed part of a frame.
type frameHeader struct {
	length int // of the payload
	kind   Kind
	index  uint64
	term   uint64
	synced Pos // everything below was durable when the frame was written
}

// size is what the whole frame takes in the file.
func (h frameHeader) size() int64 { return frameSize(h.length) }

// frameSize is the size of a frame around n payload bytes.
func frameSize(n int) int64 { return (int64(n) + frameHeaderSize + 7) &^ 7 }

// encodeFrame fills the header and both checksums of the frame b, whose payload
// and zero padding are in place already.
//
// The header's checksum covers the salt, the header and the frame's position,
// the frame's checksum goes on from there over payload and padding. Salt and
// position make a frame valid in one place only: bytes of a frame that travel
// inside a payload, by accident or on purpose, are never taken for a record.
func encodeFrame(b []byte, seed uint32, pos Pos, h frameHeader) {
	binary.LittleEndian.PutUint32(b[0:], uint32(h.length))
	b[4], b[5], b[6], b[7] = byte(h.kind), 0, 0, 0
	binary.LittleEndian.PutUint64(b[8:], h.index)
	binary.LittleEndian.PutUint64(b[16:], h.term)
	binary.LittleEndian.PutUint64(b[24:], uint64(h.synced))
	// The position stands where the checksums will, for as long as it is
	// summed: a buffer of its own would be allocated for every frame.
	binary.LittleEndian.PutUint64(b[32:], uint64(pos))
	crc := crc32.Update(seed, castagnoli, b[:frameHeaderSize])
	binary.LittleEndian.PutUint32(b[32:], crc)
	binary.LittleEndian.PutUint32(b[36:], crc32.Update(crc, castagnoli, b[frameHeaderSize:]))
}

// decodeFrameHeader reads the header of the frame at pos from the first bytes
// of b, which it leaves as they are. scratch is work space of frameHeaderSize
// bytes. A reason, when there is one, says why the header is not valid.
func decodeFrameHeader(b, scratch []byte, seed uint32, pos Pos) (h frameHeader, reason string) {
	if b[4] == 0 {
		return h, "no frame"
	}
	if b[5]|b[6]|b[7] != 0 {
		return h, "reserved bits set"
	}
	n := binary.LittleEndian.Uint32(b)
	if n > maxPayloadSize {
		return h, "frame length over the limit"
	}
	copy(scratch, b[:32])
	binary.LittleEndian.PutUint64(scratch[32:], uint64(pos))
	if binary.LittleEndian.Uint32(b[32:]) != crc32.Update(seed, castagnoli, scratch[:frameHeaderSize]) {
		return h, "frame header checksum mismatch"
	}
	return frameHeader{
		length: int(n),
		kind:   Kind(b[4]),
		index:  binary.LittleEndian.Uint64(b[8:]),
		term:   binary.LittleEndian.Uint64(b[16:]),
		synced: Pos(binary.LittleEndian.Uint64(b[24:])),
	}, ""
}

// frameIntact checks the checksum over the whole frame b, whose header has
// been found valid.
func frameIntact(b []byte) bool {
	crc := binary.LittleEndian.Uint32(b[32:])
	return binary.LittleEndian.Uint32(b[36:]) == crc32.Update(crc, castagnoli, b[frameHeaderSize:])
}

// chain is what the frames read so far demand of the next one.
type chain struct {
	index  uint64 // index the next record has
	term   uint64 // lowest term it may have
	synced Pos    // lowest durable position it may know
}

// check says what is wrong with h as the frame at pos, or nothing.
func (c *chain) check(h frameHeader, pos Pos) string {
	switch {
	case h.index != c.index:
		return fmt.Sprintf("index %d where %d follows", h.index, c.index)
	case h.term < c.term:
		return fmt.Sprintf("term %d after term %d", h.term, c.term)
	case h.synced > pos:
		return fmt.Sprintf("frame at %d claims to know %d durable", pos, h.synced)
	case h.synced < c.synced:
		return fmt.Sprintf("durable position %d after %d", h.synced, c.synced)
	case h.kind == kindSeal && h.length != sealPayloadSize:
		return fmt.Sprintf("seal of %d bytes", h.length)
	case h.kind > kindSeal:
		return fmt.Sprintf("unknown kind %d", h.kind)
	}
	return ""
}

// add moves the chain past h. The log's own frames take no index: records are
// numbered without a gap.
func (c *chain) add(h frameHeader) {
	if h.kind < kindReserved {
		c.index++
	}
	c.term, c.synced = h.term, h.synced
}

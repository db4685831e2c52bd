package commitlog

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func FuzzDecodeFrameHeader(f *testing.F) {
	h := segmentHeader{salt: 7}
	b := make([]byte, frameSize(5))
	copy(b[frameHeaderSize:], "hello")
	encodeFrame(b, h.seed(), 4096, frameHeader{length: 5, kind: 9, index: 3, term: 1, synced: 64})
	f.Add(b, uint64(7), uint64(4096))
	f.Add(make([]byte, 64), uint64(0), uint64(64))
	f.Fuzz(func(t *testing.T, b []byte, salt, pos uint64) {
		if len(b) < frameHeaderSize {
			return
		}
		seed := segmentHeader{salt: salt}.seed()
		before := bytes.Clone(b)
		got, reason := decodeFrameHeader(b, make([]byte, frameHeaderSize), seed, Pos(pos))
		require.Equal(t, before, b)
		if reason != "" {
			return
		}
		size := got.size()
		if int64(len(b)) < size || !frameIntact(b[:size]) {
			return
		}
		again := bytes.Clone(b[:size])
		clear(again[:frameHeaderSize])
		encodeFrame(again, seed, Pos(pos), got)
		require.Equal(t, b[:size], again)
	})
}

func FuzzDecodeSegmentHeader(f *testing.F) {
	f.Add(segmentHeader{base: 4096, index: 2, term: 1, salt: 9}.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := decodeSegmentHeader("x", b)
		if err != nil {
			require.True(t, isRefusal(err), "%v", err)
			return
		}
		// The reserved bytes are under the checksum and not looked at.
		again, err := decodeSegmentHeader("x", h.encode())
		require.NoError(t, err)
		require.Equal(t, h, again)
	})
}

// Arbitrary bytes, as a whole segment and behind a good header: opening them
// never panics, never invents a record, and either works or names the damage.
func FuzzOpenSegment(f *testing.F) {
	h := segmentHeader{base: 0, index: firstIndex, term: 1, salt: 5}
	good := h.encode()
	pos := Pos(segmentHeaderSize)
	for i := range uint64(3) {
		p := payloadFor(i+1, 20)
		b := make([]byte, frameSize(len(p)))
		copy(b[frameHeaderSize:], p)
		encodeFrame(b, h.seed(), pos, frameHeader{length: len(p), kind: kindFor(i + 1), index: i + 1, term: 1, synced: pos})
		good = append(good, b...)
		pos += Pos(len(b))
	}
	f.Add(good, false)
	f.Add(good[segmentHeaderSize:], true)
	f.Add(good[segmentHeaderSize:len(good)-3], true)
	f.Add(make([]byte, 200), false)
	f.Fuzz(func(t *testing.T, b []byte, behindHeader bool) {
		if behindHeader {
			b = append(h.encode(), b...)
		}
		files := map[string][]byte{segmentName(0): b}
		fs := memWith(t, "log", files)
		verr := Verify(fs, "log", nil)
		l, err := Open(Options{FS: fs, Dir: "log", ZeroFill: -1, Term: 1 << 63})
		if err != nil {
			require.True(t, isRefusal(err), "%v", err)
			require.Error(t, verr)
			require.Equal(t, files, snapshot(t, fs, "log"))
			return
		}
		require.NoError(t, verr)
		last := l.LastIndex()
		mustAppend(t, l, 11)
		n := uint64(0)
		require.NoError(t, l.Scan(0, func(Record) error { n++; return nil }))
		require.Equal(t, last+1, n)
		require.NoError(t, l.Close())
	})
}

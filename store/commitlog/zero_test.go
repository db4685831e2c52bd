package commitlog

import (
	"encoding/binary"
	"math/bits"
	"testing"

	"github.com/stretchr/testify/require"
)

// solve returns the 32 bits for which sum is 0. A checksum is linear: each bit
// flips the same bits of the sum, whatever the others are.
func solve(t *testing.T, sum func(x uint32) uint32) uint32 {
	t.Helper()
	zero := sum(0)
	var rows [32]struct{ sum, x uint32 } // by the highest bit of sum
	for i := range 32 {
		s, x := sum(1<<i)^zero, uint32(1)<<i
		for s != 0 {
			top := bits.Len32(s) - 1
			if rows[top].sum == 0 {
				rows[top].sum, rows[top].x = s, x
				break
			}
			s, x = s^rows[top].sum, x^rows[top].x
		}
	}
	left, x := zero, uint32(0)
	for left != 0 {
		top := bits.Len32(left) - 1
		require.NotZero(t, rows[top].sum, "no such bits")
		left, x = left^rows[top].sum, x^rows[top].x
	}
	require.Zero(t, sum(x))
	return x
}

func TestAChecksumOfZeroIsAChecksumLikeAnyOther(t *testing.T) {
	const seed, pos = 0x12345678, Pos(4096)
	scratch := make([]byte, frameHeaderSize)
	encode := func(index uint64, payload uint32) []byte {
		b := make([]byte, frameSize(4))
		binary.LittleEndian.PutUint32(b[frameHeaderSize:], payload)
		encodeFrame(b, seed, pos, frameHeader{length: 4, kind: 7, index: index, term: 1})
		return b
	}
	// Of the payload: the frame's own checksum.
	x := solve(t, func(x uint32) uint32 { return binary.LittleEndian.Uint32(encode(1, x)[36:]) })
	b := encode(1, x)
	require.Zero(t, binary.LittleEndian.Uint32(b[36:]))
	h, reason := decodeFrameHeader(b, scratch, seed, pos)
	require.Empty(t, reason)
	require.Equal(t, uint64(1), h.index)
	require.True(t, frameIntact(b))
	// Of the header: by way of the index.
	x = solve(t, func(x uint32) uint32 { return binary.LittleEndian.Uint32(encode(uint64(x), 5)[32:]) })
	b = encode(uint64(x), 5)
	require.Zero(t, binary.LittleEndian.Uint32(b[32:]))
	h, reason = decodeFrameHeader(b, scratch, seed, pos)
	require.Empty(t, reason)
	require.Equal(t, uint64(x), h.index)
	require.True(t, frameIntact(b))
	// And it is checked.
	for i := range len(b) {
		b[i] ^= 1
		_, reason := decodeFrameHeader(b, scratch, seed, pos)
		require.True(t, reason != "" || !frameIntact(b), "byte %d", i)
		b[i] ^= 1
	}
}

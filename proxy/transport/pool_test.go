package transport

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBuffersHaveTheirLengthAndComeBack(t *testing.T) {
	pool := NewBufferPool()
	for _, length := range []int{0, 1, 255, 256, 257, 34 << 10, 4 << 20, 4<<20 + 1} {
		buf := pool.Get(length)
		require.Len(t, *buf, length)
		require.Less(t, cap(*buf), 2*max(length, 256), "at most twice of what is needed")
		pool.Put(buf)
	}
	grown := make([]byte, 0, 3000)
	pool.Put(&grown) // a buffer that grew on its way is not kept
	require.Len(t, *pool.Get(3000), 3000)
}

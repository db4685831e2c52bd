package transport

import (
	"math/bits"
	"sync"

	"google.golang.org/grpc/mem"
)

const (
	smallestTier = 8  // 256 bytes
	largestTier  = 22 // 4 MiB; what is larger is left to the garbage collector
)

// bufferPool keeps buffers by powers of two, as they come back. gRPC's own pools
// clear a buffer whole when they hand it out, which for a request of 34 KiB is as
// much work as reading it; and the default one goes from 32 KiB to 1 MiB in one step.
// Whoever takes a buffer here fills it to its length.
type bufferPool struct {
	tiers [largestTier + 1]sync.Pool // of *[]byte with that capacity
}

// NewBufferPool returns a pool for everything that is filled before it is read, as
// frames, requests and responses are. The contents of a buffer it hands out are
// undefined.
func NewBufferPool() mem.BufferPool { return &bufferPool{} }

// Get implements mem.BufferPool.
func (p *bufferPool) Get(length int) *[]byte {
	tier := max(bits.Len(uint(max(length, 1)-1)), smallestTier)
	if tier > largestTier {
		buf := make([]byte, length)
		return &buf
	}
	if buf, ok := p.tiers[tier].Get().(*[]byte); ok {
		*buf = (*buf)[:length]
		return buf
	}
	buf := make([]byte, length, 1<<tier)
	return &buf
}

// Put implements mem.BufferPool.
func (p *bufferPool) Put(buf *[]byte) {
	tier := bits.Len(uint(cap(*buf))) - 1
	if tier < smallestTier || tier > largestTier || cap(*buf) != 1<<tier {
		return // not from here
	}
	p.tiers[tier].Put(buf)
}

package remote

import (
	"context"
	"runtime"
	"sync"

	"google.golang.org/grpc/mem"
)

// An outbox collects what is to be sent over a stream. Whatever waits goes as one
// message, so that many small calls cost about as much as one.
type outbox struct {
	mu     sync.Mutex
	wait   mem.BufferSlice
	bytes  int
	closed bool
	ready  chan struct{} // capacity 1
}

// Bounds of an outbox.
const (
	// frameBytes is what a message has at most, unless one call is longer.
	frameBytes = 1 << 20
	// smallBuffer is what an encoded call or answer without bodies fits in.
	smallBuffer = 512
)

var buffers = mem.DefaultBufferPool()

func newOutbox() *outbox { return &outbox{ready: make(chan struct{}, 1)} }

// build encodes fields of a message with fn into a buffer with room for size bytes.
func build(size int, fn func(w *builder)) mem.Buffer {
	buf := buffers.Get(size + smallBuffer)
	w := builder{(*buf)[:0]}
	fn(&w)
	*buf = w.b
	return mem.NewBuffer(buf, buffers)
}

// put adds the fields of a message and reports false, having freed them, when nothing
// is sent any more.
func (o *outbox) put(fields mem.Buffer) bool {
	o.mu.Lock()
	if o.closed {
		o.mu.Unlock()
		fields.Free()
		return false
	}
	o.wait = append(o.wait, fields)
	o.bytes += fields.Len()
	o.mu.Unlock()
	select {
	case o.ready <- struct{}{}:
	default:
	}
	return true
}

// take waits for something to send and returns it; nil when ctx ends first, or the outbox
// is closed and empty.
func (o *outbox) take(ctx context.Context) mem.BufferSlice {
	for {
		o.mu.Lock()
		n, bytes := 0, 0
		for n < len(o.wait) && (n == 0 || bytes+o.wait[n].Len() <= frameBytes) {
			bytes += o.wait[n].Len()
			n++
		}
		if n > 0 {
			next := o.wait[:n:n]
			o.bytes -= bytes
			if o.wait = o.wait[n:]; len(o.wait) == 0 {
				o.wait = nil
			}
			o.mu.Unlock()
			return next
		}
		closed := o.closed
		o.mu.Unlock()
		if closed {
			return nil
		}
		select {
		case <-o.ready:
			// Callers that are about to put something do it first: what goes together
			// costs about as much as one.
			runtime.Gosched()
		case <-ctx.Done():
			return nil
		}
	}
}

// close ends the outbox: what is in it can still be taken.
func (o *outbox) close() {
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	select {
	case o.ready <- struct{}{}:
	default:
	}
}

// drop frees what nobody will take.
func (o *outbox) drop() {
	o.close()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.wait.Free()
	o.wait, o.bytes = nil, 0
}

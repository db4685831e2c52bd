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
	freed  chan struct{} // capacity 1: less waits than before
}

// Bounds of an outbox.
const (
	// frameBytes is what a message has at most, unless one call is longer.
	frameBytes = 1 << 20
	// smallBuffer is what an encoded call or answer without bodies fits in.
	smallBuffer = 512
	// answersWait is how much a node has waiting for a proxy that does not take it when it
	// reads no more calls of it.
	answersWait = 16 << 20
)

var buffers = mem.DefaultBufferPool()

func newOutbox() *outbox {
	return &outbox{ready: make(chan struct{}, 1), freed: make(chan struct{}, 1)}
}

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
			o.less()
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
	o.less()
}

// less wakes who waits for room.
func (o *outbox) less() {
	select {
	case o.freed <- struct{}{}:
	default:
	}
}

// room waits until no more than limit bytes wait to be taken, or nothing is put in any more,
// or ctx ends. One goroutine at a time waits.
func (o *outbox) room(ctx context.Context, limit int) {
	for {
		o.mu.Lock()
		over := o.closed || o.bytes <= limit
		o.mu.Unlock()
		if over {
			return
		}
		select {
		case <-o.freed:
		case <-ctx.Done():
			return
		}
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

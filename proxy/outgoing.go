package proxy

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/mem"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/proxy/transport"
)

const (
	// grpcBuffer is what gRPC takes of a stream without a word when the client does
	// not read.
	grpcBuffer = 64 << 10
	// deliveryStall is how long a client may take for one message: a message of
	// 4 MiB needs 70 KB/s. SDKs give up a receive earlier.
	deliveryStall = time.Minute
)

// An outgoing watches over a delivery that is larger than what gRPC takes at once:
// it is under way until its last byte is in the hands of the connection, and when
// the client stops to read, the connection is cut. Ending the call would not do:
// gRPC keeps what it has taken for as long as the connection lives.
//
// It is the pool of the frames, because that is how gRPC tells what it has
// written. A nil one watches over nothing.
type outgoing struct {
	mem.BufferPool
	left    atomic.Int64 // frames that gRPC has, and one for the handler
	written chan struct{}
	stall   *time.Timer
}

// outgoing returns what watches over the delivery of got.
func (s *Server) outgoing(ctx context.Context, c client, got []mq.Delivery) *outgoing {
	bytes := 0
	for i := range got {
		bytes += got[i].Size()
	}
	if bytes <= grpcBuffer {
		return nil
	}
	o := &outgoing{BufferPool: s.frames, written: make(chan struct{})}
	o.left.Store(1)
	o.stall = time.AfterFunc(deliveryStall, func() {
		s.logger.WarnContext(ctx, "connection cut: its client does not read its messages", "client", mq.Shorten(c.ID), "peer", c.Host, "after", deliveryStall)
		transport.Cut(ctx)
	})
	return o
}

// Get implements mem.BufferPool.
func (o *outgoing) Get(size int) *[]byte {
	o.left.Add(1)
	return o.BufferPool.Get(size)
}

// Put implements mem.BufferPool. gRPC calls it when a frame is written.
func (o *outgoing) Put(buf *[]byte) {
	o.BufferPool.Put(buf)
	o.done()
}

func (o *outgoing) done() {
	if o.left.Add(-1) == 0 {
		close(o.written)
	}
}

// progress notes that gRPC has taken a frame.
func (o *outgoing) progress() {
	if o != nil {
		o.stall.Reset(deliveryStall)
	}
}

// drain waits until everything is written, or the call is over.
func (o *outgoing) drain(ctx context.Context) {
	if o == nil {
		return
	}
	o.done()
	select {
	case <-o.written:
	case <-ctx.Done():
	}
}

// stop ends the watch.
func (o *outgoing) stop() {
	if o != nil {
		o.stall.Stop()
	}
}

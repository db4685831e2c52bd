package remote

import (
	"context"
	"fmt"
	"time"

	"github.com/perigee-mq/perigee/mq"
)

// memoryWait is how long a call that has found messages waits for room to read them.
const memoryWait = 5 * time.Second

// A room is what one call holds of the memory for messages on their way to proxies. It
// belongs to the call's goroutine, until it is handed on.
type room struct {
	s     *Server
	bytes int64
}

func (s *Server) room() *room { return &room{s: s} }

// reserve implements mq.Receive.Reserve.
func (r *room) reserve(ctx context.Context, bytes int) error {
	r.release()
	n := min(int64(bytes), r.s.opts.DeliveryMemory)
	waiting, cancel := context.WithTimeout(ctx, memoryWait)
	defer cancel()
	if err := r.s.memory.Acquire(waiting, n); err != nil {
		return fmt.Errorf("%w: %d bytes of messages are on their way from the store node to proxies that do not take them (delivery_memory)",
			mq.ErrBusy, r.s.opts.DeliveryMemory)
	}
	r.bytes = n
	return nil
}

func (r *room) release() {
	r.s.memory.Release(r.bytes)
	r.bytes = 0
}

package proxy

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/perigee-mq/perigee/mq"
)

// budgetWait is how long a receive that has found messages waits for room to read
// them. They are leased meanwhile.
const budgetWait = 5 * time.Second

// A budget bounds the bytes of messages that are on their way to consumers. Each
// is in memory twice, as it is stored and in the frame that carries it, until the
// consumer's connection has taken it; consumers that read slowly, or not at all,
// would otherwise fill the memory of the process.
type budget struct {
	bytes int64
	free  *semaphore.Weighted

	held    atomic.Int64  // bytes that are not free
	refused atomic.Uint64 // shares that were not to be had
}

func newBudget(bytes int64) *budget {
	return &budget{bytes: bytes, free: semaphore.NewWeighted(bytes)}
}

// A share is what one call holds of a budget. It belongs to the call's goroutine.
type share struct {
	budget *budget
	bytes  int64
}

// reserve takes more of the budget, and waits for a while when there is not
// enough. It implements mq.Receive.Reserve.
func (s *share) reserve(ctx context.Context, bytes int) error {
	want := min(int64(bytes), s.budget.bytes) // what is larger than all of it goes alone
	if !s.budget.free.TryAcquire(want) {
		waiting, cancel := context.WithTimeout(ctx, budgetWait)
		defer cancel()
		if s.budget.free.Acquire(waiting, want) != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			s.budget.refused.Add(1)
			return fmt.Errorf("%w: %d bytes of messages are on their way to consumers that do not read them (delivery_memory)", mq.ErrBusy, s.budget.bytes)
		}
	}
	s.bytes += want
	s.budget.held.Add(want)
	return nil
}

// release gives back everything.
func (s *share) release() {
	if s.bytes > 0 {
		s.budget.held.Add(-s.bytes)
		s.budget.free.Release(s.bytes)
		s.bytes = 0
	}
}

package drive

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/perigee-mq/perigee/internal/loadgen"
)

// consumption ends a load of receives for which messages arrive by themselves.
type consumption struct {
	budget *budget
	start  time.Time
	taken  atomic.Int64
	done   atomic.Int64
	over   atomic.Bool
	end    atomic.Int64  // nanoseconds from start to the last acknowledgment
	last   chan struct{} // holds a token when all that count are acknowledged
}

// take says whether a message that has arrived still counts.
func (c *consumption) take() bool {
	if c.over.Load() || !c.budget.take(time.Now()) {
		c.over.Store(true)
		c.finish()
		return false
	}
	c.taken.Add(1)
	return true
}

// acked says that a message that was taken is acknowledged.
func (c *consumption) acked() {
	c.end.Store(int64(time.Since(c.start)))
	c.done.Add(1)
	if c.budget.counted && c.budget.left.Load() <= 0 {
		c.finish()
	}
}

func (c *consumption) finish() {
	if c.done.Load() < c.taken.Load() {
		return
	}
	select {
	case c.last <- struct{}{}:
	default:
	}
}

// await returns how long the load took until its last acknowledgment. It ends with the
// limit, or when the time is over because no more messages came.
func (c *consumption) await(ctx context.Context, l loadgen.Limit) time.Duration {
	if l.Duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, l.Duration)
		defer cancel()
	}
	select {
	case <-c.last:
	case <-ctx.Done():
	}
	c.over.Store(true)
	return time.Duration(c.end.Load())
}

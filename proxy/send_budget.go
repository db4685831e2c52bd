package proxy

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/perigee-mq/perigee/mq"
)

// sendWait is how long a request waits for room in the budget, sendQueue how
// many do. A queue that does not move within this time is overload, and clients
// that are told so well before their deadline can slow down or go elsewhere.
const (
	sendWait  = time.Second
	sendQueue = 1024
)

// Small requests have an eighth of the budget besides: they need not wait behind
// large ones, of which there may be many.
const (
	smallRequest = 64 << 10
	smallPart    = 8
)

// A sendBudget bounds the bytes of requests that are under way. Requests get room in
// the order in which they ask for it, small ones at once while there is some.
type sendBudget struct {
	limit int64 // 0: none

	mu struct {
		sync.Mutex
		used    int64
		waiting []*claim // in order
	}
}

// A claim is a request for n bytes that waits. granted is closed when it has them.
type claim struct {
	n       int64
	granted chan struct{}
}

// share is what a request of n bytes takes: no more than there is, so that the
// largest one gets its turn when it is alone.
func (b *sendBudget) share(n int) int64 { return min(int64(n), b.limit) }

// acquire takes room for n bytes, which the caller gives back with release. It
// waits a little when there is none; then the error wraps mq.ErrBusy.
func (b *sendBudget) acquire(ctx context.Context, n int) error {
	if b.limit == 0 {
		return nil
	}
	share := b.share(n)
	b.mu.Lock()
	if len(b.mu.waiting) == 0 && b.mu.used+share <= b.limit || share <= smallRequest && b.mu.used+share <= b.limit+b.limit/smallPart {
		b.mu.used += share
		b.mu.Unlock()
		return nil
	}
	if len(b.mu.waiting) >= sendQueue {
		b.mu.Unlock()
		return b.full()
	}
	c := &claim{n: share, granted: make(chan struct{})}
	b.mu.waiting = append(b.mu.waiting, c)
	b.mu.Unlock()

	timer := time.NewTimer(sendWait)
	defer timer.Stop()
	var err error
	select {
	case <-c.granted:
		return nil
	case <-timer.C:
		err = b.full()
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, other := range b.mu.waiting {
		if other == c {
			b.mu.waiting = append(b.mu.waiting[:i], b.mu.waiting[i+1:]...)
			b.grantLocked() // a smaller one behind it may fit
			return err
		}
	}
	return nil // granted meanwhile
}

func (b *sendBudget) full() error {
	return fmt.Errorf("sends of %d bytes are under way, which is as much as this server takes at a time: %w", b.limit, mq.ErrBusy)
}

// release gives back what acquire took for n bytes.
func (b *sendBudget) release(n int) {
	if b.limit == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.used -= b.share(n)
	b.grantLocked()
}

// grantLocked gives room to those that wait, while there is enough for the first.
func (b *sendBudget) grantLocked() {
	for len(b.mu.waiting) > 0 && b.mu.used+b.mu.waiting[0].n <= b.limit {
		c := b.mu.waiting[0]
		b.mu.waiting[0] = nil
		b.mu.waiting = b.mu.waiting[1:]
		b.mu.used += c.n
		close(c.granted)
	}
}

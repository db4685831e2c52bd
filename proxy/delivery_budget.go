package proxy

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/perigee-mq/perigee/mq"
)

const (
	// budgetWait is how long a receive that has found messages waits for room to read
	// them, at most. They are leased meanwhile, and not renewed yet: where the server
	// renews them, it is a third of their slice at most.
	budgetWait = 5 * time.Second
	// deliveryShare of the budget is for one connection, whose client may not read.
	deliveryShare = 2
)

// newDeliveryBudget returns what bounds the bytes of messages that are on their way to
// consumers. Each is in memory twice, as it is stored and in the frame that carries it,
// until the consumer's connection has taken it; consumers that read slowly, or not at
// all, would otherwise fill the memory of the process.
func newDeliveryBudget(bytes int64) *budget {
	return &budget{limit: bytes, most: bytes / deliveryShare}
}

// A share is what one receive holds of the budget of deliveries. It belongs to the
// call's goroutine.
type share struct {
	budget *budget
	conn   *account
	wait   time.Duration
	claim  *claim
	// found is when the messages were found, on whose way to the consumer this is: their
	// leases began just before.
	found time.Time
}

// shareOf returns the share of a receive.
func (s *Server) shareOf(c client, renews bool) *share {
	sh := &share{budget: s.deliveries, wait: budgetWait}
	if renews {
		sh.wait = min(sh.wait, s.opts.RenewSlice/3)
	}
	if a := accountsOf(c.conn); a != nil {
		sh.conn = &a.deliveries
	}
	return sh
}

// reserve takes room for messages, and waits for a while when there is not enough.
// Messages for which it did so before were not there any more. It implements
// mq.Receive.Reserve.
func (s *share) reserve(ctx context.Context, bytes int) (err error) {
	s.release()
	s.found = time.Now()
	s.claim, err = s.budget.acquire(ctx, s.conn, int64(bytes), s.wait)
	if errors.Is(err, errNoRoom) {
		return fmt.Errorf("%w: %d bytes of messages, or half as many on this connection, are on their way to consumers that do not read them (delivery_memory)",
			mq.ErrBusy, s.budget.limit)
	}
	return err
}

// release gives back everything.
func (s *share) release() {
	if s.claim != nil {
		s.claim.release()
		s.claim = nil
	}
}

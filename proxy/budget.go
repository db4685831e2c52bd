package proxy

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perigee-mq/perigee/proxy/transport"
)

// errNoRoom says that a budget had no room in time.
var errNoRoom = errors.New("no room")

// A budget bounds the bytes of calls that are under way. Calls get room in the order
// in which they ask for it. One connection gets most of it at the most, or one call of
// any size: what its peer does not read, or does not send, is not everybody's loss. A
// call that waits for its own connection holds up no other one.
//
// Small calls have a spare part besides, in their own order: they need not wait
// behind large ones, of which there may be many, and take no room from those that wait.
type budget struct {
	limit int64 // 0: none
	most  int64 // of one connection, the spare part aside
	small int64 // what counts as small
	spare int64
	queue int // how many may wait; 0: any number

	held    atomic.Int64  // bytes that are not free
	refused atomic.Uint64 // claims for which there was no room

	mu struct {
		sync.Mutex
		used    int64
		spared  int64    // of the spare part
		waiting []*claim // in order
		pass    uint64   // number of the latest pass over them
	}
}

// An account is what one connection holds of a budget. It is guarded by the budget's
// lock.
type account struct {
	held   int64
	passed uint64 // the pass in which a claim of it had to wait for the connection
}

// A claim is n bytes for one call. granted is closed when a claim that had to wait
// has them.
type claim struct {
	budget  *budget
	n       int64
	conn    *account // nil: not known
	spared  bool     // it is from the spare part
	granted chan struct{}
}

// turns says of one pass who has to wait behind somebody.
type turns struct{ all, small bool }

// acquire takes room for n bytes, which the caller gives back with release. It waits
// for a while when there is none; then the error is errNoRoom. What is larger than
// the budget takes all of it.
func (b *budget) acquire(ctx context.Context, conn *account, n int64, wait time.Duration) (*claim, error) {
	c := &claim{budget: b, n: min(n, b.limit), conn: conn}
	if b.limit == 0 {
		return c, nil
	}
	if b.enter(c) {
		return c, nil
	}
	if c.granted == nil { // too many wait
		b.refused.Add(1)
		return nil, errNoRoom
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	var err error
	select {
	case <-c.granted:
		return c, nil
	case <-timer.C:
		err = errNoRoom
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if !b.leave(c) {
		return c, nil // granted meanwhile
	}
	if errors.Is(err, errNoRoom) {
		b.refused.Add(1)
	}
	return nil, err
}

// enter grants the claim, or puts it behind those that wait, if it may wait.
func (b *budget) enter(c *claim) (granted bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.pass++
	var t turns
	for _, other := range b.mu.waiting {
		if t.behindAll(b) {
			break
		}
		t.behind(b, other)
	}
	if b.grantLocked(c, &t) {
		return true
	}
	if b.queue == 0 || len(b.mu.waiting) < b.queue {
		c.granted = make(chan struct{})
		b.mu.waiting = append(b.mu.waiting, c)
	}
	return false
}

// leave takes a claim out of those that wait, and reports whether it still did.
func (b *budget) leave(c *claim) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, other := range b.mu.waiting {
		if other == c {
			b.mu.waiting = append(b.mu.waiting[:i], b.mu.waiting[i+1:]...)
			b.passLocked() // others behind it may fit
			return true
		}
	}
	return false
}

// release gives back what acquire took.
func (c *claim) release() {
	b := c.budget
	if b.limit == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held.Add(-c.n)
	if c.spared {
		b.mu.spared -= c.n
	} else {
		b.mu.used -= c.n
		if c.conn != nil {
			c.conn.held -= c.n
		}
	}
	b.passLocked()
}

// passLocked gives room to those that wait, in order.
func (b *budget) passLocked() {
	b.mu.pass++
	waiting, kept := b.mu.waiting, b.mu.waiting[:0]
	var t turns
	for i, c := range waiting {
		if t.behindAll(b) {
			kept = append(kept, waiting[i:]...)
			break
		}
		if b.grantLocked(c, &t) {
			close(c.granted)
		} else {
			kept = append(kept, c)
		}
	}
	clear(waiting[len(kept):])
	b.mu.waiting = kept
}

// grantLocked gives the claim its room if there is enough and it is its turn.
func (b *budget) grantLocked(c *claim, t *turns) bool {
	switch {
	case !t.all && !b.waitsForItselfLocked(c) && b.mu.used+c.n <= b.limit:
		b.mu.used += c.n
		if c.conn != nil {
			c.conn.held += c.n
		}
	case b.isSmall(c) && !t.small && b.mu.spared+c.n <= b.spare:
		b.mu.spared += c.n
		c.spared = true
	default:
		t.behind(b, c)
		return false
	}
	b.held.Add(c.n)
	return true
}

// behindAll reports whether nobody who comes now can have his turn.
func (t *turns) behindAll(b *budget) bool { return t.all && (t.small || b.spare == 0) }

// behind notes that the others come behind a claim that waits.
func (t *turns) behind(b *budget, c *claim) {
	if b.isSmall(c) {
		t.small = true
	}
	if b.waitsForItselfLocked(c) {
		c.conn.passed = b.mu.pass // the others of the connection wait too
	} else {
		t.all = true
	}
}

// waitsForItselfLocked reports whether the claim's own connection holds so much that it
// has to wait for that.
func (b *budget) waitsForItselfLocked(c *claim) bool {
	return c.conn != nil && (c.conn.passed == b.mu.pass || c.conn.held > 0 && c.conn.held+c.n > b.most)
}

func (b *budget) isSmall(c *claim) bool { return c.n <= b.small && c.n <= b.spare }

// accounts are what one connection holds of the budgets.
type accounts struct{ sends, deliveries account }

// accountsOf returns those of the connection; nil when the handler was called directly.
func accountsOf(conn *transport.Connection) *accounts {
	if conn == nil {
		return nil
	}
	return &conn.Attached(newPeers).(*peers).accounts
}

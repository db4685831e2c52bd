package store

import (
	"container/heap"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perigee-mq/perigee/mq"
)

// orphanPart is which part of the time that a lease was renewed for is left when it counts as
// an orphan: proxies renew with a third left.
const orphanPart = 4

// holders remembers for which clients proxies renew leases, so that another proxy can go on
// when one of them is gone. It says nothing about whether a lease is still good: that is for
// the machine to say when somebody changes it. So what it holds too much costs memory, some
// 400 bytes for each lease until the time is over for which it was renewed, and what it
// forgets is not taken over. A restart forgets all; it is known again with the next renewal.
//
// Deliveries that were never renewed are not here, so that those which are settled soon cost
// nothing.
type holders struct {
	start time.Time    // times are counted from here, on the monotonic clock
	count atomic.Int64 // of the leases, to be looked at without the lock
	mu    struct {
		sync.Mutex
		leases  map[mq.Lease]*holding
		clients map[string]*holding // the first of each client's list
		due     holdingHeap
	}
}

// A holding is a lease that a client holds. It is in leases, in the list of its client and in
// the heap.
type holding struct {
	lease      mq.Lease
	client     string
	keeper     mq.KeeperID
	prev, next *holding
	due        time.Duration // when it counts as an orphan
	until      time.Duration // when the lease ends
	at         int           // in the heap
}

func newHolders() *holders {
	h := &holders{start: time.Now()}
	h.mu.leases, h.mu.clients = map[mq.Lease]*holding{}, map[string]*holding{}
	return h
}

func (h *holders) now() time.Duration { return time.Since(h.start) }

// none reports whether there is no lease, which most of the time there is not.
func (h *holders) none() bool { return h.count.Load() == 0 }

// drop forgets a lease that is over, or begins anew.
func (h *holders) drop(l mq.Lease) {
	if !l.AutoRenew || h.none() {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dropLocked(l)
}

func (h *holders) dropLocked(l mq.Lease) {
	if e := h.mu.leases[l]; e != nil {
		heap.Remove(&h.mu.due, e.at)
		h.forgetLocked(e)
	}
}

// forgetLocked forgets a lease that is not in the heap.
func (h *holders) forgetLocked(e *holding) {
	delete(h.mu.leases, e.lease)
	h.count.Add(-1)
	switch {
	case e.prev != nil:
		e.prev.next = e.next
	case e.next != nil:
		h.mu.clients[e.client] = e.next
	default:
		delete(h.mu.clients, e.client)
	}
	if e.next != nil {
		e.next.prev = e.prev
	}
	e.prev, e.next = nil, nil
}

// takenOver returns which of the changes are by a proxy whose lease another one has taken over.
func (h *holders) takenOver(changes []mq.LeaseChange) (places []int) {
	if h.none() {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	for i := range changes {
		c := &changes[i]
		if c.Keeper == 0 {
			continue
		}
		if e := h.mu.leases[c.Lease]; e != nil && e.keeper != c.Keeper && e.due > now {
			places = append(places, i)
		}
	}
	return places
}

// renewed notes that the lease was renewed for a client that has the message.
func (h *holders) renewed(c *mq.LeaseChange) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	h.expireLocked(now)
	e := h.mu.leases[c.Lease]
	if e != nil && e.keeper != c.Keeper && e.due > now {
		return // it was taken over in this moment
	}
	if e != nil && e.client != c.Holder {
		h.dropLocked(c.Lease)
		e = nil
	}
	if e == nil {
		e = &holding{lease: c.Lease, client: c.Holder}
		if e.next = h.mu.clients[c.Holder]; e.next != nil {
			e.next.prev = e
		}
		h.mu.leases[e.lease], h.mu.clients[e.client] = e, e
		h.count.Add(1)
		heap.Push(&h.mu.due, e)
	}
	e.keeper = c.Keeper
	h.keptLocked(e, now, c.Invisible)
	if c.Orphaned {
		e.due = now
		heap.Fix(&h.mu.due, e.at)
	}
}

// keptLocked notes that a lease was renewed now.
func (h *holders) keptLocked(e *holding, now, invisible time.Duration) {
	e.due, e.until = now+invisible-invisible/orphanPart, now+invisible
	heap.Fix(&h.mu.due, e.at)
}

// expireLocked forgets what is over and first in the heap.
func (h *holders) expireLocked(now time.Duration) {
	for len(h.mu.due) > 0 && h.mu.due[0].until <= now {
		h.forgetLocked(heap.Pop(&h.mu.due).(*holding))
	}
}

// orphans returns the clients that hold orphans, in no order and not more than fit into so
// many bytes.
func (h *holders) orphans(most int) []string {
	if h.none() {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	h.expireLocked(now)
	found := map[string]bool{}
	h.mu.due.until(0, now, func(e *holding) {
		if e.until > now {
			found[e.client] = true
		}
	})
	var clients []string
	for client := range found { // others the next time, when there are too many
		if most -= len(client); most < 0 {
			break
		}
		clients = append(clients, client)
	}
	return clients
}

// claim makes up to most orphans of the clients those of the keeper, and returns how to renew
// them. Nobody else can claim them before they are orphans again.
func (h *holders) claim(a *mq.Adoption, most int) (changes []mq.LeaseChange) {
	if h.none() {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	for _, client := range a.Clients {
		for e := h.mu.clients[client]; e != nil && len(changes) < most; e = e.next {
			if e.due > now || e.until <= now {
				continue
			}
			changes = append(changes, mq.LeaseChange{
				Lease: e.lease, Invisible: a.Invisible, Reason: mq.Renew, Keeper: a.Keeper, Holder: client,
			})
			e.keeper = a.Keeper
			h.keptLocked(e, now, a.Invisible)
		}
	}
	return changes
}

// unclaim makes a lease an orphan again that could not be renewed.
func (h *holders) unclaim(l mq.Lease, keeper mq.KeeperID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e := h.mu.leases[l]; e != nil && e.keeper == keeper {
		e.due = h.now()
		heap.Fix(&h.mu.due, e.at)
	}
}

// holdingHeap orders leases by when they count as orphans.
type holdingHeap []*holding

// until calls fn for everything below place i that is due by then.
func (h holdingHeap) until(i int, then time.Duration, fn func(*holding)) {
	if i >= len(h) || h[i].due > then {
		return
	}
	fn(h[i])
	h.until(2*i+1, then, fn)
	h.until(2*i+2, then, fn)
}

func (h holdingHeap) Len() int           { return len(h) }
func (h holdingHeap) Less(i, j int) bool { return h[i].due < h[j].due }

func (h holdingHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

// Push implements heap.Interface.
func (h *holdingHeap) Push(x any) {
	e := x.(*holding)
	e.at = len(*h)
	*h = append(*h, e)
}

// Pop implements heap.Interface.
func (h *holdingHeap) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return e
}

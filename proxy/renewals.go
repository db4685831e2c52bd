package proxy

import (
	"container/heap"
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perigee-mq/perigee/mq"
)

// renewBatch bounds how many leases one call to the store changes.
const renewBatch = 512

// maxRenewFailures is how often in a row renewing a lease may fail.
const maxRenewFailures = 3

// renewals keeps alive the leases of clients that asked for it: each one is
// renewed for a slice when a third of the slice before is left, as long as the
// client has a session and until the limit after the delivery; the delivery then
// counts as failed. A lease that is over is dropped when the store says so, so
// that a settlement and a renewal may meet in any order.
//
// It remembers some 300 bytes for each lease. When the process dies, the messages come
// back at the end of their slice; one that is stopped leaves them a whole slice. Another
// proxy goes on with those that their clients are known to have, see adopter. While nothing
// is due, nothing runs.
type renewals struct {
	server *Server
	keeper mq.KeeperID // in the eyes of the store; 0: nobody could go on
	start  time.Time   // times are counted from here, on the monotonic clock
	wake   chan struct{}
	cancel context.CancelFunc
	done   sync.WaitGroup
	closed sync.Once

	renewed atomic.Uint64 // leases, each time
	adopted atomic.Uint64 // leases

	mu struct { // guards the renewals too
		sync.Mutex
		leases  map[mq.Lease]*renewal
		clients map[string]*renewal // the first of each client's list
		due     map[string]*dueLine // by shard; without those that have nothing
	}
}

// A dueLine has the leases of one shard, so that a shard which does not answer holds up no
// other one.
type dueLine struct {
	due   dueHeap
	batch chan struct{} // closed when the batch in the store's hands is back; nil: there is none
}

// A renewal is one lease. It is in leases and in the list of its client, and in
// the heap of its shard unless it is in a batch or held.
type renewal struct {
	lease      mq.Lease
	client     string
	group      *mq.Group
	link       *link // over which it was delivered; nil: not known
	arrived    bool  // its client is known to have it
	prev, next *renewal
	due        time.Duration
	limit      time.Duration
	at         int // in the heap
	failures   uint8
	batched    bool
	held       bool
	lost       bool // it may never have arrived
	suspicion  suspicion
	// judged is what was to be judged when it went into the batch; the batch's own.
	judged struct {
		lost      bool
		limit     time.Duration
		suspicion suspicion
		passage   passage
	}
}

func newRenewals(s *Server) *renewals {
	ctx, cancel := context.WithCancel(context.Background())
	r := &renewals{server: s, start: time.Now(), wake: make(chan struct{}, 1), cancel: cancel}
	for s.opts.Handover != nil && r.keeper == 0 {
		r.keeper = mq.KeeperID(rand.Uint64())
	}
	r.mu.leases = map[mq.Lease]*renewal{}
	r.mu.clients = map[string]*renewal{}
	r.mu.due = map[string]*dueLine{}
	r.done.Go(func() { r.run(ctx) })
	return r
}

// close ends all renewing, after a last time. It waits for the calls to the store.
func (r *renewals) close() {
	r.closed.Do(func() {
		r.cancel()
		r.done.Wait()
		r.renewAll()
	})
}

func (r *renewals) now() time.Duration { return time.Since(r.start) }

// len returns the number of leases that are kept alive.
func (r *renewals) len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.mu.leases)
}

// of returns the number of leases that are kept alive for the client.
func (r *renewals) of(client string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for e := r.mu.clients[client]; e != nil; e = e.next {
		n++
	}
	return n
}

// add starts to renew deliveries to the client that were found at that time.
func (r *renewals) add(c client, group *mq.Group, got []mq.Delivery, found time.Time) {
	link := r.server.linkOf(c)
	now := r.now()
	leased := now
	if !found.IsZero() { // else the store did not say
		leased = min(max(found.Sub(r.start), 0), now)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range got {
		if e := r.mu.leases[got[i].Lease]; e != nil {
			// Delivered once more to the same attempt: what was lost before no longer counts.
			e.link, e.arrived, e.lost, e.suspicion = link, false, false, suspicion{}
			e.limit = now + r.server.opts.RenewLimit
			continue
		}
		e := &renewal{lease: got[i].Lease, client: c.ID, group: group, link: link, limit: now + r.server.opts.RenewLimit}
		r.insertLocked(e)
		r.scheduleLocked(e, leased+r.first())
	}
}

func (r *renewals) insertLocked(e *renewal) {
	r.mu.leases[e.lease] = e
	if e.next = r.mu.clients[e.client]; e.next != nil {
		e.next.prev = e
	}
	r.mu.clients[e.client] = e
}

// first is how long after a delivery the first renewal is due, and the next one while it is
// not known whether the client has the message. Where another proxy could go on it is early:
// only then does the store learn whose the lease is. What shows it are heartbeats, which most
// SDKs send every ten seconds.
func (r *renewals) first() time.Duration {
	if r.keeper == 0 {
		return r.ahead()
	}
	return r.server.opts.RenewSlice / 4
}

// ahead is how long after one renewal the next one is due.
func (r *renewals) ahead() time.Duration {
	slice := r.server.opts.RenewSlice
	return slice - slice/3
}

func (r *renewals) scheduleLocked(e *renewal, due time.Duration) {
	e.due = due
	if e.limit > r.now() { // else giving it up is what has to be tried again
		e.due = min(due, e.limit)
	}
	if e.suspicion.loss != 0 {
		e.due = min(e.due, e.suspicion.judge)
	}
	l := r.mu.due[e.lease.Shard]
	if l == nil {
		l = &dueLine{}
		r.mu.due[e.lease.Shard] = l
	}
	heap.Push(&l.due, e)
	if e.at == 0 {
		r.look()
	}
}

// look makes run look for what is due.
func (r *renewals) look() {
	select {
	case r.wake <- struct{}{}:
	default: // it will look anyway
	}
}

// unscheduleLocked takes a renewal out of the heap.
func (r *renewals) unscheduleLocked(e *renewal) {
	heap.Remove(&r.mu.due[e.lease.Shard].due, e.at)
	r.tidyLocked(e.lease.Shard)
}

// tidyLocked forgets the line of a shard that has nothing.
func (r *renewals) tidyLocked(shard string) {
	if l := r.mu.due[shard]; l != nil && len(l.due) == 0 && l.batch == nil {
		delete(r.mu.due, shard)
	}
}

func (r *renewals) removeLocked(e *renewal) {
	if e.scheduled() {
		r.unscheduleLocked(e)
	}
	delete(r.mu.leases, e.lease)
	switch {
	case e.prev != nil:
		e.prev.next = e.next
	case e.next != nil:
		r.mu.clients[e.client] = e.next
	default:
		delete(r.mu.clients, e.client)
	}
	if e.next != nil {
		e.next.prev = e.prev
	}
	e.prev, e.next = nil, nil
}

func (e *renewal) scheduled() bool { return !e.batched && !e.held }

// drop ends the renewal of a lease that is over.
func (r *renewals) drop(l mq.Lease) {
	if !l.AutoRenew {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.mu.leases[l]; e != nil {
		r.removeLocked(e)
	}
}

// dropAll ends the renewal of leases that the caller is about to change, and
// waits until the store is through with a renewal of any of them.
func (r *renewals) dropAll(ctx context.Context, changes []mq.LeaseChange) {
	r.mu.Lock()
	batches := map[string]chan struct{}{}
	for i := range changes {
		if e := r.mu.leases[changes[i].Lease]; e != nil {
			if e.batched {
				batches[e.lease.Shard] = r.mu.due[e.lease.Shard].batch
			}
			r.removeLocked(e)
		}
	}
	r.mu.Unlock()
	for _, batch := range batches {
		await(ctx, batch)
	}
}

// end ends the renewal of everything the client holds, lets it come back after
// the given time, and returns how many messages that are.
func (r *renewals) end(ctx context.Context, client string, invisible time.Duration) int {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), takeBackTimeout)
	defer cancel()
	r.mu.Lock()
	var changes []mq.LeaseChange
	for e := r.mu.clients[client]; e != nil; e = e.next {
		changes = append(changes, mq.LeaseChange{Lease: e.lease, Invisible: invisible, Reason: mq.Extend, Keeper: r.keeper})
	}
	r.mu.Unlock()
	r.dropAll(ctx, changes)
	for rest := changes; len(rest) > 0; {
		n := min(len(rest), renewBatch)
		logUnexpected(ctx, r.server.logger, "messages not taken back", r.server.store.ChangeInvisible(ctx, rest[:n]))
		rest = rest[n:]
	}
	return len(changes)
}

// A heldRenewal is a lease that is not renewed while its holder changes it.
type heldRenewal struct {
	renewals *renewals
	renewal  *renewal // nil: there is nothing to hold
	second   bool     // somebody else holds it and decides whether it goes on
}

// hold stops the renewal of a lease and waits until the store is through with
// one that is under way. The caller ends with drop or resume.
func (r *renewals) hold(ctx context.Context, l mq.Lease) heldRenewal {
	r.mu.Lock()
	e := r.mu.leases[l]
	if e == nil {
		r.mu.Unlock()
		return heldRenewal{renewals: r, second: true}
	}
	var batch chan struct{}
	second := e.held
	switch {
	case e.batched:
		batch = r.mu.due[l.Shard].batch
	case !second:
		r.unscheduleLocked(e)
	}
	e.held = true
	r.mu.Unlock()
	await(ctx, batch)
	return heldRenewal{renewals: r, renewal: e, second: second}
}

// drop ends the renewal for good.
func (h heldRenewal) drop() {
	if h.renewal == nil {
		return
	}
	h.renewals.mu.Lock()
	defer h.renewals.mu.Unlock()
	if h.renewals.mu.leases[h.renewal.lease] == h.renewal {
		h.renewals.removeLocked(h.renewal)
	}
}

// resume goes on renewing.
func (h heldRenewal) resume() {
	if h.renewal == nil || h.second {
		return
	}
	r, e := h.renewals, h.renewal
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.leases[e.lease] != e { // ended meanwhile
		return
	}
	e.held = false
	if !e.batched { // else it is scheduled when the batch is back
		r.scheduleLocked(e, r.now())
	}
}

// await waits for the batch, if any, unless ctx ends first.
func await(ctx context.Context, batch <-chan struct{}) {
	if batch == nil {
		return
	}
	select {
	case <-batch:
	case <-ctx.Done():
	}
}

// dueHeap orders renewals by when they are due.
type dueHeap []*renewal

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].due < h[j].due }

func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

// Push implements heap.Interface.
func (h *dueHeap) Push(x any) {
	e := x.(*renewal)
	e.at = len(*h)
	*h = append(*h, e)
}

// Pop implements heap.Interface.
func (h *dueHeap) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return e
}

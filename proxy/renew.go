package proxy

import (
	"container/heap"
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/perigee-mq/perigee/mq"
)

// run renews what is due until ctx ends.
func (r *renewals) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Stop()
		if wait, some := r.untilNext(); some {
			timer.Reset(wait)
		}
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
			continue
		case <-timer.C:
		}
		for ctx.Err() == nil { // what is taken is lost to renewAll
			batch := r.take()
			if len(batch) == 0 {
				break
			}
			r.done.Go(func() { r.renew(ctx, batch) })
		}
	}
}

// untilNext returns when the next renewal of a shard is due that has no batch in its hands.
func (r *renewals) untilNext() (wait time.Duration, some bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	first := time.Duration(math.MaxInt64)
	for _, l := range r.mu.due {
		if l.batch == nil && len(l.due) > 0 {
			first, some = min(first, l.due[0].due), true
		}
	}
	if !some {
		return 0, false
	}
	return max(first-r.now(), 0), true
}

// take takes the renewals of one shard that are due now or shortly out of its heap: those
// that were delivered in one second are renewed in one call. A batch that is
// taken must be renewed; until it is, there is no other one of the shard.
func (r *renewals) take() []*renewal {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	for _, l := range r.mu.due {
		if l.batch == nil && len(l.due) > 0 && l.due[0].due <= now {
			return r.takeLocked(l, now)
		}
	}
	return nil
}

func (r *renewals) takeLocked(l *dueLine, now time.Duration) (batch []*renewal) {
	until := now + r.server.opts.RenewSlice/60
	for len(l.due) > 0 && len(batch) < renewBatch {
		e := l.due[0]
		early := e.due > now
		if e.due > until || early && (e.due == e.limit || e.suspicion.loss != 0) {
			break
		}
		heap.Pop(&l.due)
		e.batched = true
		e.judged.lost = e.lost
		e.judged.limit = e.limit
		e.judged.passage = r.passageOf(e)
		e.judged.suspicion = e.suspicion.take(now)
		batch = append(batch, e)
	}
	l.batch = make(chan struct{})
	return batch
}

// renew changes the leases of a batch and schedules what goes on.
func (r *renewals) renew(ctx context.Context, batch []*renewal) {
	// A store that does not answer must not hold up its other leases for so long that they
	// end.
	ctx, cancel := context.WithTimeout(ctx, r.server.opts.RenewSlice/6)
	defer cancel()
	now := r.now()
	changes := make([]mq.LeaseChange, len(batch))
	for i, e := range batch {
		changes[i] = r.changeOf(ctx, e, now)
	}
	results := r.server.store.ChangeInvisible(ctx, changes)
	logUnexpected(ctx, r.server.logger, "leases not renewed", results)

	r.mu.Lock()
	defer r.mu.Unlock()
	now = r.now()
	for i, e := range batch {
		e.batched = false
		if r.mu.leases[e.lease] != e {
			continue // dropped meanwhile
		}
		goesOn := changes[i].Reason == mq.Renew
		due := now + r.ahead()
		if err := results[i]; err == nil {
			e.failures = 0
			if changes[i].Holder == "" { // it is not known yet whether the client has it
				due = now + r.first()
			} else if r.passageOf(e) == e.judged.passage {
				e.arrived = true
			}
			if goesOn {
				r.renewed.Add(1)
			}
		} else {
			e.failures++
			goesOn = !leaseOver(err) && e.failures <= maxRenewFailures
			due = now + r.server.opts.RenewSlice/15
			e.suspicion.putBack(e.judged.suspicion, due)
		}
		if e.lost && !e.judged.lost { // since
			due = now
		}
		switch {
		case e.held:
			// Its holder drops or resumes it.
		case goesOn:
			r.scheduleLocked(e, due)
		default:
			e.held = true // in no heap
			r.removeLocked(e)
		}
	}
	shard := batch[0].lease.Shard
	close(r.mu.due[shard].batch)
	r.mu.due[shard].batch = nil
	r.tidyLocked(shard)
	r.look()
}

// changeOf says what becomes of a lease that is due.
func (r *renewals) changeOf(ctx context.Context, e *renewal, now time.Duration) mq.LeaseChange {
	c := mq.LeaseChange{Lease: e.lease, Reason: mq.Renew, Invisible: r.server.opts.RenewSlice, Keeper: r.keeper}
	switch {
	case now >= e.judged.limit:
		c.Reason, c.Invisible = mq.Nack, r.server.giveUpDelay(ctx, e.group, e.lease.Attempt)
	case e.judged.lost:
		c.Reason, c.Invisible = mq.Extend, lostInvisible
	case !r.alive(e, now):
		c.Reason, c.Invisible = mq.Extend, deadInvisible
	default:
		c.Holder = r.holder(e, e.judged.passage, now)
	}
	return c
}

// renewAll gives what clients hold a whole slice from now on: nobody renews it any
// more, and handlers at work need the time to settle it elsewhere, or their clients to find
// a proxy that goes on. It does not wait long for a store in trouble.
func (r *renewals) renewAll() {
	ctx, cancel := context.WithTimeout(context.Background(), takeBackTimeout)
	defer cancel()
	r.mu.Lock()
	now := r.now()
	var held []*renewal
	for _, l := range r.mu.due {
		for _, e := range l.due {
			if !e.lost && e.suspicion.loss == 0 && now < e.limit {
				e.judged.passage = r.passageOf(e)
				held = append(held, e)
			}
		}
	}
	r.mu.Unlock()
	changes := map[string][]mq.LeaseChange{}
	for _, e := range held {
		changes[e.lease.Shard] = append(changes[e.lease.Shard], mq.LeaseChange{
			Lease: e.lease, Reason: mq.Renew, Invisible: r.server.opts.RenewSlice,
			Keeper: r.keeper, Holder: r.holder(e, e.judged.passage, now), Orphaned: true,
		})
	}
	var renewing sync.WaitGroup
	for _, of := range changes {
		renewing.Go(func() {
			for batch := range slices.Chunk(of, renewBatch) {
				logUnexpected(ctx, r.server.logger, "leases not renewed", r.server.store.ChangeInvisible(ctx, batch))
				if ctx.Err() != nil {
					return
				}
			}
		})
	}
	renewing.Wait()
}

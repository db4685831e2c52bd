package shard

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/perigee-mq/perigee/internal/histogram"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/machine"
)

// A burst of delayed messages that are due is taken in slices, so that other requests
// wait for one slice and not for the burst.
const (
	// timedPage is how many are looked for at a time.
	timedPage = 1024
	// timedMost and timedBytes are how many one command delivers at most. One message is
	// delivered whatever its size.
	timedMost  = 512
	timedBytes = 2 << 20
	// timedTime is how long one command takes while there are other requests, and
	// timedLeast what it delivers even so.
	timedTime  = time.Millisecond
	timedLeast = 16
)

const (
	// A step of the wall clock may go unnoticed for a part of the time until something is
	// due, and for as long as this at least and at most: the timers of the runtime
	// know nothing of it.
	wallPart      = 16
	leastUnawares = time.Second
	mostUnawares  = 10 * time.Second
	// stuckCheck is how often the shard looks for what is due while a message that is
	// due cannot be delivered.
	stuckCheck = 100 * time.Millisecond
	// retryFull is how long delivery waits when the disk has no room.
	retryFull = time.Second
)

// timed is what the loop and the goroutine that delivers delayed messages share.
type timed struct {
	// next is a time, by the wall clock, before which none is due. It is set in the loop:
	// by a look of the goroutine, and when an earlier one comes.
	next  atomic.Int64
	wake  chan struct{} // capacity 1: next is earlier than it was
	cost  atomic.Int64  // nanoseconds of delivering one, lately; the loop sets it
	other atomic.Uint64 // grows with each round that has requests of others

	fired, unreadable atomic.Uint64
	late              histogram.Histogram
}

// took notes how long it took to deliver n messages.
func (t *timed) took(d time.Duration, n int) {
	if n > 0 {
		cost := t.cost.Load()
		t.cost.Store(cost + (int64(d)/int64(n)-cost)/4)
	}
}

// A timedSlice is what one command delivers.
type timedSlice struct {
	messages []command.PendingMessage
	at       []int64 // when each was to be delivered
	r        *request
}

// A timedDelivery is what the goroutine knows.
type timedDelivery struct {
	s *Shard
	// stuck are the messages that are due and could not be read.
	stuck map[mq.PendingID]stuckLetter
	other uint64 // timed.other when the last slice was made
	full  bool   // it has told that there is no room
}

// deliverTimed is the goroutine that delivers delayed messages. One that cannot be
// delivered is tried again later and never holds up the others.
func (s *Shard) deliverTimed() {
	d := &timedDelivery{s: s, stuck: map[mq.PendingID]stuckLetter{}}
	s.background(s.timed.wake, func() (time.Duration, error) {
		wait, err := d.pass()
		if errors.Is(err, mq.ErrStoreFull) {
			if !d.full {
				s.logger.Warn("delayed messages wait for room on the disk", "error", err)
			}
			d.full = true
			return retryFull, nil
		}
		d.full = d.full && err != nil
		return wait, err
	})
}

// pass delivers what is due, and returns how long to wait for more.
func (d *timedDelivery) pass() (time.Duration, error) {
	if len(d.stuck) == 0 && d.s.wall() < d.s.timed.next.Load() {
		return d.wait(), nil
	}
	for {
		n, err := d.sweep()
		if err != nil {
			return 0, err
		}
		if n == 0 {
			return d.wait(), nil
		}
	}
}

// wait returns how long nothing is to be done, unless somebody wakes the goroutine.
func (d *timedDelivery) wait() time.Duration {
	if len(d.stuck) > 0 {
		return stuckCheck
	}
	next := d.s.timed.next.Load()
	if next == math.MaxInt64 {
		return math.MaxInt64
	}
	left := max(time.Duration(next-d.s.wall()), 0)
	return min(left, max(leastUnawares, min(left/wallPart, mostUnawares)))
}

// sweep goes once through what is due, and returns how many messages it has tried to
// deliver. One slice is read while the one before is under way.
func (d *timedDelivery) sweep() (tried int, err error) {
	var from machine.PendingMark
	var under *timedSlice
	defer func() { err = errors.Join(err, d.await(under)) }()
	for {
		now := d.s.wall()
		page, crowded, err := d.look(from, now)
		if err != nil || len(page) == 0 {
			return tried, err
		}
		for len(page) > 0 {
			slice, n := d.read(page[:min(d.most(crowded), len(page))])
			from, page = page[n-1].Next(), page[n:]
			err := d.await(under)
			if under = nil; err != nil {
				return tried, err
			}
			if len(slice.messages) == 0 {
				continue
			}
			tried += len(slice.messages)
			if err := d.send(&slice, now); err != nil {
				return tried, err
			}
			under = &slice
			if crowded {
				if err := d.pause(expirePause); err != nil {
					return tried, err
				}
			}
		}
	}
}

// look returns the next messages that are due, and notes when to look again.
func (d *timedDelivery) look(from machine.PendingMark, now int64) (page []machine.PendingMark, crowded bool, err error) {
	err = d.s.look(context.Background(), func(m *machine.Machine) error {
		crowded = d.s.crowded
		due, next, err := m.PendingDue(keyspace.Timed, now)
		d.s.timed.next.Store(next)
		if due && err == nil {
			page, err = m.DuePending(keyspace.Timed, from, now, timedPage)
		}
		return err
	})
	return page, crowded, err
}

// most returns how many messages the next slice may have.
func (d *timedDelivery) most(crowded bool) int {
	other := d.s.timed.other.Load()
	alone := other == d.other && !crowded
	d.other = other
	cost := d.s.timed.cost.Load()
	if alone || cost <= 0 {
		return timedMost
	}
	return min(max(int(int64(timedTime)/cost), timedLeast), timedMost)
}

// pause lets the views get rid of what they have.
func (d *timedDelivery) pause(wait time.Duration) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-d.s.closing:
		return mq.ErrStopped
	case <-d.s.failed:
		return d.s.Err()
	}
}

// read reads messages that are due, as many as one command may carry, and returns of
// how many marks they are. What cannot be read is told, and left for later.
func (d *timedDelivery) read(marks []machine.PendingMark) (slice timedSlice, n int) {
	now := time.Now()
	limit := min(timedBytes, int(d.s.log.MaxPayload()))
	size := command.SizePending(nil)
	for i, mark := range marks {
		if now.Before(d.stuck[mark.ID].next) {
			continue
		}
		p, at, err := d.s.readPending(mark.ID, keyspace.Timed)
		if err != nil {
			d.failed(mark.ID, now, err)
			continue
		}
		delete(d.stuck, mark.ID)
		if p.Message == nil {
			continue // it waits no more
		}
		one := command.SizePending([]command.PendingMessage{p})
		if size += one; len(slice.messages) > 0 && size > limit {
			return slice, i
		}
		slice.messages, slice.at = append(slice.messages, p), append(slice.at, at)
	}
	return slice, len(marks)
}

// failed notes that a message could not be delivered.
func (d *timedDelivery) failed(id mq.PendingID, now time.Time, err error) {
	if d.stuck[id].wait == 0 {
		d.s.timed.unreadable.Add(1)
	}
	wait := min(max(2*d.stuck[id].wait, retryDeadLetter), maxRetryDeadLetter)
	d.stuck[id] = stuckLetter{next: now.Add(wait), wait: wait}
	d.s.logger.Error("delayed message not delivered", "pending", uint64(id), "next_try_after", wait, "error", err)
}

// send asks the loop to deliver the messages.
func (d *timedDelivery) send(slice *timedSlice, until int64) error {
	r := d.s.newRequest(command.KindFire)
	r.internal = true
	r.fire = command.Fire{Until: until, Messages: slice.messages}
	slice.r = r
	return d.s.send(context.Background(), r)
}

// await waits until a slice is delivered, and counts it.
func (d *timedDelivery) await(slice *timedSlice) error {
	if slice == nil {
		return nil
	}
	r := slice.r
	<-r.done
	if errors.Is(r.err, mq.ErrTooLarge) && len(slice.messages) == 1 {
		d.failed(slice.messages[0].ID, time.Now(), r.err)
		return nil
	}
	if r.err != nil {
		return r.err
	}
	now := d.s.wall()
	for i, err := range r.res.Settled {
		if err == nil {
			d.s.timed.fired.Add(1)
			d.s.timed.late.Observe(time.Duration(now - slice.at[i]))
		}
	}
	d.s.release(r)
	return nil
}

// readPending reads a message that is pending in the state. Without a Message it is not,
// any more.
func (s *Shard) readPending(id mq.PendingID, state keyspace.PendingState) (p command.PendingMessage, at int64, err error) {
	for tries := 0; ; tries++ {
		var rec keyspace.Pending
		found := false
		err := s.withViews(func() (err error) {
			rec, found, err = machine.ReadPending(s.db, id)
			return err
		})
		if err != nil || !found || rec.State != state {
			return p, 0, err
		}
		msg, err := s.readMessage(rec.Pos, rec.Size)
		if errTrimmed(err) && tries < 3 {
			continue // it was moved meanwhile
		}
		if err != nil {
			return p, 0, fmt.Errorf("topic id %d, queue %d: %w", rec.Topic, rec.Queue, err)
		}
		if state == keyspace.Timed {
			setDeliveryTime(&msg, rec.At)
		}
		return command.PendingMessage{ID: id, Topic: rec.Topic, Queue: rec.Queue, Message: &msg}, rec.At, nil
	}
}

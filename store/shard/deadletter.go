package shard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/commitlog"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/machine"
)

// How long a copy that could not be made waits for the next try: twice as long
// each time.
const (
	retryDeadLetter    = 5 * time.Second
	maxRetryDeadLetter = 10 * time.Minute
)

// stuck are the used-up messages that could not be moved.
type stuck map[keyspace.Ref]stuckLetter

type stuckLetter struct {
	next time.Time     // of the next try
	wait time.Duration // before it
}

// failed notes that the message could not be moved at now.
func (st stuck) failed(ref keyspace.Ref, now time.Time) {
	wait := min(max(2*st[ref].wait, retryDeadLetter), maxRetryDeadLetter)
	st[ref] = stuckLetter{next: now.Add(wait), wait: wait}
}

// forget drops those that a look since start should have tried and did not find:
// they are settled.
func (st stuck) forget(start time.Time) {
	for ref, l := range st {
		if !l.next.After(start) {
			delete(st, ref)
		}
	}
}

// next returns how long to wait for the next try of any of them.
func (st stuck) next(now time.Time) (wait time.Duration, any bool) {
	wait = maxRetryDeadLetter
	for _, l := range st {
		wait = min(wait, max(l.next.Sub(now), 0))
	}
	return wait, len(st) > 0
}

// deadLetters moves used-up messages to the dead-letter topics of their groups,
// whether or not anyone receives. A message that cannot be moved is tried again
// later and never holds up the others.
func (s *Shard) deadLetters() {
	signal(s.usedUp) // from before the start
	timer := time.NewTimer(retryDeadLetter)
	timer.Stop()
	stuck := stuck{}
	for {
		select {
		case <-s.closing:
			return
		case <-s.failed:
			return
		case <-s.usedUp:
		case <-timer.C:
		}
		s.moveUsedUp(stuck)
		if wait, any := stuck.next(time.Now()); any {
			timer.Reset(wait)
		}
	}
}

// How many used-up messages are moved at once: they share a write and a sync. What
// is copied is in memory until it is stored; one message is moved whatever its size.
const (
	moveAtOnce = 64
	moveBytes  = 4 << 20
)

// moveUsedUp moves every used-up message it can. Those in stuck wait for their time.
func (s *Shard) moveUsedUp(stuck stuck) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var after keyspace.Ref
	start := time.Now()
	for {
		var page []machine.UsedUpMessage
		more := false
		err := s.look(ctx, func(m *machine.Machine) (err error) {
			page, after, more, err = usedUpPage(m, after, stuck, start)
			return err
		})
		if err != nil {
			return
		}
		for len(page) > 0 {
			n := atOnce(page)
			if !s.move(ctx, page[:n], stuck) {
				return
			}
			page = page[n:]
		}
		if !more {
			stuck.forget(start)
			return
		}
	}
}

// usedUpPage returns the next used-up messages behind after that may be tried now,
// and where to go on.
func usedUpPage(m *machine.Machine, after keyspace.Ref, stuck stuck, now time.Time) (page []machine.UsedUpMessage, last keyspace.Ref, more bool, err error) {
	refs, err := m.UsedUp(after, moveAtOnce)
	if err != nil || len(refs) == 0 {
		return nil, after, false, err
	}
	for _, ref := range refs {
		if now.Before(stuck[ref].next) {
			continue
		}
		u, found, err := m.Inspect(ref)
		if err != nil {
			return nil, after, false, err
		}
		if found {
			page = append(page, u)
		}
	}
	return page, refs[len(refs)-1], true, nil
}

// atOnce returns how many of the messages, from the first on, are moved at once.
func atOnce(page []machine.UsedUpMessage) int {
	bytes := uint64(0)
	for n, u := range page {
		if bytes += uint64(u.Entry.Size); n > 0 && bytes > moveBytes {
			return n
		}
	}
	return len(page)
}

// move moves used-up messages, each on its own: what keeps one from being moved
// does not keep the others. It reports false when the shard stops.
func (s *Shard) move(ctx context.Context, messages []machine.UsedUpMessage, stuck stuck) bool {
	requests := make([]*request, len(messages))
	errs := make([]error, len(messages))
	for i, u := range messages {
		requests[i], errs[i] = s.deadLetterRequest(u, ReasonAttempts)
	}
	// All are ready before the first one goes, so that they meet in one round.
	for i, r := range requests {
		if r == nil {
			continue
		}
		if errs[i] = s.send(ctx, r); errs[i] != nil {
			requests[i] = nil
		}
	}
	going := true
	for i, u := range messages {
		if r := requests[i]; r != nil {
			<-r.done
			errs[i] = r.err
			s.release(r)
		}
		switch err := errs[i]; {
		case errors.Is(err, mq.ErrStopped):
			going = false
		case err == nil || errors.Is(err, mq.ErrLeaseEnded):
			delete(stuck, u.Ref)
		default:
			stuck.failed(u.Ref, time.Now())
			s.logger.Error("dead letter not stored", "topic_id", u.Ref.Topic, "queue", u.Ref.Queue, "offset", u.Ref.Offset,
				"next_try_after", stuck[u.Ref].wait, "error", err)
		}
	}
	return going
}

// DeadLetter moves a delivery to the dead-letter topic of its group, at the
// request of the consumer. When it returns nil, the copy is as durable as a
// sent message and the original is settled. An error that wraps
// mq.ErrLeaseEnded says that the delivery is over already.
func (s *Shard) DeadLetter(ctx context.Context, lease mq.Lease) error {
	ref := keyspace.Ref{
		Sub:   keyspace.Sub{Group: lease.Group, Topic: lease.Topic},
		Queue: lease.Queue, Offset: lease.Offset,
	}
	var u machine.UsedUpMessage
	found := false
	err := s.look(ctx, func(m *machine.Machine) (err error) {
		u, found, err = m.Inspect(ref)
		return err
	})
	if err != nil {
		return err
	}
	if !found || u.Lease.PopID != lease.PopID {
		return fmt.Errorf("message at offset %d of queue %d: %w", ref.Offset, ref.Queue, mq.ErrLeaseEnded)
	}
	r, err := s.deadLetterRequest(u, ReasonForward)
	if r == nil {
		return err
	}
	if err := s.do(ctx, r); err != nil {
		return err // r may still be under way: it is not reused
	}
	s.release(r)
	return nil
}

// deadLetterRequest returns the request that stores the copy of a message and
// settles the original, in one command. There is none when the message is no longer
// stored: then the original is settled, and the error says how that went. One that damage
// of the views hides is not settled: what repairs them brings it back.
func (s *Shard) deadLetterRequest(u machine.UsedUpMessage, reason string) (*request, error) {
	if u.Damage != nil {
		return nil, s.viewsHint(u.Damage)
	}
	ref := u.Ref
	original := command.LeaseRef{Queue: ref.Queue, Offset: ref.Offset, PopID: u.Lease.PopID}
	buf := make([]byte, u.Entry.Size)
	var err error
	if !u.Missing {
		err = s.log.ReadAt(buf, commitlog.Pos(u.Entry.Pos))
	}
	if u.Missing || errors.Is(err, commitlog.ErrTrimmed) {
		return nil, s.settleLost(ref.Topic, ref.Group, []command.LeaseRef{original})
	}
	if err != nil {
		return nil, err
	}
	msg, err := command.DecodeMessage(buf)
	if err != nil {
		file, offset := s.log.Place(commitlog.Pos(u.Entry.Pos))
		return nil, fmt.Errorf("%s:%d: %w", file, offset, err)
	}
	r := s.newRequest(command.KindDeadLetter)
	r.topic = &mq.Topic{
		ID: u.Target, Resource: u.Group.DeadLetterTopic(), Version: 1,
		Shards: []mq.ShardQueues{{Shard: s.opts.Name, Read: 1, Write: 1}},
	}
	r.deadLetter = command.DeadLetter{
		Lease: original, Group: ref.Group, Topic: ref.Topic, Target: u.Target,
		Message: deadLetterCopy(&msg, u, reason, time.Now()),
	}
	return r, nil
}

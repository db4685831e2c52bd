package machine

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
)

// lease returns the lease record of ref, effects of the batch included.
func (m *Machine) lease(ref keyspace.Ref) (keyspace.Lease, bool, error) {
	if l, ok := m.leases[ref]; ok {
		return l, l.State != 0, nil
	}
	m.key = keyspace.AppendLeaseKey(m.key[:0], ref)
	return get(m.db, m.key, keyspace.DecodeLease)
}

// leasesOf returns the lease records of refs, the zero Lease where there is none,
// effects of the batch included. It goes through the lease keys once, in their
// order: to look each of many up by itself would be to search the views as often.
func (m *Machine) leasesOf(refs []keyspace.Ref) (_ []keyspace.Lease, err error) {
	order := make([]int, len(refs))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return refs[a].Compare(refs[b]) })
	lower, upper := keyspace.LeaseKeys()
	it, err := m.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	found := make([]keyspace.Lease, len(refs))
	for _, i := range order {
		if l, ok := m.leases[refs[i]]; ok {
			found[i] = l
			continue
		}
		m.key = keyspace.AppendLeaseKey(m.key[:0], refs[i])
		m.val = append(append(m.val[:0], m.key...), 0)
		// The limit keeps a key that is not there from being a walk over deleted ones.
		if it.SeekGEWithLimit(m.key, m.val) != pebble.IterValid || !bytes.Equal(it.Key(), m.key) {
			continue
		}
		v, err := it.ValueAndErr()
		if err != nil {
			return nil, err
		}
		if found[i], err = keyspace.DecodeLease(v); err != nil {
			return nil, err
		}
	}
	return found, it.Error()
}

// unindex removes what leads to the record from the index of its state. The
// record itself is replaced or deleted by the caller.
func (m *Machine) unindex(s *sub, ref keyspace.Ref, l keyspace.Lease) error {
	m.count(s, l.State, ref, -1)
	switch l.State {
	case keyspace.Parked:
		return nil
	case keyspace.Leased:
		s.forgetTry(ref, l)
		m.due.remove(l.When)
		m.key = keyspace.AppendDueKey(m.key[:0], l.When, ref)
	case keyspace.Ready:
		return m.delReady(s, ref, l.When)
	case keyspace.UsedUp:
		m.key = keyspace.AppendUsedUpKey(m.key[:0], ref)
	}
	return m.delDue(m.key)
}

// put writes the record and its index key.
func (m *Machine) put(s *sub, ref keyspace.Ref, l keyspace.Lease) error {
	m.count(s, l.State, ref, 1)
	m.val = m.val[:0]
	switch l.State {
	case keyspace.Parked:
		return m.record(ref, l)
	case keyspace.Leased:
		m.noteTry(s, ref, l)
		m.due.add(l.When)
		m.key = keyspace.AppendDueKey(m.key[:0], l.When, ref)
	case keyspace.Ready:
		if err := m.putByPriority(s, ref, l.When); err != nil {
			return err
		}
		m.key = keyspace.AppendReadyKey(m.key[:0], ref.Sub, l.When)
		m.val = keyspace.AppendReady(m.val[:0], ref.Queue, ref.Offset)
		s.readyLast = l.When
		m.Effects.ready(ref.Sub)
		if ref.Queue.IsLite() {
			m.liteReady(ref)
		}
		if err := m.set(m.key, m.val); err != nil {
			return err
		}
		return m.record(ref, l)
	case keyspace.UsedUp:
		m.key = keyspace.AppendUsedUpKey(m.key[:0], ref)
		m.Effects.UsedUp = append(m.Effects.UsedUp, ref)
	}
	if err := m.setDue(m.key, m.val); err != nil {
		return err
	}
	return m.record(ref, l)
}

// record writes the record alone.
func (m *Machine) record(ref keyspace.Ref, l keyspace.Lease) error {
	m.leases[ref] = l
	m.key = keyspace.AppendLeaseKey(m.key[:0], ref)
	m.val = keyspace.AppendLease(m.val[:0], &l)
	return m.set(m.key, m.val)
}

// freed tells those who wait for room in the in-flight limit, if there are any,
// that a delivery which was in state is over.
func (m *Machine) freed(s *sub, state keyspace.LeaseState) {
	if s.heldUp && state == keyspace.Leased {
		s.heldUp = false
		m.Effects.Freed = append(m.Effects.Freed, s.id)
	}
}

// drop deletes the record and its index key: the delivery is over.
func (m *Machine) drop(s *sub, ref keyspace.Ref, l keyspace.Lease) error {
	m.freed(s, l.State)
	if err := m.unindex(s, ref, l); err != nil {
		return err
	}
	m.leases[ref] = keyspace.Lease{}
	m.deleted = append(m.deleted, ref)
	m.key = keyspace.AppendLeaseKey(m.key[:0], ref)
	if err := m.del(m.key); err != nil {
		return err
	}
	return m.leave(s, ref, l)
}

// end moves a record whose delivery failed: on to the next attempt, or to the
// used-up messages when there is none left.
func (m *Machine) end(s *sub, ref keyspace.Ref, l keyspace.Lease, maxAttempts mq.Attempt) error {
	m.freed(s, l.State)
	if err := m.unindex(s, ref, l); err != nil {
		return err
	}
	l.Try = 0
	if l.Attempt < maxAttempts {
		m.rest(s, ref, &l)
		return m.put(s, ref, l)
	}
	before := l
	l.State, l.When = keyspace.UsedUp, 0
	if err := m.put(s, ref, l); err != nil {
		return err
	}
	return m.leave(s, ref, before)
}

// rest makes the record, which nobody has, one that is delivered again: at once, or
// when those before it in its lane are settled.
func (m *Machine) rest(s *sub, ref keyspace.Ref, l *keyspace.Lease) {
	if s.behind(ref, l.Lane) {
		l.State, l.When = keyspace.Parked, 0
		return
	}
	m.state.Ready++
	l.State, l.When = keyspace.Ready, m.state.Ready
}

// delivery finds the record that a receipt of the given delivery may settle.
// The error is a sentinel of mq, for the client.
func (m *Machine) delivery(id keyspace.Sub, r command.LeaseRef) (*sub, keyspace.Ref, keyspace.Lease, error, error) {
	ref := keyspace.Ref{Sub: id, Queue: r.Queue, Offset: r.Offset}
	s := m.subs[id]
	if s == nil {
		return nil, ref, keyspace.Lease{}, ended(ref, "the group holds nothing of the topic"), nil
	}
	l, found, err := m.lease(ref)
	switch {
	case err != nil:
		return nil, ref, l, nil, err
	case !found:
		return s, ref, l, ended(ref, "it is settled or was never delivered"), nil
	case l.PopID != r.PopID:
		return s, ref, l, fmt.Errorf("message at offset %d of queue %d: %w", ref.Offset, ref.Queue, mq.ErrLeaseSuperseded), nil
	}
	return s, ref, l, nil, nil
}

func ended(ref keyspace.Ref, why string) error {
	return fmt.Errorf("message at offset %d of queue %d: %s: %w", ref.Offset, ref.Queue, why, mq.ErrLeaseEnded)
}

func (m *Machine) applyAck(rec Record, res *Result) error {
	v, err := command.ViewAck(rec.Payload)
	if err != nil {
		return err
	}
	for range v.Count {
		s, ref, l, refusal, err := m.delivery(keyspace.Sub{Group: v.Group, Topic: v.Topic}, v.Next())
		if err != nil {
			return err
		}
		if refusal == nil {
			if err := m.drop(s, ref, l); err != nil {
				return err
			}
		}
		res.Settled = append(res.Settled, refusal)
	}
	return nil
}

func (m *Machine) applyChange(rec Record, res *Result) error {
	v, err := command.ViewChange(rec.Payload)
	if err != nil {
		return err
	}
	for range v.Count {
		c := v.Next()
		s, ref, l, refusal, err := m.delivery(keyspace.Sub{Group: v.Group, Topic: v.Topic}, c.LeaseRef)
		if err != nil {
			return err
		}
		if refusal == nil && l.State == keyspace.UsedUp {
			refusal = ended(ref, "its attempts are used up")
		}
		if refusal == nil && l.PopID == 0 {
			refusal = ended(ref, "it was never delivered")
		}
		if refusal == nil && l.Nacked && c.Reason == mq.Renew {
			refusal = ended(ref, "it was given up")
		}
		if refusal == nil {
			if err := m.change(s, ref, l, v.Time, c); err != nil {
				return err
			}
		}
		res.Settled = append(res.Settled, refusal)
	}
	return nil
}

// change gives one delivery a new visible-at time. It keeps the pop id, so that
// every receipt of the delivery stays good until the message is delivered again.
func (m *Machine) change(s *sub, ref keyspace.Ref, l keyspace.Lease, now int64, c command.LeaseChange) error {
	limit := mq.Attempt(1)
	if g := m.groups[ref.Group]; g != nil {
		limit = g.MaxAttempts
	}
	if c.Reason == mq.GiveBack {
		if l.Nacked {
			return nil // repeated
		}
		m.freed(s, l.State)
		if err := m.unindex(s, ref, l); err != nil {
			return err
		}
		l.Attempt--
		l.Nacked, l.Try = true, 0
		m.rest(s, ref, &l)
		return m.put(s, ref, l)
	}
	if c.Reason == mq.Suspend && !l.Nacked { // repeated, it counts once
		l.Attempt--
	}
	l.Nacked = l.Nacked || c.Reason == mq.Nack || c.Reason == mq.Suspend
	if c.Invisible <= 0 || c.Reason == mq.Nack && l.Attempt >= limit {
		return m.end(s, ref, l, limit)
	}
	if err := m.unindex(s, ref, l); err != nil {
		return err
	}
	if l.Nacked {
		l.Try = 0 // whoever has given it up has seen it, and asks for others
	}
	l.State, l.When = keyspace.Leased, visibleAt(now, c.Invisible)
	return m.put(s, ref, l)
}

// visibleAt returns when a lease of that duration ends. It is never before now,
// where the due index is not looked at any more, and never beyond the last time
// that NextDue can tell.
func visibleAt(now, invisible int64) uint64 {
	return uint64(now + min(max(invisible, 0), never-1-now))
}

func (m *Machine) applyExpire(rec Record, res *Result) error {
	c, err := command.DecodeExpire(rec.Payload)
	if err != nil {
		return err
	}
	if err := m.Commit(); err != nil {
		return err
	}
	refs, times, more, err := m.dueUntil(c.Time, int(c.Limit))
	if err != nil {
		return err
	}
	res.Ended = len(refs)
	leases, err := m.leasesOf(refs)
	if err != nil {
		return err
	}
	for i, ref := range refs {
		l := leases[i]
		s, g := m.subs[ref.Sub], m.groups[ref.Group]
		if s == nil || g == nil || l.State != keyspace.Leased || l.When != times[i] {
			// The topic or group was deleted under the lease.
			m.key = keyspace.AppendDueKey(m.key[:0], times[i], ref)
			if err := m.delDue(m.key); err != nil {
				return err
			}
			continue
		}
		if err := m.end(s, ref, l, g.MaxAttempts); err != nil {
			return err
		}
		m.Effects.Expired = append(m.Effects.Expired, ref.Sub)
	}
	if !more {
		m.due.low = uint64(c.Time)
	} else if len(times) > 0 {
		m.due.low = times[len(times)-1]
	}
	return nil
}

func (m *Machine) applyDeadLetter(rec Record, res *Result) error {
	v, err := command.ViewDeadLetter(rec.Payload)
	if err != nil {
		return err
	}
	s, ref, l, refusal, err := m.delivery(keyspace.Sub{Group: v.Group, Topic: v.Topic}, v.Lease)
	if err != nil {
		return err
	}
	if refusal == nil && l.PopID == 0 {
		refusal = ended(ref, "it was never delivered")
	}
	if refusal != nil {
		res.Err = refusal
		return nil
	}
	t, err := m.writable(v.Target, v.Queue)
	if err != nil {
		return err
	}
	if t == nil {
		res.Err = m.cannotWrite(v.Target, v.Queue)
		return nil
	}
	res.First = t.queues[v.Queue].next
	if err := m.enqueue(t, v.Queue, v.Message, v.Time, rec.PayloadPos); err != nil {
		return err
	}
	return m.drop(s, ref, l)
}

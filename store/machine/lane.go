package machine

import (
	"bytes"
	"maps"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
)

// A group that is FIFO has the messages of each message group in a lane, which begins
// with the first one that is not settled. A lane has what lies below the group's
// progress, by the hash of the message group: two message groups that share a hash share a
// lane, and wait for each other.
//
// Only the head of a lane is ready to be delivered. Behind it, messages are leased, if
// the same pop had delivered all before them, or parked. What is settled lets the next
// one move up; what is used up counts as settled, for it is never delivered again.
//
// Lanes are kept in memory, eight bytes to a message, and come from the lease records
// when the machine is opened: keys of their own would have to be deleted from the head
// of their range, where every look begins.

// laneID names a lane of one group and topic.
type laneID struct {
	queue mq.QueueID
	hash  uint64
}

// A lane has the offsets of what is not settled, in order; at least one.
type lane struct {
	offsets []mq.QueueOffset
	// whole is the index of the pop that has delivered all of them, if one has: it may
	// deliver what follows. It says nothing to other commands.
	whole uint64
}

// remove takes out an offset, at its place. What leaves is near the head, or near the end
// when a group is set back: a long lane is not moved for it.
func (ln *lane) remove(at int) {
	if at >= len(ln.offsets)/2 {
		ln.offsets = slices.Delete(ln.offsets, at, at+1)
		return
	}
	copy(ln.offsets[1:at+1], ln.offsets[:at])
	ln.offsets = ln.offsets[1:]
}

// ordered reports whether the group keeps the order of message groups.
func (m *Machine) ordered(id mq.GroupID) bool {
	g := m.groups[id]
	return g != nil && g.FIFO
}

// laneOf returns the lane; nil when everything before is settled.
func (s *sub) laneOf(queue mq.QueueID, hash uint64) *lane {
	if hash == 0 {
		return nil
	}
	return s.lanes[laneID{queue, hash}]
}

// join puts an offset, which is greater than all in it, at the end of its lane.
func (s *sub) join(ref keyspace.Ref, hash uint64) *lane {
	id := laneID{ref.Queue, hash}
	ln := s.lanes[id]
	if ln == nil {
		ln = &lane{}
		if s.lanes == nil {
			s.lanes = map[laneID]*lane{}
		}
		s.lanes[id] = ln
	}
	ln.offsets = append(ln.offsets, ref.Offset)
	return ln
}

// behind reports whether something before the message in its lane is not settled.
func (s *sub) behind(ref keyspace.Ref, hash uint64) bool {
	ln := s.laneOf(ref.Queue, hash)
	return ln != nil && ln.offsets[0] < ref.Offset
}

// leave takes what is settled out of its lane, and lets the next one move up. l is the
// record as it was.
func (m *Machine) leave(s *sub, ref keyspace.Ref, l keyspace.Lease) error {
	if l.State == keyspace.UsedUp {
		return nil // it has left already
	}
	ln := s.laneOf(ref.Queue, l.Lane)
	if ln == nil {
		return nil
	}
	at, found := slices.BinarySearch(ln.offsets, ref.Offset)
	switch {
	case !found:
		return nil
	case len(ln.offsets) == 1:
		delete(s.lanes, laneID{ref.Queue, l.Lane})
		ln.offsets = nil
		if ref.Queue.IsLite() {
			m.liteReady(ref)
		}
		return nil
	}
	ln.remove(at)
	if at > 0 {
		return nil
	}
	ref.Offset = ln.offsets[0]
	next, found, err := m.lease(ref)
	if err != nil || !found || next.State != keyspace.Parked {
		return err
	}
	return m.moveUp(s, ref, next)
}

// moveUp makes a parked message one that can be delivered.
func (m *Machine) moveUp(s *sub, ref keyspace.Ref, l keyspace.Lease) error {
	if err := m.unindex(s, ref, l); err != nil {
		return err
	}
	m.state.Ready++
	l.State, l.When = keyspace.Ready, m.state.Ready
	return m.put(s, ref, l)
}

// park passes a message whose lane is not empty.
func (m *Machine) park(s *sub, ref keyspace.Ref, hash uint64) error {
	s.join(ref, hash).whole = 0
	return m.put(s, ref, keyspace.Lease{State: keyspace.Parked, Lane: hash})
}

// parkArrival parks a new message for each group that had come to the end of the queue
// and whose lane is not empty, and returns those groups: a pop would do the same, and
// nobody need be woken for it.
func (m *Machine) parkArrival(t *topic, queue mq.QueueID, offset mq.QueueOffset, hash uint64) (parked []keyspace.Sub, err error) {
	if hash == 0 {
		return nil, nil
	}
	for _, s := range m.fifo[t.ID] {
		if s.laneOf(queue, hash) == nil {
			continue
		}
		if err := m.loadProgress(s, t); err != nil {
			return parked, err
		}
		if max(s.progress[queue], t.queues[queue].min) != offset {
			continue
		}
		if err := m.park(s, keyspace.Ref{Sub: s.id, Queue: queue, Offset: offset}, hash); err != nil {
			return parked, err
		}
		if err := m.setProgress(s, queue, offset+1); err != nil {
			return parked, err
		}
		parked = append(parked, s.id)
	}
	return parked, nil
}

// popLane delivers the head of a lane, which is ready, and what follows it as far as that
// is parked: one consumer gets them in order. What the filter does not want is settled, as
// it would have been passed had it been new: nothing behind it may wait for ever. It
// reports whether the head is no longer ready.
func (m *Machine) popLane(p *pop, ref keyspace.Ref, ln *lane) (taken bool, err error) {
	for i := 0; !p.full() && i < len(ln.offsets); {
		ref.Offset = ln.offsets[i]
		l, err := p.lane.lease(m, ref)
		if err != nil {
			return taken, err
		}
		if l.State != keyspace.Ready && l.State != keyspace.Parked {
			return taken, nil // somebody has it, who is in order
		}
		if taken { // the head was counted where it was found
			if p.Scan <= 0 {
				p.res.More = l.State == keyspace.Ready
				return taken, nil
			}
			p.Scan--
		}
		left, err := m.popOfLane(p, ref, l)
		if left || err != nil {
			return taken, err
		}
		taken = true
		if i < len(ln.offsets) && ln.offsets[i] == ref.Offset {
			i++ // otherwise it has left the lane
		}
		if i == len(ln.offsets) {
			ln.whole = p.index
		}
	}
	return taken, nil
}

// popOfLane delivers one message of a lane, or settles it. It reports whether it was
// left where it is.
func (m *Machine) popOfLane(p *pop, ref keyspace.Ref, l keyspace.Lease) (left bool, err error) {
	if l.Attempt >= p.g.MaxAttempts { // the limit was lowered meanwhile
		return false, m.end(p.s, ref, l, p.g.MaxAttempts)
	}
	e, found, err := p.lane.entry(m, ref)
	if err != nil {
		return false, err
	}
	if !found {
		return false, m.lose(p, ref, l)
	}
	switch wanted, known := p.judge(ref.Queue, ref.Offset, e.Tag); {
	case !known:
		p.res.Unjudged = true
		return true, nil
	case !wanted:
		return false, m.drop(p.s, ref, l)
	case p.atLimit(ref.Queue):
		p.heldUp = true
		return true, nil
	}
	if err := m.unindex(p.s, ref, l); err != nil {
		return false, err
	}
	if l.Attempt == 0 && l.First == 0 {
		l.First = p.Time
	}
	l.Attempt++
	return false, m.deliver(p, ref, &e, l)
}

// A laneReader reads what a pop delivers of lanes: the messages of one lie behind each
// other, and to seek on from one to the next costs less than to look each up.
type laneReader struct {
	leases, entries *pebble.Iterator
	key, limit      []byte
}

// at returns the value of the key of what was committed, until the next call; nil
// without one. It opens the iterator over what has the prefix when there is none yet.
func (r *laneReader) at(db *pebble.DB, it **pebble.Iterator, prefix []byte) (val []byte, err error) {
	if *it == nil {
		if *it, err = db.NewIter(iterOptions(prefix, keyspace.Next(slices.Clone(prefix)))); err != nil {
			return nil, err
		}
	}
	// The limit keeps a key that is not there from being a walk over deleted ones.
	r.limit = append(append(r.limit[:0], r.key...), 0)
	if (*it).SeekGEWithLimit(r.key, r.limit) != pebble.IterValid || !bytes.Equal((*it).Key(), r.key) {
		return nil, (*it).Error()
	}
	return (*it).ValueAndErr()
}

// lease returns the lease record, effects of the batch included, the zero Lease when
// there is none.
func (r *laneReader) lease(m *Machine, ref keyspace.Ref) (keyspace.Lease, error) {
	if l, ok := m.leases[ref]; ok {
		return l, nil
	}
	r.key = keyspace.AppendLeaseKey(r.key[:0], ref)
	val, err := r.at(m.db, &r.leases, keyspace.DeliveryPrefixes(ref.Sub)[0])
	if val == nil || err != nil {
		return keyspace.Lease{}, err
	}
	return keyspace.DecodeLease(val)
}

// entry returns the queue entry; its tag is good until the next call.
func (r *laneReader) entry(m *Machine, ref keyspace.Ref) (e keyspace.Entry, found bool, err error) {
	r.key = keyspace.AppendEntryKey(r.key[:0], keyspace.Queue{Topic: ref.Topic, Queue: ref.Queue}, ref.Offset)
	val, err := r.at(m.db, &r.entries, keyspace.AppendTopicEntriesPrefix(nil, ref.Topic))
	if val == nil || err != nil {
		return e, false, err
	}
	e, err = keyspace.DecodeEntry(val)
	return e, err == nil, err
}

func (r *laneReader) close() {
	for _, it := range []*pebble.Iterator{r.leases, r.entries} {
		if it != nil {
			_ = it.Close() // read errors were told where it was read
		}
	}
}

// setOrdered makes a group keep the order of message groups from now on, or no longer,
// in what it has of every topic.
func (m *Machine) setOrdered(g *command.Group) error {
	subs := slices.Clone(m.byGroup[g.ID])
	slices.SortFunc(subs, func(a, b *sub) int { return a.id.Compare(b.id) })
	if len(subs) > 0 {
		if err := m.Commit(); err != nil { // what the batch has cannot be listed
			return err
		}
	}
	for _, s := range subs {
		change := m.disband
		if g.FIFO {
			change = m.lineUp
		}
		if err := change(s); err != nil {
			return err
		}
	}
	return nil
}

// disband makes everything ready that is parked.
func (m *Machine) disband(s *sub) error {
	// Lite topics are lanes whatever the group is.
	maps.DeleteFunc(s.lanes, func(id laneID, _ *lane) bool { return !id.queue.IsLite() })
	s.forgetTries()
	m.fifo[s.id.Topic] = slices.DeleteFunc(m.fifo[s.id.Topic], func(other *sub) bool { return other == s })
	if s.parked == 0 {
		return nil
	}
	return m.eachLease(s, func(ref keyspace.Ref, l keyspace.Lease) error {
		if l.State != keyspace.Parked || ref.Queue.IsLite() {
			return nil
		}
		return m.moveUp(s, ref, l)
	})
}

// lineUp makes lanes of what is under delivery. What is leased stays so.
func (m *Machine) lineUp(s *sub) error {
	m.fifo[s.id.Topic] = append(m.fifo[s.id.Topic], s)
	var entries laneReader
	defer entries.close()
	return m.eachLease(s, func(ref keyspace.Ref, l keyspace.Lease) error {
		if l.State == keyspace.UsedUp || ref.Queue.IsLite() {
			return nil
		}
		if l.Lane == 0 {
			e, found, err := entries.entry(m, ref)
			if err != nil || !found || e.Group == 0 {
				return err
			}
			l.Lane = e.Group
		}
		behind := s.join(ref, l.Lane).offsets[0] < ref.Offset
		if l.State == keyspace.Ready && behind {
			if err := m.unindex(s, ref, l); err != nil {
				return err
			}
			l.State, l.When = keyspace.Parked, 0
			return m.put(s, ref, l)
		}
		m.noteTry(s, ref, l)
		return m.record(ref, l)
	})
}

// eachLease calls fn for every record that the group has of the topic, in order; they
// were committed.
func (m *Machine) eachLease(s *sub, fn func(keyspace.Ref, keyspace.Lease) error) error {
	prefix := keyspace.DeliveryPrefixes(s.id)[0]
	return m.scan(prefix, keyspace.Next(slices.Clone(prefix)), func(k, v []byte) error {
		ref, err := keyspace.DecodeLeaseKey(k)
		if err != nil {
			return err
		}
		l, err := keyspace.DecodeLease(v)
		if err != nil {
			return err
		}
		return fn(ref, l)
	})
}

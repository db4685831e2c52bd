package machine

import (
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
)

// applyTrim moves the beginnings of queues. Where to is found outside, where it may
// take its time: entries never change, and a beginning that is applied lets no new
// delivery below it come into being, so what was found is still right.
func (m *Machine) applyTrim(rec Record, res *Result) error {
	c, err := command.DecodeTrim(rec.Payload)
	if err != nil {
		return err
	}
	t := m.topics[c.Topic]
	if t == nil {
		res.Err = topicNotFound(c.Topic)
		return nil
	}
	if err := m.loadQueues(t); err != nil {
		return err
	}
	if c.Purge {
		return m.purge(t, res)
	}
	for _, q := range c.Queues {
		if q.Queue < 0 || int(q.Queue) >= len(t.queues) {
			continue
		}
		if err := m.trim(t, q, res); err != nil {
			return err
		}
	}
	return nil
}

// trim moves the beginning of one queue, never back and never beyond its end, and
// writes down its ends: those of a queue without entries are nowhere else.
func (m *Machine) trim(t *topic, c command.QueueTrim, res *Result) error {
	id := keyspace.Queue{Topic: t.ID, Queue: c.Queue}
	q := &t.queues[c.Queue]
	begin := min(max(c.Min, q.min), q.next)
	kept := min(max(c.Kept, q.kept), begin)
	if begin == q.min && kept == q.kept {
		return nil
	}
	if err := m.dropEntries(id, q.kept, kept); err != nil {
		return err
	}
	res.Trimmed += uint64(begin - q.min)
	q.min, q.kept = begin, kept
	m.key = keyspace.AppendEndsKey(m.key[:0], id)
	m.val = keyspace.AppendEnds(m.val[:0], keyspace.Ends{Min: q.min, Kept: q.kept, Next: q.next})
	return m.set(m.key, m.val)
}

// fewEntries are deleted one by one: each range that is deleted costs the next reads
// something until it is on disk, and with many slow queues there would be many.
const fewEntries = 16

// dropEntries deletes the entries from offset low to before high.
func (m *Machine) dropEntries(id keyspace.Queue, low, high mq.QueueOffset) error {
	if high-low > fewEntries {
		return m.batch.DeleteRange(keyspace.AppendEntryKey(nil, id, low), keyspace.AppendEntryKey(nil, id, high), nil)
	}
	for ; low < high; low++ {
		m.key = keyspace.AppendEntryKey(m.key[:0], id, low)
		if err := m.del(m.key); err != nil {
			return err
		}
	}
	return nil
}

// purge empties the topic. Groups keep their subscriptions and progress, but nothing
// under delivery.
func (m *Machine) purge(t *topic, res *Result) error {
	for i, q := range t.queues {
		if err := m.trim(t, command.QueueTrim{Queue: mq.QueueID(i), Min: q.next, Kept: q.next}, res); err != nil {
			return err
		}
	}
	if err := m.dropLites(t.ID, true); err != nil {
		return err
	}
	// The order of the map does not matter: each subscription has keys of its own.
	for id, s := range m.subs {
		if id.Topic != t.ID || s.leased+s.ready+s.usedUp+s.parked == 0 {
			continue
		}
		if err := m.dropDeliveries(id); err != nil {
			return err
		}
		s.leased, s.ready, s.usedUp, s.parked = 0, 0, 0, 0
		s.lanes, s.tries = nil, nil
		clear(s.leasedIn)
		clear(s.readyIn)
		clear(s.parkedIn)
		s.usedUpIn, s.usedUpQueues = nil, nil
		delete(m.withUsedUp, id)
		if s.heldUp {
			s.heldUp = false
			m.Effects.Freed = append(m.Effects.Freed, id)
		}
		s.readyLow = m.state.Ready + 1
	}
	m.unreadable = true // also when nothing is dropped: the cache says what the batch deletes
	m.forgetLeases(func(s keyspace.Sub) bool { return s.Topic == t.ID })
	return nil
}

// applyDrop notes that the log may begin later. It never goes back.
func (m *Machine) applyDrop(rec Record) error {
	c, err := command.DecodeDrop(rec.Payload)
	if err != nil || c.First <= m.begin.Pos {
		return err
	}
	m.begin = keyspace.Begin{Pos: c.First, Index: c.Index}
	m.key = append(m.key[:0], keyspace.BeginKey()...)
	m.val = keyspace.AppendBegin(m.val[:0], m.begin)
	return m.set(m.key, m.val)
}

package machine

import (
	"fmt"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
)

// A sub is what one group does with one topic.
type sub struct {
	id keyspace.Sub
	// progress is the next offset of each queue to deliver: loaded on first
	// use. Queues that were added since begin at their beginning.
	progress []mq.QueueOffset
	loaded   bool

	leased, ready, usedUp int64
	// readyLow is below the sequence of every redelivery: the keys before it
	// are tombstones that no seek should have to step over.
	readyLow uint64
}

func (s *sub) count(state keyspace.LeaseState, n int64) {
	switch state {
	case keyspace.Leased:
		s.leased += n
	case keyspace.Ready:
		s.ready += n
	case keyspace.UsedUp:
		s.usedUp += n
	}
}

// GroupVersion returns the version of the group that the shard knows; 0: none.
func (m *Machine) GroupVersion(id mq.GroupID) uint64 {
	if g := m.groups[id]; g != nil {
		return g.Version
	}
	return 0
}

// GroupGone reports whether the group was deleted. Its id never comes back. It is
// called after Commit.
func (m *Machine) GroupGone(id mq.GroupID) (bool, error) {
	_, found, err := get(m.db, keyspace.AppendGoneGroupKey(nil, id), exists)
	return found, err
}

func groupNotFound(id mq.GroupID) error {
	return fmt.Errorf("group id %d: %w", id, mq.ErrGroupNotFound)
}

func (m *Machine) applyGroup(rec Record) error {
	c, err := command.DecodeGroup(rec.Payload)
	if err != nil {
		return err
	}
	if g := m.groups[c.ID]; g == nil {
		if err := m.Commit(); err != nil { // as in applyTopic
			return err
		}
		if gone, err := m.GroupGone(c.ID); gone || err != nil {
			return err
		}
	} else if g.Version >= c.Version {
		return nil
	}
	m.groups[c.ID] = &c
	m.key, m.val = keyspace.AppendGroupKey(m.key[:0], c.ID), c.Append(m.val[:0])
	return m.set(m.key, m.val)
}

func (m *Machine) applyGroupDelete(rec Record, res *Result) error {
	c, err := command.DecodeGroupDelete(rec.Payload)
	if err != nil {
		return err
	}
	m.key = keyspace.AppendGoneGroupKey(m.key[:0], c.ID)
	if err := m.set(m.key, nil); err != nil {
		return err
	}
	if m.groups[c.ID] == nil {
		res.Err = groupNotFound(c.ID)
		return nil
	}
	m.key = keyspace.AppendGroupKey(m.key[:0], c.ID)
	if err := m.del(m.key); err != nil {
		return err
	}
	delete(m.groups, c.ID)
	m.Effects.Gone = true
	return m.dropSubs(func(s keyspace.Sub) bool { return s.Group == c.ID })
}

// sub returns what the group does with the topic, and fixes where it starts on
// the queues that exist when it asks for the first time.
func (m *Machine) sub(g *command.Group, t *topic) (*sub, error) {
	if err := m.loadQueues(t); err != nil {
		return nil, err
	}
	id := keyspace.Sub{Group: g.ID, Topic: t.ID}
	if s := m.subs[id]; s != nil {
		return s, m.loadProgress(s, t)
	}
	// All starts are looked up before the first effect: the look-up commits what
	// went before, and a commit must never hold half a command.
	starts := make([]mq.QueueOffset, len(t.queues))
	for i := range starts {
		start, err := m.start(g, t, mq.QueueID(i))
		if err != nil {
			return nil, err
		}
		starts[i] = start
	}
	s := &sub{id: id, loaded: true, readyLow: 1, progress: make([]mq.QueueOffset, len(starts))}
	m.subs[id] = s
	m.key = keyspace.AppendSubKey(m.key[:0], id)
	if err := m.set(m.key, nil); err != nil {
		return nil, err
	}
	for i, start := range starts {
		if start == 0 {
			continue
		}
		if err := m.setProgress(s, mq.QueueID(i), start); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (m *Machine) loadProgress(s *sub, t *topic) error {
	if !s.loaded {
		s.progress = make([]mq.QueueOffset, len(t.queues))
		for i := range s.progress {
			m.key = keyspace.AppendProgressKey(m.key[:0], s.id, mq.QueueID(i))
			offset, _, err := get(m.db, m.key, keyspace.DecodeOffset)
			if err != nil {
				return err
			}
			s.progress[i] = offset
		}
		s.loaded = true
	}
	if n := len(t.queues) - len(s.progress); n > 0 {
		s.progress = append(s.progress, make([]mq.QueueOffset, n)...)
	}
	return nil
}

func (m *Machine) setProgress(s *sub, queue mq.QueueID, offset mq.QueueOffset) error {
	s.progress[queue] = offset
	m.key = keyspace.AppendProgressKey(m.key[:0], s.id, queue)
	m.val = keyspace.AppendOffset(m.val[:0], offset)
	return m.set(m.key, m.val)
}

// start returns where a new group begins to read the queue.
func (m *Machine) start(g *command.Group, t *topic, queue mq.QueueID) (mq.QueueOffset, error) {
	q := t.queues[queue]
	switch g.Start {
	case mq.StartLatest:
		return q.next, nil
	case mq.StartTimestamp:
		return m.offsetAt(keyspace.Queue{Topic: t.ID, Queue: queue}, q, g.StartTime)
	}
	return q.min, nil
}

// offsetAt returns the first offset stored at or after the time. Store times
// never decrease along a queue, so it halves the range.
func (m *Machine) offsetAt(id keyspace.Queue, q queue, at int64) (mq.QueueOffset, error) {
	if err := m.Commit(); err != nil {
		return 0, err
	}
	low, high := q.min, q.next
	for low < high {
		mid := low + (high-low)/2
		e, found, err := m.entry(id, mid)
		if err != nil {
			return 0, err
		}
		if !found {
			return 0, missingEntry(id, mid)
		}
		if e.StoreTime < at {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return low, nil
}

// entry reads one ConsumeQueue entry of what was committed. Its Tag is a copy.
func (m *Machine) entry(id keyspace.Queue, offset mq.QueueOffset) (keyspace.Entry, bool, error) {
	return entry(m.db, id, offset)
}

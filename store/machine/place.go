package machine

import (
	"cmp"
	"slices"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
)

// Placement returns what the shard knows of where a topic lies; the zero Placement when it
// was never told, or does not know the topic.
func (m *Machine) Placement(id mq.TopicID) keyspace.Placement {
	if t := m.topics[id]; t != nil {
		return t.placement
	}
	return keyspace.Placement{}
}

// applyPlace notes where a topic lies. What is known already is not undone by what is older.
func (m *Machine) applyPlace(rec Record) error {
	c, err := command.DecodePlace(rec.Payload)
	if err != nil {
		return err
	}
	t := m.topics[c.Topic]
	if t == nil || t.placement.Placed > c.Placed || t.placement.Placed == c.Placed && t.placement.Closed {
		return nil // deleted just before this command, or told something newer
	}
	t.placement = keyspace.Placement{Placed: c.Placed, Closed: c.Closed}
	m.key, m.val = keyspace.AppendPlacementKey(m.key[:0], c.Topic), keyspace.AppendPlacement(m.val[:0], t.placement)
	return m.set(m.key, m.val)
}

func (m *Machine) loadPlacements() error {
	lower, upper := keyspace.PlacementKeys()
	return m.scan(lower, upper, func(k, v []byte) error {
		id, err := keyspace.DecodePlacementKey(k)
		if err != nil {
			return err
		}
		p, err := keyspace.DecodePlacement(v)
		if t := m.topics[id]; t != nil {
			t.placement = p
		}
		return err
	})
}

// Owed reports whether a group has anything of a topic left to settle: messages that it was
// never given, or that are not settled. A group that has no place in the queues yet may get
// one before their messages, so that it is owed all of them. Of a topic that the
// shard does not know nobody is owed anything. Lite topics do not count.
func (m *Machine) Owed(id keyspace.Sub) (bool, error) {
	t := m.topics[id.Topic]
	if t == nil {
		return false, nil
	}
	if err := m.loadQueues(t); err != nil {
		return false, err
	}
	s := m.subs[id]
	if s == nil {
		return slices.ContainsFunc(t.queues, func(q queue) bool { return q.next > q.min }), nil
	}
	if s.leased+s.ready+s.usedUp+s.parked > 0 {
		return true, nil
	}
	if err := m.loadProgress(s, t); err != nil {
		return false, err
	}
	for i, q := range t.queues {
		if q.next > q.min && s.progress[i] < q.next {
			return true, nil
		}
	}
	return false, nil
}

// Remains adds to r what is left of a topic in its queues and pending, without its lite
// topics.
func (m *Machine) Remains(id mq.TopicID, r *mq.Remains) error {
	t := m.topics[id]
	if t == nil {
		return nil
	}
	if err := m.loadQueues(t); err != nil {
		return err
	}
	queues, messages := int64(0), int64(0)
	for _, q := range t.queues {
		if q.next > q.min {
			queues++
			messages += int64(q.next - q.min)
		}
	}
	if _, dead := t.Name.DeadLetterGroup(); dead {
		r.DeadLetters += messages
		return nil
	}
	pending := int64(0)
	for _, state := range []keyspace.PendingState{keyspace.Timed, keyspace.Half, keyspace.LastAsked, keyspace.GivenUp} {
		pending += m.PendingOf(id, state)
	}
	r.Queues, r.Messages, r.Pending = r.Queues+queues, r.Messages+messages, r.Pending+pending
	if queues > 0 || pending > 0 {
		if r.Topics == 0 {
			r.Topic = t.Name
		}
		r.Topics++
	}
	subs := slices.Clone(m.byTopic[id])
	slices.SortFunc(subs, func(a, b *sub) int { return cmp.Compare(a.id.Group, b.id.Group) })
	for _, s := range subs {
		owed, err := m.Owed(s.id)
		if err != nil {
			return err
		}
		if !owed {
			continue
		}
		if r.Owing == 0 {
			r.OwingTopic = t.Name
			if g := m.groups[s.id.Group]; g != nil {
				r.OwingGroup = g.Name
			}
		}
		r.Owing++
	}
	return nil
}

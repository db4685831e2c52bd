package machine_test

import (
	"slices"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
)

// The model of groups that keep the order of message groups: it looks at everything
// that is under delivery whenever it wants to know a lane.

// modelTry stands for an attempt id; the histories have few.
func modelTry(attempt string) uint64 { return uint64(len(attempt)) }

func (m *model) fifo(id mq.GroupID) bool { return m.groups[id] != nil && m.groups[id].FIFO }

// lane lists what the group has not settled of the message's group, in order; nothing
// when it keeps no order.
func (m *model) lane(ref keyspace.Ref) (refs []keyspace.Ref) {
	queue := m.topics[ref.Topic][ref.Queue]
	s := m.subs[ref.Sub]
	if !m.fifo(ref.Group) || queue[ref.Offset].group == "" || s == nil {
		return nil
	}
	for other, l := range s.leases {
		if other.Queue == ref.Queue && l.State != keyspace.UsedUp && queue[other.Offset].group == queue[ref.Offset].group {
			refs = append(refs, other)
		}
	}
	slices.SortFunc(refs, compareRefs)
	return refs
}

func (m *model) inLane(ref keyspace.Ref) bool { return len(m.lane(ref)) > 0 }

// rest makes what nobody has ready, or parks it behind others.
func (m *model) rest(ref keyspace.Ref, l *keyspace.Lease) {
	if lane := m.lane(ref); len(lane) > 0 && lane[0].Offset < ref.Offset {
		l.State, l.When = keyspace.Parked, 0
		return
	}
	m.seq++
	l.State, l.When = keyspace.Ready, m.seq
}

// moveUp makes the first one of the message's lane ready, if it is parked.
func (m *model) moveUp(ref keyspace.Ref) {
	lane := m.lane(ref)
	if len(lane) == 0 {
		return
	}
	if l := m.subs[ref.Sub].leases[lane[0]]; l.State == keyspace.Parked {
		m.rest(lane[0], l)
	}
}

func (m *model) settle(ref keyspace.Ref) {
	delete(m.subs[ref.Sub].leases, ref)
	m.moveUp(ref)
}

func (m *model) useUp(ref keyspace.Ref) {
	l := m.subs[ref.Sub].leases[ref]
	l.State, l.When, l.Try = keyspace.UsedUp, 0, 0
	m.moveUp(ref)
}

// upToDate lists the groups that have passed everything in the queue, and have
// something unsettled of the message group.
func (m *model) upToDate(topic mq.TopicID, queue mq.QueueID, group string) (ids []keyspace.Sub) {
	for id, s := range m.subs {
		if id.Topic != topic || !m.fifo(id.Group) || group == "" {
			continue
		}
		progress := m.begin(topic, int(queue)).min
		if int(queue) < len(s.progress) {
			progress = max(progress, s.progress[queue])
		}
		blocked := false
		for ref, l := range s.leases {
			blocked = blocked || ref.Queue == queue && l.State != keyspace.UsedUp && m.topics[topic][queue][ref.Offset].group == group
		}
		if blocked && progress == len(m.topics[topic][queue]) {
			ids = append(ids, id)
		}
	}
	return ids
}

// park passes the last message of the queue.
func (m *model) park(id keyspace.Sub, queue mq.QueueID) {
	s, end := m.subs[id], len(m.topics[id.Topic][queue])
	for len(s.progress) <= int(queue) {
		s.progress = append(s.progress, 0)
	}
	s.progress[queue] = end
	s.leases[keyspace.Ref{Sub: id, Queue: queue, Offset: mq.QueueOffset(end - 1)}] = &keyspace.Lease{State: keyspace.Parked}
}

// setGroup changes what is known of a group.
func (m *model) setGroup(c *command.Group) {
	before := m.fifo(c.ID)
	m.groups[c.ID] = c
	if before == c.FIFO {
		return
	}
	var subs []keyspace.Sub
	for id := range m.subs {
		if id.Group == c.ID {
			subs = append(subs, id)
		}
	}
	slices.SortFunc(subs, keyspace.Sub.Compare)
	for _, id := range subs {
		s := m.subs[id]
		var refs []keyspace.Ref
		for ref := range s.leases {
			refs = append(refs, ref)
		}
		slices.SortFunc(refs, compareRefs)
		for _, ref := range refs {
			l := s.leases[ref]
			switch {
			case l.State == keyspace.Parked && !c.FIFO:
				m.rest(ref, l)
			case l.State == keyspace.Ready && c.FIFO && int(ref.Offset) >= m.begin(id.Topic, int(ref.Queue)).kept:
				if lane := m.lane(ref); len(lane) > 0 && lane[0].Offset < ref.Offset {
					m.rest(ref, l)
				}
			}
		}
	}
}

// popAgain is what a pop with the attempt id of an earlier one gets, if anything.
func (m *model) popAgain(c command.SelectPop, s *modelSub) (res modelPop) {
	if !m.fifo(c.Group) || c.Attempt == "" {
		return res
	}
	var refs []keyspace.Ref
	for ref, l := range s.leases {
		if l.State == keyspace.Leased && l.Try == modelTry(c.Attempt) {
			refs = append(refs, ref)
		}
	}
	slices.SortFunc(refs, compareRefs)
	bytes := 0
	for _, ref := range refs {
		if len(res.popped) >= int(c.Max) || c.Bytes > 0 && bytes >= int(c.Bytes) {
			break
		}
		l, msg := s.leases[ref], m.topics[ref.Topic][ref.Queue][ref.Offset]
		if int(ref.Offset) < m.begin(c.Topic, int(ref.Queue)).kept {
			m.settle(ref) // lost
			continue
		}
		if slices.ContainsFunc(m.lane(ref), func(r keyspace.Ref) bool {
			before := s.leases[r]
			return r.Offset < ref.Offset && (before.State != keyspace.Leased || before.Try != l.Try)
		}) {
			l.Try = 0
			continue
		}
		l.When = modelVisibleAt(c.Time, c.Invisible)
		bytes += msg.size
		res.popped = append(res.popped, modelPopped{msg.id, ref.Queue, ref.Offset, l.Attempt})
		res.id = l.PopID
	}
	return res
}

// overtakes returns a message that the group was given although an earlier one of its
// message group is neither settled nor part of the same delivery; nil when there is none.
func (m *model) overtakes(sub keyspace.Sub, id mq.PopID, popped []modelPopped) *keyspace.Ref {
	for _, p := range popped {
		ref := keyspace.Ref{Sub: sub, Queue: p.queue, Offset: p.offset}
		for _, before := range m.lane(ref) {
			l := m.subs[sub].leases[before]
			if before.Offset < ref.Offset && (l.State != keyspace.Leased || l.PopID != id) {
				return &ref
			}
		}
	}
	return nil
}

// stuck returns a parked message with nothing before it in its lane; nil when there is
// none. A message that is ready has nothing before it either.
func (m *model) stuck() *keyspace.Ref {
	for _, s := range m.subs {
		for ref, l := range s.leases {
			lane := m.lane(ref)
			head := len(lane) == 0 || lane[0] == ref
			if l.State == keyspace.Parked && head || l.State == keyspace.Ready && !head {
				return &ref
			}
		}
	}
	return nil
}

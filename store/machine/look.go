package machine

import (
	"encoding/binary"

	"github.com/cockroachdb/pebble/v2"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
)

// A Look says what a pop would come to, without any of it being done.
type Look struct {
	// May says that the pop could change something: deliver, move past messages
	// that are not wanted, or fix the start of a new group.
	May bool
	// Full says that there is a message for the pop in a queue that is at its
	// in-flight limit. Without May there is none in another queue.
	Full bool
	// More says that the look ended at the pop's scan limit without an answer.
	// The next one goes on behind the redelivery After.
	More bool
	// Unjudged says that there are messages that were not looked at before the pop.
	Unjudged bool
	// After is a redelivery up to which there is none for the pop, at least the
	// pop's own After: the pop need not look at them again.
	After uint64
}

// Leased reports whether the group has messages of the topic under lease.
func (m *Machine) Leased(group mq.GroupID, topic mq.TopicID) bool {
	s := m.subs[keyspace.Sub{Group: group, Topic: topic}]
	return s != nil && s.leased > 0
}

// Look looks what the pop would come to. It changes nothing that a command's
// outcome depends on, and is called after Commit.
func (m *Machine) Look(c *command.SelectPop) (Look, error) {
	g, t := m.groups[c.Group], m.topics[c.Topic]
	if g == nil || t == nil {
		return Look{May: true, After: c.After}, nil // the command answers with what is missing
	}
	s := m.subs[keyspace.Sub{Group: c.Group, Topic: c.Topic}]
	if s == nil || s.unstarted {
		return Look{May: true, After: c.After}, nil
	}
	if err := m.loadQueues(t); err != nil {
		return Look{}, err
	}
	if err := m.loadProgress(s, t); err != nil {
		return Look{}, err
	}
	p := newPop(*c, g, t, s)
	if s.tries[p.try] != nil {
		return Look{May: true, After: c.After}, nil
	}
	look := Look{After: max(c.After, s.passed[string(m.filter(c.Tags))])}
	may, err := m.lookNew(p)
	if err != nil {
		return look, err
	}
	look.May, look.Full = may, p.heldUp
	if !may && s.ready > 0 && look.After < s.readyLast {
		if err := m.lookReady(p, &look); err != nil {
			return look, err
		}
	}
	look.Unjudged = p.unjudged
	s.heldUp = s.heldUp || look.Full
	return look, nil
}

// lookNew reports whether there are new messages that the pop could deliver or
// move past.
func (m *Machine) lookNew(p *pop) (may bool, err error) {
	for i, q := range p.t.queues {
		queue := mq.QueueID(i)
		start := max(p.s.progress[i], q.min)
		switch {
		case start >= q.next:
			continue
		case p.Chosen:
			// Nothing comes of what was not judged.
			wanted, known := p.judge(queue, start, nil)
			if !known {
				p.unjudged = true
				continue
			}
			if !wanted || !p.atLimit(queue) {
				return true, nil
			}
			if p.ordered {
				blocked, err := m.blockedAt(p, queue, start)
				if blocked || err != nil {
					return blocked, err
				}
			}
		case !p.atLimit(queue):
			return true, nil
		case !p.everything():
			// The pop moves up to the first message that is wanted.
			id := keyspace.Queue{Topic: p.t.ID, Queue: queue}
			e, found, err := m.entry(id, start)
			if err != nil {
				return false, err
			}
			if !found {
				return false, missingEntry(id, start)
			}
			if wanted, known := p.judge(queue, start, e.Tag); known && (!wanted || p.blocked(queue, e.Group)) {
				return true, nil
			}
		}
		p.heldUp = true
	}
	return false, nil
}

// blockedAt reports whether the new message at the offset waits for others of its message
// group.
func (m *Machine) blockedAt(p *pop, queue mq.QueueID, offset mq.QueueOffset) (bool, error) {
	id := keyspace.Queue{Topic: p.t.ID, Queue: queue}
	e, found, err := m.entry(id, offset)
	if err == nil && !found {
		err = missingEntry(id, offset)
	}
	return err == nil && p.blocked(queue, e.Group), err
}

// lookReady looks for a redelivery that the pop could deliver.
func (m *Machine) lookReady(p *pop, look *Look) error {
	first := max(look.After+1, p.s.readyLow)
	it, err := m.db.NewIter(&pebble.IterOptions{
		LowerBound: keyspace.AppendReadyKey(nil, p.s.id, first),
		UpperBound: keyspace.Next(keyspace.AppendReadyPrefix(nil, p.s.id)),
	})
	if err != nil {
		return err
	}
	defer func() { _ = it.Close() }() // read errors are in it.Error
	nowhere := p.s.allAtLimit(p.InFlight, len(p.t.queues))
	p.heldUp = false
	passing := m.passing(p)
	for ok := it.First(); ok; ok = it.Next() {
		if p.Scan <= 0 {
			look.More = true
			break
		}
		p.Scan--
		seq, err := keyspace.DecodeReadyKey(it.Key())
		if err != nil {
			return err
		}
		if first == p.s.readyLow {
			p.s.readyLow = seq // pops by priority leave it behind
		}
		first = 0
		queue, offset, err := keyspace.DecodeReady(it.Value())
		if err != nil {
			return err
		}
		may, err := m.wouldTake(p, keyspace.Ref{Sub: p.s.id, Queue: queue, Offset: offset}, seq)
		if err != nil {
			return err
		}
		if may {
			look.May = true
			return nil
		}
		look.Full = look.Full || p.heldUp
		if p.heldUp && nowhere {
			return nil
		}
		look.After = seq
		if passing && !p.heldUp {
			p.s.pass(m.filter(p.Tags), seq)
		}
	}
	return it.Error()
}

// passing reports whether the pop's look at the redeliveries, which begins
// behind its After, leaves none out that may be for it.
func (m *Machine) passing(p *pop) bool {
	return len(p.Tags) > 0 && (p.After < p.s.readyLow || p.After <= p.s.passed[string(m.filter(p.Tags))])
}

// wouldTake reports whether redeliver would change something.
func (m *Machine) wouldTake(p *pop, ref keyspace.Ref, seq uint64) (bool, error) {
	if p.heldUp && p.atLimit(ref.Queue) {
		return false, nil
	}
	l, found, err := m.lease(ref)
	if err != nil {
		return false, err
	}
	if !found || l.State != keyspace.Ready || l.When != seq || l.Attempt >= p.g.MaxAttempts {
		return true, nil
	}
	if ref.Queue.IsLite() {
		return false, nil // as in redeliver
	}
	if !p.everything() {
		e, found, err := m.entry(keyspace.Queue{Topic: ref.Topic, Queue: ref.Queue}, ref.Offset)
		if err != nil || !found {
			return !found, err
		}
		if wanted, known := p.judge(ref.Queue, ref.Offset, e.Tag); !wanted {
			p.unjudged = p.unjudged || !known
			// What keeps others of its message group waiting is settled.
			return known && p.ordered && p.s.laneOf(ref.Queue, l.Lane) != nil, nil
		}
	}
	if p.atLimit(ref.Queue) {
		p.heldUp = true
		return false, nil
	}
	return true, nil
}

// filter returns the tags as a key of sub.passed. It is good until the next call.
func (m *Machine) filter(tags []string) []byte {
	m.tags = m.tags[:0]
	for _, tag := range tags {
		m.tags = append(binary.AppendUvarint(m.tags, uint64(len(tag))), tag...)
	}
	return m.tags
}

package machine

import (
	"math"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
)

// applyLitePop delivers from the lite topics in their order. Each is one lane: what follows
// something that is not settled is delivered by the pop that delivers that, or not at all.
// Result.Lites are those that have more which could be delivered now.
func (m *Machine) applyLitePop(rec Record, res *Result) error {
	c, err := command.DecodeLitePop(rec.Payload)
	if err != nil {
		return err
	}
	return m.litePop(rec, &c, 0, res)
}

// applyLiteAttempt delivers what is left of an earlier pop with the same attempt id; when
// nothing is, it is a pop as any other. Then Result.Lites are all of its lite topics, none
// of which was looked at.
func (m *Machine) applyLiteAttempt(rec Record, res *Result) error {
	c, err := command.DecodeLiteAttempt(rec.Payload)
	if err != nil {
		return err
	}
	return m.litePop(rec, &c.LitePop, tryHash(c.Attempt), res)
}

func (m *Machine) litePop(rec Record, c *command.LitePop, try uint64, res *Result) error {
	g, t := m.groups[c.Group], m.topics[c.Topic]
	switch {
	case g == nil:
		res.Err = groupNotFound(c.Group)
	case t == nil:
		res.Err = topicNotFound(c.Topic)
	}
	if res.Err != nil {
		return nil
	}
	if err := m.Commit(); err != nil {
		return err
	}
	s, err := m.sub(g, t)
	if err != nil {
		return err
	}
	c.Tags, c.After = nil, 0
	p := newPop(command.SelectPop{LimitedPop: command.LimitedPop{Pop: c.Pop}}, g, t, s)
	p.ordered, p.try, p.res, p.index = true, try, res, rec.Index
	res.PopID = mq.PopID(c.Time)
	if again, err := m.popAgain(p); again || err != nil {
		res.Lites = append(res.Lites, c.Queues...)
		return err
	}
	it, err := m.db.NewIter(&pebble.IterOptions{
		LowerBound: keyspace.AppendQueuePrefix(nil, keyspace.Queue{Topic: t.ID, Queue: mq.FirstLiteQueue}),
		UpperBound: keyspace.Next(keyspace.AppendTopicEntriesPrefix(nil, t.ID)),
	})
	if err != nil {
		return err
	}
	defer func() { _ = it.Close() }() // read errors are in it.Error
	defer p.lane.close()
	for i, queue := range c.Queues {
		if slices.Contains(c.Queues[:i], queue) {
			continue // its place is only in the batch
		}
		if p.full() || p.Scan <= 0 {
			res.Lites = append(res.Lites, queue)
			continue
		}
		left, err := m.popLite(p, it, queue)
		if err != nil {
			return err
		}
		if left {
			res.Lites = append(res.Lites, queue)
		}
	}
	return nil
}

// popLite delivers from one lite topic, and reports whether there is more that could be
// delivered now.
func (m *Machine) popLite(p *pop, it *pebble.Iterator, queue mq.QueueID) (left bool, err error) {
	l, err := m.lite(keyspace.Queue{Topic: p.t.ID, Queue: queue})
	if l == nil || err != nil {
		return false, err // it has expired
	}
	start, known, err := m.litePlace(p.s.id, queue)
	if err != nil {
		return false, err
	}
	next := max(start, l.min)
	for {
		ln := p.s.laneOf(queue, keyspace.LiteLane)
		if ln == nil || ln.whole == p.index {
			break
		}
		ref := keyspace.Ref{Sub: p.s.id, Queue: queue, Offset: ln.offsets[0]}
		head, err := p.lane.lease(m, ref)
		if err != nil {
			return false, err
		}
		if head.State != keyspace.Ready {
			return false, nil // whoever settles it says so
		}
		if p.full() || p.Scan <= 0 {
			return true, nil
		}
		p.Scan--
		if _, err := m.popLane(p, ref, ln); err != nil {
			return false, err
		}
	}
	if next < l.next && !p.full() {
		end := next
		if next, err = m.popQueue(p, it, queue, end, l.next); err != nil {
			return false, err
		}
	}
	if next != start || !known {
		if err := m.setLitePlace(p.s.id, queue, next); err != nil {
			return false, err
		}
	}
	return p.s.laneOf(queue, keyspace.LiteLane) == nil && next < l.next, nil
}

// LitePoppable reports whether a pop of the lite topics could deliver anything. It changes
// nothing, and is called after Commit. In each it looks at no more than one message.
func (m *Machine) LitePoppable(c *command.LiteAttempt) (bool, error) {
	g, t := m.groups[c.Group], m.topics[c.Topic]
	if g == nil || t == nil {
		return true, nil // the command answers with what is missing
	}
	if !m.dirty {
		m.lites.committed() // looks alone must not fill the memory
	}
	id := keyspace.Sub{Group: c.Group, Topic: c.Topic}
	s := m.subs[id]
	if s != nil && s.tries[tryHash(c.Attempt)] != nil {
		return true, nil
	}
	for _, queue := range c.Queues {
		l, err := m.lite(keyspace.Queue{Topic: c.Topic, Queue: queue})
		if err != nil {
			return false, err
		}
		if l == nil {
			continue
		}
		if s != nil {
			if ln := s.laneOf(queue, keyspace.LiteLane); ln != nil {
				head, _, err := m.lease(keyspace.Ref{Sub: id, Queue: queue, Offset: ln.offsets[0]})
				if head.State == keyspace.Ready || err != nil {
					return true, err
				}
				continue
			}
		}
		place, _, err := m.litePlace(id, queue)
		if err != nil || max(place, l.min) < l.next {
			return true, err
		}
	}
	return false, nil
}

// dropLiteDeliveries ends what the group has of a lite topic below an offset under delivery.
func (m *Machine) dropLiteDeliveries(s *sub, queue mq.QueueID, below mq.QueueOffset) error {
	if ln := s.laneOf(queue, keyspace.LiteLane); ln != nil {
		// Backwards, or each would let the next one move up.
		for _, offset := range slices.Backward(slices.Clone(ln.offsets)) {
			if offset >= below {
				continue
			}
			if err := m.dropLiteDelivery(s, keyspace.Ref{Sub: s.id, Queue: queue, Offset: offset}); err != nil {
				return err
			}
		}
	}
	u, ok := s.usedUpIn[queue]
	if !ok {
		return nil
	}
	refs, err := m.usedUpOf(keyspace.Ref{Sub: s.id, Queue: queue, Offset: u.low}, int(min(u.n, math.MaxInt32)))
	if err != nil {
		return err
	}
	for _, ref := range refs {
		if ref.Offset >= below {
			continue
		}
		if err := m.dropLiteDelivery(s, ref); err != nil {
			return err
		}
	}
	return nil
}

func (m *Machine) dropLiteDelivery(s *sub, ref keyspace.Ref) error {
	l, found, err := m.lease(ref)
	if !found || err != nil {
		return err
	}
	return m.drop(s, ref, l)
}

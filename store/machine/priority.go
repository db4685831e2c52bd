package machine

import (
	"bytes"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/keyspace"
)

// Delivery by priority: the queue of a message is its priority, so the queue with the
// highest id goes first, its redeliveries before its new messages. So that none starves,
// one of fairEvery pops that deliver begins with a lower queue that has something, and the
// next such pop with the one below it. Whose turn it is stands in the views: the same
// commands give the same deliveries, after a restart as well.
//
// The redeliveries of such a group are in two indexes: by sequence, as everybody's, for
// looks that go on where they were and for pops of another order, and by queue.

// fairEvery is one more than the pops in a row that begin with the highest queue while
// there is something in a lower one. Records are replayed, so it never changes.
const fairEvery = 8

// noQueue is no queue's id.
const noQueue mq.QueueID = -1

// popByPriority delivers from the highest queue on down.
func (m *Machine) popByPriority(p *pop) error {
	unordered, err := m.orderReady(p.s)
	if err != nil {
		return err
	}
	first, waits := p.fair()
	b := byPriority{m: m, p: p, skip: p.Scan / 2}
	defer b.close()
	done := false
	if unordered { // what was put in order just now cannot be read before a commit
		done, err = b.popRest()
	}
	if first != noQueue && !done && err == nil {
		done, err = b.pop(first)
	}
	for queue := mq.QueueID(len(p.t.queues)) - 1; queue >= 0 && !done && err == nil; queue-- {
		if queue != first {
			done, err = b.pop(queue)
		}
	}
	if err != nil {
		return err
	}
	if p.s.ready == 0 {
		p.s.readyLow = m.state.Ready + 1
	}
	if len(p.res.Popped) == 0 {
		return nil
	}
	return m.passTurn(p.s, first, waits)
}

// holds reports whether the group has something to receive from the queue that its
// in-flight limit lets it have.
func (p *pop) holds(queue mq.QueueID) bool {
	q := p.t.queues[queue]
	return (max(p.s.progress[queue], q.min) < q.next || countIn(p.s.readyIn, queue) > 0) && !p.atLimit(queue)
}

// fair returns the queue that the pop begins with when it is not the turn of the highest
// one that holds something, else noQueue; and whether a lower one holds something, too.
func (p *pop) fair() (queue mq.QueueID, waits bool) {
	n := mq.QueueID(len(p.t.queues))
	top := n - 1
	for top >= 0 && !p.holds(top) {
		top--
	}
	last := p.s.turn.Queue
	for i := mq.QueueID(1); i <= n; i++ {
		queue = ((last-i)%n + n) % n
		if queue >= top || !p.holds(queue) {
			continue
		}
		if p.s.turn.Pops+1 < fairEvery {
			return noQueue, true
		}
		return queue, true
	}
	return noQueue, false
}

// passTurn notes that a pop has delivered which began with the queue, or with the highest
// one while another waited, or not.
func (m *Machine) passTurn(s *sub, first mq.QueueID, waits bool) error {
	next := *s.turn
	switch {
	case first != noQueue:
		next = keyspace.Turn{Queue: first}
	case waits:
		next.Pops++
	default:
		next.Pops = 0
	}
	if next == *s.turn {
		return nil
	}
	*s.turn = next
	return m.putTurn(s)
}

func (m *Machine) putTurn(s *sub) error {
	m.key = keyspace.AppendTurnKey(m.key[:0], s.id)
	m.val = keyspace.AppendTurn(m.val[:0], *s.turn)
	return m.set(m.key, m.val)
}

// byPriority is a pop on its way through the queues.
type byPriority struct {
	m *Machine
	p *pop
	// skip is how many more redeliveries may be looked at that are not for the pop. Where
	// there are more of them, the rest is taken by sequence, so that the next pop
	// goes on behind those that this one has looked at.
	skip    int32
	skipped bool

	ready, entries *pebble.Iterator
}

func (b *byPriority) close() {
	for _, it := range []*pebble.Iterator{b.ready, b.entries} {
		if it != nil {
			_ = it.Close() // read errors are in it.Error
		}
	}
}

// pop delivers from one queue, and reports whether the pop is at its end.
func (b *byPriority) pop(queue mq.QueueID) (done bool, err error) {
	if !b.skipped && countIn(b.p.s.readyIn, queue) > 0 {
		if err := b.popReady(queue); err != nil {
			return false, err
		}
		if b.skipped {
			if done, err := b.popRest(); done || err != nil {
				return done, err
			}
		}
		if b.p.full() {
			return true, nil
		}
	}
	return b.m.popNewOf(b.p, &b.entries, queue)
}

// popRest delivers redeliveries of any queue by sequence, and reports whether the pop is
// at its end.
func (b *byPriority) popRest() (done bool, err error) {
	b.skipped = true
	err = b.m.popReady(b.p)
	return b.p.full() || b.p.res.More, err
}

// popReady delivers messages of one queue again, in the order in which they became ready.
func (b *byPriority) popReady(queue mq.QueueID) (err error) {
	m, p, s := b.m, b.p, b.p.s
	if b.ready == nil {
		prefix := keyspace.AppendPriorityPrefix(nil, s.id)
		if b.ready, err = m.db.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: keyspace.Next(bytes.Clone(prefix))}); err != nil {
			return err
		}
	}
	for int(queue) >= len(s.firstReady) {
		s.firstReady = append(s.firstReady, 0)
	}
	low := s.firstReady[queue]
	fromHead := p.After < low || p.After == 0
	limit := keyspace.AppendPriorityKey(nil, s.id, queue+1, 0)
	it := b.ready
	state := it.SeekGEWithLimit(keyspace.AppendPriorityKey(nil, s.id, queue, max(low, p.After+1)), limit)
	for ; state == pebble.IterValid && !p.full(); state = it.NextWithLimit(limit) {
		_, at, seq, err := keyspace.DecodePriorityKey(it.Key())
		if err != nil {
			return err
		}
		if at != queue {
			break // Pebble keeps the limit as well as it can
		}
		if b.skip <= 0 || p.Scan <= 0 {
			b.skipped = true
			return nil
		}
		p.Scan--
		val, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		offset, err := keyspace.DecodeOffset(val)
		if err != nil {
			return err
		}
		taken, err := m.redeliver(p, keyspace.Ref{Sub: s.id, Queue: queue, Offset: offset}, seq)
		if err != nil {
			return err
		}
		if !taken {
			b.skip--
		}
		if fromHead = fromHead && taken; fromHead {
			s.firstReady[queue] = seq + 1
		}
		if p.heldUp && p.atLimit(queue) {
			return nil // there is nothing more to find out
		}
	}
	return it.Error()
}

// orderReady makes the group one that receives by priority, and reports whether it had
// redeliveries before.
func (m *Machine) orderReady(s *sub) (had bool, err error) {
	if s.turn != nil {
		return false, nil
	}
	s.turn = &keyspace.Turn{}
	if err := m.putTurn(s); err != nil || s.ready == 0 {
		return false, err
	}
	lower := keyspace.AppendReadyKey(nil, s.id, s.readyLow)
	upper := keyspace.Next(keyspace.AppendReadyPrefix(nil, s.id))
	return true, m.scan(lower, upper, func(k, v []byte) error {
		seq, err := keyspace.DecodeReadyKey(k)
		if err != nil {
			return err
		}
		queue, offset, err := keyspace.DecodeReady(v)
		if err != nil {
			return err
		}
		return m.putByPriority(s, keyspace.Ref{Sub: s.id, Queue: queue, Offset: offset}, seq)
	})
}

// putByPriority orders a redelivery by queue, if the group receives by priority.
func (m *Machine) putByPriority(s *sub, ref keyspace.Ref, seq uint64) error {
	if s.turn == nil {
		return nil
	}
	m.key = keyspace.AppendPriorityKey(m.key[:0], s.id, ref.Queue, seq)
	m.val = keyspace.AppendOffset(m.val[:0], ref.Offset)
	return m.set(m.key, m.val)
}

// delReady deletes what leads to a redelivery.
func (m *Machine) delReady(s *sub, ref keyspace.Ref, seq uint64) error {
	if s.turn != nil {
		m.key = keyspace.AppendPriorityKey(m.key[:0], s.id, ref.Queue, seq)
		if err := m.del(m.key); err != nil {
			return err
		}
	}
	m.key = keyspace.AppendReadyKey(m.key[:0], s.id, seq)
	return m.del(m.key)
}

// loadTurns notes which groups receive by priority.
func (m *Machine) loadTurns() error {
	lower, upper := keyspace.TurnKeys()
	return m.scan(lower, upper, func(k, v []byte) error {
		id, err := keyspace.DecodeTurnKey(k)
		if err != nil {
			return err
		}
		t, err := keyspace.DecodeTurn(v)
		if err != nil {
			return err
		}
		s := m.subs[id]
		if s == nil {
			return fmt.Errorf("%w: group %d receives topic %d by priority and has no subscription to it", keyspace.ErrCorrupt, id.Group, id.Topic)
		}
		s.turn = &t
		return nil
	})
}

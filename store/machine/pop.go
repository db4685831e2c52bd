package machine

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
)

// A pop in progress.
type pop struct {
	command.SelectPop
	g   *command.Group
	t   *topic
	s   *sub
	res *Result
	// bytes is what the messages delivered so far take.
	bytes uint64
	// heldUp: a message that is wanted was left in a queue at its in-flight limit.
	heldUp bool
	// unjudged: a look met a message that was not looked at before the pop.
	unjudged bool
	// ordered: the group keeps the order of message groups.
	ordered bool
	lane    laneReader
	index   uint64 // of the record
	try     uint64 // hash of the attempt id, 0 without one
}

func newPop(c command.SelectPop, g *command.Group, t *topic, s *sub) *pop {
	p := &pop{SelectPop: c, g: g, t: t, s: s, ordered: g.FIFO}
	if p.ordered {
		p.try = tryHash(c.Attempt)
	}
	return p
}

func (p *pop) full() bool {
	return len(p.res.Popped) >= int(p.Max) || p.Bytes > 0 && p.bytes >= uint64(p.Bytes)
}

// left reports whether the group has anything of the topic to receive.
func (p *pop) left() bool {
	if p.s.ready > 0 {
		return true
	}
	for i, q := range p.t.queues {
		if max(p.s.progress[i], q.min) < q.next {
			return true
		}
	}
	return false
}

// atLimit reports whether the group may be given no more messages of the queue
// before it has settled some.
func (p *pop) atLimit(queue mq.QueueID) bool {
	return p.InFlight > 0 && p.s.leasedOf(queue) >= p.InFlight
}

// blocked reports whether a new message has to wait for others of its message group. It
// need not wait for those that this very pop delivers.
func (p *pop) blocked(queue mq.QueueID, hash uint64) bool {
	if !p.ordered {
		return false
	}
	ln := p.s.laneOf(queue, hash)
	return ln != nil && (p.index == 0 || ln.whole != p.index)
}

// judge returns whether the message is wanted, and whether that is known.
func (p *pop) judge(queue mq.QueueID, offset mq.QueueOffset, tag []byte) (wanted, known bool) {
	switch {
	case p.Chosen:
		return p.Judge(queue, offset)
	case len(p.Tags) == 0:
		return true, true
	}
	return slices.ContainsFunc(p.Tags, func(want string) bool { return want == string(tag) }), true
}

// everything reports whether every message is wanted.
func (p *pop) everything() bool { return !p.Chosen && len(p.Tags) == 0 }

func (m *Machine) applyPop(rec Record, res *Result) error {
	c, err := command.DecodePop(rec.Payload)
	if err != nil {
		return err
	}
	return m.pop(rec, command.SelectPop{LimitedPop: command.LimitedPop{Pop: c}}, res)
}

func (m *Machine) applyLimitedPop(rec Record, res *Result) error {
	c, err := command.DecodeLimitedPop(rec.Payload)
	if err != nil {
		return err
	}
	return m.pop(rec, command.SelectPop{LimitedPop: c}, res)
}

func (m *Machine) applySelectPop(rec Record, res *Result) error {
	c, err := command.DecodeSelectPop(rec.Payload)
	if err != nil {
		return err
	}
	return m.pop(rec, c, res)
}

func (m *Machine) pop(rec Record, c command.SelectPop, res *Result) error {
	g, t := m.groups[c.Group], m.topics[c.Topic]
	if g == nil {
		res.Err = groupNotFound(c.Group)
		return nil
	}
	if t == nil {
		res.Err = topicNotFound(c.Topic)
		return nil
	}
	if err := m.Commit(); err != nil {
		return err
	}
	s, err := m.sub(g, t)
	if err != nil {
		return err
	}
	p := newPop(c, g, t, s)
	p.res, p.index = res, rec.Index
	res.After, res.PopID = c.After, mq.PopID(c.Time)
	if again, err := m.popAgain(p); again || err != nil {
		return err
	}
	if c.Order == command.PriorityOrder && !p.ordered {
		err = m.popByPriority(p)
	} else { // message groups keep their order whatever is asked for
		err = m.popInTurn(p, mix(rec.Index))
	}
	if err != nil {
		return err
	}
	res.Full, res.Left = p.heldUp, p.full() && p.left()
	s.heldUp = s.heldUp || p.heldUp
	return nil
}

// popInTurn delivers redeliveries first, then new messages.
func (m *Machine) popInTurn(p *pop, turn uint64) error {
	if p.s.ready > 0 {
		if err := m.popReady(p); err != nil {
			return err
		}
	}
	if p.full() {
		return nil
	}
	return m.popNew(p, turn)
}

// popReady delivers messages again, in the order in which they became ready.
func (m *Machine) popReady(p *pop) error {
	first := max(p.After+1, p.s.readyLow)
	fromHead := p.After < p.s.readyLow
	it, err := m.db.NewIter(&pebble.IterOptions{
		LowerBound: keyspace.AppendReadyKey(nil, p.s.id, first),
		UpperBound: keyspace.Next(keyspace.AppendReadyPrefix(nil, p.s.id)),
	})
	if err != nil {
		return err
	}
	defer func() { _ = it.Close() }() // read errors are in it.Error
	defer p.lane.close()
	passing := m.passing(p)
	for ok := it.First(); ok && !p.full(); ok = it.Next() {
		if p.Scan <= 0 {
			p.res.More = true
			break
		}
		p.Scan--
		seq, err := keyspace.DecodeReadyKey(it.Key())
		if err != nil {
			return err
		}
		queue, offset, err := keyspace.DecodeReady(it.Value())
		if err != nil {
			return err
		}
		taken, err := m.redeliver(p, keyspace.Ref{Sub: p.s.id, Queue: queue, Offset: offset}, seq)
		if err != nil {
			return err
		}
		p.res.After = seq
		if fromHead = fromHead && taken; fromHead {
			p.s.readyLow = seq + 1
		}
		if passing && !p.heldUp {
			p.s.pass(m.filter(p.Tags), seq)
		}
	}
	return it.Error()
}

// redeliver delivers one ready message unless the filter does not want it or its
// queue is at its limit, and reports whether the message is no longer ready. One whose
// entry a trim has taken is dropped.
func (m *Machine) redeliver(p *pop, ref keyspace.Ref, seq uint64) (taken bool, err error) {
	if p.heldUp && p.atLimit(ref.Queue) {
		return false, nil // there is nothing more to find out
	}
	l, found, err := m.lease(ref)
	if err != nil {
		return false, err
	}
	if !found || l.State != keyspace.Ready || l.When != seq {
		return true, m.delReady(p.s, ref, seq)
	}
	if ref.Queue.IsLite() {
		return false, nil // that is for those who have subscribed to it
	}
	if ln := p.s.laneOf(ref.Queue, l.Lane); p.ordered && ln != nil {
		return m.popLane(p, ref, ln)
	}
	if l.Attempt >= p.g.MaxAttempts { // the limit was lowered meanwhile
		return true, m.end(p.s, ref, l, p.g.MaxAttempts)
	}
	e, found, err := m.entry(keyspace.Queue{Topic: ref.Topic, Queue: ref.Queue}, ref.Offset)
	if err != nil {
		return false, err
	}
	if !found {
		return true, m.lose(p, ref, l)
	}
	if wanted, known := p.judge(ref.Queue, ref.Offset, e.Tag); !wanted {
		p.res.Unjudged = p.res.Unjudged || !known
		return false, nil
	}
	if p.atLimit(ref.Queue) {
		p.heldUp = true
		return false, nil
	}
	if err := m.unindex(p.s, ref, l); err != nil {
		return false, err
	}
	l.Attempt++
	return true, m.deliver(p, ref, &e, l)
}

// deliver leases one message.
func (m *Machine) deliver(p *pop, ref keyspace.Ref, e *keyspace.Entry, l keyspace.Lease) error {
	l.Nacked, l.Try = false, p.try
	return m.lend(p, ref, e, l, mq.PopID(p.Time))
}

// lend writes the lease of one message that the pop delivers.
func (m *Machine) lend(p *pop, ref keyspace.Ref, e *keyspace.Entry, l keyspace.Lease, id mq.PopID) error {
	l.State, l.PopID, l.When = keyspace.Leased, id, visibleAt(p.Time, p.Invisible)
	p.bytes += uint64(e.Size)
	p.res.Popped = append(p.res.Popped, Popped{
		Queue: ref.Queue, Offset: ref.Offset, Attempt: l.Attempt,
		Pos: e.Pos, Size: e.Size, StoreTime: e.StoreTime,
	})
	return m.put(p.s, ref, l)
}

// mix spreads the indexes of records evenly, whatever their rhythm: a consumer
// whose every receive is followed by one ack would begin with every other queue
// only, were the index itself the turn. Records are replayed, so it never changes.
func mix(index uint64) uint64 {
	index = (index ^ index>>30) * 0xbf58476d1ce4e5b9
	index = (index ^ index>>27) * 0x94d049bb133111eb
	return index ^ index>>31
}

// popNew delivers messages for the first time. The queue it begins with changes
// with every command, so that no queue waits behind a busy one.
func (m *Machine) popNew(p *pop, turn uint64) error {
	var it *pebble.Iterator
	defer func() {
		if it != nil {
			_ = it.Close() // read errors are in it.Error
		}
	}()
	n := len(p.t.queues)
	for i := range n {
		queue := mq.QueueID((turn%uint64(n) + uint64(i)) % uint64(n))
		if done, err := m.popNewOf(p, &it, queue); done || err != nil {
			return err
		}
	}
	return nil
}

// popNewOf delivers messages of one queue for the first time, and reports whether the
// pop is at its end. It makes the iterator when it needs one.
func (m *Machine) popNewOf(p *pop, it **pebble.Iterator, queue mq.QueueID) (done bool, err error) {
	q := p.t.queues[queue]
	start := max(p.s.progress[queue], q.min)
	if start >= q.next {
		return false, nil
	}
	if p.Scan <= 0 {
		p.res.More = true
		return true, nil
	}
	if p.everything() && p.atLimit(queue) {
		p.heldUp = true
		return false, nil
	}
	if *it == nil {
		*it, err = m.db.NewIter(&pebble.IterOptions{
			LowerBound: keyspace.AppendTopicEntriesPrefix(nil, p.t.ID),
			UpperBound: keyspace.Next(keyspace.AppendTopicEntriesPrefix(nil, p.t.ID)),
		})
		if err != nil {
			return false, err
		}
	}
	next, err := m.popQueue(p, *it, queue, start, q.next)
	if err != nil {
		return false, err
	}
	if next != start {
		if err := m.setProgress(p.s, queue, next); err != nil {
			return false, err
		}
	}
	return p.full(), nil
}

// popQueue delivers from start to before end and returns the new progress. A queue
// holds every offset of that range. One that is not there is damage of the views:
// to go on behind it would lose its message for the group without a word.
func (m *Machine) popQueue(p *pop, it *pebble.Iterator, queue mq.QueueID, start, end mq.QueueOffset) (mq.QueueOffset, error) {
	id := keyspace.Queue{Topic: p.t.ID, Queue: queue}
	next := p.skip(queue, start, end)
	if next == end {
		return next, nil
	}
	m.key = keyspace.AppendEntryKey(m.key[:0], id, next)
	for ok := it.SeekGE(m.key); ok && next < end; ok = m.goOn(it, id, next) {
		if p.full() {
			return next, nil
		}
		if p.Scan <= 0 {
			p.res.More = true
			return next, nil
		}
		p.Scan--
		found, offset, err := keyspace.DecodeEntryKey(it.Key())
		if err != nil {
			return 0, err
		}
		if found != id || offset != next {
			return 0, missingEntry(id, next)
		}
		e, err := keyspace.DecodeEntry(it.Value())
		if err != nil {
			return 0, err
		}
		wanted, known := p.judge(queue, offset, e.Tag)
		if !known {
			p.res.Unjudged = true
			return next, nil
		}
		if !wanted {
			next = offset + 1
			continue
		}
		ref := keyspace.Ref{Sub: p.s.id, Queue: queue, Offset: offset}
		if p.blocked(queue, e.Group) {
			next = offset + 1
			if err := m.park(p.s, ref, e.Group); err != nil {
				return 0, err
			}
			continue
		}
		if p.atLimit(queue) {
			p.heldUp = true
			return next, nil
		}
		next = p.skip(queue, offset+1, end)
		l := keyspace.Lease{Attempt: 1, First: p.Time}
		if p.ordered && e.Group != 0 {
			l.Lane = e.Group
			p.s.join(ref, e.Group).whole = p.index
		}
		if err := m.deliver(p, ref, &e, l); err != nil {
			return 0, err
		}
	}
	if err := it.Error(); err != nil {
		return 0, err
	}
	if next < end {
		return 0, missingEntry(id, next)
	}
	return next, nil
}

// lose drops a delivery whose message has no entry, because a trim has taken it. Above
// what was trimmed that is damage, as for popQueue.
func (m *Machine) lose(p *pop, ref keyspace.Ref, l keyspace.Lease) error {
	if !ref.Queue.IsLite() { // whose ends are not those of the topic
		if err := p.t.trimmed(ref); err != nil {
			return err
		}
	}
	m.Effects.Lost++
	p.res.Lost++
	return m.drop(p.s, ref, l)
}

// trimmed returns nil when a trim has taken the entry of the message, and else that it
// should be there. The queues must be loaded.
func (t *topic) trimmed(ref keyspace.Ref) error {
	if q := int(ref.Queue); q >= 0 && q < len(t.queues) && ref.Offset < t.queues[q].kept {
		return nil
	}
	return missingEntry(keyspace.Queue{Topic: ref.Topic, Queue: ref.Queue}, ref.Offset)
}

// skip returns where the first message from the offset on is that is wanted or was not
// judged, and end when there is none before it. What lies between need not be read: it
// was, by who judged it. Without a choice it is the offset.
func (p *pop) skip(queue mq.QueueID, offset, end mq.QueueOffset) mq.QueueOffset {
	if !p.Chosen {
		return offset
	}
	return min(p.NextWanted(queue, offset), end)
}

// goOn takes the iterator to the offset, behind which it is not.
func (m *Machine) goOn(it *pebble.Iterator, id keyspace.Queue, offset mq.QueueOffset) bool {
	m.key = keyspace.AppendEntryKey(m.key[:0], id, offset)
	if ok := it.Next(); !ok || bytes.Compare(it.Key(), m.key) >= 0 {
		return ok
	}
	return it.SeekGE(m.key)
}

func missingEntry(id keyspace.Queue, offset mq.QueueOffset) error {
	return fmt.Errorf("%w: queue %d of topic %d has no entry %d", keyspace.ErrCorrupt, id.Queue, id.Topic, offset)
}

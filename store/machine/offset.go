package machine

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
)

// noProgress is the progress in a queue in which the group has no place yet.
const noProgress mq.QueueOffset = -1

func (m *Machine) applySetOffset(rec Record, res *Result) error {
	c, err := command.DecodeSetOffset(rec.Payload)
	if err != nil {
		return err
	}
	if res.Err, err = m.CheckSetOffset(&c); res.Err != nil || err != nil {
		return err
	}
	t := m.topics[c.Topic]
	if err := m.Commit(); err != nil { // what is under delivery is read
		return err
	}
	s, err := m.subToSet(keyspace.Sub{Group: c.Group, Topic: c.Topic}, t)
	if err != nil {
		return err
	}
	for _, q := range c.Queues {
		from := q.Offset
		if c.Drop {
			from = 0
		}
		n, err := m.dropFrom(s, q.Queue, from)
		if err != nil {
			return err
		}
		res.Dropped += n
		if err := m.setProgress(s, q.Queue, q.Offset); err != nil {
			return err
		}
		if more := t.queues[q.Queue].next - q.Offset; more > 0 {
			m.Effects.Ready = append(m.Effects.Ready, Readied{s.id, int(min(more, maxReadied))})
		}
	}
	return nil
}

// maxReadied bounds for how many messages receives are woken at a time: one that gets as
// much as it takes wakes the next.
const maxReadied = 1024

// settable returns why the progress in a queue cannot be set, or nil.
func settable(t *topic, q command.QueueSet) error {
	if q.Queue < 0 || int(q.Queue) >= len(t.queues) {
		return fmt.Errorf("topic %s has %d queues, not queue %d: %w", t.Name, t.Queues, q.Queue, mq.ErrQueueNotFound)
	}
	have := t.queues[q.Queue]
	if q.Offset < have.min || q.Offset > have.next {
		return &mq.OffsetError{Topic: t.Name, Queue: q.Queue, Offset: q.Offset, Min: have.min, Next: have.next}
	}
	return nil
}

// subToSet returns what the group does with the topic. To set an offset in one queue
// does not say where the group starts in the others: that is fixed when it receives.
func (m *Machine) subToSet(id keyspace.Sub, t *topic) (*sub, error) {
	if s := m.subs[id]; s != nil {
		return s, m.loadProgress(s, t)
	}
	s := m.addSub(id)
	s.loaded, s.unstarted = true, true
	if err := m.loadProgress(s, t); err != nil {
		return nil, err
	}
	m.key = keyspace.AppendSubKey(m.key[:0], id)
	if err := m.set(m.key, nil); err != nil {
		return nil, err
	}
	m.key = keyspace.AppendUnstartedKey(m.key[:0], id)
	return s, m.set(m.key, nil)
}

// startRest fixes where a group that has set offsets starts in the queues in which it
// has not.
func (m *Machine) startRest(s *sub, g *command.Group, t *topic) error {
	starts := slices.Clone(s.progress)
	for i, offset := range starts { // before the first effect, as in sub
		if offset != noProgress {
			continue
		}
		start, err := m.start(g, t, mq.QueueID(i))
		if err != nil {
			return err
		}
		starts[i] = start
	}
	for i, start := range starts {
		switch {
		case s.progress[i] != noProgress:
		case start == 0:
			s.progress[i] = 0
		default:
			if err := m.setProgress(s, mq.QueueID(i), start); err != nil {
				return err
			}
		}
	}
	s.unstarted = false
	m.key = keyspace.AppendUnstartedKey(m.key[:0], s.id)
	return m.del(m.key)
}

// dropFrom ends what the group has of the queue under delivery from an offset on, and
// returns how many that were. The batch must hold nothing of it.
func (m *Machine) dropFrom(s *sub, queue mq.QueueID, from mq.QueueOffset) (int, error) {
	if s.unsettled(queue) == 0 {
		return 0, nil
	}
	refs, err := m.deliveries(s, queue, from, math.MaxInt64, math.MaxInt)
	if err != nil {
		return 0, err
	}
	return len(refs), m.dropAll(s, refs)
}

// dropAll ends deliveries, which are in the order that deliveries returns: the last one
// goes first, and each is looked up when it goes. Were the end of one to change those
// behind it, as it does where messages wait for an earlier one, there are none left.
func (m *Machine) dropAll(s *sub, refs []keyspace.Ref) error {
	for _, ref := range refs {
		l, found, err := m.lease(ref)
		if err != nil {
			return err
		}
		if !found {
			continue
		}
		if err := m.drop(s, ref, l); err != nil {
			return err
		}
	}
	return nil
}

// deliveries lists what was committed of the group's deliveries of a queue, from one
// offset to before another, the last first and not more than limit.
func (m *Machine) deliveries(s *sub, queue mq.QueueID, from, to mq.QueueOffset, limit int) (refs []keyspace.Ref, err error) {
	upper := keyspace.LeaseQueueEnd(s.id, queue)
	if to < math.MaxInt64 {
		upper = keyspace.AppendLeaseKey(nil, keyspace.Ref{Sub: s.id, Queue: queue, Offset: to})
	}
	it, err := m.db.NewIter(&pebble.IterOptions{
		LowerBound: keyspace.AppendLeaseKey(nil, keyspace.Ref{Sub: s.id, Queue: queue, Offset: from}), UpperBound: upper,
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for ok := it.Last(); ok && len(refs) < limit; ok = it.Prev() {
		ref, err := keyspace.DecodeLeaseKey(it.Key())
		if err != nil {
			return nil, err
		}
		refs = append(refs, ref)
	}
	return refs, it.Error()
}

// unsettled returns how many messages of the queue are under delivery.
func (s *sub) unsettled(queue mq.QueueID) int64 {
	return int64(s.leasedOf(queue)) + countIn(s.readyIn, queue) + countIn(s.parkedIn, queue) + s.usedUpIn[queue].n
}

// Unsettled returns how many messages the group has under delivery of the queue.
func (m *Machine) Unsettled(id keyspace.Sub, queue mq.QueueID) int64 {
	if s := m.subs[id]; s != nil {
		return s.unsettled(queue)
	}
	return 0
}

// CheckSetOffset returns why a set-offset would be refused now, or nil.
func (m *Machine) CheckSetOffset(c *command.SetOffset) (refusal, err error) {
	g, t := m.groups[c.Group], m.topics[c.Topic]
	if g == nil {
		return groupNotFound(c.Group), nil
	}
	if t == nil {
		return topicNotFound(c.Topic), nil
	}
	if err := m.loadQueues(t); err != nil {
		return nil, err
	}
	for _, q := range c.Queues {
		if refusal := settable(t, q); refusal != nil {
			return refusal, nil
		}
	}
	return nil, nil
}

// applyEndDeliveries ends some deliveries of a queue, so that a group that has many is set
// to another place in small commands.
func (m *Machine) applyEndDeliveries(rec Record, res *Result) error {
	c, err := command.DecodeEndDeliveries(rec.Payload)
	if err != nil {
		return err
	}
	s, t := m.subs[keyspace.Sub{Group: c.Group, Topic: c.Topic}], m.topics[c.Topic]
	if s == nil || t == nil || c.Queue < 0 || int32(c.Queue) >= t.Queues {
		return nil // there is nothing under delivery
	}
	if err := errors.Join(m.loadQueues(t), m.loadProgress(s, t)); err != nil {
		return err
	}
	if c.Back && c.To < s.progress[c.Queue] {
		return nil // what is under delivery from To on would come again while it is
	}
	if err := m.Commit(); err != nil { // what is under delivery is read
		return err
	}
	refs, err := m.deliveries(s, c.Queue, c.From, c.To, int(c.Limit))
	if len(refs) == 0 || err != nil {
		return err
	}
	res.First, res.Dropped = refs[len(refs)-1].Offset, len(refs)
	if c.Back && res.First < s.progress[c.Queue] {
		if err := m.setProgress(s, c.Queue, res.First); err != nil {
			return err
		}
	}
	return m.dropAll(s, refs)
}

// loadUnstarted notes which groups have set offsets and received nothing.
func (m *Machine) loadUnstarted() error {
	lower, upper := keyspace.UnstartedKeys()
	return m.scan(lower, upper, func(k, _ []byte) error {
		id, err := keyspace.DecodeUnstartedKey(k)
		if err != nil {
			return err
		}
		s := m.subs[id]
		if s == nil {
			return fmt.Errorf("%w: group %d is unstarted in topic %d and has no subscription to it", keyspace.ErrCorrupt, id.Group, id.Topic)
		}
		s.unstarted = true
		return nil
	})
}

// Positions returns how far the group is with each queue of the topic; none for an
// unknown topic.
func (m *Machine) Positions(id keyspace.Sub) ([]mq.Position, error) {
	ranges, err := m.Queues(id.Topic)
	if err != nil {
		return nil, err
	}
	list := make([]mq.Position, len(ranges))
	for i, r := range ranges {
		list[i] = mq.Position{QueueRange: r}
	}
	s, t := m.subs[id], m.topics[id.Topic]
	if s == nil || t == nil {
		return list, nil
	}
	if err := m.loadProgress(s, t); err != nil {
		return nil, err
	}
	for i := range list {
		p, queue := &list[i], mq.QueueID(i)
		if s.progress[i] != noProgress {
			p.Known, p.Offset = true, min(max(s.progress[i], p.Min), p.Next)
		}
		p.InFlight, p.Retrying, p.UsedUp = int64(s.leasedOf(queue)), countIn(s.readyIn, queue), s.usedUpIn[queue].n
		p.Blocked = countIn(s.parkedIn, queue)
	}
	return list, nil
}

// countIn returns what there is of a queue.
func countIn(in []int32, queue mq.QueueID) int64 {
	if int(queue) < len(in) {
		return int64(in[queue])
	}
	return 0
}

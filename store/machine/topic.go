package machine

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
)

// A topic is a registered topic and the cached ends of its queues.
type topic struct {
	command.Topic
	queues    []queue // loaded on first use, one for each queue
	placement keyspace.Placement
}

// A queue delivers the offsets min to next-1. Those from kept on have entries: what
// is below min is there for the groups that have it under delivery.
type queue struct {
	min, kept, next mq.QueueOffset
}

// TopicVersion returns the version of the topic that the shard knows; 0: none.
func (m *Machine) TopicVersion(id mq.TopicID) uint64 {
	if t := m.topics[id]; t != nil {
		return t.Version
	}
	return 0
}

// TopicGone reports whether the topic was deleted. Its id never comes back. It is
// called after Commit.
func (m *Machine) TopicGone(id mq.TopicID) (bool, error) {
	_, found, err := get(m.db, keyspace.AppendGoneTopicKey(nil, id), exists)
	return found, err
}

func exists([]byte) (struct{}, error) { return struct{}{}, nil }

func topicNotFound(id mq.TopicID) error {
	return fmt.Errorf("topic id %d: %w", id, mq.ErrTopicNotFound)
}

func (m *Machine) applyTopic(rec Record) error {
	c, err := command.DecodeTopic(rec.Payload)
	if err != nil {
		return err
	}
	t := m.topics[c.ID]
	if t == nil {
		// Whoever asked may not have known of a deletion just before this
		// command. The commit makes it readable.
		if err := m.Commit(); err != nil {
			return err
		}
		if gone, err := m.TopicGone(c.ID); gone || err != nil {
			return err
		}
		t = &topic{}
		m.topics[c.ID] = t
	} else if t.Version >= c.Version {
		return nil
	}
	m.Effects.Topics = true
	c.Queues = max(c.Queues, t.Queues) // what is stored stays readable
	t.Topic = c
	if t.queues != nil {
		t.queues = append(t.queues, make([]queue, int(c.Queues)-len(t.queues))...)
	}
	m.key, m.val = keyspace.AppendTopicKey(m.key[:0], c.ID), c.Append(m.val[:0])
	return m.set(m.key, m.val)
}

// loadQueues makes the ends of the topic's queues known. The batch holds no entry and
// no ends of a topic that is not loaded, so Pebble's answer is complete.
func (m *Machine) loadQueues(t *topic) error {
	if t.queues != nil {
		return nil
	}
	r := queueReader{views: m.db}
	ends, err := r.read(t.ID, t.Queues)
	if err := errors.Join(err, r.close()); err != nil {
		return err
	}
	queues := make([]queue, len(ends))
	for i, e := range ends {
		queues[i] = queue{min: e.Min, kept: e.Kept, next: e.Next}
	}
	t.queues = queues
	return nil
}

// A queueReader reads the ends of queues. It keeps its iterators from one topic to the
// next: opening them costs more than the reading.
type queueReader struct {
	views         pebble.Reader
	ends, entries *pebble.Iterator
}

func (r *queueReader) open() (err error) {
	if r.ends == nil {
		lower, upper := keyspace.EndsKeys()
		if r.ends, err = r.views.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper}); err != nil {
			return err
		}
	}
	if r.entries == nil {
		lower, upper := keyspace.EntryKeys()
		r.entries, err = r.views.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	}
	return err
}

func (r *queueReader) close() error {
	var errs []error
	for _, it := range []*pebble.Iterator{r.ends, r.entries} {
		if it != nil {
			errs = append(errs, it.Close())
		}
	}
	return errors.Join(errs...)
}

// read returns the ends of the n queues of a topic.
func (r *queueReader) read(id mq.TopicID, n int32) ([]keyspace.Ends, error) {
	if err := r.open(); err != nil {
		return nil, err
	}
	queues := make([]keyspace.Ends, n)
	limit := keyspace.Next(keyspace.AppendTopicEndsPrefix(nil, id))
	it := r.ends
	for state := it.SeekGEWithLimit(keyspace.AppendTopicEndsPrefix(nil, id), limit); state == pebble.IterValid; state = it.NextWithLimit(limit) {
		if bytes.Compare(it.Key(), limit) >= 0 {
			break // Pebble keeps the limit as well as it can
		}
		q, err := keyspace.DecodeEndsKey(it.Key())
		if err != nil {
			return nil, err
		}
		if q.Queue < 0 || int32(q.Queue) >= n {
			return nil, fmt.Errorf("%w: ends of queue %d of topic %d, which has %d", keyspace.ErrCorrupt, q.Queue, id, n)
		}
		val, err := it.ValueAndErr()
		if err != nil {
			return nil, err
		}
		if queues[q.Queue], err = keyspace.DecodeEnds(val); err != nil {
			return nil, err
		}
	}
	if err := it.Error(); err != nil {
		return nil, err
	}
	for i := range queues {
		next, err := behindLast(r.entries, keyspace.Queue{Topic: id, Queue: mq.QueueID(i)}, queues[i].Kept)
		if err != nil {
			return nil, err
		}
		queues[i].Next = max(queues[i].Next, next)
	}
	return queues, nil
}

// behindLast returns the offset behind the last entry of the queue, 0 without one from
// offset kept on: what is below is not looked at, and no tombstone stepped over. What
// cannot be read must not pass for an empty queue: its next message would get an offset
// that is taken.
func behindLast(it *pebble.Iterator, q keyspace.Queue, kept mq.QueueOffset) (mq.QueueOffset, error) {
	limit := keyspace.AppendEntryKey(nil, q, kept)
	if it.SeekLTWithLimit(keyspace.Next(keyspace.AppendQueuePrefix(nil, q)), limit) != pebble.IterValid {
		return 0, it.Error()
	}
	found, offset, err := keyspace.DecodeEntryKey(it.Key())
	if err != nil || found != q {
		return 0, err
	}
	return offset + 1, it.Error()
}

func (m *Machine) applyTopicDelete(rec Record, res *Result) error {
	c, err := command.DecodeTopicDelete(rec.Payload)
	if err != nil {
		return err
	}
	m.key = keyspace.AppendGoneTopicKey(m.key[:0], c.ID)
	if err := m.set(m.key, nil); err != nil {
		return err
	}
	m.Effects.Gone = true // who waits for its first message does not know that it is unknown
	if m.topics[c.ID] == nil {
		res.Err = topicNotFound(c.ID)
		return nil
	}
	if err := m.delRange(keyspace.AppendTopicEntriesPrefix(nil, c.ID)); err != nil {
		return err
	}
	if err := m.delRange(keyspace.AppendTopicEndsPrefix(nil, c.ID)); err != nil {
		return err
	}
	if err := m.dropLites(c.ID, false); err != nil {
		return err
	}
	if err := m.forgetRepeatsOf(c.ID); err != nil {
		return err
	}
	m.key = keyspace.AppendTopicKey(m.key[:0], c.ID)
	if err := m.del(m.key); err != nil {
		return err
	}
	if m.topics[c.ID].placement.Placed > 0 {
		m.key = keyspace.AppendPlacementKey(m.key[:0], c.ID)
		if err := m.del(m.key); err != nil {
			return err
		}
	}
	delete(m.topics, c.ID)
	delete(m.pendings.lowHalf, c.ID)
	m.Effects.Topics = true
	return m.dropSubs(func(s keyspace.Sub) bool { return s.Topic == c.ID })
}

// dropSubs deletes everything kept for the matching groups and topics. The order of
// the map does not matter: each deletion touches keys of its own.
func (m *Machine) dropSubs(match func(keyspace.Sub) bool) error {
	for id := range m.subs {
		if !match(id) {
			continue
		}
		if err := m.dropDeliveries(id); err != nil {
			return err
		}
		if err := m.delRange(keyspace.ProgressPrefix(id)); err != nil {
			return err
		}
		m.key = keyspace.AppendSubKey(m.key[:0], id)
		if err := m.del(m.key); err != nil {
			return err
		}
		m.key = keyspace.AppendUnstartedKey(m.key[:0], id)
		if err := m.del(m.key); err != nil {
			return err
		}
		m.key = keyspace.AppendTurnKey(m.key[:0], id)
		if err := m.del(m.key); err != nil {
			return err
		}
		m.removeSub(id)
	}
	m.forgetLeases(match)
	return nil
}

// dropDeliveries deletes what the group has of the topic under delivery. The keys in
// the due index stay until their time; Expire finds no record for them. The cache is
// the caller's business, see forgetLeases.
func (m *Machine) dropDeliveries(id keyspace.Sub) error {
	for _, prefix := range keyspace.DeliveryPrefixes(id) {
		if err := m.delRange(prefix); err != nil {
			return err
		}
	}
	return nil
}

// forgetLeases takes the lease records of the matching groups and topics out of the
// cache. Until the batch is committed, what it deletes by range would be found again.
func (m *Machine) forgetLeases(match func(keyspace.Sub) bool) {
	for ref := range m.leases {
		if match(ref.Sub) {
			delete(m.leases, ref)
		}
	}
}

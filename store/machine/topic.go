package machine

import (
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
	queues []queue // loaded on first use, one for each queue
}

// A queue holds the offsets min to next-1.
type queue struct {
	min, next mq.QueueOffset
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
	c.Queues = max(c.Queues, t.Queues) // what is stored stays readable
	t.Topic = c
	if t.queues != nil {
		t.queues = append(t.queues, make([]queue, int(c.Queues)-len(t.queues))...)
	}
	m.key, m.val = keyspace.AppendTopicKey(m.key[:0], c.ID), c.Append(m.val[:0])
	return m.set(m.key, m.val)
}

// loadQueues makes the ends of the topic's queues known. The batch holds no entry of
// a topic that is not loaded, so Pebble's answer is complete.
func (m *Machine) loadQueues(t *topic) error {
	if t.queues != nil {
		return nil
	}
	queues := make([]queue, t.Queues)
	it, err := m.db.NewIter(&pebble.IterOptions{
		LowerBound: keyspace.AppendTopicEntriesPrefix(nil, t.ID),
		UpperBound: keyspace.Next(keyspace.AppendTopicEntriesPrefix(nil, t.ID)),
	})
	if err != nil {
		return err
	}
	for i := range queues {
		if queues[i], err = queueEnds(it, keyspace.Queue{Topic: t.ID, Queue: mq.QueueID(i)}); err != nil {
			return errors.Join(err, it.Close())
		}
	}
	if err := it.Close(); err != nil {
		return err
	}
	t.queues = queues
	return nil
}

// queueEnds reads the ends of one queue. What cannot be read must not pass for an
// empty queue: its next message would get an offset that is taken.
func queueEnds(it *pebble.Iterator, q keyspace.Queue) (ends queue, err error) {
	prefix := keyspace.AppendQueuePrefix(nil, q)
	if it.SeekGE(prefix) {
		found, offset, err := keyspace.DecodeEntryKey(it.Key())
		if err != nil {
			return queue{}, err
		}
		if found == q {
			ends.min = offset
		}
	}
	if it.SeekLT(keyspace.Next(prefix)) {
		found, offset, err := keyspace.DecodeEntryKey(it.Key())
		if err != nil {
			return queue{}, err
		}
		if found == q {
			ends.next = offset + 1
		}
	}
	return ends, it.Error()
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
	if m.topics[c.ID] == nil {
		res.Err = topicNotFound(c.ID)
		return nil
	}
	if err := m.delRange(keyspace.AppendTopicEntriesPrefix(nil, c.ID)); err != nil {
		return err
	}
	m.key = keyspace.AppendTopicKey(m.key[:0], c.ID)
	if err := m.del(m.key); err != nil {
		return err
	}
	delete(m.topics, c.ID)
	m.Effects.Gone = true
	return m.dropSubs(func(s keyspace.Sub) bool { return s.Topic == c.ID })
}

// dropSubs deletes everything kept for the matching groups and topics. Their
// keys in the due index stay until their time; Expire finds no record for them.
// The order of the map does not matter: each deletion touches keys of its own.
func (m *Machine) dropSubs(match func(keyspace.Sub) bool) error {
	for id := range m.subs {
		if !match(id) {
			continue
		}
		for _, prefix := range keyspace.SubPrefixes(id) {
			if err := m.delRange(prefix); err != nil {
				return err
			}
		}
		m.key = keyspace.AppendSubKey(m.key[:0], id)
		if err := m.del(m.key); err != nil {
			return err
		}
		m.removeSub(id)
	}
	for ref := range m.leases {
		if match(ref.Sub) {
			delete(m.leases, ref)
		}
	}
	return nil
}

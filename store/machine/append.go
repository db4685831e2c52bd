package machine

import (
	"fmt"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
)

func (m *Machine) applyAppend(rec Record, res *Result) error {
	v, err := command.ViewAppend(rec.Payload)
	if err != nil {
		return err
	}
	t, err := m.writable(v.Topic, v.Queue)
	if err != nil {
		return err
	}
	if t == nil {
		res.Err = m.cannotWrite(v.Topic, v.Queue)
		return nil
	}
	res.First = t.queues[v.Queue].next
	for range v.Count {
		if err := m.enqueue(t, v.Queue, v.Next(), v.Time, rec.PayloadPos); err != nil {
			return err
		}
	}
	return v.Done()
}

// writable returns the topic if it is registered and has the queue, else nil.
func (m *Machine) writable(id mq.TopicID, queue mq.QueueID) (*topic, error) {
	t := m.topics[id]
	if t == nil || queue < 0 || int32(queue) >= t.Queues {
		return nil, nil
	}
	return t, m.loadQueues(t)
}

func (m *Machine) cannotWrite(id mq.TopicID, queue mq.QueueID) error {
	t := m.topics[id]
	if t == nil {
		return topicNotFound(id)
	}
	return fmt.Errorf("topic %s has %d queues, not queue %d: %w", t.Name, t.Queues, queue, mq.ErrQueueNotFound)
}

// enqueue puts one stored message at the end of a queue.
func (m *Machine) enqueue(t *topic, queue mq.QueueID, msg command.StoredMessage, now int64, payload uint64) error {
	q, err := m.queueOf(t, queue)
	if err != nil {
		return err
	}
	e := keyspace.Entry{
		Pos: payload + uint64(msg.Start), Size: uint32(msg.Size),
		StoreTime: now, Group: mq.HashName(msg.Group), Tag: msg.Tag,
	}
	if queue.IsLite() {
		e.Group = keyspace.LiteLane
	}
	m.key = keyspace.AppendEntryKey(m.key[:0], keyspace.Queue{Topic: t.ID, Queue: queue}, q.next)
	m.val = keyspace.AppendEntry(m.val[:0], &e)
	if err := m.set(m.key, m.val); err != nil {
		return err
	}
	q.next++
	if queue.IsLite() {
		m.Effects.Arrived = append(m.Effects.Arrived, Arrival{Topic: t.ID, Queue: queue, Size: uint32(msg.Size), Tag: msg.Tag})
		return m.wroteLite(keyspace.Queue{Topic: t.ID, Queue: queue}, now, e.Pos)
	}
	parked, err := m.parkArrival(t, queue, q.next-1, e.Group)
	m.Effects.Arrived = append(m.Effects.Arrived, Arrival{Topic: t.ID, Queue: queue, Size: uint32(msg.Size), Tag: msg.Tag, Parked: parked})
	return err
}

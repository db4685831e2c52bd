package machine

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
)

// Lite topics end when nobody has written to them for long, and their messages when they are
// old or the log is to be dropped. Both are found by an index whose keys say the time, or
// the position, as it was when they were looked at last: what has changed since is written
// down when it is looked at again, not with every message.

// A litePlaced is a lite topic in an index.
type litePlaced struct {
	keyspace.Queue
	at uint64
}

// liteOrdered lists up to limit lite topics of a topic in an order, those before end, of
// what was committed.
func (m *Machine) liteOrdered(t mq.TopicID, by keyspace.LiteOrder, end uint64, limit int) ([]litePlaced, error) {
	index := liteIndex{t, by}
	list, err := liteOrdered(m.db, index, m.lites.low[index], end, limit)
	switch {
	case err != nil:
	case len(list) > 0:
		m.lites.low[index] = list[0].at
	case limit > 0:
		m.lites.low[index] = max(m.lites.low[index], end)
	}
	return list, err
}

func liteOrdered(views pebble.Reader, index liteIndex, from, end uint64, limit int) (list []litePlaced, err error) {
	if from >= end {
		return nil, nil
	}
	lower, upper := keyspace.AppendLiteOrderPrefix(nil, index.topic, index.by, from), keyspace.AppendLiteOrderPrefix(nil, index.topic, index.by, end)
	err = scan(views, lower, upper, func(k, _ []byte) error {
		q, _, at, err := keyspace.DecodeLiteOrderKey(k)
		if err != nil {
			return err
		}
		if len(list) == limit {
			return errStopScan
		}
		list = append(list, litePlaced{q, at})
		return nil
	})
	if errors.Is(err, errStopScan) {
		err = nil
	}
	return list, err
}

// GroupsOf returns how many groups receive, or have received, from the topic.
func (m *Machine) GroupsOf(id mq.TopicID) int { return len(m.byTopic[id]) }

func (m *Machine) applyLiteExpire(rec Record, res *Result) error {
	c, err := command.DecodeLiteExpire(rec.Payload)
	if err != nil {
		return err
	}
	if m.topics[c.Topic] == nil {
		res.Err = topicNotFound(c.Topic)
		return nil
	}
	if err := m.Commit(); err != nil {
		return err
	}
	list, err := m.liteOrdered(c.Topic, keyspace.LiteByTime, uint64(max(c.Before, 0)), int(c.Limit))
	if err != nil {
		return err
	}
	res.More = len(list) > 0 && len(list) == int(c.Limit)
	subs := m.byTopic[c.Topic]
	var ended []mq.QueueID
	for _, at := range list {
		l, err := m.lite(at.Queue)
		if err != nil {
			return err
		}
		if l == nil || uint64(l.looked) != at.at {
			return missingLite(at.Queue)
		}
		if l.written < c.Before {
			ended = append(ended, at.Queue.Queue)
			res.Ended++
			res.Trimmed += uint64(l.next - l.min)
			if err := m.endLite(subs, at.Queue, l); err != nil {
				return err
			}
			continue
		}
		if err := m.delLiteOrder(at.Queue, keyspace.LiteByTime, at.at); err != nil {
			return err
		}
		l.looked = l.written
		if err := m.setLiteOrder(at.Queue, keyspace.LiteByTime, uint64(l.looked)); err != nil {
			return err
		}
		if err := m.putLite(at.Queue, l); err != nil {
			return err
		}
	}
	slices.Sort(ended)
	for _, s := range subs {
		if err := m.dropLitePlaces(s.id, ended); err != nil {
			return err
		}
	}
	return nil
}

// dropLitePlaces deletes the places of a group in lite topics, whose queues are sorted. Most
// groups have few: it looks which there are, from one to the next.
func (m *Machine) dropLitePlaces(s keyspace.Sub, queues []mq.QueueID) (err error) {
	if len(queues) == 0 {
		return nil
	}
	it, err := m.db.NewIter(&pebble.IterOptions{
		LowerBound: keyspace.AppendProgressKey(nil, s, queues[0]),
		UpperBound: keyspace.AppendProgressKey(nil, s, queues[len(queues)-1]+1),
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for _, queue := range queues {
		m.key = keyspace.AppendProgressKey(m.key[:0], s, queue)
		m.val = append(append(m.val[:0], m.key...), 0)
		// The limit keeps a key that is not there from being a walk over deleted ones.
		if it.SeekGEWithLimit(m.key, m.val) != pebble.IterValid || !bytes.Equal(it.Key(), m.key) {
			continue
		}
		if err := m.del(m.key); err != nil {
			return err
		}
	}
	return it.Error()
}

// endLite ends the life of a lite topic, with all that it has and that groups have of it.
func (m *Machine) endLite(subs []*sub, id keyspace.Queue, l *lite) error {
	for _, s := range subs {
		if err := m.dropLiteDeliveries(s, id.Queue, l.next); err != nil {
			return err
		}
	}
	if err := m.dropEntries(id, l.min, l.next); err != nil {
		return err
	}
	if err := m.delLiteOrder(id, keyspace.LiteByTime, uint64(l.looked)); err != nil {
		return err
	}
	if l.oldest != 0 {
		if err := m.delLiteOrder(id, keyspace.LiteByPos, l.oldest); err != nil {
			return err
		}
	}
	m.key = keyspace.AppendLiteNameKey(m.key[:0], id.Topic, l.name)
	if err := m.del(m.key); err != nil {
		return err
	}
	m.key = keyspace.AppendLiteKey(m.key[:0], id)
	if err := m.del(m.key); err != nil {
		return err
	}
	m.lites.queues[id], m.lites.names[liteName{id.Topic, string(l.name)}], m.lites.gone = nil, 0, true
	m.unreadable = true // entries and places are not in any cache
	m.Effects.LiteGone = append(m.Effects.LiteGone, id)
	c, err := m.liteCounts(id.Topic)
	if err != nil {
		return err
	}
	c.Count--
	return m.setLiteCounts(id.Topic, c)
}

func (m *Machine) applyLiteTrim(rec Record, res *Result) error {
	c, err := command.DecodeLiteTrim(rec.Payload)
	if err != nil {
		return err
	}
	if m.topics[c.Topic] == nil {
		res.Err = topicNotFound(c.Topic)
		return nil
	}
	if err := m.Commit(); err != nil {
		return err
	}
	left := int(c.Limit)
	list, err := m.liteOrdered(c.Topic, keyspace.LiteByPos, never, left)
	if err != nil {
		return err
	}
	subs := m.byTopic[c.Topic]
	for _, at := range list {
		if left <= 0 {
			break
		}
		l, err := m.lite(at.Queue)
		if err != nil {
			return err
		}
		if l == nil || l.oldest != at.at {
			return missingLite(at.Queue)
		}
		n, err := m.trimLite(subs, at.Queue, l, &c, left)
		if err != nil {
			return err
		}
		if n == 0 {
			return nil // those behind are newer
		}
		left -= n
		res.Trimmed += uint64(n)
	}
	res.More = len(list) > 0
	return nil
}

// trimLite removes up to limit messages of one lite topic, and returns how many.
func (m *Machine) trimLite(subs []*sub, id keyspace.Queue, l *lite, c *command.LiteTrim, limit int) (n int, err error) {
	begin := l.min
	oldest := uint64(0)
	for ; begin < l.next; begin++ {
		e, found, err := m.entry(id, begin)
		if err != nil {
			return 0, err
		}
		if !found {
			return 0, missingEntry(id, begin)
		}
		if oldest = e.Pos; n == limit || e.StoreTime >= c.Before && e.Pos >= c.Pos {
			break
		}
		n++
		oldest = 0
	}
	if n == 0 {
		return 0, nil
	}
	for _, s := range subs {
		if err := m.dropLiteDeliveries(s, id.Queue, begin); err != nil {
			return 0, err
		}
	}
	if err := m.dropEntries(id, l.min, begin); err != nil {
		return 0, err
	}
	if err := m.delLiteOrder(id, keyspace.LiteByPos, l.oldest); err != nil {
		return 0, err
	}
	m.unreadable = true
	l.min, l.kept, l.oldest = begin, begin, oldest
	if oldest != 0 {
		if err := m.setLiteOrder(id, keyspace.LiteByPos, oldest); err != nil {
			return 0, err
		}
	}
	return n, m.putLite(id, l)
}

func missingLite(id keyspace.Queue) error {
	return fmt.Errorf("%w: lite topic %d of topic %d is in an index where it does not belong", keyspace.ErrCorrupt, id.Queue, id.Topic)
}

// dropLites ends all lite topics of a topic, but their entries. With keep, the topic goes
// on, and their ids are not used again.
func (m *Machine) dropLites(id mq.TopicID, keep bool) error {
	c, err := m.liteCounts(id)
	if err != nil {
		return err
	}
	m.lites.forget(id)
	if c.Next == mq.FirstLiteQueue {
		return nil // there were never any
	}
	m.unreadable = true
	m.Effects.LiteGone = append(m.Effects.LiteGone, keyspace.Queue{Topic: id})
	for _, prefix := range [][]byte{keyspace.LiteNamesPrefix(id), keyspace.LitesPrefix(nil, id), keyspace.LiteOrdersPrefix(nil, id)} {
		if err := m.delRange(prefix); err != nil {
			return err
		}
	}
	if !keep {
		return nil
	}
	lower := keyspace.AppendQueuePrefix(nil, keyspace.Queue{Topic: id, Queue: mq.FirstLiteQueue})
	if err := m.batch.DeleteRange(lower, keyspace.Next(keyspace.AppendTopicEntriesPrefix(nil, id)), nil); err != nil {
		return err
	}
	for _, s := range m.byTopic[id] {
		lower := keyspace.AppendProgressKey(nil, s.id, mq.FirstLiteQueue)
		if err := m.batch.DeleteRange(lower, keyspace.Next(keyspace.ProgressPrefix(s.id)), nil); err != nil {
			return err
		}
	}
	c.Count = 0
	return m.setLiteCounts(id, c)
}

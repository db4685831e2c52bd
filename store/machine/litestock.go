package machine

import (
	"bytes"
	"errors"

	"github.com/cockroachdb/pebble/v2"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/keyspace"
)

// How many messages of lite topics wait for a group is written down nowhere: a message
// would have to be counted for every group that has a place in its lite topic. It is
// counted when somebody asks, in a walk over the records and the places, beside the loop.

// A LiteWaiting is what of the lite topics of a topic waits for one group.
type LiteWaiting struct {
	// Messages were never given to the group, of so many lite topics in which it has a
	// place.
	Messages, Topics int64
	// Oldest is when the oldest of them was stored, in Unix nanoseconds; 0 without one.
	Oldest int64
}

// Add adds what waits elsewhere.
func (w *LiteWaiting) Add(other LiteWaiting) {
	w.Messages += other.Messages
	w.Topics += other.Topics
	if w.Oldest == 0 || other.Oldest != 0 && other.Oldest < w.Oldest {
		w.Oldest = other.Oldest
	}
}

// A LiteStock is what the lite topics of a topic hold.
type LiteStock struct {
	Topics, Messages int64
	Groups           map[mq.GroupID]LiteWaiting // those that have received from the topic
}

// HasLites reports whether the topic has lite topics. It costs one look.
func HasLites(views pebble.Reader, id mq.TopicID) (bool, error) {
	c, _, err := get(views, keyspace.AppendLiteCountsKey(nil, id), keyspace.DecodeLiteCounts)
	return c.Count > 0, err
}

// CountLites adds to stock what up to limit lite topics of the topic hold, from the queue on,
// and what of that waits for the groups in stock. It returns the queue to go on from; 0 when
// there are no more.
func (v *View) CountLites(id mq.TopicID, from mq.QueueID, limit int, stock *LiteStock) (next mq.QueueID, err error) {
	page, err := v.litePage(id, from, limit)
	if len(page) == 0 || err != nil {
		return 0, err
	}
	for _, l := range page {
		stock.Topics++
		stock.Messages += int64(l.next - l.min)
	}
	entries, err := v.snap.NewIter(&pebble.IterOptions{
		LowerBound: keyspace.AppendQueuePrefix(nil, keyspace.Queue{Topic: id, Queue: from}),
		UpperBound: keyspace.Next(keyspace.AppendTopicEntriesPrefix(nil, id)),
	})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, entries.Close()) }()
	for group, waiting := range stock.Groups { // each by itself
		if err := v.addWaiting(keyspace.Sub{Group: group, Topic: id}, page, entries, &waiting); err != nil {
			return 0, err
		}
		stock.Groups[group] = waiting
	}
	if len(page) < limit {
		return 0, nil
	}
	return page[len(page)-1].queue + 1, nil
}

// A liteEnds is where the messages of a lite topic are.
type liteEnds struct {
	queue     mq.QueueID
	min, next mq.QueueOffset
}

// litePage returns up to limit lite topics of the topic, from the queue on.
func (v *View) litePage(id mq.TopicID, from mq.QueueID, limit int) (page []liteEnds, err error) {
	lower := keyspace.AppendLiteKey(nil, keyspace.Queue{Topic: id, Queue: from})
	err = scan(v.snap, lower, keyspace.Next(keyspace.LitesPrefix(nil, id)), func(key, val []byte) error {
		if len(page) == limit {
			return errStopScan
		}
		q, err := keyspace.DecodeLiteKey(key)
		l, valErr := keyspace.DecodeLite(val)
		page = append(page, liteEnds{q.Queue, l.Min, l.Next})
		return errors.Join(err, valErr)
	})
	if errors.Is(err, errStopScan) {
		err = nil
	}
	return page, err
}

// addWaiting adds what of the lite topics, which are in the order of their queues, waits for
// the group.
func (v *View) addWaiting(s keyspace.Sub, page []liteEnds, entries *pebble.Iterator, w *LiteWaiting) error {
	at := 0
	lower, upper := keyspace.AppendProgressKey(nil, s, page[0].queue), keyspace.AppendProgressKey(nil, s, page[len(page)-1].queue+1)
	return scan(v.snap, lower, upper, func(key, val []byte) error {
		_, queue, err := keyspace.DecodeProgressKey(key)
		place, valErr := keyspace.DecodeOffset(val)
		if err = errors.Join(err, valErr); err != nil {
			return err
		}
		for at < len(page) && page[at].queue < queue {
			at++
		}
		if at == len(page) || page[at].queue != queue {
			return nil
		}
		l := page[at]
		head := max(place, l.min)
		if head >= l.next {
			return nil
		}
		stored, err := storeTime(entries, keyspace.Queue{Topic: s.Topic, Queue: queue}, head)
		w.Add(LiteWaiting{Messages: int64(l.next - head), Topics: 1, Oldest: stored})
		return err
	})
}

// storeTime returns when a message was stored that the queue has.
func storeTime(entries *pebble.Iterator, q keyspace.Queue, offset mq.QueueOffset) (int64, error) {
	key := keyspace.AppendEntryKey(nil, q, offset)
	if !entries.SeekGE(key) || !bytes.Equal(entries.Key(), key) {
		return 0, errors.Join(entries.Error(), missingEntry(q, offset))
	}
	e, err := keyspace.DecodeEntry(entries.Value())
	return e.StoreTime, err
}

// ReadLites reads what a LiteSubscribe of the group to the names would look at, so that it
// need not wait for the disk.
func ReadLites(views pebble.Reader, s keyspace.Sub, names []string) error {
	var key []byte
	for _, name := range names {
		key = keyspace.AppendLiteNameKey(key[:0], s.Topic, []byte(name))
		queue, found, err := get(views, key, keyspace.DecodeQueueID)
		if err != nil {
			return err
		}
		if !found {
			continue
		}
		key = keyspace.AppendLiteKey(key[:0], keyspace.Queue{Topic: s.Topic, Queue: queue})
		if _, _, err := get(views, key, keyspace.DecodeLite); err != nil {
			return err
		}
		key = keyspace.AppendProgressKey(key[:0], s, queue)
		if _, _, err := get(views, key, keyspace.DecodeOffset); err != nil {
			return err
		}
	}
	return nil
}

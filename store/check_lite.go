package store

import (
	"errors"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/commitlog"
	"github.com/perigee-mq/perigee/store/keyspace"
)

// A lite topic has one record, to which its name leads, and one key in each index that its
// record says. That each topic has as many as it counts is checked as well.

// registerLite notes the record of a lite topic.
func (v *viewsCheck) registerLite(key, val []byte) {
	id, err := keyspace.DecodeLiteKey(key)
	l, valErr := keyspace.DecodeLite(val)
	if err = errors.Join(err, valErr); err != nil {
		v.inViews(key, "%v", err)
		return
	}
	if !id.Queue.IsLite() || mq.ValidateLiteTopic(string(l.Name)) != nil {
		v.inViews(key, "lite topic %q is no lite topic, or queue %d none of one", mq.Shorten(string(l.Name)), id.Queue)
	}
	v.lites[id] = l
	v.liteCount[id.Topic]++
}

// liteName checks the key that leads from a name to its record, or the counts.
func (v *viewsCheck) liteName(key, val []byte) {
	t, name, err := keyspace.DecodeLiteNameKey(key)
	if err != nil {
		v.inViews(key, "%v", err)
		return
	}
	if len(name) == 0 {
		c, err := keyspace.DecodeLiteCounts(val)
		switch {
		case err != nil:
			v.inViews(key, "%v", err)
		case c.Count != v.liteCount[t]:
			v.inViews(key, "topic %d counts %d lite topics, and has %d", t, c.Count, v.liteCount[t])
		default:
			v.liteNext[t] = c.Next
		}
		return
	}
	q, err := keyspace.DecodeQueueID(val)
	if err != nil {
		v.inViews(key, "%v", err)
		return
	}
	id := keyspace.Queue{Topic: t, Queue: q}
	if l, ok := v.lites[id]; !ok || string(l.Name) != string(name) {
		v.inViews(key, "leads from lite topic %q of topic %d to queue %d, which is that of %q", mq.Shorten(string(name)), t, q, mq.Shorten(string(l.Name)))
		return
	}
	v.liteNames[liteID{t, string(name)}] = q
}

// judgeLite checks a record against its entries, its name and its places in the indexes.
func (v *viewsCheck) judgeLite(key []byte) error {
	id, err := keyspace.DecodeLiteKey(key)
	if err != nil {
		return nil // told already
	}
	l := v.lites[id]
	if _, ok := v.topics[id.Topic]; !ok {
		v.inViews(key, "belongs to topic %d, which is not registered", id.Topic)
	}
	if id.Queue >= v.liteNext[id.Topic] {
		v.inViews(key, "queue %d of topic %d has an id that was not given to a lite topic", id.Queue, id.Topic)
	}
	if v.liteNames[liteID{id.Topic, string(l.Name)}] != id.Queue {
		v.inViews(key, "the name %q of queue %d of topic %d does not lead to it", mq.Shorten(string(l.Name)), id.Queue, id.Topic)
	}
	end, oldest := l.Min, uint64(0)
	if q := v.queues[id]; q != nil {
		end, oldest = q.next, q.first
	}
	if end != l.Next || oldest != l.Oldest {
		v.inViews(key, "queue %d of topic %d has entries up to %d, the oldest at position %d: its record says up to %d, and position %d",
			id.Queue, id.Topic, end, oldest, l.Next, l.Oldest)
	}
	places := [][]byte{keyspace.AppendLiteOrderKey(nil, id, keyspace.LiteByTime, uint64(l.Looked))}
	if l.Oldest != 0 {
		places = append(places, keyspace.AppendLiteOrderKey(nil, id, keyspace.LiteByPos, l.Oldest))
	}
	for _, place := range places {
		_, found, err := get(v.db, place, func([]byte) (struct{}, error) { return struct{}{}, nil })
		if err != nil {
			return err
		}
		if !found {
			v.inViews(key, "queue %d of topic %d is not in an index: the key %x is missing", id.Queue, id.Topic, place)
		}
	}
	return nil
}

// liteOrder checks that a key of an index is that of its record.
func (v *viewsCheck) liteOrder(key []byte) {
	id, by, at, err := keyspace.DecodeLiteOrderKey(key)
	if err != nil {
		v.inViews(key, "%v", err)
		return
	}
	l, ok := v.lites[id]
	want := uint64(l.Looked)
	if by == keyspace.LiteByPos {
		want = l.Oldest
	}
	if !ok || at != want {
		v.inViews(key, "is no key of queue %d of topic %d in an index of lite topics", id.Queue, id.Topic)
	}
}

// liteID names a lite topic.
type liteID struct {
	topic mq.TopicID
	name  string
}

// sentLite checks a message to a lite topic. It has no entry when its lite topic has ended
// since, when a trim has taken it, when it was sent before or when it was refused for there
// were too many; which of that is so, only a derivation can tell.
func (l *logCheck) sentLite(rec commitlog.Record, v *command.SendView, m command.SentMessage) error {
	if _, err := l.decode(rec, m.StoredMessage); err != nil || l.views == nil {
		return err
	}
	queue, ok := l.views.liteNames[liteID{v.Topic, string(m.Lite)}]
	if !ok {
		return nil
	}
	id := keyspace.Queue{Topic: v.Topic, Queue: queue}
	e, found, err := l.nextEntry(rec, id)
	if err == nil && found && e.Pos == uint64(rec.PayloadPos)+uint64(m.Start) {
		l.match(rec, id, e, v.Time, m.StoredMessage)
	}
	return err
}

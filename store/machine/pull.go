package machine

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
)

// A Page asks a View for the messages of one queue from an offset on.
type Page struct {
	keyspace.Queue
	From mq.QueueOffset
	// Tags are the tags wanted; none: every message.
	Tags []string
	// Max messages are returned at most, and no more once they take Bytes: one is,
	// whatever its size. Scan bounds how many entries are looked at.
	Max, Bytes, Scan int
	// Queues is how many queues the topic has for the caller. The view may know more.
	Queues int32
}

// A PageFound is what a View has found.
type PageFound struct {
	Messages []Popped // without an attempt
	// Next is behind the last entry that was looked at.
	Next mq.QueueOffset
	// End: there is no entry from Next on.
	End bool
}

// Page looks for messages. Its error matches mq.ErrTopicNotFound when the topic was
// deleted, mq.ErrQueueNotFound, or is an *mq.OffsetError without the topic's name.
func (v *View) Page(p Page) (found PageFound, err error) {
	ends, it, err := v.open(p.Queue, p.Queues)
	if err != nil {
		return found, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	if p.From < ends.Min || p.From > ends.Next {
		return found, &mq.OffsetError{Queue: p.Queue.Queue, Offset: p.From, Min: ends.Min, Next: ends.Next}
	}
	found.Next = p.From
	bytes := 0
	for ok := it.SeekGE(keyspace.AppendEntryKey(nil, p.Queue, p.From)); ok; ok = it.Next() {
		if p.Scan <= 0 || len(found.Messages) >= p.Max || bytes >= p.Bytes {
			return found, nil
		}
		p.Scan--
		_, offset, err := keyspace.DecodeEntryKey(it.Key())
		if err != nil {
			return found, err
		}
		if offset != found.Next {
			return found, missingEntry(p.Queue, found.Next)
		}
		e, err := keyspace.DecodeEntry(it.Value())
		if err != nil {
			return found, err
		}
		found.Next = offset + 1
		if len(p.Tags) > 0 && !slices.Contains(p.Tags, string(e.Tag)) {
			continue
		}
		bytes += int(e.Size)
		found.Messages = append(found.Messages, Popped{
			Queue: p.Queue.Queue, Offset: offset, Pos: e.Pos, Size: e.Size, StoreTime: e.StoreTime,
		})
	}
	if err := it.Error(); err != nil {
		return found, err
	}
	if found.Next < ends.Next {
		return found, missingEntry(p.Queue, found.Next)
	}
	found.End = true
	return found, nil
}

// Range returns which offsets the queue holds. The errors are those of Page.
func (v *View) Range(q keyspace.Queue, queues int32) (mq.QueueRange, error) {
	ends, it, err := v.open(q, queues)
	if err != nil {
		return mq.QueueRange{}, err
	}
	return mq.QueueRange{Queue: q.Queue, Min: ends.Min, Next: ends.Next}, it.Close()
}

// OffsetAt returns the first offset of the queue that was stored at or after a time in
// Unix nanoseconds, or the end. The errors are those of Page.
func (v *View) OffsetAt(q keyspace.Queue, queues int32, at int64) (mq.QueueOffset, error) {
	r, err := v.Range(q, queues)
	if err != nil {
		return 0, err
	}
	offset, _, err := v.Search(q, r.Min, r.Next, func(e *keyspace.Entry) bool { return e.StoreTime < at })
	return offset, err
}

// open returns the ends of a queue and an iterator over its entries.
func (v *View) open(q keyspace.Queue, queues int32) (ends keyspace.Ends, it *pebble.Iterator, err error) {
	t, found, err := get(v.snap, keyspace.AppendTopicKey(nil, q.Topic), command.DecodeTopic)
	if err != nil {
		return ends, nil, err
	}
	if !found {
		_, gone, err := get(v.snap, keyspace.AppendGoneTopicKey(nil, q.Topic), exists)
		if gone {
			err = topicNotFound(q.Topic)
		}
		if err != nil {
			return ends, nil, err
		}
	}
	if most := max(queues, t.Queues); q.Queue < 0 || int32(q.Queue) >= most {
		return ends, nil, fmt.Errorf("queue %d of a topic with %d: %w", q.Queue, most, mq.ErrQueueNotFound)
	}
	if ends, _, err = get(v.snap, keyspace.AppendEndsKey(nil, q), keyspace.DecodeEnds); err != nil {
		return ends, nil, err
	}
	// The lower bound keeps the search for the last entry from stepping over those that
	// were trimmed.
	it, err = v.snap.NewIter(&pebble.IterOptions{
		LowerBound: keyspace.AppendEntryKey(nil, q, ends.Kept), UpperBound: keyspace.Next(keyspace.AppendQueuePrefix(nil, q)),
	})
	if err != nil {
		return ends, nil, err
	}
	if it.Last() {
		var last mq.QueueOffset
		if _, last, err = keyspace.DecodeEntryKey(it.Key()); err == nil {
			ends.Next = max(ends.Next, last+1)
		}
	}
	if err = errors.Join(err, it.Error()); err != nil {
		return ends, nil, errors.Join(err, it.Close())
	}
	return ends, it, nil
}

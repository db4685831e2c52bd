package machine

import (
	"bytes"
	"errors"

	"github.com/cockroachdb/pebble/v2"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
)

// A View reads what the machine had committed at one moment. Unlike the machine it may
// be used from any goroutine, one at a time; what it finds may be the past already, so
// whatever comes of it goes through a command. It changes nothing.
type View struct {
	snap *pebble.Snapshot
	// State is that of the moment: what is not in the view lies in the log at State.Pos
	// or behind.
	State keyspace.State

	queues queueReader
	topics *pebble.Iterator // opened on first use
}

// OpenView returns the present; it must be closed before db, and soon, because the views
// cannot shrink meanwhile.
func OpenView(db *pebble.DB) (*View, error) {
	v := &View{snap: db.NewSnapshot()}
	v.queues.views = v.snap
	state, err := ReadState(v.snap)
	if err != nil {
		return nil, errors.Join(err, v.Close())
	}
	v.State = state
	return v, nil
}

// Close releases the view.
func (v *View) Close() error {
	err := v.queues.close()
	if v.topics != nil {
		err = errors.Join(err, v.topics.Close())
	}
	return errors.Join(err, v.snap.Close())
}

// Topics calls fn for every topic, in the order of their ids.
func (v *View) Topics(fn func(command.Topic) error) error {
	lower, upper := keyspace.TopicKeys()
	return scan(v.snap, lower, upper, func(_, val []byte) error {
		t, err := command.DecodeTopic(val)
		if err != nil {
			return err
		}
		return fn(t)
	})
}

// Queues returns the ends of the queues of a topic; none of an unknown one. It is
// cheapest in the order of the ids.
func (v *View) Queues(id mq.TopicID) ([]keyspace.Ends, error) {
	if v.topics == nil {
		lower, upper := keyspace.TopicKeys()
		it, err := v.snap.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
		if err != nil {
			return nil, err
		}
		v.topics = it
	}
	key := keyspace.AppendTopicKey(nil, id)
	if !v.topics.SeekGE(key) || !bytes.Equal(v.topics.Key(), key) {
		return nil, v.topics.Error()
	}
	val, err := v.topics.ValueAndErr()
	if err != nil {
		return nil, err
	}
	t, err := command.DecodeTopic(val)
	if err != nil {
		return nil, err
	}
	return v.queues.read(id, t.Queues)
}

// Entry returns an entry that the queue has; that it is not there is damage.
func (v *View) Entry(q keyspace.Queue, offset mq.QueueOffset) (keyspace.Entry, error) {
	e, found, err := entry(v.snap, q, offset)
	if err == nil && !found {
		err = missingEntry(q, offset)
	}
	return e, err
}

// Search returns the first offset from low to before high whose entry is not below, and
// that entry; high, and no entry, when all are. Entries are ordered by position and by
// store time, and so must below be. Looking near low is cheapest.
func (v *View) Search(q keyspace.Queue, low, high mq.QueueOffset, below func(*keyspace.Entry) bool) (mq.QueueOffset, keyspace.Entry, error) {
	var found keyspace.Entry
	end := high // its entry, if it is one, is not below
	for near := mq.QueueOffset(1); low < end; {
		at := low + (end-low)/2
		if end == high {
			at = min(at, low+near-1)
		}
		e, err := v.Entry(q, at)
		if err != nil {
			return 0, keyspace.Entry{}, err
		}
		if below(&e) {
			low, near = at+1, 2*near
		} else {
			end, found = at, e
		}
	}
	return low, found, nil
}

// Subscribers returns the groups that have received from each of the topics wanted.
func (v *View) Subscribers(wanted func(mq.TopicID) bool) (map[mq.TopicID][]mq.GroupID, error) {
	groups := map[mq.TopicID][]mq.GroupID{}
	lower, upper := keyspace.SubKeys()
	err := scan(v.snap, lower, upper, func(k, _ []byte) error {
		s, err := keyspace.DecodeSubKey(k)
		if err == nil && wanted(s.Topic) {
			groups[s.Topic] = append(groups[s.Topic], s.Group)
		}
		return err
	})
	return groups, err
}

// A Range is a part of a queue: the offsets from Low to before High.
type Range struct {
	Queue     mq.QueueID
	Low, High mq.QueueOffset
}

// Deliveries calls fn for what the group has under delivery in the ranges, in order.
// Between and behind them nothing is looked at, and no tombstone stepped over.
func (v *View) Deliveries(s keyspace.Sub, ranges []Range, fn func(keyspace.Ref, keyspace.Lease) error) (err error) {
	lower, upper := keyspace.LeaseKeys()
	it, err := v.snap.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	var key, limit []byte
	for _, r := range ranges {
		key = keyspace.AppendLeaseKey(key[:0], keyspace.Ref{Sub: s, Queue: r.Queue, Offset: r.Low})
		limit = keyspace.AppendLeaseKey(limit[:0], keyspace.Ref{Sub: s, Queue: r.Queue, Offset: r.High})
		for state := it.SeekGEWithLimit(key, limit); state == pebble.IterValid; state = it.NextWithLimit(limit) {
			if bytes.Compare(it.Key(), limit) >= 0 {
				break // Pebble keeps the limit as well as it can
			}
			ref, err := keyspace.DecodeLeaseKey(it.Key())
			if err != nil {
				return err
			}
			val, err := it.ValueAndErr()
			if err != nil {
				return err
			}
			l, err := keyspace.DecodeLease(val)
			if err != nil {
				return err
			}
			if err := fn(ref, l); err != nil {
				return err
			}
		}
		if err := it.Error(); err != nil {
			return err
		}
	}
	return nil
}

// entry reads one ConsumeQueue entry. Its Tag is a copy.
func entry(views pebble.Reader, id keyspace.Queue, offset mq.QueueOffset) (keyspace.Entry, bool, error) {
	return get(views, keyspace.AppendEntryKey(nil, id, offset), func(b []byte) (keyspace.Entry, error) {
		e, err := keyspace.DecodeEntry(b)
		e.Tag = append([]byte(nil), e.Tag...)
		return e, err
	})
}

// A LiteOldest is the oldest message of all lite topics of a topic.
type LiteOldest struct {
	Found     bool
	Pos       uint64
	StoreTime int64
}

// LiteOldest returns the oldest message of the lite topics of a topic. None lies below the
// position from, as an earlier view has found: they become no older.
func (v *View) LiteOldest(id mq.TopicID, from uint64) (o LiteOldest, err error) {
	list, err := liteOrdered(v.snap, liteIndex{id, keyspace.LiteByPos}, from, never, 1)
	if len(list) == 0 || err != nil {
		return o, err
	}
	q := list[0].Queue
	o.Found, o.Pos = true, list[0].at
	l, found, err := get(v.snap, keyspace.AppendLiteKey(nil, q), keyspace.DecodeLite)
	if err == nil && !found {
		err = missingLite(q)
	}
	if err != nil {
		return o, err
	}
	e, err := v.Entry(q, l.Min)
	o.StoreTime = e.StoreTime
	return o, err
}

// LiteDue reports whether there is a lite topic of the topic that a LiteExpire with that
// time would look at, and at which time the index has the first one. None lies below the
// time from, as an earlier view has found: that time never goes back.
func (v *View) LiteDue(id mq.TopicID, from uint64, before int64) (first uint64, due bool, err error) {
	list, err := liteOrdered(v.snap, liteIndex{id, keyspace.LiteByTime}, from, uint64(max(before, 0)), 1)
	if len(list) == 0 || err != nil {
		return from, false, err
	}
	return list[0].at, true, nil
}

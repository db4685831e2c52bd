package store

import (
	"bytes"
	"cmp"
	"errors"
	"maps"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
)

// A viewsCheck is the check of the keys and values of one shard's views against
// each other.
type viewsCheck struct {
	*folder
	n          uint64 // keys
	topics     map[mq.TopicID]command.Topic
	groups     map[mq.GroupID]command.Group
	subs       map[keyspace.Sub]bool
	turns      map[keyspace.Sub]bool // those that receive by priority
	goneTopics map[mq.TopicID]bool
	goneGroups map[mq.GroupID]bool
	ends       map[keyspace.Queue]keyspace.Ends
	queues     map[keyspace.Queue]*queueEntries
	order      []keyspace.Queue // the keys of queues

	heldKeys, heldInLog uint64 // pending messages that are needed in the log; those found there
	lites               map[keyspace.Queue]keyspace.Lite
	liteCount           map[mq.TopicID]uint32
	liteNext            map[mq.TopicID]mq.QueueID
	liteNames           map[liteID]mq.QueueID

	progress struct { // of the queue that was asked for last
		sub   keyspace.Sub
		queue mq.QueueID
		next  mq.QueueOffset
		known bool
	}
	heads struct { // of the lanes of the queue that was asked for last
		sub   keyspace.Sub
		queue mq.QueueID
		of    map[uint64]mq.QueueOffset
	}
}

// queueEntries are the entries of one queue, in order, as far as they were read.
type queueEntries struct {
	min, next mq.QueueOffset
	first     uint64 // position of the first one
	pos       uint64 // of the last one
	time      int64
}

func newViewsCheck(f *folder) *viewsCheck {
	return &viewsCheck{
		folder:     f,
		topics:     map[mq.TopicID]command.Topic{},
		groups:     map[mq.GroupID]command.Group{},
		subs:       map[keyspace.Sub]bool{},
		turns:      map[keyspace.Sub]bool{},
		goneTopics: map[mq.TopicID]bool{},
		goneGroups: map[mq.GroupID]bool{},
		ends:       map[keyspace.Queue]keyspace.Ends{},
		queues:     map[keyspace.Queue]*queueEntries{},
		lites:      map[keyspace.Queue]keyspace.Lite{},
		liteCount:  map[mq.TopicID]uint32{},
		liteNext:   map[mq.TopicID]mq.QueueID{},
		liteNames:  map[liteID]mq.QueueID{},
	}
}

// run reads all keys twice: first what the others are judged by, then the others.
func (v *viewsCheck) run() error {
	if err := v.scan(v.register); err != nil {
		return err
	}
	if v.state.Index == 0 && v.n > 0 {
		v.inViews(keyspace.StateKey(), "is missing, and there are %d keys", v.n)
	}
	for id := range v.goneTopics {
		if _, ok := v.topics[id]; ok {
			v.inViews(keyspace.AppendTopicKey(nil, id), "topic %d is registered and deleted for ever", id)
		}
	}
	for id := range v.goneGroups {
		if _, ok := v.groups[id]; ok {
			v.inViews(keyspace.AppendGroupKey(nil, id), "group %d is registered and deleted for ever", id)
		}
	}
	if err := v.scan(v.judge); err != nil {
		return err
	}
	v.judgeEnds()
	return nil
}

// scan calls fn for every key.
func (v *viewsCheck) scan(fn func(key, val []byte) error) (err error) {
	it, err := v.db.NewIter(nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for ok := it.First(); ok; ok = it.Next() {
		val, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		if err := fn(it.Key(), val); err != nil {
			return err
		}
	}
	return it.Error()
}

// register notes topics, groups and subscriptions.
func (v *viewsCheck) register(key, val []byte) error {
	v.n++
	switch keyspace.KindOf(key) {
	case keyspace.KindTopic:
		id, err := keyspace.DecodeTopicKey(key)
		c, valErr := command.DecodeTopic(val)
		if err = errors.Join(err, valErr); err != nil {
			v.inViews(key, "%v", err)
		} else if c.ID != id || c.Queues < 1 || c.Queues > mq.MaxQueues {
			v.inViews(key, "topic %d is registered as topic %d with %d queues", id, c.ID, c.Queues)
		}
		v.topics[id] = c
	case keyspace.KindGroup:
		id, err := keyspace.DecodeGroupKey(key)
		c, valErr := command.DecodeGroup(val)
		if err = errors.Join(err, valErr); err != nil {
			v.inViews(key, "%v", err)
		} else if c.ID != id || c.MaxAttempts < 1 {
			v.inViews(key, "group %d is registered as group %d with %d attempts", id, c.ID, c.MaxAttempts)
		}
		v.groups[id] = c
	case keyspace.KindSub:
		sub, err := keyspace.DecodeSubKey(key)
		if err != nil {
			v.inViews(key, "%v", err)
		}
		v.subs[sub] = true
	case keyspace.KindPriority:
		v.noteTurn(key)
	case keyspace.KindEnds:
		id, err := keyspace.DecodeEndsKey(key)
		ends, valErr := keyspace.DecodeEnds(val)
		if err = errors.Join(err, valErr); err != nil {
			v.inViews(key, "%v", err)
		} else {
			v.ends[id] = ends
		}
	case keyspace.KindLite:
		v.registerLite(key, val)
	case keyspace.KindGone:
		topic, group, err := keyspace.DecodeGoneKey(key)
		switch {
		case err != nil:
			v.inViews(key, "%v", err)
		case topic != 0:
			v.goneTopics[topic] = true
		default:
			v.goneGroups[group] = true
		}
	}
	return nil
}

// judge checks one key against the others.
func (v *viewsCheck) judge(key, val []byte) error {
	kind := keyspace.KindOf(key)
	switch kind {
	case keyspace.KindState:
		if !bytes.Equal(key, keyspace.StateKey()) {
			v.inViews(key, "is no key of the views")
		}
	case keyspace.KindBegin:
		if !bytes.Equal(key, keyspace.BeginKey()) {
			v.inViews(key, "is no key of the views")
		} else if v.begin.Pos > v.state.Pos || v.begin.Index > v.state.Index+1 {
			v.inViews(key, "lets the log begin with record %d at position %d, which is behind what the views have applied", v.begin.Index, v.begin.Pos)
		}
	case keyspace.KindTopic, keyspace.KindGroup, keyspace.KindEnds:
	case keyspace.KindPlacement:
		id, err := keyspace.DecodePlacementKey(key)
		_, valErr := keyspace.DecodePlacement(val)
		if err = errors.Join(err, valErr); err != nil {
			v.inViews(key, "%v", err)
		} else if _, ok := v.topics[id]; !ok {
			v.inViews(key, "says where topic %d lies, which is not registered", id)
		}
	case keyspace.KindEntry:
		v.entry(key, val)
	case keyspace.KindProgress:
		v.judgeProgress(key, val)
	case keyspace.KindLease:
		return v.lease(key, val)
	case keyspace.KindReady:
		return v.ready(key, val)
	case keyspace.KindPriority:
		return v.byPriority(key, val)
	case keyspace.KindLiteName:
		v.liteName(key, val)
	case keyspace.KindLite:
		return v.judgeLite(key)
	case keyspace.KindPending:
		return v.pending(key, val)
	case keyspace.KindHeld:
		return v.held(key, val)
	case keyspace.KindRepeat:
		v.repeat(key, val)
	case keyspace.KindSub, keyspace.KindUnstarted, keyspace.KindGone, keyspace.KindDue, keyspace.KindUsedUp, keyspace.KindPendingAt, keyspace.KindPendingOf, keyspace.KindLiteOrder:
		if len(val) > 0 {
			v.inViews(key, "has a value of %d bytes where none belongs", len(val))
		}
		switch kind {
		case keyspace.KindSub:
			v.sub(key)
		case keyspace.KindLiteOrder:
			v.liteOrder(key)
		case keyspace.KindUnstarted:
			v.unstarted(key)
		case keyspace.KindDue:
			return v.due(key)
		case keyspace.KindUsedUp:
			return v.usedUp(key)
		case keyspace.KindPendingAt:
			return v.pendingAt(key)
		case keyspace.KindPendingOf:
			return v.pendingOf(key)
		}
	default:
		v.inViews(key, "is no key of the views")
	}
	return nil
}

// entry checks that a queue has no hole between its ends, and that its entries go
// up in the log and in time.
func (v *viewsCheck) entry(key, val []byte) {
	id, offset, err := keyspace.DecodeEntryKey(key)
	e, valErr := keyspace.DecodeEntry(val)
	if err = errors.Join(err, valErr); err != nil {
		v.inViews(key, "%v", err)
		return
	}
	v.queue(key, id)
	q := v.queues[id]
	if q == nil {
		kept := v.ends[id].Kept
		if id.Queue.IsLite() {
			kept = v.lites[id].Min
		}
		q = &queueEntries{min: offset, next: offset, first: e.Pos}
		v.queues[id] = q
		v.order = append(v.order, id)
		if offset != kept {
			v.inViews(key, "queue %d of topic %d begins with entry %d: it should with entry %d", id.Queue, id.Topic, offset, kept)
		}
	}
	if offset != q.next {
		v.inViews(key, "queue %d of topic %d goes on with entry %d after %d: those between are missing", id.Queue, id.Topic, offset, q.next-1)
	}
	if e.Pos <= q.pos && q.pos > 0 || e.StoreTime < q.time {
		v.inViews(key, "entry %d of queue %d, topic %d, at position %d and time %d comes after one at position %d and time %d",
			offset, id.Queue, id.Topic, e.Pos, e.StoreTime, q.pos, q.time)
	}
	if e.StoreTime > v.state.Time || e.Pos+uint64(e.Size) > v.state.Pos {
		v.inViews(key, "entry %d of queue %d, topic %d, at position %d and time %d is behind what the views have applied",
			offset, id.Queue, id.Topic, e.Pos, e.StoreTime)
	}
	q.next, q.pos, q.time = offset+1, e.Pos, e.StoreTime
}

// queue checks that the queue of a key exists.
func (v *viewsCheck) queue(key []byte, id keyspace.Queue) {
	switch t, registered := v.topics[id.Topic]; {
	case !registered:
		v.inViews(key, "belongs to queue %d of topic %d, which is not registered", id.Queue, id.Topic)
	case id.Queue.IsLite():
		if _, ok := v.lites[id]; !ok {
			v.inViews(key, "belongs to queue %d of topic %d, which is no lite topic", id.Queue, id.Topic)
		}
	case id.Queue < 0 || int32(id.Queue) >= t.Queues:
		v.inViews(key, "belongs to queue %d of topic %d, which has %d", id.Queue, id.Topic, t.Queues)
	}
}

// judgeEnds checks that queues which were trimmed have all entries up to where they
// ended then.
func (v *viewsCheck) judgeEnds() {
	for _, id := range slices.SortedFunc(maps.Keys(v.ends), compareQueues) {
		key, ends := keyspace.AppendEndsKey(nil, id), v.ends[id]
		v.queue(key, id)
		end := ends.Kept
		if q := v.queues[id]; q != nil {
			end = q.next
		}
		if end < ends.Next {
			v.inViews(key, "queue %d of topic %d had %d entries when it was trimmed, those from %d on are missing", id.Queue, id.Topic, ends.Next, end)
		}
	}
}

func compareQueues(a, b keyspace.Queue) int {
	return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Queue, b.Queue))
}

func (v *viewsCheck) sub(key []byte) {
	sub, err := keyspace.DecodeSubKey(key)
	if err == nil {
		v.registered(key, sub)
	}
}

func (v *viewsCheck) unstarted(key []byte) {
	sub, err := keyspace.DecodeUnstartedKey(key)
	if err != nil {
		v.inViews(key, "%v", err)
		return
	}
	v.registered(key, sub)
}

// registered checks that group and topic of a key are known.
func (v *viewsCheck) registered(key []byte, sub keyspace.Sub) bool {
	_, topic := v.topics[sub.Topic]
	_, group := v.groups[sub.Group]
	switch {
	case !topic || !group:
		v.inViews(key, "belongs to group %d and topic %d, which are not both registered", sub.Group, sub.Topic)
	case !v.subs[sub]:
		v.inViews(key, "belongs to group %d and topic %d, from which it has never received", sub.Group, sub.Topic)
	default:
		return true
	}
	return false
}

// next returns the end of a queue: the offset of its next message.
func (v *viewsCheck) next(topic mq.TopicID, queue mq.QueueID) mq.QueueOffset {
	id := keyspace.Queue{Topic: topic, Queue: queue}
	if queue.IsLite() {
		return v.lites[id].Next
	}
	if q := v.queues[id]; q != nil {
		return max(q.next, v.ends[id].Next)
	}
	return v.ends[id].Next
}

func (v *viewsCheck) judgeProgress(key, val []byte) {
	sub, queue, err := keyspace.DecodeProgressKey(key)
	offset, valErr := keyspace.DecodeOffset(val)
	if err = errors.Join(err, valErr); err != nil {
		v.inViews(key, "%v", err)
		return
	}
	if !v.registered(key, sub) {
		return
	}
	if queue.IsLite() {
		v.queue(key, keyspace.Queue{Topic: sub.Topic, Queue: queue})
	} else if queue < 0 || int32(queue) >= v.topics[sub.Topic].Queues {
		v.inViews(key, "progress of group %d in queue %d of topic %d, which has %d", sub.Group, queue, sub.Topic, v.topics[sub.Topic].Queues)
	}
	if next := v.next(sub.Topic, queue); offset < 0 || offset > next {
		v.inViews(key, "progress %d of group %d in queue %d of topic %d is beyond its end at %d", offset, sub.Group, queue, sub.Topic, next)
	}
}

// progressOf returns the progress of a group in a queue; leases ask for the same
// one many times.
func (v *viewsCheck) progressOf(sub keyspace.Sub, queue mq.QueueID) (mq.QueueOffset, error) {
	p := &v.progress
	if p.known && p.sub == sub && p.queue == queue {
		return p.next, nil
	}
	next, _, err := get(v.db, keyspace.AppendProgressKey(nil, sub, queue), keyspace.DecodeOffset)
	if errors.Is(err, keyspace.ErrCorrupt) {
		err = nil // judged where it stands
	}
	p.sub, p.queue, p.next, p.known = sub, queue, next, err == nil
	return next, err
}

// get reads and decodes one value.
func get[T any](db *pebble.DB, key []byte, decode func([]byte) (T, error)) (v T, found bool, err error) {
	b, closer, err := db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return v, false, nil
	}
	if err != nil {
		return v, false, err
	}
	v, err = decode(b)
	return v, true, errors.Join(err, closer.Close())
}

package machine

import (
	"cmp"
	"errors"
	"maps"
	"math"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/keyspace"
)

// Queues returns the ranges of a topic's queues; none for an unknown topic.
func (m *Machine) Queues(id mq.TopicID) ([]mq.QueueRange, error) {
	t := m.topics[id]
	if t == nil {
		return nil, nil
	}
	if err := m.loadQueues(t); err != nil {
		return nil, err
	}
	ranges := make([]mq.QueueRange, len(t.queues))
	for i, q := range t.queues {
		ranges[i] = mq.QueueRange{Queue: mq.QueueID(i), Min: q.min, Next: q.next}
	}
	return ranges, nil
}

// Backlogs returns the group's backlog of every topic it has received from,
// ordered by topic.
func (m *Machine) Backlogs(group mq.GroupID) ([]mq.Backlog, error) {
	var list []mq.Backlog
	for _, s := range m.byGroup[group] {
		t := m.topics[s.id.Topic]
		if t == nil {
			continue
		}
		if err := m.loadQueues(t); err != nil {
			return nil, err
		}
		if err := m.loadProgress(s, t); err != nil {
			return nil, err
		}
		b := mq.Backlog{Topic: s.id.Topic, Ready: s.ready, InFlight: s.leased, UsedUp: s.usedUp, Blocked: s.parked}
		for i, q := range t.queues {
			if s.progress[i] == noProgress {
				continue
			}
			b.Ready += int64(q.next - min(max(s.progress[i], q.min), q.next))
		}
		list = append(list, b)
	}
	slices.SortFunc(list, func(a, b mq.Backlog) int { return cmp.Compare(a.Topic, b.Topic) })
	return list, nil
}

// UsedUp returns up to limit messages behind after that wait for a dead-letter
// copy, in the order of their keys. It is called after Commit.
//
// Such keys come and go, and a scan over all of them would walk over those that
// have gone. It looks only where there are some, from the first one there may be.
func (m *Machine) UsedUp(after keyspace.Ref, limit int) ([]keyspace.Ref, error) {
	var refs []keyspace.Ref
	subs := slices.SortedFunc(maps.Keys(m.withUsedUp), keyspace.Sub.Compare)
	for _, id := range subs {
		if id.Compare(after.Sub) < 0 {
			continue
		}
		s := m.withUsedUp[id]
		first := 0
		if after.Sub == id {
			first, _ = slices.BinarySearch(s.usedUpQueues, after.Queue)
		}
		for _, queue := range s.usedUpQueues[first:] {
			from := keyspace.Ref{Sub: id, Queue: queue, Offset: s.usedUpIn[queue].low}
			if from.Compare(after) <= 0 {
				from = after
				from.Offset++
			}
			if from.Sub != id || from.Queue != queue {
				continue // after is behind the queue
			}
			found, err := m.usedUpOf(from, min(limit-len(refs), int(s.usedUpIn[queue].n)))
			if refs = append(refs, found...); err != nil || len(refs) == limit {
				return refs, err
			}
		}
	}
	return refs, nil
}

// usedUpOf returns up to limit used-up messages of one queue, from an offset on.
func (m *Machine) usedUpOf(from keyspace.Ref, limit int) (refs []keyspace.Ref, err error) {
	end := from
	end.Offset = math.MaxInt64
	err = m.scan(keyspace.AppendUsedUpKey(nil, from), keyspace.AppendUsedUpKey(nil, end), func(k, _ []byte) error {
		ref, err := keyspace.DecodeUsedUpKey(k)
		if refs = append(refs, ref); err == nil && len(refs) == limit {
			err = errStopScan
		}
		return err
	})
	if errors.Is(err, errStopScan) {
		err = nil
	}
	return refs, err
}

var errStopScan = errors.New("scan stopped")

// A UsedUpMessage is what a dead-letter copy is made from.
type UsedUpMessage struct {
	Ref     keyspace.Ref
	Lease   keyspace.Lease
	Entry   keyspace.Entry
	Topic   mq.Resource
	Group   mq.Resource
	Target  mq.TopicID
	Missing bool // the message itself is no longer stored
	// Damage says that its entry is not there although no trim has taken it.
	Damage error
}

// Inspect returns what is known of a message under delivery. found is false
// when nothing is, because it was settled meanwhile. It is called after Commit.
func (m *Machine) Inspect(ref keyspace.Ref) (u UsedUpMessage, found bool, err error) {
	l, found, err := m.lease(ref)
	if err != nil || !found {
		return u, false, err
	}
	g, t := m.groups[ref.Group], m.topics[ref.Topic]
	if g == nil || t == nil {
		return u, false, nil
	}
	e, stored, err := m.entry(keyspace.Queue{Topic: ref.Topic, Queue: ref.Queue}, ref.Offset)
	if err != nil {
		return u, false, err
	}
	u = UsedUpMessage{Ref: ref, Lease: l, Entry: e, Topic: t.Name, Group: g.Name, Target: g.DeadLetter}
	if !stored {
		if err := m.loadQueues(t); err != nil {
			return u, false, err
		}
		u.Damage = t.trimmed(ref)
		u.Missing = u.Damage == nil
	}
	return u, true, nil
}

// Registered returns the ids of all topics and groups the shard knows, in order.
func (m *Machine) Registered() (topics []mq.TopicID, groups []mq.GroupID) {
	return slices.Sorted(maps.Keys(m.topics)), slices.Sorted(maps.Keys(m.groups))
}

// Gone returns the greatest ids of deleted topics and groups, 0 without any. It is
// called after Commit.
func (m *Machine) Gone() (topic mq.TopicID, group mq.GroupID, err error) {
	last := func(lower, upper []byte) (id uint32) {
		if err != nil {
			return 0
		}
		it, openErr := m.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
		if err = openErr; err != nil {
			return 0
		}
		if it.Last() {
			id, err = keyspace.DecodeGoneID(it.Key())
		}
		err = errors.Join(err, it.Close())
		return id
	}
	topic, group = mq.TopicID(last(keyspace.GoneTopicKeys())), mq.GroupID(last(keyspace.GoneGroupKeys()))
	return topic, group, err
}

// TopicName returns what a topic is called.
func (m *Machine) TopicName(id mq.TopicID) (name mq.Resource, found bool) {
	if t := m.topics[id]; t != nil {
		return t.Name, true
	}
	return name, false
}

// SubNames returns what a group and a topic that it receives from are called.
func (m *Machine) SubNames(id keyspace.Sub) (group, topic mq.Resource, found bool) {
	g, t := m.groups[id.Group], m.topics[id.Topic]
	if g == nil || t == nil || m.subs[id] == nil {
		return group, topic, false
	}
	return g.Name, t.Name, true
}

// Stored returns how many messages the topic's queues hold; found is false for an
// unknown topic.
func (m *Machine) Stored(id mq.TopicID) (messages int64, found bool, err error) {
	t := m.topics[id]
	if t == nil {
		return 0, false, nil
	}
	if err := m.loadQueues(t); err != nil {
		return 0, true, err
	}
	for _, q := range t.queues {
		messages += int64(q.next - q.min)
	}
	return messages, true, nil
}

// A SubStatus is how far a group is with a topic.
type SubStatus struct {
	New      int64 // messages it was never given
	InFlight int64 // messages leased to its consumers
	Retrying int64 // messages that wait to be delivered again
	UsedUp   int64 // messages that wait for a dead-letter copy
	Blocked  int64 // messages that wait for earlier ones of their message group
}

// A Head is the first message of a queue that a group was never given.
type Head struct {
	keyspace.Queue
	Offset mq.QueueOffset
}

// Status returns how far a group is with a topic, and appends the heads of the
// queues to heads. found is false when the group has not received from the topic.
func (m *Machine) Status(id keyspace.Sub, heads []Head) (st SubStatus, _ []Head, found bool, err error) {
	s, t := m.subs[id], m.topics[id.Topic]
	if s == nil || t == nil {
		return st, heads, false, nil
	}
	if err := m.loadQueues(t); err != nil {
		return st, heads, true, err
	}
	if err := m.loadProgress(s, t); err != nil {
		return st, heads, true, err
	}
	st = SubStatus{InFlight: s.leased, Retrying: s.ready, UsedUp: s.usedUp, Blocked: s.parked}
	for i, q := range t.queues {
		next := max(s.progress[i], q.min)
		if next >= q.next || s.progress[i] == noProgress {
			continue
		}
		st.New += int64(q.next - next)
		heads = append(heads, Head{Queue: keyspace.Queue{Topic: t.ID, Queue: mq.QueueID(i)}, Offset: next})
	}
	return st, heads, true, nil
}

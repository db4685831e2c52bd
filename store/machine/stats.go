package machine

import (
	"cmp"
	"errors"
	"maps"
	"math"
	"slices"

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
		b := mq.Backlog{Topic: s.id.Topic, Ready: s.ready, InFlight: s.leased, UsedUp: s.usedUp}
		for i, q := range t.queues {
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
		s := m.withUsedUp[id]
		for _, queue := range slices.Sorted(maps.Keys(s.usedUpIn)) {
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
	return UsedUpMessage{
		Ref: ref, Lease: l, Entry: e, Topic: t.Name, Group: g.Name,
		Target: g.DeadLetter, Missing: !stored,
	}, true, nil
}

// Registered returns the ids of all topics and groups the shard knows, in order.
func (m *Machine) Registered() (topics []mq.TopicID, groups []mq.GroupID) {
	return slices.Sorted(maps.Keys(m.topics)), slices.Sorted(maps.Keys(m.groups))
}

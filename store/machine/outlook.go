package machine

import (
	"errors"

	"github.com/cockroachdb/pebble/v2"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/keyspace"
)

// An Outlook is what a group has before it in a topic.
type Outlook struct {
	// Known says that the group has received from the topic before. Else the rest is
	// not set: where it starts is decided by its first pop.
	Known bool
	// Queues are the new messages, one range for each queue, which may be empty.
	Queues []Range
	// Ready is how many messages are to be delivered again. None comes before ReadyLow
	// in their sequence, and none behind ReadyLast.
	Ready               int64
	ReadyLow, ReadyLast uint64
}

// Outlook sets o, and reuses its memory. It is called after Commit.
func (m *Machine) Outlook(id keyspace.Sub, o *Outlook) error {
	*o = Outlook{Queues: o.Queues[:0]}
	s, t := m.subs[id], m.topics[id.Topic]
	if s == nil || t == nil || s.unstarted {
		return nil
	}
	if err := errors.Join(m.loadQueues(t), m.loadProgress(s, t)); err != nil {
		return err
	}
	o.Known, o.Ready, o.ReadyLow, o.ReadyLast = true, s.ready, s.readyLow, s.readyLast
	for i, q := range t.queues {
		start := max(s.progress[i], q.min)
		o.Queues = append(o.Queues, Range{Queue: mq.QueueID(i), Low: start, High: max(start, q.next)})
	}
	return nil
}

// Entries calls fn for the entries of a range, in order, until it returns false. The
// tag of an entry is good until fn returns. What was trimmed meanwhile is left out.
func (v *View) Entries(topic mq.TopicID, r Range, fn func(mq.QueueOffset, *keyspace.Entry) bool) (err error) {
	q := keyspace.Queue{Topic: topic, Queue: r.Queue}
	it, err := v.snap.NewIter(&pebble.IterOptions{
		LowerBound: keyspace.AppendEntryKey(nil, q, r.Low), UpperBound: keyspace.AppendEntryKey(nil, q, r.High),
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for ok := it.First(); ok; ok = it.Next() {
		_, offset, err := keyspace.DecodeEntryKey(it.Key())
		if err != nil {
			return err
		}
		e, err := keyspace.DecodeEntry(it.Value())
		if err != nil {
			return err
		}
		if !fn(offset, &e) {
			return nil
		}
	}
	return it.Error()
}

// Redeliveries calls fn for what is to be delivered again to the group, from the
// sequence low on and in its order, until fn returns false. There is none below low.
func (v *View) Redeliveries(id keyspace.Sub, low uint64, fn func(seq uint64, ref keyspace.Ref) bool) (err error) {
	it, err := v.snap.NewIter(&pebble.IterOptions{
		LowerBound: keyspace.AppendReadyKey(nil, id, low), UpperBound: keyspace.Next(keyspace.AppendReadyPrefix(nil, id)),
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for ok := it.First(); ok; ok = it.Next() {
		seq, err := keyspace.DecodeReadyKey(it.Key())
		if err != nil {
			return err
		}
		queue, offset, err := keyspace.DecodeReady(it.Value())
		if err != nil {
			return err
		}
		if !fn(seq, keyspace.Ref{Sub: id, Queue: queue, Offset: offset}) {
			return nil
		}
	}
	return it.Error()
}

// Find returns the entry of a message, if it is still there.
func (v *View) Find(ref keyspace.Ref) (keyspace.Entry, bool, error) {
	return entry(v.snap, keyspace.Queue{Topic: ref.Topic, Queue: ref.Queue}, ref.Offset)
}

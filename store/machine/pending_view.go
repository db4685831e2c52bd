package machine

import (
	"errors"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/keyspace"
)

// A HeldMessage is a pending message that is needed at its place in the log.
type HeldMessage struct {
	ID mq.PendingID
	keyspace.Pending
}

// Held calls fn for the pending messages that are needed in the log before the position
// end, in the order of the log, until it returns false.
func (v *View) Held(end uint64, fn func(HeldMessage) (bool, error)) (err error) {
	lower, _ := keyspace.HeldKeys()
	it, err := v.snap.NewIter(iterOptions(lower, keyspace.AppendHeldKey(nil, end)))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for ok := it.First(); ok; ok = it.Next() {
		val, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		id, err := keyspace.DecodePendingID(val)
		if err != nil {
			return err
		}
		p, found, err := v.Pending(id)
		if err != nil {
			return err
		}
		if !found {
			return corruptPending(id, "is needed in the log and has no record")
		}
		if more, err := fn(HeldMessage{id, p}); !more || err != nil {
			return err
		}
	}
	return it.Error()
}

// Pending returns the record of a pending message.
func (v *View) Pending(id mq.PendingID) (keyspace.Pending, bool, error) {
	return ReadPending(v.snap, id)
}

// PendingOf returns up to limit pending messages of a topic that are in the state, from
// a mark on, the first whose state ends first.
func (v *View) PendingOf(topic mq.TopicID, state keyspace.PendingState, from PendingMark, limit int) (marks []PendingMark, err error) {
	end := keyspace.Next(append(keyspace.AppendPendingOfPrefix(nil, topic), byte(state)))
	it, err := v.snap.NewIter(iterOptions(keyspace.AppendPendingOfKey(nil, topic, state, from.At, from.ID), end))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for ok := it.First(); ok && len(marks) < limit; ok = it.Next() {
		_, _, at, id, err := keyspace.DecodePendingOfKey(it.Key())
		if err != nil {
			return nil, err
		}
		marks = append(marks, PendingMark{At: at, ID: id})
	}
	return marks, it.Error()
}

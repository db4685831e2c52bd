package store

import (
	"errors"

	"github.com/perigee-mq/perigee/store/keyspace"
)

// A group that receives a topic by priority has a turn, and each of its redeliveries a key
// more than those of other groups. Both ways are checked, as with the other indexes.

func (v *viewsCheck) byPriority(key, val []byte) error {
	if keyspace.IsTurnKey(key) {
		v.turn(key, val)
		return nil
	}
	sub, queue, seq, err := keyspace.DecodePriorityKey(key)
	offset, valErr := keyspace.DecodeOffset(val)
	if err = errors.Join(err, valErr); err != nil {
		v.inViews(key, "%v", err)
		return nil
	}
	if !v.turns[sub] {
		v.inViews(key, "is a redelivery by priority to group %d, which does not receive topic %d by priority", sub.Group, sub.Topic)
	}
	return v.indexed(key, keyspace.Ref{Sub: sub, Queue: queue, Offset: offset}, keyspace.Ready, seq)
}

func (v *viewsCheck) turn(key, val []byte) {
	sub, err := keyspace.DecodeTurnKey(key)
	t, valErr := keyspace.DecodeTurn(val)
	if err = errors.Join(err, valErr); err != nil {
		v.inViews(key, "%v", err)
		return
	}
	if v.registered(key, sub) && (t.Queue < 0 || int32(t.Queue) >= v.topics[sub.Topic].Queues) {
		v.inViews(key, "has the turn of queue %d of topic %d, which has %d", t.Queue, sub.Topic, v.topics[sub.Topic].Queues)
	}
}

// readyByPriority checks that the redelivery of a lease record is ordered by queue, where
// it must be.
func (v *viewsCheck) readyByPriority(key []byte, ref keyspace.Ref, seq uint64) error {
	if !v.turns[ref.Sub] {
		return nil
	}
	index := keyspace.AppendPriorityKey(nil, ref.Sub, ref.Queue, seq)
	offset, found, err := get(v.db, index, keyspace.DecodeOffset)
	if errors.Is(err, keyspace.ErrCorrupt) {
		return nil // judged where it stands
	}
	if err == nil && (!found || offset != ref.Offset) {
		v.inViews(key, "lease is ready, but its key %x in the index by priority is missing or of another message", index)
	}
	return err
}

// noteTurn notes which groups receive by priority.
func (v *viewsCheck) noteTurn(key []byte) {
	if sub, err := keyspace.DecodeTurnKey(key); err == nil {
		v.turns[sub] = true
	}
}

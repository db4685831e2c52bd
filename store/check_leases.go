package store

import (
	"errors"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/keyspace"
)

// A lease record leads to exactly one key of an index, which its state says, and
// that key leads back to the record. Both ways are checked, so neither a record
// that never comes due nor a key without a record is passed over. A parked record is in
// no index: it must have another before it in its lane, or it would wait for ever. That one
// is missing, only the log can tell.

func (v *viewsCheck) lease(key, val []byte) error {
	ref, err := keyspace.DecodeLeaseKey(key)
	l, valErr := keyspace.DecodeLease(val)
	if err = errors.Join(err, valErr); err != nil {
		v.inViews(key, "%v", err)
		return nil
	}
	if !v.registered(key, ref.Sub) {
		return nil
	}
	// What a full disk has taken away under a delivery is below the beginning.
	if ref.Offset < 0 || ref.Offset >= v.next(ref.Topic, ref.Queue) {
		v.inViews(key, "lease of a message that queue %d of topic %d does not hold: offset %d", ref.Queue, ref.Topic, ref.Offset)
	}
	progress, err := v.progressOf(ref.Sub, ref.Queue)
	if err != nil {
		return err
	}
	if ref.Offset >= progress {
		v.inViews(key, "lease of offset %d of queue %d, which group %d has not reached: its progress is %d", ref.Offset, ref.Queue, ref.Group, progress)
	}
	passed := l.PopID == 0 && l.Attempt == 0 && l.First == 0 && (l.State == keyspace.Parked || l.State == keyspace.Ready)
	if !passed && (l.PopID == 0 || l.PopID > mq.PopID(v.state.Time) || l.First > int64(l.PopID) || l.Attempt < 0) {
		v.inViews(key, "lease with pop id %d, attempt %d and first delivery at %d, but the last command applied came at %d",
			l.PopID, l.Attempt, l.First, v.state.Time)
	}
	if err := v.lane(key, ref, &l); err != nil {
		return err
	}
	var index []byte
	switch l.State {
	case keyspace.Parked:
		return nil
	case keyspace.Leased:
		index = keyspace.AppendDueKey(nil, l.When, ref)
	case keyspace.Ready:
		index = keyspace.AppendReadyKey(nil, ref.Sub, l.When)
		if err := v.readyByPriority(key, ref, l.When); err != nil {
			return err
		}
	case keyspace.UsedUp:
		index = keyspace.AppendUsedUpKey(nil, ref)
	}
	_, found, err := get(v.db, index, func([]byte) (struct{}, error) { return struct{}{}, nil })
	if err == nil && !found {
		v.inViews(key, "lease is %s, but its key %x in the index is missing", l.State, index)
	}
	return err
}

// lane checks the place of a record in its lane. The records of a queue come in the order
// of their offsets, and so do those of a lane.
func (v *viewsCheck) lane(key []byte, ref keyspace.Ref, l *keyspace.Lease) error {
	if !v.groups[ref.Group].FIFO && !ref.Queue.IsLite() {
		if l.State == keyspace.Parked {
			v.inViews(key, "offset %d of queue %d is parked, but group %d is not FIFO", ref.Offset, ref.Queue, ref.Group)
		}
		return nil
	}
	id := keyspace.Queue{Topic: ref.Topic, Queue: ref.Queue}
	e, found, err := get(v.db, keyspace.AppendEntryKey(nil, id, ref.Offset), func(b []byte) (keyspace.Entry, error) {
		e, err := keyspace.DecodeEntry(b)
		e.Tag = nil // it is not its own
		return e, err
	})
	if errors.Is(err, keyspace.ErrCorrupt) {
		err = nil // judged where it stands
	}
	if err != nil {
		return err
	}
	if found && l.Lane != e.Group && l.State != keyspace.UsedUp {
		v.inViews(key, "offset %d of queue %d has message-group hash %x in the lease of group %d, but %x in the queue", ref.Offset, ref.Queue, l.Lane, ref.Group, e.Group)
	}
	if v.heads.sub != ref.Sub || v.heads.queue != ref.Queue || v.heads.of == nil {
		v.heads.sub, v.heads.queue, v.heads.of = ref.Sub, ref.Queue, map[uint64]mq.QueueOffset{}
	}
	head, behind := v.heads.of[l.Lane]
	switch {
	case l.Lane == 0 && l.State == keyspace.Parked:
		v.inViews(key, "offset %d of queue %d is parked, but has no message group", ref.Offset, ref.Queue)
	case l.Lane == 0 || l.State == keyspace.UsedUp:
	case !behind && l.State == keyspace.Parked:
		v.inViews(key, "offset %d of queue %d is parked, but nothing before it in its message group is unsettled", ref.Offset, ref.Queue)
	case behind && l.State == keyspace.Ready:
		v.inViews(key, "offset %d of queue %d is ready, but offset %d, which is before it in its message group, is unsettled", ref.Offset, ref.Queue, head)
	}
	if l.Lane != 0 && l.State != keyspace.UsedUp && !behind {
		v.heads.of[l.Lane] = ref.Offset
	}
	return nil
}

// indexed checks that the record of ref is in the state that an index key says.
func (v *viewsCheck) indexed(key []byte, ref keyspace.Ref, state keyspace.LeaseState, when uint64) error {
	l, found, err := get(v.db, keyspace.AppendLeaseKey(nil, ref), keyspace.DecodeLease)
	switch {
	case errors.Is(err, keyspace.ErrCorrupt): // judged where it stands
	case err != nil:
		return err
	case !found:
		v.inViews(key, "offset %d of queue %d is %s in the index, but group %d holds no lease of it", ref.Offset, ref.Queue, state, ref.Group)
	case l.State != state || l.When != when:
		v.inViews(key, "offset %d of queue %d is %s (%d) in the index, but %s (%d) in the lease of group %d",
			ref.Offset, ref.Queue, state, when, l.State, l.When, ref.Group)
	}
	return nil
}

func (v *viewsCheck) due(key []byte) error {
	when, ref, err := keyspace.DecodeDueKey(key)
	if err != nil {
		v.inViews(key, "%v", err)
		return nil
	}
	if !v.subs[ref.Sub] && (v.goneTopics[ref.Topic] || v.goneGroups[ref.Group]) {
		return nil // deleted under the lease; the key stays until its time
	}
	id := keyspace.Queue{Topic: ref.Topic, Queue: ref.Queue}
	_, lite := v.lites[id]
	if ref.Offset < v.ends[id].Kept || ref.Queue.IsLite() && !lite {
		_, leased, err := get(v.db, keyspace.AppendLeaseKey(nil, ref), keyspace.DecodeLease)
		if err == nil && !leased {
			return nil // purged under the lease; likewise
		}
	}
	return v.indexed(key, ref, keyspace.Leased, when)
}

func (v *viewsCheck) ready(key, val []byte) error {
	seq, err := keyspace.DecodeReadyKey(key)
	queue, offset, valErr := keyspace.DecodeReady(val)
	if err = errors.Join(err, valErr); err != nil {
		v.inViews(key, "%v", err)
		return nil
	}
	sub, err := keyspace.DecodeReadySub(key)
	if err != nil {
		return err
	}
	if seq == 0 || seq > v.state.Ready {
		v.inViews(key, "redelivery %d, but only %d were counted", seq, v.state.Ready)
	}
	return v.indexed(key, keyspace.Ref{Sub: sub, Queue: queue, Offset: offset}, keyspace.Ready, seq)
}

func (v *viewsCheck) usedUp(key []byte) error {
	ref, err := keyspace.DecodeUsedUpKey(key)
	if err != nil {
		v.inViews(key, "%v", err)
		return nil
	}
	return v.indexed(key, ref, keyspace.UsedUp, 0)
}

package store

import (
	"errors"
	"math"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/keyspace"
)

// The record of a pending message leads to the keys that say when its state ends, that
// it is of its topic, and where in the log it is needed; each of them leads back.

func (v *viewsCheck) pending(key, val []byte) error {
	id, err := keyspace.DecodePendingKey(key)
	p, valErr := keyspace.DecodePending(val)
	if err = errors.Join(err, valErr); err != nil {
		v.inViews(key, "%v", err)
		return nil
	}
	if p.StoreTime > v.state.Time || p.Pos+uint64(p.Size) > v.state.Pos {
		v.inViews(key, "pending message %d at position %d and time %d is behind what the views have applied", id, p.Pos, p.StoreTime)
	}
	indexes := [][]byte{keyspace.AppendPendingOfKey(nil, p.Topic, p.State, p.At, id)}
	if p.At != math.MaxInt64 {
		indexes = append(indexes, keyspace.AppendPendingAtKey(nil, p.State, p.At, id))
	}
	if p.State.Holds() {
		indexes = append(indexes, keyspace.AppendHeldKey(nil, p.Pos))
	}
	for _, index := range indexes {
		_, found, err := get(v.db, index, func(b []byte) (struct{}, error) { return struct{}{}, nil })
		if err != nil {
			return err
		}
		if !found {
			v.inViews(key, "pending message %d, %s, lacks a key that leads to it: %x", id, p.State, index)
		}
	}
	return nil
}

// leadsTo checks that the record of a pending message is as a key says that leads to it.
func (v *viewsCheck) leadsTo(key []byte, id mq.PendingID, is func(*keyspace.Pending) bool) error {
	p, found, err := get(v.db, keyspace.AppendPendingKey(nil, id), keyspace.DecodePending)
	if errors.Is(err, keyspace.ErrCorrupt) {
		return nil // judged where it stands
	}
	if err == nil && (!found || !is(&p)) {
		v.inViews(key, "leads to pending message %d, which is not so", id)
	}
	return err
}

func (v *viewsCheck) pendingAt(key []byte) error {
	state, at, id, err := keyspace.DecodePendingAtKey(key)
	if err != nil {
		v.inViews(key, "%v", err)
		return nil
	}
	return v.leadsTo(key, id, func(p *keyspace.Pending) bool { return p.State == state && p.At == at })
}

func (v *viewsCheck) pendingOf(key []byte) error {
	topic, state, at, id, err := keyspace.DecodePendingOfKey(key)
	if err != nil {
		v.inViews(key, "%v", err)
		return nil
	}
	return v.leadsTo(key, id, func(p *keyspace.Pending) bool { return p.Topic == topic && p.State == state && p.At == at })
}

func (v *viewsCheck) held(key, val []byte) error {
	pos, err := keyspace.DecodeHeldKey(key)
	id, valErr := keyspace.DecodePendingID(val)
	if err = errors.Join(err, valErr); err != nil {
		v.inViews(key, "%v", err)
		return nil
	}
	return v.leadsTo(key, id, func(p *keyspace.Pending) bool { return p.State.Holds() && p.Pos == pos })
}

func (v *viewsCheck) repeat(key, val []byte) {
	r, err := keyspace.DecodeRepeatKey(key)
	sent, valErr := keyspace.DecodeSentMessages(val)
	if err = errors.Join(err, valErr); err != nil {
		v.inViews(key, "%v", err)
		return
	}
	if sent.StoreTime > v.state.Time || r.Index > v.state.Index {
		v.inViews(key, "remembers record %d of time %d, which is behind what the views have applied", r.Index, sent.StoreTime)
	}
	v.queue(key, keyspace.Queue{Topic: r.Topic, Queue: sent.Queue})
}

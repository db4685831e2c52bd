package store

import (
	"errors"
	"math"

	"github.com/perigee-mq/perigee/internal/readonly"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/commitlog"
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
	v.heldKeys++
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

// pending checks a message of the log that waits for something, or did: the views may
// need it right there.
func (l *logCheck) pending(rec commitlog.Record, m command.StoredMessage) error {
	msg, err := l.decode(rec, m)
	if err != nil || l.views == nil {
		return err
	}
	var p keyspace.Pending
	pos := uint64(rec.PayloadPos) + uint64(m.Start)
	key := keyspace.AppendHeldKey(nil, pos)
	found := false
	err = readonly.Catch(func() error {
		id, held, err := get(l.views.db, key, keyspace.DecodePendingID)
		if err != nil || !held {
			return err
		}
		p, found, err = get(l.views.db, keyspace.AppendPendingKey(nil, id), keyspace.DecodePending)
		return err
	})
	if errors.Is(err, keyspace.ErrCorrupt) {
		return nil // told already
	}
	if err != nil || !found || p.Pos != pos {
		return err
	}
	l.views.heldInLog++
	if p.Size != uint32(m.Size) || p.ID != groupHash([]byte(msg.ID)) {
		l.views.inViews(key, "pending message does not agree with the message in record %d: size %d and %d, or message id", rec.Index, p.Size, m.Size)
	}
	return nil
}

// restPending reports the pending messages that the log does not have where they are needed.
func (l *logCheck) restPending() {
	if l.views != nil && l.views.heldInLog < l.views.heldKeys {
		l.views.inViews(nil, "%d pending messages are at positions of the log where there is no message of that kind", l.views.heldKeys-l.views.heldInLog)
	}
}

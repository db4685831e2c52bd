package machine

import (
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
)

// pendingBits are the bits of a pending id that number the messages of one record; the
// others are the index of the record.
const pendingBits = 10

// A pending id has room for every message of a send.
const _ = uint(1<<pendingBits - command.MaxSend)

// pendingSpan is how exactly the machine knows, without a look at the views, when
// pending messages are due: they may be years away, and all the times in between cost memory.
const pendingSpan = time.Minute

// pendings counts the pending messages by what they wait for.
type pendings struct {
	due [keyspace.PendingStates]due
	n   [keyspace.PendingStates]int64
	// low is where a search for what is due begins: no key that leads to a message of
	// the state is before. Many messages may have the same time, so that is not enough.
	low [keyspace.PendingStates]PendingMark
	// lowHalf is the same for the half messages of one topic.
	lowHalf map[mq.TopicID]PendingMark
	// of counts them by topic.
	of map[mq.TopicID]*[keyspace.PendingStates]int64
	// fresh are the records that the batch writes, without a state those it deletes:
	// they cannot be read yet.
	fresh map[mq.PendingID]keyspace.Pending
}

// A PendingMark is a place in the order in which the states of pending messages end.
type PendingMark = mq.PendingMark

func newPendings() pendings {
	p := pendings{of: map[mq.TopicID]*[keyspace.PendingStates]int64{}, lowHalf: map[mq.TopicID]PendingMark{}, fresh: map[mq.PendingID]keyspace.Pending{}}
	for i := range p.due {
		p.due[i] = newDue(pendingSpan)
	}
	return p
}

// count counts one more, or one less.
func (p *pendings) count(rec *keyspace.Pending, n int64) {
	p.n[rec.State] += n
	of := p.of[rec.Topic]
	if of == nil {
		of = new([keyspace.PendingStates]int64)
		p.of[rec.Topic] = of
	}
	of[rec.State] += n
	if *of == ([keyspace.PendingStates]int64{}) {
		delete(p.of, rec.Topic)
	}
	if rec.At == never {
		return
	}
	if n > 0 {
		p.due[rec.State].add(uint64(rec.At))
	} else {
		p.due[rec.State].remove(uint64(rec.At))
	}
}

func (m *Machine) loadPendings() error {
	m.pendings = newPendings()
	lower, upper := keyspace.PendingKeys()
	return m.scan(lower, upper, func(_, v []byte) error {
		p, err := keyspace.DecodePending(v)
		if err == nil {
			m.pendings.count(&p, 1)
		}
		return err
	})
}

// pending returns the record of a pending message, effects of the batch included.
func (m *Machine) pending(id mq.PendingID) (keyspace.Pending, bool, error) {
	if p, ok := m.pendings.fresh[id]; ok {
		return p, p.State != 0, nil
	}
	m.key = keyspace.AppendPendingKey(m.key[:0], id)
	return get(m.db, m.key, keyspace.DecodePending)
}

// putPending writes the record of a pending message that has none, and what leads to it.
func (m *Machine) putPending(id mq.PendingID, p *keyspace.Pending) error {
	return m.changePending(id, nil, p)
}

// dropPending deletes the record and what leads to it.
func (m *Machine) dropPending(id mq.PendingID, p *keyspace.Pending) error {
	return m.changePending(id, p, nil)
}

// changePending replaces the record of a pending message, and what leads to it. old is
// nil for one that has none, now is nil for one that is to have none.
func (m *Machine) changePending(id mq.PendingID, old, now *keyspace.Pending) error {
	if old != nil {
		m.pendings.count(old, -1)
		if err := m.indexPending(id, old, now, m.del); err != nil {
			return err
		}
	}
	m.key = keyspace.AppendPendingKey(m.key[:0], id)
	if now == nil {
		m.pendings.fresh[id] = keyspace.Pending{}
		return m.del(m.key)
	}
	m.pendings.count(now, 1)
	m.pendings.fresh[id] = *now
	m.val = keyspace.AppendPending(m.val[:0], now)
	if err := m.set(m.key, m.val); err != nil {
		return err
	}
	if mark := (PendingMark{At: now.At, ID: id}); mark.Before(m.pendings.low[now.State]) {
		m.pendings.low[now.State] = mark
	}
	if now.State == keyspace.Half {
		m.halfDue(id, old, now)
	}
	m.val = keyspace.AppendPendingID(m.val[:0], id)
	return m.indexPending(id, now, old, func(key []byte) error {
		if keyspace.KindOf(key) == keyspace.KindHeld {
			return m.set(key, m.val)
		}
		return m.set(key, nil)
	})
}

// indexPending calls fn for the keys that lead to p and not to other, which may be nil.
func (m *Machine) indexPending(id mq.PendingID, p, other *keyspace.Pending, fn func(key []byte) error) error {
	if other == nil || other.State != p.State || other.At != p.At {
		m.key = keyspace.AppendPendingOfKey(m.key[:0], p.Topic, p.State, p.At, id)
		if err := fn(m.key); err != nil {
			return err
		}
		if p.At != never {
			m.key = keyspace.AppendPendingAtKey(m.key[:0], p.State, p.At, id)
			if err := fn(m.key); err != nil {
				return err
			}
		}
	}
	if !p.State.Holds() || other != nil && other.State.Holds() && other.Pos == p.Pos {
		return nil
	}
	m.key = keyspace.AppendHeldKey(m.key[:0], p.Pos)
	return fn(m.key)
}

// PendingDue reports whether a pending message's state has come to its end at now, and
// a time before which none does. It reads what was committed, so it is called after Commit.
func (m *Machine) PendingDue(state keyspace.PendingState, now int64) (due bool, next int64, err error) {
	d := &m.pendings.due[state]
	due, err = d.look(now, func(from, to uint64) (uint64, bool, error) {
		marks, err := m.pendingUntil(state, PendingMark{At: int64(from)}, int64(to)-1, 1)
		if err != nil || len(marks) == 0 {
			return 0, false, err
		}
		return uint64(marks[0].At), true, nil
	})
	return due, d.next, err
}

// NextPending returns a time before which no pending message's state ends; it is cheap.
// When that time has come, PendingDue says exactly.
func (m *Machine) NextPending(state keyspace.PendingState) int64 { return m.pendings.due[state].next }

// pendingUntil lists up to limit pending messages from a mark on whose state ends at the
// time to or before, the first to end first. Nothing is sought from before the first
// that there is: what ended before has left many keys that are deleted.
func (m *Machine) pendingUntil(state keyspace.PendingState, from PendingMark, to int64, limit int) (marks []PendingMark, err error) {
	low := &m.pendings.low[state]
	first := !low.Before(from)
	if first {
		from = *low
	}
	to = min(to, never-1)
	if to < from.At {
		return nil, nil
	}
	it, err := m.db.NewIter(iterOptions(keyspace.AppendPendingAtKey(nil, state, from.At, from.ID), keyspace.AppendPendingAtPrefix(nil, state, to+1)))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for ok := it.First(); ok && len(marks) < limit; ok = it.Next() {
		_, at, id, err := keyspace.DecodePendingAtKey(it.Key())
		if err != nil {
			return nil, err
		}
		marks = append(marks, PendingMark{At: at, ID: id})
	}
	if err := it.Error(); err != nil {
		return nil, err
	}
	if first {
		if *low = (PendingMark{At: to + 1}); len(marks) > 0 {
			*low = marks[0]
		}
	}
	return marks, nil
}

// DuePending returns up to limit pending messages, from a mark on, whose state ends at
// or before now, the first to end first. It reads what was committed.
func (m *Machine) DuePending(state keyspace.PendingState, from PendingMark, now int64, limit int) ([]PendingMark, error) {
	return m.pendingUntil(state, from, now, limit)
}

// Pending returns the record of a pending message.
func (m *Machine) Pending(id mq.PendingID) (keyspace.Pending, bool, error) { return m.pending(id) }

// ReadPending returns the record of a pending message as it was committed.
func ReadPending(views pebble.Reader, id mq.PendingID) (keyspace.Pending, bool, error) {
	return get(views, keyspace.AppendPendingKey(nil, id), keyspace.DecodePending)
}

// LastPending returns an id that is not below that of any pending message stored so far.
func (m *Machine) LastPending() mq.PendingID {
	return mq.PendingID((m.state.Index+1)<<pendingBits - 1)
}

// PendingOf returns how many messages of a topic are in the state.
func (m *Machine) PendingOf(topic mq.TopicID, state keyspace.PendingState) int64 {
	if of := m.pendings.of[topic]; of != nil {
		return of[state]
	}
	return 0
}

// Forgotten are the states of what is over: when they end, their records are dropped.
var Forgotten = [...]keyspace.PendingState{keyspace.Committed, keyspace.RolledBack, keyspace.Recalled}

// NextForgotten returns a time before which none of them ends; it is cheap.
func (m *Machine) NextForgotten() int64 {
	next := int64(never)
	for _, state := range Forgotten {
		next = min(next, m.pendings.due[state].next)
	}
	return next
}

// PendingIn returns how many messages are in the state.
func (m *Machine) PendingIn(state keyspace.PendingState) int64 { return m.pendings.n[state] }

// OrphanedPending returns a topic that was deleted and has pending messages, the one
// with the smallest id.
func (m *Machine) OrphanedPending() (least mq.TopicID, found bool) {
	for id := range m.pendings.of {
		if m.topics[id] == nil && (!found || id < least) {
			least, found = id, true
		}
	}
	return least, found
}

func corruptPending(id mq.PendingID, what string) error {
	return fmt.Errorf("%w: pending message %d %s", keyspace.ErrCorrupt, id, what)
}

func iterOptions(lower, upper []byte) *pebble.IterOptions {
	return &pebble.IterOptions{LowerBound: lower, UpperBound: upper}
}

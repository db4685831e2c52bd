package machine

import (
	"slices"
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

// idHash is the hash of a message id in the record of a pending message. It is stored,
// so it never changes.
func idHash(id []byte) uint64 { return groupHash(id) }

// pendingSpan is how exactly the machine knows, without a look at the views, when
// pending messages are due: they may be years away, and all the times in between cost memory.
const pendingSpan = time.Minute

// pendings counts the pending messages by what they wait for.
type pendings struct {
	due [keyspace.RolledBack + 1]due
	n   [keyspace.RolledBack + 1]int64
	// of counts them by topic.
	of map[mq.TopicID]*[keyspace.RolledBack + 1]int64
}

func newPendings() pendings {
	p := pendings{of: map[mq.TopicID]*[keyspace.RolledBack + 1]int64{}}
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
		of = new([keyspace.RolledBack + 1]int64)
		p.of[rec.Topic] = of
	}
	of[rec.State] += n
	if *of == ([keyspace.RolledBack + 1]int64{}) {
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

// pending returns the record of a pending message. It reads what was committed.
func (m *Machine) pending(id mq.PendingID) (keyspace.Pending, bool, error) {
	return get(m.db, keyspace.AppendPendingKey(nil, id), keyspace.DecodePending)
}

// putPending writes the record of a pending message that has none, and what leads to it.
func (m *Machine) putPending(id mq.PendingID, p *keyspace.Pending) error {
	m.pendings.count(p, 1)
	m.key = keyspace.AppendPendingKey(m.key[:0], id)
	m.val = keyspace.AppendPending(m.val[:0], p)
	if err := m.set(m.key, m.val); err != nil {
		return err
	}
	if p.At != never {
		m.key = keyspace.AppendPendingAtKey(m.key[:0], p.State, p.At, id)
		if err := m.set(m.key, nil); err != nil {
			return err
		}
	}
	m.key = keyspace.AppendPendingOfKey(m.key[:0], p.Topic, p.State, p.At, id)
	if err := m.set(m.key, nil); err != nil {
		return err
	}
	if !p.State.Holds() {
		return nil
	}
	m.key = keyspace.AppendHeldKey(m.key[:0], p.Pos)
	m.val = keyspace.AppendPendingID(m.val[:0], id)
	return m.set(m.key, m.val)
}

// dropPending deletes the record and what leads to it.
func (m *Machine) dropPending(id mq.PendingID, p *keyspace.Pending) error {
	m.pendings.count(p, -1)
	m.key = keyspace.AppendPendingKey(m.key[:0], id)
	if err := m.del(m.key); err != nil {
		return err
	}
	if p.At != never {
		m.key = keyspace.AppendPendingAtKey(m.key[:0], p.State, p.At, id)
		if err := m.del(m.key); err != nil {
			return err
		}
	}
	m.key = keyspace.AppendPendingOfKey(m.key[:0], p.Topic, p.State, p.At, id)
	if err := m.del(m.key); err != nil {
		return err
	}
	if !p.State.Holds() {
		return nil
	}
	m.key = keyspace.AppendHeldKey(m.key[:0], p.Pos)
	return m.del(m.key)
}

// dropPendingsOf deletes every pending message of a topic, and commits what was before.
func (m *Machine) dropPendingsOf(topic mq.TopicID) error {
	if m.pendings.of[topic] == nil {
		return nil
	}
	if err := m.Commit(); err != nil { // it reads what was committed
		return err
	}
	m.unreadable = true
	prefix := keyspace.AppendPendingOfPrefix(nil, topic)
	return m.scan(prefix, keyspace.Next(slices.Clone(prefix)), func(key, _ []byte) error {
		_, _, _, id, err := keyspace.DecodePendingOfKey(key)
		if err != nil {
			return err
		}
		p, found, err := m.pending(id)
		if err != nil || !found {
			return err
		}
		return m.dropPending(id, &p)
	})
}

// PendingDue reports whether a pending message's state has come to its end at now, and
// a time before which none does. It reads what was committed, so it is called after Commit.
func (m *Machine) PendingDue(state keyspace.PendingState, now int64) (due bool, next int64, err error) {
	d := &m.pendings.due[state]
	due, err = d.look(now, func(from, to uint64) (uint64, bool, error) {
		ids, times, _, err := m.pendingUntil(state, int64(from), int64(to)-1, 1)
		if err != nil || len(ids) == 0 {
			return 0, false, err
		}
		return uint64(times[0]), true, nil
	})
	return due, d.next, err
}

// pendingUntil lists up to limit pending messages whose state ends from one time to the
// other, both included, the first to end first, and whether there are more.
func (m *Machine) pendingUntil(state keyspace.PendingState, from, to int64, limit int) (ids []mq.PendingID, times []int64, more bool, err error) {
	it, err := m.db.NewIter(iterOptions(keyspace.AppendPendingAtPrefix(nil, state, from), keyspace.AppendPendingAtPrefix(nil, state, to+1)))
	if err != nil {
		return nil, nil, false, err
	}
	defer func() { _ = it.Close() }() // read errors are in it.Error
	for ok := it.First(); ok; ok = it.Next() {
		if len(ids) == limit {
			return ids, times, true, nil
		}
		_, at, id, err := keyspace.DecodePendingAtKey(it.Key())
		if err != nil {
			return nil, nil, false, err
		}
		ids, times = append(ids, id), append(times, at)
	}
	return ids, times, false, it.Error()
}

// DuePending returns up to limit pending messages whose state ends at or before now, the
// first to end first. It reads what was committed.
func (m *Machine) DuePending(state keyspace.PendingState, now int64, limit int) ([]mq.PendingID, error) {
	ids, _, _, err := m.pendingUntil(state, int64(m.pendings.due[state].low), now, limit)
	return ids, err
}

// Pending returns the record of a pending message. It is called after Commit.
func (m *Machine) Pending(id mq.PendingID) (keyspace.Pending, bool, error) { return m.pending(id) }

// PendingOf returns how many messages of a topic are in the state.
func (m *Machine) PendingOf(topic mq.TopicID, state keyspace.PendingState) int64 {
	if of := m.pendings.of[topic]; of != nil {
		return of[state]
	}
	return 0
}

func iterOptions(lower, upper []byte) *pebble.IterOptions {
	return &pebble.IterOptions{LowerBound: lower, UpperBound: upper}
}

package machine

import (
	"errors"
	"fmt"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
)

// A half message waits until its producer ends the transaction. A producer that does not
// is asked, later and later:
//
//	half --asked--> half ... --asked the last time--> last asked --no answer--> given up
//
// The producer may end the transaction in each of them, and so may an operator. What it
// came to is known for a while, so that the same end again gets the same answer.

// A HalfDue says when the producers of a topic are to be asked about a half message.
type HalfDue struct {
	Topic mq.TopicID
	At    int64
}

// halfDue notes that a half message waits for a question, or for it at another time.
func (m *Machine) halfDue(id mq.PendingID, old, now *keyspace.Pending) {
	mark := PendingMark{At: now.At, ID: id}
	if low, any := m.pendings.lowHalf[now.Topic]; any && mark.Before(low) {
		m.pendings.lowHalf[now.Topic] = mark
	}
	if old == nil || old.State != keyspace.Half || now.At < old.At {
		m.Effects.Halves = append(m.Effects.Halves, HalfDue{now.Topic, now.At})
	}
}

func (m *Machine) applyEndTransaction(rec Record, res *Result) error {
	v, err := command.ViewEndTransaction(rec.Payload)
	if err != nil {
		return err
	}
	res.Err, err = m.endTransaction(&v, rec.PayloadPos)
	return err
}

// endTransaction ends a transaction, or refuses to and changes nothing.
func (m *Machine) endTransaction(v *command.EndTransactionView, payload uint64) (refusal, err error) {
	p, found, err := m.pending(v.ID)
	if err != nil {
		return nil, err
	}
	if !found || p.Topic != v.Topic || p.Queue != v.Queue || p.ID != v.Hash {
		return fmt.Errorf("pending message %d: %w", v.ID, mq.ErrUnknownTransaction), nil
	}
	end := keyspace.RolledBack
	if v.Commit {
		end = keyspace.Committed
	}
	switch {
	case p.State == end:
		return nil, nil // asked again
	case p.State == keyspace.Committed || p.State == keyspace.RolledBack:
		return fmt.Errorf("pending message %d is %s: %w", v.ID, p.State, mq.ErrTransactionEnded), nil
	case !p.State.Open():
		return fmt.Errorf("pending message %d is no half message: %w", v.ID, mq.ErrUnknownTransaction), nil
	}
	if v.Commit {
		t, err := m.writable(p.Topic, p.Queue)
		if err != nil {
			return nil, err
		}
		if t == nil {
			return m.cannotWrite(p.Topic, p.Queue), nil
		}
		if err := m.enqueue(t, p.Queue, v.Message, v.Time, payload); err != nil {
			return nil, err
		}
	}
	now := p
	now.State, now.At = end, int64(visibleAt(v.Time, v.Keep))
	return nil, m.changePending(v.ID, &p, &now)
}

func (m *Machine) applyChecked(rec Record, res *Result) error {
	c, err := command.DecodeChecked(rec.Payload)
	if err != nil {
		return err
	}
	for i := range c.Refs {
		refusal, err := m.checked(&c, &c.Refs[i])
		if err != nil {
			return err
		}
		res.Settled = append(res.Settled, refusal)
	}
	return nil
}

func (m *Machine) checked(c *command.Checked, ref *command.CheckRef) (refusal, err error) {
	p, found, err := m.pending(ref.ID)
	if err != nil {
		return nil, err
	}
	if !found || ref.Hash != 0 && p.ID != ref.Hash {
		return fmt.Errorf("pending message %d: %w", ref.ID, mq.ErrUnknownTransaction), nil
	}
	now := p
	switch c.Op {
	case command.CheckAsked:
		if p.State != keyspace.Half && p.State != keyspace.LastAsked {
			return notPending(ref.ID, "it is "+p.State.String()), nil
		}
		if p.Checks != ref.From {
			return notPending(ref.ID, fmt.Sprintf("its producer was asked %d times, not %d", p.Checks, ref.From)), nil
		}
		now.Checks, now.At = ref.To, int64(visibleAt(c.Time, ref.Wait))
		if now.State = keyspace.Half; now.Checks >= c.Max {
			now.State = keyspace.LastAsked
		}
	case command.CheckGiveUp:
		if p.State != keyspace.LastAsked || p.At > c.Time {
			return notPending(ref.ID, "nobody waits for its last answer"), nil
		}
		now.State, now.At = keyspace.GivenUp, never
		m.Effects.GivenUp = append(m.Effects.GivenUp, ref.ID)
	case command.CheckAgain:
		if !p.State.Open() {
			return notPending(ref.ID, "it is "+p.State.String()), nil
		}
		now.State, now.Checks, now.At = keyspace.Half, 0, c.Time
	}
	return nil, m.changePending(ref.ID, &p, &now)
}

// DueHalves returns up to limit half messages of a topic whose producer is to be asked
// at or before now, the first first, and when to ask next if those are all. It reads what was committed.
func (m *Machine) DueHalves(topic mq.TopicID, now int64, limit int) (marks []PendingMark, next int64, err error) {
	if m.PendingOf(topic, keyspace.Half) == 0 {
		return nil, never, nil
	}
	low := m.pendings.lowHalf[topic]
	end := keyspace.Next(append(keyspace.AppendPendingOfPrefix(nil, topic), byte(keyspace.Half)))
	it, err := m.db.NewIter(iterOptions(keyspace.AppendPendingOfKey(nil, topic, keyspace.Half, low.At, low.ID), end))
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	next = never
	for ok := it.First(); ok; ok = it.Next() {
		_, _, at, id, err := keyspace.DecodePendingOfKey(it.Key())
		if err != nil {
			return nil, 0, err
		}
		if len(marks) == 0 && next == never {
			m.pendings.lowHalf[topic] = PendingMark{At: at, ID: id}
		}
		if next = at; at > now || len(marks) == limit {
			break
		}
		marks, next = append(marks, PendingMark{At: at, ID: id}), never
	}
	return marks, next, it.Error()
}

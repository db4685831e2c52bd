package machine

import (
	"fmt"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
)

// A pending message comes into its queue, and to another place in the log, by a command
// that carries it again: its bytes are read outside, where that may take its time.
// Applying it checks that the message is still what it was then.

func notPending(id mq.PendingID, why string) error {
	return fmt.Errorf("pending message %d: %s: %w", id, why, mq.ErrNotPending)
}

// applyFire makes timed messages messages of their queues.
func (m *Machine) applyFire(rec Record, res *Result) error {
	v, err := command.ViewFire(rec.Payload)
	if err != nil {
		return err
	}
	for range v.Count {
		msg := v.Next()
		refusal, err := m.fire(&v, &msg, rec.PayloadPos)
		if err != nil {
			return err
		}
		res.Settled = append(res.Settled, refusal)
	}
	return v.Done()
}

func (m *Machine) fire(v *command.PendingView, msg *command.CarriedMessage, payload uint64) (refusal, err error) {
	p, found, err := m.pending(msg.ID)
	switch {
	case err != nil:
		return nil, err
	case !found || p.State != keyspace.Timed || p.Topic != msg.Topic || p.Queue != msg.Queue:
		return notPending(msg.ID, "it waits no more"), nil
	case p.At > v.Until:
		return notPending(msg.ID, "its time has not come"), nil
	}
	if err := m.dropPending(msg.ID, &p); err != nil {
		return nil, err
	}
	t, err := m.writable(p.Topic, p.Queue)
	if err != nil {
		return nil, err
	}
	if t == nil {
		return m.cannotWrite(p.Topic, p.Queue), nil
	}
	return nil, m.enqueue(t, p.Queue, msg.StoredMessage, v.Time, payload)
}

// applyPendingMove notes where pending messages are from now on.
func (m *Machine) applyPendingMove(rec Record, res *Result) error {
	v, err := command.ViewMove(rec.Payload)
	if err != nil {
		return err
	}
	for range v.Count {
		msg := v.Next()
		p, found, err := m.pending(msg.ID)
		if err != nil {
			return err
		}
		if !found || !p.State.Holds() || p.Topic != msg.Topic || p.Queue != msg.Queue {
			res.Settled = append(res.Settled, notPending(msg.ID, "it waits no more"))
			continue
		}
		moved := p
		moved.Pos, moved.Size = rec.PayloadPos+uint64(msg.Start), uint32(msg.Size)
		if err := m.changePending(msg.ID, &p, &moved); err != nil {
			return err
		}
		res.Settled = append(res.Settled, nil)
	}
	return v.Done()
}

// applyPendingChange takes back, postpones or forgets pending messages.
func (m *Machine) applyPendingChange(rec Record, res *Result) error {
	c, err := command.DecodePendingChange(rec.Payload)
	if err != nil {
		return err
	}
	for _, ref := range c.Refs {
		refusal, err := m.changeOne(&c, ref)
		if err != nil {
			return err
		}
		res.Settled = append(res.Settled, refusal)
	}
	return nil
}

func (m *Machine) changeOne(c *command.PendingChange, ref command.PendingRef) (refusal, err error) {
	p, found, err := m.pending(ref.ID)
	if err != nil {
		return nil, err
	}
	change, refusal := JudgePendingChange(c, ref, &p, found)
	if refusal != nil || !change {
		return refusal, nil
	}
	if c.Op == command.DropPending {
		return nil, m.dropPending(ref.ID, &p)
	}
	now := p
	if now.At = c.At; c.Op == command.RecallPending {
		now.State, now.At = keyspace.Recalled, max(c.At, p.At)
	}
	return nil, m.changePending(ref.ID, &p, &now)
}

// JudgePendingChange says whether a change of a pending message that has the record p, if
// it is found, changes anything, and why it is refused, if it is.
func JudgePendingChange(c *command.PendingChange, ref command.PendingRef, p *keyspace.Pending, found bool) (change bool, refusal error) {
	switch {
	case !found:
		return false, notPending(ref.ID, "it was delivered or dropped, or recalled long ago")
	case p.Topic != c.Topic || ref.Hash != 0 && ref.Hash != p.ID:
		return false, fmt.Errorf("pending message %d is another one: %w", ref.ID, mq.ErrInvalidHandle)
	case c.Op == command.DropPending && (c.State == 0 || c.State == uint8(p.State)):
		return true, nil
	case c.Op == command.DropPending:
		return false, notPending(ref.ID, "it is "+p.State.String())
	case p.State == keyspace.Timed:
		return true, nil
	case p.State == keyspace.Recalled && c.Op == command.RecallPending:
		return false, nil // asked again
	case p.State == keyspace.Recalled:
		return false, notPending(ref.ID, "it was recalled")
	}
	return false, notPending(ref.ID, "it is no delayed message")
}

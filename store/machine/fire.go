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
	switch {
	case err != nil:
		return nil, err
	case !found:
		return notPending(ref.ID, "it was delivered or dropped, or recalled long ago"), nil
	case p.Topic != c.Topic || ref.Hash != 0 && ref.Hash != p.ID:
		return fmt.Errorf("pending message %d is another one: %w", ref.ID, mq.ErrInvalidHandle), nil
	}
	now := p
	switch c.Op {
	case command.DropPending:
		if c.State != 0 && c.State != uint8(p.State) {
			return notPending(ref.ID, "it is "+p.State.String()), nil
		}
		return nil, m.dropPending(ref.ID, &p)
	case command.RecallPending:
		if p.State == keyspace.Recalled {
			return nil, nil // asked again
		}
		now.State = keyspace.Recalled
	case command.PostponePending:
		if p.State == keyspace.Recalled {
			return notPending(ref.ID, "it was recalled"), nil
		}
	}
	if p.State != keyspace.Timed {
		return notPending(ref.ID, "it is no delayed message"), nil
	}
	if now.At = c.At; now.State == keyspace.Recalled {
		now.At = max(c.At, p.At)
	}
	return nil, m.changePending(ref.ID, &p, &now)
}

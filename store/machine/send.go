package machine

import (
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
)

// Stored is what a send has come to for one message.
type Stored struct {
	keyspace.Sent
	// Repeated says that an earlier send stored the message.
	Repeated bool
}

func (m *Machine) applySend(rec Record, res *Result) error {
	v, err := command.ViewSend(rec.Payload)
	if err != nil {
		return err
	}
	t, err := m.writable(v.Topic, v.Queue)
	if err != nil {
		return err
	}
	if t == nil {
		res.Err = m.cannotWrite(v.Topic, v.Queue)
		return nil
	}
	if err := m.forgetRepeats(v.Time); err != nil {
		return err
	}
	name, limit, err := v.Lite()
	if err != nil {
		return err
	}
	if name != nil {
		if v.Queue, res.Err, err = m.ensureLite(t, name, limit, v.Time); res.Err != nil || err != nil {
			return err
		}
	}
	m.repeats.touch(v)
	for i := range v.Count {
		msg := v.Next()
		stored, err := m.store(t, &v, &msg, &rec, i)
		if err != nil {
			return err
		}
		res.Stored = append(res.Stored, stored)
	}
	return v.Done()
}

// store stores one message of a send, the one at place, unless it is known already.
func (m *Machine) store(t *topic, v *command.SendView, msg *command.SentMessage, rec *Record, place int) (Stored, error) {
	if v.Window > 0 {
		sent, found, err := m.repeated(t.ID, msg.ID, msg.Content, rec.Index, v.Time, v.Window)
		if found || err != nil {
			return Stored{Sent: sent, Repeated: true}, err
		}
	}
	q, err := m.queueOf(t, v.Queue)
	if err != nil {
		return Stored{}, err
	}
	sent, next := keyspace.Sent{StoreTime: v.Time, Queue: v.Queue}, q.next
	state, at := waitsFor(msg, v.Time)
	if state == 0 {
		sent.Offset = next
		if err := m.enqueue(t, v.Queue, msg.StoredMessage, v.Time, rec.PayloadPos); err != nil {
			return Stored{}, err
		}
	} else {
		sent.Pending = mq.PendingID(rec.Index<<pendingBits | uint64(place))
		err := m.putPending(sent.Pending, &keyspace.Pending{
			State: state, Topic: t.ID, Queue: v.Queue, Pos: rec.PayloadPos + uint64(msg.Start), Size: uint32(msg.Size),
			StoreTime: v.Time, At: at, Recovery: msg.Recovery, ID: mq.HashName(msg.ID),
		})
		if err != nil {
			return Stored{}, err
		}
	}
	if v.Window > 0 {
		m.remember(keyspace.Repeat{Minute: lastMinute(v.Time, v.Window), Topic: t.ID, Index: rec.Index}, keyspace.SentMessage{
			ID: mq.HashName(msg.ID), Content: msg.Content, Place: uint16(place), Pending: sent.Pending != 0,
		}, v, next)
	}
	return Stored{Sent: sent}, nil
}

// waitsFor returns what a message waits for before it comes into its queue, and until
// when; 0 for one that goes there at once.
func waitsFor(msg *command.SentMessage, now int64) (keyspace.PendingState, int64) {
	switch {
	case msg.Type == mq.Delay && msg.DeliverAt != 0: // whoever sent it knows the wall clock
		return keyspace.Timed, msg.DeliverAt
	case msg.Type == mq.Transaction:
		return keyspace.Half, int64(visibleAt(now, msg.Recovery))
	}
	return 0, 0
}

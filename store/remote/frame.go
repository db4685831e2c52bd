package remote

import (
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/perigee-mq/perigee/mq"
)

// The numbers of the fields in perigee.store.v1.
const (
	callsCalls, callsTaken, callsCancelled = 1, 2, 3

	callID, callShard                              = 1, 2
	callAppend, callReceive, callAck, callChange   = 8, 9, 10, 11
	appendTopic, appendQueue, appendMessages       = 1, 2, 3
	receiveTopic, receiveGroup, receiveTags        = 1, 2, 3
	receiveFilter, receiveMax, receiveInvisible    = 4, 5, 6
	receiveAttempt, receiveWait, receiveAutoRenew  = 7, 8, 9
	receiveInFlight, receiveLite                   = 10, 11
	leasesLeases                                   = 1
	changeLease, changeInvisible, changeReason     = 1, 2, 3
	changeKeeper, changeHolder, changeOrphaned     = 4, 5, 6
	answersAnswers                                 = 1
	answerID, answerError, answerAppended          = 1, 2, 3
	answerDeliveries, answerWaited, answerSettled  = 4, 5, 6
	appendedQueue, appendedOffset, appendedTime    = 1, 2, 3
	appendedPending, appendedRepeated              = 4, 5
	deliveryMessage, deliveryQueue, deliveryOffset = 1, 2, 3
	deliveryPopID, deliveryAttempt, deliveryTime   = 4, 5, 6
	settledError                                   = 1
)

// message appends a message as the field n.
func (w *builder) message(n protowire.Number, m *mq.Message) {
	begun := w.begin(n)
	w.string(1, m.ID)
	w.string(2, m.Tag)
	w.uint(3, uint64(m.Type))
	w.string(4, m.Group)
	w.bytes(5, m.Properties)
	w.bytes(6, m.System)
	w.bytes(7, m.Body)
	w.int(8, nanos(m.DeliverAt))
	w.int(9, int64(m.Recovery))
	w.string(10, m.Lite)
	w.int(11, int64(m.Delay))
	w.end(begun)
}

// readMessage reads a message, which aliases b.
func readMessage(b []byte, m *mq.Message) error {
	r := reader{b: b}
	for r.next() {
		switch r.num {
		case 1:
			m.ID = r.string()
		case 2:
			m.Tag = r.string()
		case 3:
			m.Type = mq.MessageType(r.uint())
		case 4:
			m.Group = r.string()
		case 5:
			m.Properties = r.bytes()
		case 6:
			m.System = r.bytes()
		case 7:
			m.Body = r.bytes()
		case 8:
			m.DeliverAt = moment(r.int())
		case 9:
			m.Recovery = time.Duration(r.int())
		case 10:
			m.Lite = r.string()
		case 11:
			m.Delay = time.Duration(r.int())
		}
	}
	return r.err
}

func (w *builder) lease(n protowire.Number, l *mq.Lease) {
	begun := w.begin(n)
	w.string(1, l.Shard)
	w.uint(2, uint64(l.Topic))
	w.uint(3, uint64(l.Group))
	w.int(4, int64(l.Queue))
	w.int(5, int64(l.Offset))
	w.fixed(6, uint64(l.PopID))
	w.int(7, int64(l.Attempt))
	w.bool(8, l.AutoRenew)
	w.end(begun)
}

func readLease(b []byte, l *mq.Lease) error {
	r := reader{b: b}
	for r.next() {
		switch r.num {
		case 1:
			l.Shard = r.string()
		case 2:
			l.Topic = mq.TopicID(r.uint())
		case 3:
			l.Group = mq.GroupID(r.uint())
		case 4:
			l.Queue = mq.QueueID(r.int())
		case 5:
			l.Offset = mq.QueueOffset(r.int())
		case 6:
			l.PopID = mq.PopID(r.fixed())
		case 7:
			l.Attempt = mq.Attempt(r.int())
		case 8:
			l.AutoRenew = r.bool()
		}
	}
	return r.err
}

func (w *builder) leaseChange(n protowire.Number, c *mq.LeaseChange) {
	begun := w.begin(n)
	w.lease(changeLease, &c.Lease)
	w.int(changeInvisible, int64(c.Invisible))
	w.uint(changeReason, uint64(c.Reason))
	w.fixed(changeKeeper, uint64(c.Keeper))
	w.string(changeHolder, c.Holder)
	w.bool(changeOrphaned, c.Orphaned)
	w.end(begun)
}

func readLeaseChange(b []byte, c *mq.LeaseChange) error {
	r := reader{b: b}
	for r.next() {
		switch r.num {
		case changeLease:
			if err := readLease(r.bytes(), &c.Lease); err != nil {
				return err
			}
		case changeInvisible:
			c.Invisible = time.Duration(r.int())
		case changeReason:
			c.Reason = mq.ChangeReason(r.uint())
		case changeKeeper:
			c.Keeper = mq.KeeperID(r.fixed())
		case changeHolder:
			c.Holder = r.string()
		case changeOrphaned:
			c.Orphaned = r.bool()
		}
	}
	return r.err
}

func (w *builder) appended(a *mq.Appended) {
	begun := w.begin(answerAppended)
	w.int(appendedQueue, int64(a.Queue))
	w.int(appendedOffset, int64(a.Offset))
	w.int(appendedTime, nanos(a.StoreTime))
	w.uint(appendedPending, uint64(a.Pending))
	w.bool(appendedRepeated, a.Repeated)
	w.end(begun)
}

func readAppended(b []byte, a *mq.Appended) error {
	r := reader{b: b}
	for r.next() {
		switch r.num {
		case appendedQueue:
			a.Queue = mq.QueueID(r.int())
		case appendedOffset:
			a.Offset = mq.QueueOffset(r.int())
		case appendedTime:
			a.StoreTime = moment(r.int())
		case appendedPending:
			a.Pending = mq.PendingID(r.uint())
		case appendedRepeated:
			a.Repeated = r.bool()
		}
	}
	return r.err
}

func (w *builder) delivery(d *mq.Delivery) {
	begun := w.begin(answerDeliveries)
	w.message(deliveryMessage, &d.Message)
	w.int(deliveryQueue, int64(d.Lease.Queue))
	w.int(deliveryOffset, int64(d.Lease.Offset))
	w.fixed(deliveryPopID, uint64(d.Lease.PopID))
	w.int(deliveryAttempt, int64(d.Lease.Attempt))
	w.int(deliveryTime, nanos(d.StoreTime))
	w.end(begun)
}

// readDelivery reads a delivery, whose lease has what the caller knows already.
func readDelivery(b []byte, d *mq.Delivery) error {
	r := reader{b: b}
	for r.next() {
		switch r.num {
		case deliveryMessage:
			if err := readMessage(r.bytes(), &d.Message); err != nil {
				return err
			}
		case deliveryQueue:
			d.Lease.Queue = mq.QueueID(r.int())
		case deliveryOffset:
			d.Lease.Offset = mq.QueueOffset(r.int())
		case deliveryPopID:
			d.Lease.PopID = mq.PopID(r.fixed())
		case deliveryAttempt:
			d.Lease.Attempt = mq.Attempt(r.int())
		case deliveryTime:
			d.StoreTime = moment(r.int())
		}
	}
	return r.err
}

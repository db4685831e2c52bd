package command

import (
	"encoding/binary"
	"fmt"

	"github.com/perigee-mq/perigee/mq"
)

// MaxPending is how many pending messages one command may name.
const MaxPending = 1024

// A PendingMessage is a pending message with what it says: a command carries it where it
// is needed anew.
type PendingMessage struct {
	ID      mq.PendingID
	Topic   mq.TopicID
	Queue   mq.QueueID
	Message *mq.Message
}

// pendingNumbers bounds what a message takes in a Fire or Move beside its stored form.
const pendingNumbers = 8 + 4 + 4 + 4

// Fire makes timed messages whose time has come messages of their queues. One that is
// not pending any more, or was postponed, is passed over: the others are not held up.
type Fire struct {
	Time int64
	// Until is the wall clock's time, in Unix nanoseconds: no message of a later time
	// of delivery is delivered. Time may be ahead of it, when the clock was set back.
	Until    int64
	Messages []PendingMessage
}

// Move says where pending messages are in the log from now on: in this command. What
// was before is needed no more.
type Move struct {
	Time     int64
	Messages []PendingMessage
}

// SizePending bounds the length of the encoding of a Fire or Move of the messages.
func SizePending(messages []PendingMessage) int {
	n := 8 + 8 + binary.MaxVarintLen32
	for i := range messages {
		n += pendingNumbers + messageFraming + messages[i].Message.Size()
	}
	return n
}

func appendPending(dst []byte, messages []PendingMessage) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(messages)))
	for i := range messages {
		p := &messages[i]
		dst = binary.BigEndian.AppendUint64(dst, uint64(p.ID))
		dst = binary.BigEndian.AppendUint32(dst, uint32(p.Topic))
		dst = binary.BigEndian.AppendUint32(dst, uint32(p.Queue))
		dst = appendSized(dst, p.Message)
	}
	return dst
}

// Append appends the encoding of c.
func (c *Fire) Append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.Time))
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.Until))
	return appendPending(dst, c.Messages)
}

// Append appends the encoding of c.
func (c *Move) Append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.Time))
	return appendPending(dst, c.Messages)
}

// A CarriedMessage is a pending message inside the payload of a Fire or Move.
type CarriedMessage struct {
	ID    mq.PendingID
	Topic mq.TopicID
	Queue mq.QueueID
	StoredMessage
}

// A PendingView reads an encoded Fire or Move without copying.
type PendingView struct {
	Time  int64
	Until int64 // of a Fire
	Count int
	kind  Kind
	r     reader
	total int
}

// ViewFire opens the payload of a KindFire record.
func ViewFire(b []byte) (PendingView, error) {
	r := reader{b: b}
	v := PendingView{Time: int64(r.u64()), Until: int64(r.u64()), kind: KindFire, total: len(b)}
	return v.open(r)
}

// ViewMove opens the payload of a KindPendingMove record.
func ViewMove(b []byte) (PendingView, error) {
	r := reader{b: b}
	v := PendingView{Time: int64(r.u64()), kind: KindPendingMove, total: len(b)}
	return v.open(r)
}

func (v PendingView) open(r reader) (PendingView, error) {
	v.Count = r.size()
	v.r = r
	if r.bad || v.Count == 0 || v.Count > MaxPending {
		return PendingView{}, fmt.Errorf("%w: %s", ErrCorrupt, v.kind)
	}
	return v, nil
}

// Next returns the next message; its slices alias the payload. It is called Count
// times, then Done.
func (v *PendingView) Next() CarriedMessage {
	return CarriedMessage{
		ID: mq.PendingID(v.r.u64()), Topic: mq.TopicID(v.r.u32()), Queue: mq.QueueID(v.r.u32()), StoredMessage: v.r.message(v.total),
	}
}

// Done returns an error when the payload was not exactly Count messages.
func (v *PendingView) Done() error { return v.r.done(v.kind) }

// PendingOp says what becomes of pending messages.
type PendingOp uint8

const (
	// RecallPending takes back timed messages: they are never delivered. That is known
	// until their time of delivery, and until At, so that to ask again gets the same answer.
	RecallPending PendingOp = 1
	// PostponePending gives timed messages At as their time of delivery, which may be
	// earlier than the one they had.
	PostponePending PendingOp = 2
	// DropPending forgets pending messages, or what became of them.
	DropPending PendingOp = 3
)

var pendingOps = [...]string{RecallPending: "recall", PostponePending: "postpone", DropPending: "drop"}

// String returns the name of the operation.
func (o PendingOp) String() string {
	if int(o) < len(pendingOps) && pendingOps[o] != "" {
		return pendingOps[o]
	}
	return fmt.Sprintf("PendingOp(%d)", uint8(o))
}

// PendingChange changes pending messages of one topic. Each is judged on its own.
type PendingChange struct {
	Time  int64
	Op    PendingOp
	Topic mq.TopicID
	// State is the state that a message to be dropped must be in, a keyspace.PendingState;
	// 0: whatever it is in. Other operations have 0.
	State uint8
	// At is a time in Unix nanoseconds, for the operations that need one.
	At   int64
	Refs []PendingRef
}

// A PendingRef names one pending message.
type PendingRef struct {
	ID mq.PendingID
	// Hash is that of the message id, as in the record of the message: who has a
	// handle must know it. 0: it does not matter.
	Hash uint64
}

const pendingRefSize = 8 + 8

// Append appends the encoding of c.
func (c *PendingChange) Append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.Time))
	dst = append(dst, byte(c.Op))
	dst = binary.BigEndian.AppendUint32(dst, uint32(c.Topic))
	dst = append(dst, c.State)
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.At))
	for _, ref := range c.Refs {
		dst = binary.BigEndian.AppendUint64(dst, uint64(ref.ID))
		dst = binary.BigEndian.AppendUint64(dst, ref.Hash)
	}
	return dst
}

// DecodePendingChange decodes what PendingChange.Append wrote.
func DecodePendingChange(b []byte) (PendingChange, error) {
	r := reader{b: b}
	c := PendingChange{
		Time: int64(r.u64()), Op: PendingOp(r.u8()), Topic: mq.TopicID(r.u32()), State: r.u8(), At: int64(r.u64()),
	}
	n := len(r.b) / pendingRefSize
	if r.bad || c.Op < RecallPending || c.Op > DropPending || c.Op != DropPending && c.State != 0 ||
		n == 0 || n > MaxPending || len(r.b)%pendingRefSize != 0 {
		return PendingChange{}, fmt.Errorf("%w: %s", ErrCorrupt, KindPendingChange)
	}
	c.Refs = make([]PendingRef, n)
	for i := range c.Refs {
		c.Refs[i] = PendingRef{ID: mq.PendingID(r.u64()), Hash: r.u64()}
	}
	return c, r.done(KindPendingChange)
}

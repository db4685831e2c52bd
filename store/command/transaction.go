package command

import (
	"encoding/binary"
	"fmt"

	"github.com/perigee-mq/perigee/mq"
)

// EndTransaction ends the transaction of a half message. With a Message it is committed:
// that becomes a message of its queue. Without one it is rolled back.
type EndTransaction struct {
	Time  int64
	ID    mq.PendingID
	Topic mq.TopicID
	Queue mq.QueueID
	// Hash is that of the message id, as in the record of the message.
	Hash uint64
	// Keep is for how long it is known how the transaction ended, in nanoseconds.
	Keep    int64
	Message *mq.Message
}

// Size bounds the length of the encoding of c.
func (c *EndTransaction) Size() int {
	n := 8 + 8 + 4 + 4 + 8 + 8 + 1
	if c.Message != nil {
		n += messageFraming + c.Message.Size()
	}
	return n
}

// Append appends the encoding of c.
func (c *EndTransaction) Append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.Time))
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.ID))
	dst = binary.BigEndian.AppendUint32(dst, uint32(c.Topic))
	dst = binary.BigEndian.AppendUint32(dst, uint32(c.Queue))
	dst = binary.BigEndian.AppendUint64(dst, c.Hash)
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.Keep))
	dst = append(dst, boolByte(c.Message != nil))
	if c.Message != nil {
		dst = appendSized(dst, c.Message)
	}
	return dst
}

// An EndTransactionView is an encoded EndTransaction; Message aliases the payload.
type EndTransactionView struct {
	Time    int64
	ID      mq.PendingID
	Topic   mq.TopicID
	Queue   mq.QueueID
	Hash    uint64
	Keep    int64
	Commit  bool
	Message StoredMessage // of a commit
}

// ViewEndTransaction decodes the payload of a KindEndTransaction record.
func ViewEndTransaction(b []byte) (EndTransactionView, error) {
	r := reader{b: b}
	v := EndTransactionView{
		Time: int64(r.u64()), ID: mq.PendingID(r.u64()), Topic: mq.TopicID(r.u32()), Queue: mq.QueueID(r.u32()),
		Hash: r.u64(), Keep: int64(r.u64()),
	}
	commit := r.u8()
	if v.Commit = commit == 1; v.Commit {
		v.Message = r.message(len(b))
	}
	if commit > 1 || v.Keep < 0 {
		return EndTransactionView{}, fmt.Errorf("%w: %s", ErrCorrupt, KindEndTransaction)
	}
	return v, r.done(KindEndTransaction)
}

// CheckOp says what is known of the questions about half messages.
type CheckOp uint8

const (
	// CheckAsked is that producers are asked, or that they were not after all: each
	// message says how often its producer has been.
	CheckAsked CheckOp = 1
	// CheckGiveUp is that nobody is asked any more: the last question was not answered in time.
	CheckGiveUp CheckOp = 2
	// CheckAgain is that the questions begin anew, at once.
	CheckAgain CheckOp = 3
)

var checkOps = [...]string{CheckAsked: "asked", CheckGiveUp: "give-up", CheckAgain: "again"}

// String returns the name of the operation.
func (o CheckOp) String() string {
	if int(o) < len(checkOps) && checkOps[o] != "" {
		return checkOps[o]
	}
	return fmt.Sprintf("CheckOp(%d)", uint8(o))
}

// Checked notes questions to producers about their half messages. Each message is judged
// on its own.
type Checked struct {
	Time int64
	Op   CheckOp
	// Max is how often a producer is asked at most.
	Max  uint32
	Refs []CheckRef
}

// A CheckRef names one half message.
type CheckRef struct {
	ID mq.PendingID
	// Hash is that of the message id; 0: it does not matter.
	Hash uint64
	// From is how often its producer was asked so far: with another number somebody else
	// has noted a question, and this one is not. To is how often it has been then.
	From, To uint32
	// Wait is how long it takes from now to the next question, or until the message is given up, in nanoseconds.
	Wait int64
}

const checkRefSize = 8 + 8 + 4 + 4 + 8

// Append appends the encoding of c.
func (c *Checked) Append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.Time))
	dst = append(dst, byte(c.Op))
	dst = binary.BigEndian.AppendUint32(dst, c.Max)
	for i := range c.Refs {
		ref := &c.Refs[i]
		dst = binary.BigEndian.AppendUint64(dst, uint64(ref.ID))
		dst = binary.BigEndian.AppendUint64(dst, ref.Hash)
		dst = binary.BigEndian.AppendUint32(dst, ref.From)
		dst = binary.BigEndian.AppendUint32(dst, ref.To)
		dst = binary.BigEndian.AppendUint64(dst, uint64(ref.Wait))
	}
	return dst
}

// DecodeChecked decodes what Checked.Append wrote.
func DecodeChecked(b []byte) (Checked, error) {
	r := reader{b: b}
	c := Checked{Time: int64(r.u64()), Op: CheckOp(r.u8()), Max: r.u32()}
	n := len(r.b) / checkRefSize
	if r.bad || c.Op < CheckAsked || c.Op > CheckAgain || n == 0 || n > MaxPending || len(r.b)%checkRefSize != 0 {
		return Checked{}, fmt.Errorf("%w: %s", ErrCorrupt, KindChecked)
	}
	c.Refs = make([]CheckRef, n)
	for i := range c.Refs {
		c.Refs[i] = CheckRef{ID: mq.PendingID(r.u64()), Hash: r.u64(), From: r.u32(), To: r.u32(), Wait: int64(r.u64())}
		if c.Refs[i].Wait < 0 {
			return Checked{}, fmt.Errorf("%w: %s", ErrCorrupt, KindChecked)
		}
	}
	return c, r.done(KindChecked)
}

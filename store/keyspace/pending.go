package keyspace

import (
	"encoding/binary"
	"fmt"

	"github.com/perigee-mq/perigee/mq"
)

// PendingState says what a pending message waits for.
type PendingState uint8

// The states of a pending message.
const (
	Timed      PendingState = 1 // for its time of delivery
	Half       PendingState = 2 // for the end of its transaction
	GivenUp    PendingState = 3 // for an operator: its producer was asked as often as may be
	Committed  PendingState = 4 // for being forgotten; the message is in its queue
	RolledBack PendingState = 5 // for being forgotten
	Recalled   PendingState = 6 // for being forgotten; it was timed
	LastAsked  PendingState = 7 // for the answer to the last question to its producer
)

// PendingStates is how many states there are, and 0.
const PendingStates = 8

var pendingStates = [PendingStates]string{
	Timed: "timed", Half: "half", GivenUp: "given up", Committed: "committed", RolledBack: "rolled back", Recalled: "recalled",
	LastAsked: "asked for the last time",
}

// String returns the state in words.
func (s PendingState) String() string {
	if int(s) < len(pendingStates) && s > 0 {
		return pendingStates[s]
	}
	return fmt.Sprintf("PendingState(%d)", uint8(s))
}

// Holds reports whether a message in that state is still needed in the log.
func (s PendingState) Holds() bool { return s == Timed || s.Open() }

// Open reports whether a message in that state is a half message whose transaction has
// not ended.
func (s PendingState) Open() bool { return s == Half || s == LastAsked || s == GivenUp }

// A Pending is the record of a message that is stored and in no queue.
type Pending struct {
	State PendingState
	Topic mq.TopicID
	Queue mq.QueueID
	Pos   uint64 // of the stored message, in the log
	Size  uint32 // of the stored message
	// StoreTime is when it was stored first, in Unix nanoseconds.
	StoreTime int64
	// At is when its state ends, in Unix nanoseconds: the time of delivery, the next
	// question to its producer, the time to be forgotten. Never, when it waits for somebody.
	At int64
	// Checks counts the questions to its producer.
	Checks uint32
	// Recovery is what the sender asked for, in nanoseconds.
	Recovery int64
	// ID is the hash of the message id: who knows the one of the record knows the message.
	ID uint64
}

const pendingSize = 1 + 4 + 4 + 8 + 4 + 8 + 8 + 4 + 8 + 8

// AppendPendingKey appends the key of the record of a pending message.
func AppendPendingKey(dst []byte, id mq.PendingID) []byte {
	return binary.BigEndian.AppendUint64(append(dst, prefixPending), uint64(id))
}

// DecodePendingKey decodes the key of the record of a pending message.
func DecodePendingKey(b []byte) (mq.PendingID, error) {
	if len(b) != 1+8 || b[0] != prefixPending {
		return 0, corrupt("key of a pending message", b)
	}
	return mq.PendingID(binary.BigEndian.Uint64(b[1:])), nil
}

// PendingKeys returns the bounds of the records of pending messages.
func PendingKeys() (lower, upper []byte) { return []byte{prefixPending}, []byte{prefixPending + 1} }

// AppendPending appends the encoding of p.
func AppendPending(dst []byte, p *Pending) []byte {
	dst = append(dst, byte(p.State))
	dst = binary.BigEndian.AppendUint32(dst, uint32(p.Topic))
	dst = binary.BigEndian.AppendUint32(dst, uint32(p.Queue))
	dst = binary.BigEndian.AppendUint64(dst, p.Pos)
	dst = binary.BigEndian.AppendUint32(dst, p.Size)
	dst = binary.BigEndian.AppendUint64(dst, uint64(p.StoreTime))
	dst = binary.BigEndian.AppendUint64(dst, uint64(p.At))
	dst = binary.BigEndian.AppendUint32(dst, p.Checks)
	dst = binary.BigEndian.AppendUint64(dst, uint64(p.Recovery))
	return binary.BigEndian.AppendUint64(dst, p.ID)
}

// DecodePending decodes what AppendPending wrote.
func DecodePending(b []byte) (Pending, error) {
	if len(b) != pendingSize || b[0] < byte(Timed) || b[0] >= PendingStates {
		return Pending{}, corrupt("pending message", b)
	}
	return Pending{
		State: PendingState(b[0]), Topic: mq.TopicID(binary.BigEndian.Uint32(b[1:])), Queue: decodeQueue(b[5:]),
		Pos: binary.BigEndian.Uint64(b[9:]), Size: binary.BigEndian.Uint32(b[17:]),
		StoreTime: int64(binary.BigEndian.Uint64(b[21:])), At: int64(binary.BigEndian.Uint64(b[29:])),
		Checks: binary.BigEndian.Uint32(b[37:]), Recovery: int64(binary.BigEndian.Uint64(b[41:])),
		ID: binary.BigEndian.Uint64(b[49:]),
	}, nil
}

// AppendPendingAtKey appends the key that orders the pending messages of one state by
// the time at which that ends.
func AppendPendingAtKey(dst []byte, s PendingState, at int64, id mq.PendingID) []byte {
	return binary.BigEndian.AppendUint64(AppendPendingAtPrefix(dst, s, at), uint64(id))
}

// AppendPendingAtPrefix appends what every such key of that state and time begins with.
func AppendPendingAtPrefix(dst []byte, s PendingState, at int64) []byte {
	return binary.BigEndian.AppendUint64(append(dst, prefixPendingAt, byte(s)), uint64(at))
}

// DecodePendingAtKey decodes such a key.
func DecodePendingAtKey(b []byte) (s PendingState, at int64, id mq.PendingID, err error) {
	if len(b) != 1+1+8+8 || b[0] != prefixPendingAt {
		return 0, 0, 0, corrupt("key of the time of a pending message", b)
	}
	return PendingState(b[1]), int64(binary.BigEndian.Uint64(b[2:])), mq.PendingID(binary.BigEndian.Uint64(b[10:])), nil
}

// AppendPendingOfKey appends the key that orders the pending messages of a topic by
// state and time.
func AppendPendingOfKey(dst []byte, t mq.TopicID, s PendingState, at int64, id mq.PendingID) []byte {
	dst = append(AppendPendingOfPrefix(dst, t), byte(s))
	dst = binary.BigEndian.AppendUint64(dst, uint64(at))
	return binary.BigEndian.AppendUint64(dst, uint64(id))
}

// AppendPendingOfPrefix appends what every such key of the topic begins with.
func AppendPendingOfPrefix(dst []byte, t mq.TopicID) []byte {
	return binary.BigEndian.AppendUint32(append(dst, prefixPendingOf), uint32(t))
}

// DecodePendingOfKey decodes such a key.
func DecodePendingOfKey(b []byte) (t mq.TopicID, s PendingState, at int64, id mq.PendingID, err error) {
	if len(b) != 1+4+1+8+8 || b[0] != prefixPendingOf {
		return 0, 0, 0, 0, corrupt("key of a pending message of a topic", b)
	}
	return mq.TopicID(binary.BigEndian.Uint32(b[1:])), PendingState(b[5]), int64(binary.BigEndian.Uint64(b[6:])),
		mq.PendingID(binary.BigEndian.Uint64(b[14:])), nil
}

// AppendHeldKey appends the key that orders the pending messages by their place in
// the log, as long as they are needed there.
func AppendHeldKey(dst []byte, pos uint64) []byte {
	return binary.BigEndian.AppendUint64(append(dst, prefixHeld), pos)
}

// HeldKeys returns the bounds of such keys; the value of one is the pending id.
func HeldKeys() (lower, upper []byte) { return []byte{prefixHeld}, []byte{prefixHeld + 1} }

// DecodeHeldKey decodes such a key.
func DecodeHeldKey(b []byte) (pos uint64, err error) {
	if len(b) != 1+8 || b[0] != prefixHeld {
		return 0, corrupt("key of a held position", b)
	}
	return binary.BigEndian.Uint64(b[1:]), nil
}

// AppendPendingID appends the value of such a key.
func AppendPendingID(dst []byte, id mq.PendingID) []byte {
	return binary.BigEndian.AppendUint64(dst, uint64(id))
}

// DecodePendingID decodes what AppendPendingID wrote.
func DecodePendingID(b []byte) (mq.PendingID, error) {
	if len(b) != 8 {
		return 0, corrupt("pending id", b)
	}
	return mq.PendingID(binary.BigEndian.Uint64(b)), nil
}

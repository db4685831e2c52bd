package keyspace

import (
	"encoding/binary"

	"github.com/perigee-mq/perigee/mq"
)

// What a group that receives by priority has beside the rest. The second byte of a key
// says which of the two it is.
const (
	priorityTurn  = 't' // group, topic -> Turn
	priorityReady = 'r' // group, topic, queue, sequence -> offset
)

// A Turn is what a group that receives a topic by priority remembers of its pops: that
// it is there at all says that its redeliveries are ordered by queue, too.
type Turn struct {
	// Pops counts the pops that began with the highest queue since one began with
	// another.
	Pops uint32
	// Queue is the one that began.
	Queue mq.QueueID
}

// AppendTurnKey appends the key of the Turn of s.
func AppendTurnKey(dst []byte, s Sub) []byte {
	return appendSub(append(dst, prefixPriority, priorityTurn), s)
}

// AppendTurn appends the encoding of t.
func AppendTurn(dst []byte, t Turn) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(dst, t.Pops), uint32(t.Queue))
}

// DecodeTurn decodes what AppendTurn wrote.
func DecodeTurn(b []byte) (Turn, error) {
	if len(b) != 4+4 {
		return Turn{}, corrupt("turn", b)
	}
	return Turn{Pops: binary.BigEndian.Uint32(b), Queue: decodeQueue(b[4:])}, nil
}

// TurnKeys returns the bounds of all Turns.
func TurnKeys() (lower, upper []byte) {
	return []byte{prefixPriority, priorityTurn}, []byte{prefixPriority, priorityTurn + 1}
}

// DecodeTurnKey decodes the key of a Turn.
func DecodeTurnKey(b []byte) (Sub, error) {
	if len(b) != 2+8 || b[0] != prefixPriority || b[1] != priorityTurn {
		return Sub{}, corrupt("turn key", b)
	}
	return decodeSub(b[2:]), nil
}

// AppendPriorityKey appends the key of the redelivery of a message of the queue with the
// given sequence.
func AppendPriorityKey(dst []byte, s Sub, queue mq.QueueID, seq uint64) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(AppendPriorityPrefix(dst, s), uint32(queue)), seq)
}

// AppendPriorityPrefix appends what every such key of s starts with.
func AppendPriorityPrefix(dst []byte, s Sub) []byte {
	return appendSub(append(dst, prefixPriority, priorityReady), s)
}

// DecodePriorityKey decodes such a key.
func DecodePriorityKey(b []byte) (Sub, mq.QueueID, uint64, error) {
	if len(b) != 2+8+4+8 || b[0] != prefixPriority || b[1] != priorityReady {
		return Sub{}, 0, 0, corrupt("key of a redelivery by priority", b)
	}
	return decodeSub(b[2:]), decodeQueue(b[10:]), binary.BigEndian.Uint64(b[14:]), nil
}

// IsTurnKey tells the key of a Turn from that of a redelivery by priority.
func IsTurnKey(b []byte) bool { return len(b) > 1 && b[0] == prefixPriority && b[1] == priorityTurn }

package keyspace

import (
	"encoding/binary"

	"github.com/perigee-mq/perigee/mq"
)

// A Kind says what a key is about: its first byte.
type Kind byte

// The kinds of keys.
const (
	KindState    Kind = prefixState
	KindBegin    Kind = prefixBegin
	KindEntry    Kind = prefixEntry
	KindGroup    Kind = prefixGroup
	KindLease    Kind = prefixLease
	KindGone     Kind = prefixGone
	KindProgress Kind = prefixProgress
	KindEnds     Kind = prefixEnds
	KindReady    Kind = prefixReady
	KindSub      Kind = prefixSub
	KindTopic    Kind = prefixTopic
	KindDue      Kind = prefixDue
	KindUsedUp   Kind = prefixUsedUp

	KindUnstarted Kind = prefixUnstarted

	KindPending   Kind = prefixPending
	KindPendingOf Kind = prefixPendingOf
	KindPendingAt Kind = prefixPendingAt
	KindHeld      Kind = prefixHeld
	KindRepeat    Kind = prefixRepeat

	KindPlacement Kind = prefixPlacement
	KindPriority  Kind = prefixPriority
	KindLiteName  Kind = prefixLiteName
	KindLite      Kind = prefixLite
	KindLiteOrder Kind = prefixLiteOrder
)

// KindOf returns the kind of a key, which may be one that nobody has defined.
func KindOf(key []byte) Kind {
	if len(key) == 0 {
		return 0
	}
	return Kind(key[0])
}

// DecodeTopicKey decodes the key of a topic's registration.
func DecodeTopicKey(b []byte) (mq.TopicID, error) {
	if len(b) != 1+4 || b[0] != prefixTopic {
		return 0, corrupt("topic key", b)
	}
	return mq.TopicID(binary.BigEndian.Uint32(b[1:])), nil
}

// DecodeGroupKey decodes the key of a group's registration.
func DecodeGroupKey(b []byte) (mq.GroupID, error) {
	if len(b) != 1+4 || b[0] != prefixGroup {
		return 0, corrupt("group key", b)
	}
	return mq.GroupID(binary.BigEndian.Uint32(b[1:])), nil
}

// DecodeGoneKey decodes the key that marks an id as used up: that of a topic or that
// of a group, the other is 0.
func DecodeGoneKey(b []byte) (mq.TopicID, mq.GroupID, error) {
	if len(b) == 1+1+4 && b[0] == prefixGone {
		switch id := binary.BigEndian.Uint32(b[2:]); b[1] {
		case prefixTopic:
			return mq.TopicID(id), 0, nil
		case prefixGroup:
			return 0, mq.GroupID(id), nil
		}
	}
	return 0, 0, corrupt("gone key", b)
}

// DecodeProgressKey decodes a progress key.
func DecodeProgressKey(b []byte) (Sub, mq.QueueID, error) {
	if len(b) != 1+8+4 || b[0] != prefixProgress {
		return Sub{}, 0, corrupt("progress key", b)
	}
	return decodeSub(b[1:]), decodeQueue(b[9:]), nil
}

// DecodeReadySub returns the group and topic in a redelivery key.
func DecodeReadySub(b []byte) (Sub, error) {
	if len(b) != 1+8+8 || b[0] != prefixReady {
		return Sub{}, corrupt("redelivery key", b)
	}
	return decodeSub(b[1:]), nil
}

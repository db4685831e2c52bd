package keyspace

import (
	"encoding/binary"

	"github.com/perigee-mq/perigee/mq"
)

// LiteLane stands in for the hash of a message group in the entries and lease records of
// lite topics: each lite topic is one lane.
const LiteLane = 1

// LiteCounts says how many lite topics a topic has, and has had.
type LiteCounts struct {
	// Next is the queue id of the next one. Ids are never used again.
	Next mq.QueueID
	// Count is how many there are.
	Count uint32
}

// AppendLiteCountsKey appends the key of the counts of a topic.
func AppendLiteCountsKey(dst []byte, t mq.TopicID) []byte {
	return binary.BigEndian.AppendUint32(append(dst, prefixLiteName), uint32(t))
}

// AppendLiteCounts appends the encoding of c.
func AppendLiteCounts(dst []byte, c LiteCounts) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(dst, uint32(c.Next)), c.Count)
}

// DecodeLiteCounts decodes what AppendLiteCounts wrote.
func DecodeLiteCounts(b []byte) (LiteCounts, error) {
	if len(b) != 4+4 {
		return LiteCounts{}, corrupt("counts of lite topics", b)
	}
	c := LiteCounts{Next: decodeQueue(b), Count: binary.BigEndian.Uint32(b[4:])}
	if !c.Next.IsLite() || uint32(c.Next-mq.FirstLiteQueue) < c.Count {
		return LiteCounts{}, corrupt("counts of lite topics", b)
	}
	return c, nil
}

// AppendLiteNameKey appends the key that leads from the name of a lite topic to its queue.
func AppendLiteNameKey(dst []byte, t mq.TopicID, name []byte) []byte {
	return append(AppendLiteCountsKey(dst, t), name...)
}

// DecodeLiteNameKey decodes such a key. Without a name it is that of the counts.
func DecodeLiteNameKey(b []byte) (mq.TopicID, []byte, error) {
	if len(b) < 1+4 || b[0] != prefixLiteName {
		return 0, nil, corrupt("name of a lite topic", b)
	}
	return mq.TopicID(binary.BigEndian.Uint32(b[1:])), b[5:], nil
}

// AppendQueueID appends the value of such a key.
func AppendQueueID(dst []byte, q mq.QueueID) []byte {
	return binary.BigEndian.AppendUint32(dst, uint32(q))
}

// DecodeQueueID decodes what AppendQueueID wrote.
func DecodeQueueID(b []byte) (mq.QueueID, error) {
	if len(b) != 4 {
		return 0, corrupt("queue id", b)
	}
	return decodeQueue(b), nil
}

// LiteNamesPrefix returns what the counts and all names of a topic begin with.
func LiteNamesPrefix(t mq.TopicID) []byte { return AppendLiteCountsKey(nil, t) }

// A Lite is the record of a lite topic.
type Lite struct {
	// Its messages are those from Min to Next-1.
	Min, Next mq.QueueOffset
	// Written is when it was written to or made, in Unix nanoseconds.
	Written int64
	// Looked is the time in its key by which it is found to be expired; not after Written.
	Looked int64
	// Oldest is the log position of its oldest message, 0 without one: that in its key by
	// which it is found when the log is to be dropped.
	Oldest uint64
	Name   []byte
}

const liteFixed = 5 * 8

// AppendLiteKey appends the key of the record of a lite topic.
func AppendLiteKey(dst []byte, q Queue) []byte {
	return binary.BigEndian.AppendUint32(LitesPrefix(dst, q.Topic), uint32(q.Queue))
}

// LitesPrefix appends what the keys of all records of a topic begin with.
func LitesPrefix(dst []byte, t mq.TopicID) []byte {
	return binary.BigEndian.AppendUint32(append(dst, prefixLite), uint32(t))
}

// DecodeLiteKey decodes such a key.
func DecodeLiteKey(b []byte) (Queue, error) {
	if len(b) != 1+4+4 || b[0] != prefixLite {
		return Queue{}, corrupt("key of a lite topic", b)
	}
	return Queue{Topic: mq.TopicID(binary.BigEndian.Uint32(b[1:])), Queue: decodeQueue(b[5:])}, nil
}

// AppendLite appends the encoding of l.
func AppendLite(dst []byte, l *Lite) []byte {
	dst = AppendOffset(AppendOffset(dst, l.Min), l.Next)
	dst = binary.BigEndian.AppendUint64(dst, uint64(l.Written))
	dst = binary.BigEndian.AppendUint64(dst, uint64(l.Looked))
	dst = binary.BigEndian.AppendUint64(dst, l.Oldest)
	return append(dst, l.Name...)
}

// DecodeLite decodes what AppendLite wrote. The name is a copy.
func DecodeLite(b []byte) (Lite, error) {
	if len(b) <= liteFixed {
		return Lite{}, corrupt("lite topic", b)
	}
	l := Lite{
		Min: mq.QueueOffset(binary.BigEndian.Uint64(b)), Next: mq.QueueOffset(binary.BigEndian.Uint64(b[8:])),
		Written: int64(binary.BigEndian.Uint64(b[16:])), Looked: int64(binary.BigEndian.Uint64(b[24:])),
		Oldest: binary.BigEndian.Uint64(b[32:]), Name: append([]byte(nil), b[liteFixed:]...),
	}
	if l.Min < 0 || l.Min > l.Next || l.Looked > l.Written || (l.Oldest != 0) != (l.Min < l.Next) {
		return Lite{}, corrupt("lite topic", b)
	}
	return l, nil
}

// LiteOrder says what an index of lite topics is ordered by.
type LiteOrder byte

// The orders of lite topics.
const (
	LiteByTime LiteOrder = 1 // Lite.Looked
	LiteByPos  LiteOrder = 2 // Lite.Oldest
)

// AppendLiteOrderKey appends the key of a lite topic in an index of its topic.
func AppendLiteOrderKey(dst []byte, q Queue, by LiteOrder, at uint64) []byte {
	return binary.BigEndian.AppendUint32(AppendLiteOrderPrefix(dst, q.Topic, by, at), uint32(q.Queue))
}

// AppendLiteOrderPrefix appends what such keys at a time or position begin with.
func AppendLiteOrderPrefix(dst []byte, t mq.TopicID, by LiteOrder, at uint64) []byte {
	dst = append(LiteOrdersPrefix(dst, t), byte(by))
	return binary.BigEndian.AppendUint64(dst, at)
}

// LiteOrdersPrefix appends what the keys of all indexes of a topic begin with.
func LiteOrdersPrefix(dst []byte, t mq.TopicID) []byte {
	return binary.BigEndian.AppendUint32(append(dst, prefixLiteOrder), uint32(t))
}

// DecodeLiteOrderKey decodes such a key.
func DecodeLiteOrderKey(b []byte) (q Queue, by LiteOrder, at uint64, err error) {
	if len(b) != 1+4+1+8+4 || b[0] != prefixLiteOrder || b[5] < byte(LiteByTime) || b[5] > byte(LiteByPos) {
		return q, 0, 0, corrupt("place of a lite topic", b)
	}
	q = Queue{Topic: mq.TopicID(binary.BigEndian.Uint32(b[1:])), Queue: decodeQueue(b[14:])}
	return q, LiteOrder(b[5]), binary.BigEndian.Uint64(b[6:]), nil
}

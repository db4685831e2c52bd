package keyspace

import (
	"encoding/binary"

	"github.com/perigee-mq/perigee/mq"
)

// An Entry of the ConsumeQueue says where a message is and what must be known to
// decide about it without reading it.
type Entry struct {
	Pos       uint64 // of the stored message, in the log
	Size      uint32 // of the stored message
	StoreTime int64  // Unix nanoseconds
	Group     uint64 // hash of the message group; 0 without one
	Tag       []byte // the tag itself: hashes collide
}

// AppendEntryKey appends the key of the entry at offset.
func AppendEntryKey(dst []byte, q Queue, offset mq.QueueOffset) []byte {
	dst = AppendQueuePrefix(dst, q)
	return binary.BigEndian.AppendUint64(dst, uint64(offset))
}

// AppendQueuePrefix appends what every entry key of the queue starts with.
func AppendQueuePrefix(dst []byte, q Queue) []byte {
	dst = AppendTopicEntriesPrefix(dst, q.Topic)
	return binary.BigEndian.AppendUint32(dst, uint32(q.Queue))
}

// AppendTopicEntriesPrefix appends what every entry key of the topic starts with.
func AppendTopicEntriesPrefix(dst []byte, t mq.TopicID) []byte {
	dst = append(dst, prefixEntry)
	return binary.BigEndian.AppendUint32(dst, uint32(t))
}

// DecodeEntryKey decodes a key of the ConsumeQueue.
func DecodeEntryKey(b []byte) (Queue, mq.QueueOffset, error) {
	if len(b) != 1+4+4+8 || b[0] != prefixEntry {
		return Queue{}, 0, corrupt("queue entry key", b)
	}
	q := Queue{
		Topic: mq.TopicID(binary.BigEndian.Uint32(b[1:])),
		Queue: mq.QueueID(binary.BigEndian.Uint32(b[5:])),
	}
	return q, mq.QueueOffset(binary.BigEndian.Uint64(b[9:])), nil
}

const entryFixed = 8 + 4 + 8 + 8

// AppendEntry appends the encoding of e.
func AppendEntry(dst []byte, e *Entry) []byte {
	dst = binary.BigEndian.AppendUint64(dst, e.Pos)
	dst = binary.BigEndian.AppendUint32(dst, e.Size)
	dst = binary.BigEndian.AppendUint64(dst, uint64(e.StoreTime))
	dst = binary.BigEndian.AppendUint64(dst, e.Group)
	return append(dst, e.Tag...)
}

// DecodeEntry decodes what AppendEntry wrote; Tag aliases b.
func DecodeEntry(b []byte) (Entry, error) {
	if len(b) < entryFixed {
		return Entry{}, corrupt("queue entry", b)
	}
	return Entry{
		Pos:       binary.BigEndian.Uint64(b),
		Size:      binary.BigEndian.Uint32(b[8:]),
		StoreTime: int64(binary.BigEndian.Uint64(b[12:])),
		Group:     binary.BigEndian.Uint64(b[20:]),
		Tag:       b[entryFixed:],
	}, nil
}

// Ends say where a queue begins and ends, as of the last trim that moved them. A
// queue without them begins at 0. Entries behind Next came since.
type Ends struct {
	// Min is the first offset that is delivered for the first time, and counted.
	Min mq.QueueOffset
	// Kept is the first offset that has an entry; not above Min. What lies between
	// was under delivery when the trim was made.
	Kept mq.QueueOffset
	// Next is the offset of the next message.
	Next mq.QueueOffset
}

// AppendEndsKey appends the key of the ends of a queue.
func AppendEndsKey(dst []byte, q Queue) []byte {
	return binary.BigEndian.AppendUint32(AppendTopicEndsPrefix(dst, q.Topic), uint32(q.Queue))
}

// AppendTopicEndsPrefix appends what every key of ends of the topic starts with.
func AppendTopicEndsPrefix(dst []byte, t mq.TopicID) []byte {
	return binary.BigEndian.AppendUint32(append(dst, prefixEnds), uint32(t))
}

// DecodeEndsKey decodes the key of the ends of a queue.
func DecodeEndsKey(b []byte) (Queue, error) {
	if len(b) != 1+4+4 || b[0] != prefixEnds {
		return Queue{}, corrupt("queue ends key", b)
	}
	return Queue{Topic: mq.TopicID(binary.BigEndian.Uint32(b[1:])), Queue: decodeQueue(b[5:])}, nil
}

// AppendEnds appends the encoding of e.
func AppendEnds(dst []byte, e Ends) []byte {
	return AppendOffset(AppendOffset(AppendOffset(dst, e.Min), e.Kept), e.Next)
}

// DecodeEnds decodes what AppendEnds wrote.
func DecodeEnds(b []byte) (Ends, error) {
	if len(b) != 3*8 {
		return Ends{}, corrupt("queue ends", b)
	}
	e := Ends{
		Min:  mq.QueueOffset(binary.BigEndian.Uint64(b)),
		Kept: mq.QueueOffset(binary.BigEndian.Uint64(b[8:])),
		Next: mq.QueueOffset(binary.BigEndian.Uint64(b[16:])),
	}
	if e.Kept < 0 || e.Kept > e.Min || e.Min > e.Next {
		return Ends{}, corrupt("queue ends", b)
	}
	return e, nil
}

// AppendTopicKey appends the key of a topic's registration.
func AppendTopicKey(dst []byte, t mq.TopicID) []byte {
	return binary.BigEndian.AppendUint32(append(dst, prefixTopic), uint32(t))
}

// AppendGroupKey appends the key of a group's registration.
func AppendGroupKey(dst []byte, g mq.GroupID) []byte {
	return binary.BigEndian.AppendUint32(append(dst, prefixGroup), uint32(g))
}

// EntryKeys returns the bounds of all queue entries.
func EntryKeys() (lower, upper []byte) { return []byte{prefixEntry}, []byte{prefixEntry + 1} }

// EndsKeys returns the bounds of all ends of queues.
func EndsKeys() (lower, upper []byte) { return []byte{prefixEnds}, []byte{prefixEnds + 1} }

// TopicKeys returns the bounds of the topic registrations.
func TopicKeys() (lower, upper []byte) { return []byte{prefixTopic}, []byte{prefixTopic + 1} }

// GroupKeys returns the bounds of the group registrations.
func GroupKeys() (lower, upper []byte) { return []byte{prefixGroup}, []byte{prefixGroup + 1} }

// AppendGoneTopicKey appends the key that marks a topic id as used up for ever.
func AppendGoneTopicKey(dst []byte, t mq.TopicID) []byte {
	return binary.BigEndian.AppendUint32(append(dst, prefixGone, prefixTopic), uint32(t))
}

// AppendGoneGroupKey appends the key that marks a group id as used up for ever.
func AppendGoneGroupKey(dst []byte, g mq.GroupID) []byte {
	return binary.BigEndian.AppendUint32(append(dst, prefixGone, prefixGroup), uint32(g))
}

// GoneTopicKeys returns the bounds of the marks of deleted topics.
func GoneTopicKeys() (lower, upper []byte) {
	return []byte{prefixGone, prefixTopic}, []byte{prefixGone, prefixTopic + 1}
}

// GoneGroupKeys returns the bounds of the marks of deleted groups.
func GoneGroupKeys() (lower, upper []byte) {
	return []byte{prefixGone, prefixGroup}, []byte{prefixGone, prefixGroup + 1}
}

// DecodeGoneID returns the id in the mark of a deleted topic or group.
func DecodeGoneID(b []byte) (uint32, error) {
	if len(b) != 1+1+4 || b[0] != prefixGone {
		return 0, corrupt("mark of a deleted id", b)
	}
	return binary.BigEndian.Uint32(b[2:]), nil
}

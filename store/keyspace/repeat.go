package keyspace

import (
	"encoding/binary"

	"github.com/perigee-mq/perigee/mq"
)

// A Repeat is what a send is known by when it comes again: its key orders it by the
// minute in which it is forgotten.
type Repeat struct {
	Minute  uint32 // since 1970
	Topic   mq.TopicID
	ID      []byte // of the message
	Content uint64
}

// AppendRepeatKey appends the key of what is known of r.
func AppendRepeatKey(dst []byte, r *Repeat) []byte {
	dst = AppendRepeatTopicPrefix(dst, r.Minute, r.Topic)
	dst = append(dst, r.ID...)
	return binary.BigEndian.AppendUint64(dst, r.Content)
}

// AppendRepeatPrefix appends what every such key of the minute begins with.
func AppendRepeatPrefix(dst []byte, minute uint32) []byte {
	return binary.BigEndian.AppendUint32(append(dst, prefixRepeat), minute)
}

// AppendRepeatTopicPrefix appends what every such key of the minute and topic begins with.
func AppendRepeatTopicPrefix(dst []byte, minute uint32, topic mq.TopicID) []byte {
	return binary.BigEndian.AppendUint32(AppendRepeatPrefix(dst, minute), uint32(topic))
}

// RepeatKeys returns the bounds of all such keys.
func RepeatKeys() (lower, upper []byte) { return []byte{prefixRepeat}, []byte{prefixRepeat + 1} }

// DecodeRepeatKey decodes such a key; the ID aliases b.
func DecodeRepeatKey(b []byte) (Repeat, error) {
	if len(b) < 1+4+4+8 || b[0] != prefixRepeat {
		return Repeat{}, corrupt("key of a repeat", b)
	}
	end := len(b) - 8
	return Repeat{
		Minute: binary.BigEndian.Uint32(b[1:]), Topic: mq.TopicID(binary.BigEndian.Uint32(b[5:])),
		ID: b[9:end], Content: binary.BigEndian.Uint64(b[end:]),
	}, nil
}

// A Sent says what became of a message that was sent, for the answer to a repeat.
type Sent struct {
	StoreTime int64 // Unix nanoseconds
	Queue     mq.QueueID
	Offset    mq.QueueOffset
	Pending   mq.PendingID // instead of Queue and Offset, when it is not 0
}

// AppendSent appends the encoding of s.
func AppendSent(dst []byte, s Sent) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(s.StoreTime))
	dst = binary.BigEndian.AppendUint32(dst, uint32(s.Queue))
	dst = binary.BigEndian.AppendUint64(dst, uint64(s.Offset))
	return binary.BigEndian.AppendUint64(dst, uint64(s.Pending))
}

// DecodeSent decodes what AppendSent wrote.
func DecodeSent(b []byte) (Sent, error) {
	if len(b) != 8+4+8+8 {
		return Sent{}, corrupt("repeat", b)
	}
	return Sent{
		StoreTime: int64(binary.BigEndian.Uint64(b)), Queue: decodeQueue(b[8:]),
		Offset: mq.QueueOffset(binary.BigEndian.Uint64(b[12:])), Pending: mq.PendingID(binary.BigEndian.Uint64(b[20:])),
	}, nil
}

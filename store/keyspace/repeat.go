package keyspace

import (
	"encoding/binary"

	"github.com/perigee-mq/perigee/mq"
)

// A Repeat names what one send has stored, so that its messages are known when they come
// again: the key orders it by the minute in which it is forgotten.
type Repeat struct {
	Minute uint32 // since 1970
	Topic  mq.TopicID
	Index  uint64 // of the record of the send
}

// AppendRepeatKey appends the key of what is known of r.
func AppendRepeatKey(dst []byte, r Repeat) []byte {
	return binary.BigEndian.AppendUint64(AppendRepeatTopicPrefix(dst, r.Minute, r.Topic), r.Index)
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

// DecodeRepeatKey decodes such a key.
func DecodeRepeatKey(b []byte) (Repeat, error) {
	if len(b) != 1+4+4+8 || b[0] != prefixRepeat {
		return Repeat{}, corrupt("key of a repeat", b)
	}
	return Repeat{
		Minute: binary.BigEndian.Uint32(b[1:]), Topic: mq.TopicID(binary.BigEndian.Uint32(b[5:])),
		Index: binary.BigEndian.Uint64(b[9:]),
	}, nil
}

// A Sent says what became of a message that was sent, for the answer to a repeat.
type Sent struct {
	StoreTime int64 // Unix nanoseconds
	Queue     mq.QueueID
	Offset    mq.QueueOffset
	Pending   mq.PendingID // instead of Offset, when it is not 0
}

// A SentMessage is one message of a send that was stored, as the value has it.
type SentMessage struct {
	// ID is the hash of the message id, Content that of the message.
	ID, Content uint64
	// Place is its number in the record, from 0 to 1023.
	Place uint16
	// Pending says that it is in no queue.
	Pending bool
}

const (
	sentHead    = 8 + 4 + 8
	sentSize    = 8 + 8 + 2
	sentPending = 1 << 15
	sentPlaces  = 1 << 10
)

// AppendSentHead appends the beginning of a value: when the send was stored, its queue,
// and the offset there of the first message that is no pending one; the others follow.
func AppendSentHead(dst []byte, storeTime int64, queue mq.QueueID, first mq.QueueOffset) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(storeTime))
	dst = binary.BigEndian.AppendUint32(dst, uint32(queue))
	return binary.BigEndian.AppendUint64(dst, uint64(first))
}

// AppendSentMessage appends one message to a value that AppendSentHead has begun.
func AppendSentMessage(dst []byte, m SentMessage) []byte {
	dst = binary.BigEndian.AppendUint64(dst, m.ID)
	dst = binary.BigEndian.AppendUint64(dst, m.Content)
	place := m.Place
	if m.Pending {
		place |= sentPending
	}
	return binary.BigEndian.AppendUint16(dst, place)
}

// SentMessages reads a value as AppendSentHead and AppendSentMessage wrote it.
type SentMessages struct {
	StoreTime int64
	Queue     mq.QueueID
	First     mq.QueueOffset
	list      []byte
}

// DecodeSentMessages opens a value, which must not change while it is read.
func DecodeSentMessages(b []byte) (SentMessages, error) {
	if len(b) < sentHead+sentSize || (len(b)-sentHead)%sentSize != 0 {
		return SentMessages{}, corrupt("repeat", b)
	}
	s := SentMessages{
		StoreTime: int64(binary.BigEndian.Uint64(b)), Queue: decodeQueue(b[8:]),
		First: mq.QueueOffset(binary.BigEndian.Uint64(b[12:])), list: b[sentHead:],
	}
	last := -1
	for i := range s.Len() {
		m := s.At(i)
		if int(m.Place) >= sentPlaces || int(m.Place) <= last {
			return SentMessages{}, corrupt("repeat", b)
		}
		last = int(m.Place)
	}
	return s, nil
}

// Len returns how many messages there are.
func (s *SentMessages) Len() int { return len(s.list) / sentSize }

// At returns one of them.
func (s *SentMessages) At(i int) SentMessage {
	b := s.list[i*sentSize:]
	place := binary.BigEndian.Uint16(b[16:])
	return SentMessage{
		ID: binary.BigEndian.Uint64(b), Content: binary.BigEndian.Uint64(b[8:]),
		Place: place &^ sentPending, Pending: place&sentPending != 0,
	}
}

// Find returns what became of a message when it is one of them. index is that of the record.
func (s *SentMessages) Find(id, content, index uint64) (Sent, bool) {
	offset := s.First
	for i := range s.Len() {
		m := s.At(i)
		if m.ID == id && m.Content == content {
			sent := Sent{StoreTime: s.StoreTime, Queue: s.Queue, Offset: offset}
			if m.Pending {
				sent.Offset, sent.Pending = 0, mq.PendingID(index*sentPlaces+uint64(m.Place))
			}
			return sent, true
		}
		if !m.Pending {
			offset++
		}
	}
	return Sent{}, false
}

package command

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"

	"github.com/perigee-mq/perigee/mq"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// AppendMessage appends the stored form of m: a CRC-32C over the rest, the type,
// the lengths of the parts, and the parts. A stored message is read on its own,
// without the record around it, hence its own checksum.
func AppendMessage(dst []byte, m *mq.Message) []byte {
	start := len(dst)
	dst = append(dst, 0, 0, 0, 0, byte(m.Type))
	dst = binary.AppendUvarint(dst, uint64(len(m.ID)))
	dst = binary.AppendUvarint(dst, uint64(len(m.Tag)))
	dst = binary.AppendUvarint(dst, uint64(len(m.Group)))
	dst = binary.AppendUvarint(dst, uint64(len(m.Properties)))
	dst = binary.AppendUvarint(dst, uint64(len(m.System)))
	dst = append(dst, m.ID...)
	dst = append(dst, m.Tag...)
	dst = append(dst, m.Group...)
	dst = append(dst, m.Properties...)
	dst = append(dst, m.System...)
	dst = append(dst, m.Body...)
	binary.BigEndian.PutUint32(dst[start:], crc32.Checksum(dst[start+4:], castagnoli))
	return dst
}

// messageFraming bounds what AppendMessage adds to the parts of a message.
const messageFraming = 4 + 1 + 5*binary.MaxVarintLen32

// parts are the parts of a stored message, aliasing it.
type parts struct {
	typ                                      mq.MessageType
	id, tag, group, properties, system, body []byte
}

func splitMessage(b []byte) (p parts, ok bool) {
	r := reader{b: b}
	r.take(4)
	p.typ = mq.MessageType(r.u8())
	id, tag, group, properties, system := r.size(), r.size(), r.size(), r.size(), r.size()
	p.id, p.tag, p.group = r.take(id), r.take(tag), r.take(group)
	p.properties, p.system = r.take(properties), r.take(system)
	p.body = r.b
	return p, !r.bad
}

// size reads a length that later bytes, not the next ones, belong to.
func (r *reader) size() int {
	v, n := binary.Uvarint(r.b)
	if n <= 0 || v > uint64(len(r.b)) {
		r.bad = true
		return 0
	}
	r.b = r.b[n:]
	return int(v)
}

// DecodeMessage decodes a stored message and verifies its checksum. The byte
// slices of the result alias b.
func DecodeMessage(b []byte) (mq.Message, error) {
	if !Intact(b) {
		return mq.Message{}, fmt.Errorf("%w: stored message of %d bytes: checksum", ErrCorrupt, len(b))
	}
	p, ok := splitMessage(b)
	if !ok {
		return mq.Message{}, fmt.Errorf("%w: stored message of %d bytes", ErrCorrupt, len(b))
	}
	return mq.Message{
		Type: p.typ, ID: string(p.id), Tag: string(p.tag), Group: string(p.group),
		Properties: p.properties, System: p.system, Body: p.body,
	}, nil
}

// Intact reports whether b is a whole stored message as it was written.
func Intact(b []byte) bool {
	return len(b) >= 4 && binary.BigEndian.Uint32(b) == crc32.Checksum(b[4:], castagnoli)
}

// Properties returns the properties and system properties of a stored message, of which
// head is the beginning. When that is too short it returns how many bytes are needed,
// maybe again; when b is no stored message ok is false. The result aliases head.
func Properties(head []byte) (properties, system []byte, need int, ok bool) {
	const fixed = 4 + 1 // checksum and type
	at, sum := fixed, 0
	var sizes [5]int
	for i := range sizes {
		if at >= len(head) {
			return nil, nil, messageFraming, len(head) < messageFraming
		}
		v, n := binary.Uvarint(head[at:])
		if n == 0 && len(head) < messageFraming {
			return nil, nil, messageFraming, true
		}
		if n <= 0 || v > math.MaxInt32 {
			return nil, nil, 0, false
		}
		sizes[i] = int(v)
		at, sum = at+n, sum+int(v)
	}
	if need = at + sum; need > len(head) {
		return nil, nil, need, true
	}
	properties = head[need-sizes[4]-sizes[3] : need-sizes[4]]
	return properties, head[need-sizes[4] : need], need, true
}

// Append stores messages in one queue, all of them or none, at consecutive offsets.
type Append struct {
	Time     int64
	Topic    mq.TopicID
	Queue    mq.QueueID
	Messages []*mq.Message
}

// Size bounds the length of the encoding of c.
func (c *Append) Size() int {
	n := 8 + 4 + 4 + binary.MaxVarintLen32
	for _, m := range c.Messages {
		n += binary.MaxVarintLen32 + messageFraming + m.Size()
	}
	return n
}

// Append appends the encoding of c.
func (c *Append) Append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.Time))
	dst = binary.BigEndian.AppendUint32(dst, uint32(c.Topic))
	dst = binary.BigEndian.AppendUint32(dst, uint32(c.Queue))
	dst = binary.AppendUvarint(dst, uint64(len(c.Messages)))
	for _, m := range c.Messages {
		dst = appendSized(dst, m)
	}
	return dst
}

// appendSized appends a stored message after its length.
func appendSized(dst []byte, m *mq.Message) []byte {
	start := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	dst = AppendMessage(dst, m)
	binary.BigEndian.PutUint32(dst[start:], uint32(len(dst)-start-4))
	return dst
}

// A StoredMessage is a message inside a command's payload: what the machine
// decides on, and where it is.
type StoredMessage struct {
	Start int // of the stored message within the payload
	Size  int
	Type  mq.MessageType
	ID    []byte
	Tag   []byte
	Group []byte
}

func (r *reader) message(payload int) StoredMessage {
	size := int(r.u32())
	start := payload - len(r.b)
	b := r.take(size)
	p, ok := splitMessage(b)
	if !ok {
		r.bad = true
	}
	return StoredMessage{Start: start, Size: size, Type: p.typ, ID: p.id, Tag: p.tag, Group: p.group}
}

// An AppendView reads an encoded Append without copying.
type AppendView struct {
	Time  int64
	Topic mq.TopicID
	Queue mq.QueueID
	Count int
	r     reader
	total int
}

// ViewAppend opens the payload of a KindAppend record.
func ViewAppend(b []byte) (AppendView, error) {
	r := reader{b: b}
	v := AppendView{Time: int64(r.u64()), Topic: mq.TopicID(r.u32()), Queue: mq.QueueID(r.u32()), total: len(b)}
	v.Count = r.size()
	v.r = r
	if r.bad || v.Count == 0 {
		return AppendView{}, fmt.Errorf("%w: %s", ErrCorrupt, KindAppend)
	}
	return v, nil
}

// Next returns the next message; its slices alias the payload. It is called
// Count times, then Done.
func (v *AppendView) Next() StoredMessage { return v.r.message(v.total) }

// Done returns an error when the payload was not exactly Count messages.
func (v *AppendView) Done() error { return v.r.done(KindAppend) }

// DeadLetter moves a used-up message: its copy is appended to the dead-letter
// topic and its lease record removed, in one step. It has an effect only while
// the lease record still carries PopID.
type DeadLetter struct {
	Time    int64
	Lease   LeaseRef
	Group   mq.GroupID
	Topic   mq.TopicID
	Target  mq.TopicID // the dead-letter topic
	Queue   mq.QueueID
	Message *mq.Message
}

// Append appends the encoding of c.
func (c *DeadLetter) Append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.Time))
	dst = binary.BigEndian.AppendUint32(dst, uint32(c.Group))
	dst = binary.BigEndian.AppendUint32(dst, uint32(c.Topic))
	dst = c.Lease.append(dst)
	dst = binary.BigEndian.AppendUint32(dst, uint32(c.Target))
	dst = binary.BigEndian.AppendUint32(dst, uint32(c.Queue))
	return appendSized(dst, c.Message)
}

// A DeadLetterView reads an encoded DeadLetter without copying.
type DeadLetterView struct {
	Time    int64
	Lease   LeaseRef
	Group   mq.GroupID
	Topic   mq.TopicID
	Target  mq.TopicID
	Queue   mq.QueueID
	Message StoredMessage
}

// ViewDeadLetter decodes the payload of a KindDeadLetter record.
func ViewDeadLetter(b []byte) (DeadLetterView, error) {
	r := reader{b: b}
	v := DeadLetterView{Time: int64(r.u64()), Group: mq.GroupID(r.u32()), Topic: mq.TopicID(r.u32())}
	v.Lease = r.lease()
	v.Target, v.Queue = mq.TopicID(r.u32()), mq.QueueID(r.u32())
	v.Message = r.message(len(b))
	return v, r.done(KindDeadLetter)
}

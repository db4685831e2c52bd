package command

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/perigee-mq/perigee/mq"
)

// MaxSend is how many messages one Send may hold.
const MaxSend = 1024

// Send stores messages, all of them or none, each as its type asks: in its queue, or
// as a pending message until its time comes or its transaction ends. A message that the
// topic was sent already inside the window is not stored again.
type Send struct {
	Time  int64
	Topic mq.TopicID
	Queue mq.QueueID
	// Window is how long a message that is sent again is known, in nanoseconds; 0: not at all.
	Window   int64
	Messages []*mq.Message
}

// sendNumbers bounds what a message takes in a Send beside its stored form.
const sendNumbers = 4 + 8 + 8

// Size bounds the length of the encoding of c.
func (c *Send) Size() int {
	n := 8 + 4 + 4 + 8 + binary.MaxVarintLen32
	for _, m := range c.Messages {
		n += sendNumbers + messageFraming + m.Size()
		if m.Type == mq.Lite {
			n += liteSize(m)
		}
	}
	return n
}

// Append appends the encoding of c.
func (c *Send) Append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.Time))
	dst = binary.BigEndian.AppendUint32(dst, uint32(c.Topic))
	dst = binary.BigEndian.AppendUint32(dst, uint32(c.Queue))
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.Window))
	dst = binary.AppendUvarint(dst, uint64(len(c.Messages)))
	for _, m := range c.Messages {
		dst = appendSized(dst, m)
		dst = binary.BigEndian.AppendUint64(dst, m.Content)
		switch m.Type {
		case mq.Delay:
			at := int64(0)
			if !m.DeliverAt.IsZero() {
				at = m.DeliverAt.UnixNano()
			}
			dst = binary.BigEndian.AppendUint64(dst, uint64(at))
		case mq.Transaction:
			dst = binary.BigEndian.AppendUint64(dst, uint64(m.Recovery))
		case mq.Lite:
			dst = binary.BigEndian.AppendUint32(appendBytes(dst, m.Lite), m.LiteLimit)
		}
	}
	return dst
}

// A SentMessage is a message inside the payload of a Send.
type SentMessage struct {
	StoredMessage
	// Content is the fingerprint that a repeated send of the message has as well.
	Content uint64
	// DeliverAt is when a delayed message is to be delivered, in Unix nanoseconds.
	DeliverAt int64
	// Recovery is how long after it was stored a half message is asked about first,
	// in nanoseconds.
	Recovery int64
	// Lite is the lite topic of a message of type LITE, and LiteLimit how many the topic
	// may have on the shard, 0: no limit.
	Lite      []byte
	LiteLimit uint32
}

// A SendView reads an encoded Send without copying.
type SendView struct {
	Time   int64
	Topic  mq.TopicID
	Queue  mq.QueueID
	Window int64
	Count  int
	r      reader
	total  int
}

// ViewSend opens the payload of a KindSend record.
func ViewSend(b []byte) (SendView, error) {
	r := reader{b: b}
	v := SendView{
		Time: int64(r.u64()), Topic: mq.TopicID(r.u32()), Queue: mq.QueueID(r.u32()), Window: int64(r.u64()), total: len(b),
	}
	v.Count = r.size()
	v.r = r
	if r.bad || v.Count == 0 || v.Count > MaxSend {
		return SendView{}, fmt.Errorf("%w: %s", ErrCorrupt, KindSend)
	}
	return v, nil
}

// Next returns the next message; its slices alias the payload. It is called Count
// times, then Done.
func (v *SendView) Next() SentMessage {
	m := SentMessage{StoredMessage: v.r.message(v.total)}
	m.Content = v.r.u64()
	switch m.Type {
	case mq.Delay:
		m.DeliverAt = int64(v.r.u64())
	case mq.Transaction:
		m.Recovery = int64(v.r.u64())
	case mq.Lite:
		m.lite(&v.r)
	}
	return m
}

// Done returns an error when the payload was not exactly Count messages.
func (v *SendView) Done() error { return v.r.done(KindSend) }

// apply writes what the encoding has beside the stored form into m.
func (s *SentMessage) apply(m *mq.Message) {
	m.Content, m.Recovery = s.Content, time.Duration(s.Recovery)
	m.Lite, m.LiteLimit = string(s.Lite), s.LiteLimit
	if s.DeliverAt != 0 {
		m.DeliverAt = time.Unix(0, s.DeliverAt)
	}
}

// Decode decodes the message from the payload it is in.
func (s *SentMessage) Decode(payload []byte) (mq.Message, error) {
	if s.Size == 0 || s.Start+s.Size > len(payload) {
		return mq.Message{}, fmt.Errorf("%w: %s", ErrCorrupt, KindSend)
	}
	m, err := DecodeMessage(payload[s.Start : s.Start+s.Size])
	if err == nil {
		s.apply(&m)
	}
	return m, err
}

// Forget forgets what topics were sent and would have been forgotten before a minute: a
// message of those that comes again is stored again.
type Forget struct {
	Time   int64
	Minute uint32 // since 1970
}

// Append appends the encoding of c.
func (c *Forget) Append(dst []byte) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(dst, uint64(c.Time)), c.Minute)
}

// DecodeForget decodes what Forget.Append wrote.
func DecodeForget(b []byte) (Forget, error) {
	r := reader{b: b}
	c := Forget{Time: int64(r.u64()), Minute: r.u32()}
	return c, r.done(KindForget)
}

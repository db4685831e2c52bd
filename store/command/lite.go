package command

import (
	"encoding/binary"
	"fmt"

	"github.com/perigee-mq/perigee/mq"
)

// MaxLites is how many lite topics one LiteSubscribe or LitePop may name.
const MaxLites = 1024

// LiteSubscribe makes the lite topics known that are not, all of them or none, and fixes
// where the group begins to read them.
type LiteSubscribe struct {
	Time  int64
	Topic mq.TopicID
	Group mq.GroupID
	Place mq.LitePlace
	// Limit is how many lite topics the topic may have on the shard, 0: no limit.
	Limit uint32
	Names []string
}

// Size bounds the length of the encoding of c.
func (c *LiteSubscribe) Size() int {
	n := 64
	for _, name := range c.Names {
		n += binary.MaxVarintLen32 + len(name)
	}
	return n
}

// Append appends the encoding of c.
func (c *LiteSubscribe) Append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.Time))
	dst = binary.BigEndian.AppendUint32(dst, uint32(c.Topic))
	dst = binary.BigEndian.AppendUint32(dst, uint32(c.Group))
	dst = append(dst, byte(c.Place.Start), boolByte(c.Place.Again))
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.Place.Value))
	dst = binary.BigEndian.AppendUint32(dst, c.Limit)
	dst = binary.AppendUvarint(dst, uint64(len(c.Names)))
	for _, name := range c.Names {
		dst = appendBytes(dst, name)
	}
	return dst
}

// DecodeLiteSubscribe decodes what LiteSubscribe.Append wrote.
func DecodeLiteSubscribe(b []byte) (LiteSubscribe, error) {
	r := reader{b: b}
	c := LiteSubscribe{Time: int64(r.u64()), Topic: mq.TopicID(r.u32()), Group: mq.GroupID(r.u32())}
	c.Place = mq.LitePlace{Start: mq.LiteStart(r.u8()), Again: r.bool(), Value: int64(r.u64())}
	c.Limit = r.u32()
	n := r.size()
	if n > MaxLites || !c.Place.Start.Valid() {
		r.bad = true
	}
	for range n {
		if r.bad {
			break
		}
		name := r.string()
		if name == "" || len(name) > mq.MaxLiteName {
			r.bad = true
		}
		c.Names = append(c.Names, name)
	}
	return c, r.done(KindLiteSubscribe)
}

// LitePop delivers up to Max messages of lite topics to a group, from one after the other.
// Of a lite topic it delivers nothing while the group has an earlier message of it under
// lease. Tags and After of the Pop have no meaning.
type LitePop struct {
	Pop
	Queues []mq.QueueID
}

// Size bounds the length of the encoding of c.
func (c *LitePop) Size() int { return 64 + binary.MaxVarintLen32 + 4*len(c.Queues) }

// Append appends the encoding of c.
func (c *LitePop) Append(dst []byte) []byte {
	dst = c.Pop.Append(dst)
	dst = binary.AppendUvarint(dst, uint64(len(c.Queues)))
	for _, q := range c.Queues {
		dst = binary.BigEndian.AppendUint32(dst, uint32(q))
	}
	return dst
}

// DecodeLitePop decodes what LitePop.Append wrote.
func DecodeLitePop(b []byte) (LitePop, error) {
	r := reader{b: b}
	return r.litePop(), r.done(KindLitePop)
}

func (r *reader) litePop() LitePop {
	c := LitePop{Pop: r.pop()}
	n := r.size()
	if n > MaxLites {
		r.bad = true
	}
	for range n {
		if r.bad {
			break
		}
		q := mq.QueueID(r.u32())
		if !q.IsLite() {
			r.bad = true
		}
		c.Queues = append(c.Queues, q)
	}
	return c
}

// LiteAttempt is a LitePop with the client's attempt id: one with that of an earlier one
// gets what is left of its messages again, whatever lite topics it names. It may name none.
type LiteAttempt struct {
	LitePop
	Attempt string
}

// Size bounds the length of the encoding of c.
func (c *LiteAttempt) Size() int { return c.LitePop.Size() + binary.MaxVarintLen32 + len(c.Attempt) }

// Append appends the encoding of c.
func (c *LiteAttempt) Append(dst []byte) []byte {
	return appendBytes(c.LitePop.Append(dst), c.Attempt)
}

// DecodeLiteAttempt decodes what LiteAttempt.Append wrote.
func DecodeLiteAttempt(b []byte) (LiteAttempt, error) {
	r := reader{b: b}
	c := LiteAttempt{LitePop: r.litePop(), Attempt: r.string()}
	return c, r.done(KindLiteAttempt)
}

// LiteExpire ends the life of up to Limit lite topics that were written to before Before
// for the last time.
type LiteExpire struct {
	Time   int64
	Topic  mq.TopicID
	Before int64 // Unix nanoseconds
	Limit  int32
}

// Append appends the encoding of c.
func (c *LiteExpire) Append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.Time))
	dst = binary.BigEndian.AppendUint32(dst, uint32(c.Topic))
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.Before))
	return binary.BigEndian.AppendUint32(dst, uint32(c.Limit))
}

// DecodeLiteExpire decodes what LiteExpire.Append wrote.
func DecodeLiteExpire(b []byte) (LiteExpire, error) {
	r := reader{b: b}
	c := LiteExpire{Time: int64(r.u64()), Topic: mq.TopicID(r.u32()), Before: int64(r.u64()), Limit: int32(r.u32())}
	return c, r.done(KindLiteExpire)
}

// LiteTrim removes up to Limit messages of lite topics of a topic that were stored before
// Before or lie below the log position Pos, whether or not any group still wants them.
type LiteTrim struct {
	Time   int64
	Topic  mq.TopicID
	Before int64 // Unix nanoseconds
	Pos    uint64
	Limit  int32
}

// Append appends the encoding of c.
func (c *LiteTrim) Append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.Time))
	dst = binary.BigEndian.AppendUint32(dst, uint32(c.Topic))
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.Before))
	dst = binary.BigEndian.AppendUint64(dst, c.Pos)
	return binary.BigEndian.AppendUint32(dst, uint32(c.Limit))
}

// DecodeLiteTrim decodes what LiteTrim.Append wrote.
func DecodeLiteTrim(b []byte) (LiteTrim, error) {
	r := reader{b: b}
	c := LiteTrim{Time: int64(r.u64()), Topic: mq.TopicID(r.u32()), Before: int64(r.u64()), Pos: r.u64(), Limit: int32(r.u32())}
	return c, r.done(KindLiteTrim)
}

// liteSize is what a message of type LITE takes in a Send beside its stored form.
func liteSize(m *mq.Message) int { return binary.MaxVarintLen32 + len(m.Lite) + 4 }

// lite reads the lite topic of a message of type LITE in a Send.
func (s *SentMessage) lite(r *reader) {
	s.Lite, s.LiteLimit = r.bytes(), r.u32()
	if len(s.Lite) == 0 || len(s.Lite) > mq.MaxLiteName {
		r.bad = true
	}
}

// Lite returns the lite topic of the messages, with the limit on how many there may be; nil
// when they are not of type LITE. All messages of a Send must have the same one, or none.
func (v SendView) Lite() (name []byte, limit uint32, err error) {
	for i := range v.Count {
		m := v.Next()
		if i > 0 && string(m.Lite) != string(name) {
			return nil, 0, fmt.Errorf("%w: %s with several lite topics", ErrCorrupt, KindSend)
		}
		if i == 0 && m.Lite == nil {
			return nil, 0, nil
		}
		name, limit = m.Lite, m.LiteLimit
	}
	return name, limit, nil
}

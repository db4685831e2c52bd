package command

import (
	"encoding/binary"
	"fmt"

	"github.com/perigee-mq/perigee/mq"
)

// Pop delivers up to Max messages of a topic to a group: redeliveries first,
// then new messages, from any queue of the topic on the shard. Its Time is the
// pop id of what it delivers.
type Pop struct {
	Time  int64
	Topic mq.TopicID
	Group mq.GroupID
	Max   int32
	// Bytes ends the pop when the stored messages delivered take as much, 0: never.
	// One message is delivered whatever its size.
	Bytes     uint32
	Invisible int64 // nanoseconds until the messages come back
	// Scan bounds how many index entries the command looks at.
	Scan int32
	// After skips the redeliveries up to and including this sequence: an
	// earlier command of the same receive has looked at them.
	After uint64
	// Tags are the tags wanted; none stands for every message.
	Tags []string
}

// Append appends the encoding of c.
func (c *Pop) Append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.Time))
	dst = binary.BigEndian.AppendUint32(dst, uint32(c.Topic))
	dst = binary.BigEndian.AppendUint32(dst, uint32(c.Group))
	dst = binary.BigEndian.AppendUint32(dst, uint32(c.Max))
	dst = binary.BigEndian.AppendUint32(dst, c.Bytes)
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.Invisible))
	dst = binary.BigEndian.AppendUint32(dst, uint32(c.Scan))
	dst = binary.BigEndian.AppendUint64(dst, c.After)
	dst = binary.AppendUvarint(dst, uint64(len(c.Tags)))
	for _, tag := range c.Tags {
		dst = appendBytes(dst, tag)
	}
	return dst
}

// DecodePop decodes what Pop.Append wrote.
func DecodePop(b []byte) (Pop, error) {
	r := reader{b: b}
	c := r.pop()
	return c, r.done(KindPop)
}

func (r *reader) pop() Pop {
	c := Pop{
		Time: int64(r.u64()), Topic: mq.TopicID(r.u32()), Group: mq.GroupID(r.u32()),
		Max: int32(r.u32()), Bytes: r.u32(), Invisible: int64(r.u64()), Scan: int32(r.u32()), After: r.u64(),
	}
	if n := r.size(); n > 0 {
		c.Tags = make([]string, 0, min(n, 64))
		for range n {
			c.Tags = append(c.Tags, r.string())
			if r.bad {
				break
			}
		}
	}
	return c
}

// LimitedPop is a Pop that takes nothing from a queue of which the group has
// InFlight messages under lease already.
type LimitedPop struct {
	Pop
	InFlight int32 // 0: no limit
}

// Append appends the encoding of c.
func (c *LimitedPop) Append(dst []byte) []byte {
	return binary.BigEndian.AppendUint32(c.Pop.Append(dst), uint32(c.InFlight))
}

// DecodeLimitedPop decodes what LimitedPop.Append wrote.
func DecodeLimitedPop(b []byte) (LimitedPop, error) {
	r := reader{b: b}
	c := LimitedPop{Pop: r.pop(), InFlight: int32(r.u32())}
	return c, r.done(KindPopLimited)
}

// A LeaseRef names one delivery of one message.
type LeaseRef struct {
	Queue  mq.QueueID
	Offset mq.QueueOffset
	PopID  mq.PopID
}

const leaseRefSize = 4 + 8 + 8

func (l LeaseRef) append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(l.Queue))
	dst = binary.BigEndian.AppendUint64(dst, uint64(l.Offset))
	return binary.BigEndian.AppendUint64(dst, uint64(l.PopID))
}

func (r *reader) lease() LeaseRef {
	return LeaseRef{Queue: mq.QueueID(r.u32()), Offset: mq.QueueOffset(r.u64()), PopID: mq.PopID(r.u64())}
}

// Ack settles deliveries of one topic to one group. Each is judged on its own.
type Ack struct {
	Time   int64
	Topic  mq.TopicID
	Group  mq.GroupID
	Leases []LeaseRef
}

// Append appends the encoding of c.
func (c *Ack) Append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.Time))
	dst = binary.BigEndian.AppendUint32(dst, uint32(c.Topic))
	dst = binary.BigEndian.AppendUint32(dst, uint32(c.Group))
	for _, l := range c.Leases {
		dst = l.append(dst)
	}
	return dst
}

// An AckView reads an encoded Ack without copying.
type AckView struct {
	Time  int64
	Topic mq.TopicID
	Group mq.GroupID
	Count int
	r     reader
}

// ViewAck opens the payload of a KindAck record.
func ViewAck(b []byte) (AckView, error) {
	r := reader{b: b}
	v := AckView{Time: int64(r.u64()), Topic: mq.TopicID(r.u32()), Group: mq.GroupID(r.u32())}
	if r.bad || len(r.b)%leaseRefSize != 0 {
		return AckView{}, fmt.Errorf("%w: %s", ErrCorrupt, KindAck)
	}
	v.Count, v.r = len(r.b)/leaseRefSize, r
	return v, nil
}

// Next returns the next delivery; it is called Count times.
func (v *AckView) Next() LeaseRef { return v.r.lease() }

// Change sets when deliveries of one topic to one group become visible again.
// The lease and its receipts stay good until the message is delivered again.
type Change struct {
	Time    int64
	Topic   mq.TopicID
	Group   mq.GroupID
	Changes []LeaseChange
}

// A LeaseChange is the change of one delivery.
type LeaseChange struct {
	LeaseRef
	Invisible int64 // nanoseconds from Change.Time; 0: at once
	Reason    mq.ChangeReason
}

const leaseChangeSize = leaseRefSize + 8 + 1

// Append appends the encoding of c.
func (c *Change) Append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.Time))
	dst = binary.BigEndian.AppendUint32(dst, uint32(c.Topic))
	dst = binary.BigEndian.AppendUint32(dst, uint32(c.Group))
	for i := range c.Changes {
		dst = c.Changes[i].append(dst)
		dst = binary.BigEndian.AppendUint64(dst, uint64(c.Changes[i].Invisible))
		dst = append(dst, byte(c.Changes[i].Reason))
	}
	return dst
}

// A ChangeView reads an encoded Change without copying.
type ChangeView struct {
	Time  int64
	Topic mq.TopicID
	Group mq.GroupID
	Count int
	r     reader
}

// ViewChange opens the payload of a KindChange record.
func ViewChange(b []byte) (ChangeView, error) {
	r := reader{b: b}
	v := ChangeView{Time: int64(r.u64()), Topic: mq.TopicID(r.u32()), Group: mq.GroupID(r.u32())}
	if r.bad || len(r.b)%leaseChangeSize != 0 {
		return ChangeView{}, fmt.Errorf("%w: %s", ErrCorrupt, KindChange)
	}
	v.Count, v.r = len(r.b)/leaseChangeSize, r
	return v, nil
}

// Next returns the next change; it is called Count times.
func (v *ChangeView) Next() LeaseChange {
	return LeaseChange{LeaseRef: v.r.lease(), Invisible: int64(v.r.u64()), Reason: mq.ChangeReason(v.r.u8())}
}

// Expire ends leases whose visible-at time has come, oldest first, at most Limit.
type Expire struct {
	Time  int64
	Limit int32
}

// Append appends the encoding of c.
func (c *Expire) Append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.Time))
	return binary.BigEndian.AppendUint32(dst, uint32(c.Limit))
}

// DecodeExpire decodes what Expire.Append wrote.
func DecodeExpire(b []byte) (Expire, error) {
	r := reader{b: b}
	c := Expire{Time: int64(r.u64()), Limit: int32(r.u32())}
	return c, r.done(KindExpire)
}

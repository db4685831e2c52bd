package command

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/perigee-mq/perigee/mq"
)

// SetOffset moves the progress of a group in queues of a topic, forward or back, all of
// them or none: an offset that its queue does not have refuses the command.
//
// What the group has of a queue under delivery at the new progress or behind ends: it
// is delivered as for the first time when the group gets there.
type SetOffset struct {
	Time  int64
	Topic mq.TopicID
	Group mq.GroupID
	// Drop ends what is under delivery before the new progress as well.
	Drop bool
	// Queues are sorted by queue, without repeats.
	Queues []QueueSet
}

// A QueueSet says which message of one queue comes next.
type QueueSet struct {
	Queue  mq.QueueID
	Offset mq.QueueOffset
}

const queueSetSize = 4 + 8

// Size bounds the length of the encoding of c.
func (c *SetOffset) Size() int {
	return 8 + 4 + 4 + 1 + binary.MaxVarintLen32 + len(c.Queues)*queueSetSize
}

// Append appends the encoding of c.
func (c *SetOffset) Append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.Time))
	dst = binary.BigEndian.AppendUint32(dst, uint32(c.Topic))
	dst = binary.BigEndian.AppendUint32(dst, uint32(c.Group))
	dst = append(dst, boolByte(c.Drop))
	dst = binary.AppendUvarint(dst, uint64(len(c.Queues)))
	for _, q := range c.Queues {
		dst = binary.BigEndian.AppendUint32(dst, uint32(q.Queue))
		dst = binary.BigEndian.AppendUint64(dst, uint64(q.Offset))
	}
	return dst
}

// DecodeSetOffset decodes what SetOffset.Append wrote.
func DecodeSetOffset(b []byte) (SetOffset, error) {
	r := reader{b: b}
	c := SetOffset{Time: int64(r.u64()), Topic: mq.TopicID(r.u32()), Group: mq.GroupID(r.u32()), Drop: r.bool()}
	n := r.size()
	if r.bad || n > len(r.b)/queueSetSize {
		return SetOffset{}, fmt.Errorf("%w: %s", ErrCorrupt, KindSetOffset)
	}
	if n > 0 {
		c.Queues = make([]QueueSet, n)
		for i := range c.Queues {
			c.Queues[i] = QueueSet{Queue: mq.QueueID(r.u32()), Offset: mq.QueueOffset(r.u64())}
		}
	}
	for i := range c.Queues[min(1, len(c.Queues)):] {
		if c.Queues[i].Queue >= c.Queues[i+1].Queue {
			r.bad = true
		}
	}
	return c, r.done(KindSetOffset)
}

// Sort sorts the queues. It reports false when one comes twice.
func (c *SetOffset) Sort() bool {
	slices.SortFunc(c.Queues, func(a, b QueueSet) int { return cmp.Compare(a.Queue, b.Queue) })
	for i := range c.Queues[min(1, len(c.Queues)):] {
		if c.Queues[i].Queue == c.Queues[i+1].Queue {
			return false
		}
	}
	return true
}

// String returns queue and offset.
func (q QueueSet) String() string { return fmt.Sprintf("%d: %d", q.Queue, q.Offset) }

// EndDeliveries ends deliveries of a queue to a group, some at a time: of those from From
// to before To the last ones.
type EndDeliveries struct {
	Time     int64
	Topic    mq.TopicID
	Group    mq.GroupID
	Queue    mq.QueueID
	From, To mq.QueueOffset
	// Limit is how many it ends at most.
	Limit uint32
	// Back moves the progress of the group back to the first of them, so that they are
	// delivered as for the first time. Else they are given up.
	Back bool
}

// Append appends the encoding of c.
func (c *EndDeliveries) Append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.Time))
	dst = binary.BigEndian.AppendUint32(dst, uint32(c.Topic))
	dst = binary.BigEndian.AppendUint32(dst, uint32(c.Group))
	dst = binary.BigEndian.AppendUint32(dst, uint32(c.Queue))
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.From))
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.To))
	dst = binary.BigEndian.AppendUint32(dst, c.Limit)
	return append(dst, boolByte(c.Back))
}

// DecodeEndDeliveries decodes what EndDeliveries.Append wrote.
func DecodeEndDeliveries(b []byte) (EndDeliveries, error) {
	r := reader{b: b}
	c := EndDeliveries{
		Time: int64(r.u64()), Topic: mq.TopicID(r.u32()), Group: mq.GroupID(r.u32()), Queue: mq.QueueID(r.u32()),
		From: mq.QueueOffset(r.u64()), To: mq.QueueOffset(r.u64()), Limit: r.u32(), Back: r.bool(),
	}
	if c.From < 0 || c.To < c.From {
		r.bad = true
	}
	return c, r.done(KindEndDeliveries)
}

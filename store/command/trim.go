package command

import (
	"encoding/binary"
	"fmt"

	"github.com/perigee-mq/perigee/mq"
)

// Trim moves the beginnings of queues of one topic.
type Trim struct {
	Time  int64
	Topic mq.TopicID
	// Purge empties every queue of the topic, and ends what every group has under
	// delivery. It comes without Queues.
	Purge bool
	// Queues are the queues to trim. A beginning never moves back.
	Queues []QueueTrim
}

// A QueueTrim says where one queue begins.
type QueueTrim struct {
	Queue mq.QueueID
	// Min is the first offset that is still delivered for the first time, and counted.
	Min mq.QueueOffset
	// Kept is the first offset whose entry stays: those from Kept to Min belong to
	// messages that are under delivery. It is not above Min.
	Kept mq.QueueOffset
}

const queueTrimSize = 4 + 8 + 8

// Append appends the encoding of c.
func (c *Trim) Append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.Time))
	dst = binary.BigEndian.AppendUint32(dst, uint32(c.Topic))
	dst = append(dst, boolByte(c.Purge))
	dst = binary.AppendUvarint(dst, uint64(len(c.Queues)))
	for _, q := range c.Queues {
		dst = binary.BigEndian.AppendUint32(dst, uint32(q.Queue))
		dst = binary.BigEndian.AppendUint64(dst, uint64(q.Min))
		dst = binary.BigEndian.AppendUint64(dst, uint64(q.Kept))
	}
	return dst
}

// DecodeTrim decodes what Trim.Append wrote.
func DecodeTrim(b []byte) (Trim, error) {
	r := reader{b: b}
	c := Trim{Time: int64(r.u64()), Topic: mq.TopicID(r.u32())}
	flags, n := r.u8(), r.size()
	if c.Purge = flags == 1; flags > 1 || c.Purge && n > 0 || n > len(r.b)/queueTrimSize {
		return Trim{}, fmt.Errorf("%w: %s", ErrCorrupt, KindTrim)
	}
	if n > 0 {
		c.Queues = make([]QueueTrim, n)
		for i := range c.Queues {
			c.Queues[i] = QueueTrim{
				Queue: mq.QueueID(r.u32()), Min: mq.QueueOffset(r.u64()), Kept: mq.QueueOffset(r.u64()),
			}
		}
	}
	return c, r.done(KindTrim)
}

// String returns queue, first offset delivered and first offset kept.
func (q QueueTrim) String() string { return fmt.Sprintf("%d: min=%d kept=%d", q.Queue, q.Min, q.Kept) }

// Drop says that nothing needs the log before a position any more: from now on the log
// may begin there. It comes before the files are removed, so that a log that begins
// even later is known to have lost some.
type Drop struct {
	Time int64
	// First is the position of a segment, and Index that of its first record.
	First uint64
	Index uint64
}

// Append appends the encoding of c.
func (c *Drop) Append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.Time))
	dst = binary.BigEndian.AppendUint64(dst, c.First)
	return binary.BigEndian.AppendUint64(dst, c.Index)
}

// DecodeDrop decodes what Drop.Append wrote.
func DecodeDrop(b []byte) (Drop, error) {
	r := reader{b: b}
	c := Drop{Time: int64(r.u64()), First: r.u64(), Index: r.u64()}
	return c, r.done(KindDrop)
}

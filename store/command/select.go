package command

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/perigee-mq/perigee/mq"
)

// Order says in which order a pop delivers.
type Order uint8

const (
	// AnyOrder is redeliveries first, then new messages, from queues in turn.
	AnyOrder Order = 0
	// GroupOrder keeps the order of each message group: no message of a group before
	// all earlier ones of it are settled or delivered by the same pop.
	GroupOrder Order = 1
	// PriorityOrder takes from the queue with the highest id first.
	PriorityOrder Order = 2
)

// String returns the name of the order.
func (o Order) String() string {
	switch o {
	case AnyOrder:
		return "any"
	case GroupOrder:
		return "message group"
	case PriorityOrder:
		return "priority"
	}
	return fmt.Sprintf("Order(%d)", uint8(o))
}

// SelectPop is a LimitedPop with an order, and with a choice of messages that was made
// by looking at them before the command.
type SelectPop struct {
	LimitedPop
	Order Order
	// Attempt is the client's attempt id, with GroupOrder: a pop with that of an
	// earlier one gets what is left of its messages again. Empty: none.
	Attempt string
	// Chosen says that Judged decides which messages are wanted, in place of the tags.
	Chosen bool
	// Judged are the ranges of offsets that were looked at, sorted by queue and
	// offset, and without overlaps. What lies in none is neither delivered nor passed.
	Judged []JudgedRange
}

// A JudgedRange is a part of a queue that was looked at: the offsets From to before To,
// of which those in Wanted, sorted, are wanted.
type JudgedRange struct {
	Queue    mq.QueueID
	From, To mq.QueueOffset
	Wanted   []mq.QueueOffset
}

// Judge returns whether the message was looked at, and whether it is wanted.
func (c *SelectPop) Judge(queue mq.QueueID, offset mq.QueueOffset) (wanted, judged bool) {
	i := c.rangeOf(queue, offset)
	if i < 0 {
		return false, false
	}
	_, wanted = slices.BinarySearch(c.Judged[i].Wanted, offset)
	return wanted, true
}

// rangeOf returns which of the ranges has the offset, -1: none.
func (c *SelectPop) rangeOf(queue mq.QueueID, offset mq.QueueOffset) int {
	i, found := slices.BinarySearchFunc(c.Judged, JudgedRange{Queue: queue, From: offset}, func(a, b JudgedRange) int {
		return cmp.Or(cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.From, b.From))
	})
	if !found {
		i--
	}
	if i < 0 || c.Judged[i].Queue != queue || offset >= c.Judged[i].To {
		return -1
	}
	return i
}

// NextWanted returns the first offset from the given one on that is wanted or was not
// looked at.
func (c *SelectPop) NextWanted(queue mq.QueueID, offset mq.QueueOffset) mq.QueueOffset {
	for i := c.rangeOf(queue, offset); i >= 0; {
		j := &c.Judged[i]
		if at, _ := slices.BinarySearch(j.Wanted, offset); at < len(j.Wanted) {
			return j.Wanted[at]
		}
		offset = j.To
		if i++; i == len(c.Judged) || c.Judged[i].Queue != queue || c.Judged[i].From != offset {
			break
		}
	}
	return offset
}

// Size bounds the length of the encoding of c.
func (c *SelectPop) Size() int {
	n := 64 + 2*binary.MaxVarintLen64 + len(c.Attempt)
	for _, tag := range c.Tags {
		n += binary.MaxVarintLen32 + len(tag)
	}
	for i := range c.Judged {
		n += 4 + 8 + 2*binary.MaxVarintLen64 + len(c.Judged[i].Wanted)*binary.MaxVarintLen64
	}
	return n
}

// Append appends the encoding of c.
func (c *SelectPop) Append(dst []byte) []byte {
	dst = c.LimitedPop.Append(dst)
	dst = append(dst, byte(c.Order))
	dst = appendBytes(dst, c.Attempt)
	dst = append(dst, boolByte(c.Chosen))
	dst = binary.AppendUvarint(dst, uint64(len(c.Judged)))
	for i := range c.Judged {
		dst = c.Judged[i].append(dst)
	}
	return dst
}

// append writes the wanted offsets as distances: most are small.
func (j *JudgedRange) append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(j.Queue))
	dst = binary.BigEndian.AppendUint64(dst, uint64(j.From))
	dst = binary.AppendUvarint(dst, uint64(j.To-j.From))
	dst = binary.AppendUvarint(dst, uint64(len(j.Wanted)))
	last := j.From
	for _, offset := range j.Wanted {
		dst = binary.AppendUvarint(dst, uint64(offset-last))
		last = offset
	}
	return dst
}

// DecodeSelectPop decodes what SelectPop.Append wrote.
func DecodeSelectPop(b []byte) (SelectPop, error) {
	r := reader{b: b}
	c := SelectPop{LimitedPop: LimitedPop{Pop: r.pop()}}
	c.InFlight = int32(r.u32())
	c.Order, c.Attempt, c.Chosen = Order(r.u8()), r.string(), r.bool()
	if n := r.size(); n > 0 {
		c.Judged = make([]JudgedRange, 0, min(n, 64))
		for range n {
			c.Judged = append(c.Judged, r.judged())
			if r.bad {
				break
			}
		}
	}
	ordered := slices.IsSortedFunc(c.Judged, func(a, b JudgedRange) int {
		if a.Queue == b.Queue && b.From < a.To {
			return 1 // they overlap
		}
		return cmp.Compare(a.Queue, b.Queue)
	})
	if c.Order > PriorityOrder || !ordered || !c.Chosen && len(c.Judged) > 0 {
		r.bad = true
	}
	return c, r.done(KindPopSelect)
}

func (r *reader) judged() JudgedRange {
	j := JudgedRange{Queue: mq.QueueID(r.u32()), From: mq.QueueOffset(r.u64())}
	j.To = j.From + mq.QueueOffset(r.uvarint())
	if j.To < j.From || j.From < 0 {
		r.bad = true
	}
	if n := r.size(); n > 0 {
		j.Wanted = make([]mq.QueueOffset, 0, min(n, 4096))
		last := j.From
		for i := range n {
			step := mq.QueueOffset(r.uvarint())
			if step < 0 || i > 0 && step == 0 || last+step >= j.To || last+step < last {
				r.bad = true
			}
			if r.bad {
				break
			}
			last += step
			j.Wanted = append(j.Wanted, last)
		}
	}
	return j
}

// bool reads a byte that is 0 or 1.
func (r *reader) bool() bool {
	b := r.u8()
	if b > 1 {
		r.bad = true
	}
	return b == 1
}

// uvarint reads a number that is no length.
func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if r.bad || n <= 0 {
		r.bad = true
		return 0
	}
	r.b = r.b[n:]
	return v
}

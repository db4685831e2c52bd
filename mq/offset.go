package mq

import (
	"context"
	"fmt"
	"time"
)

// An OffsetError says that an offset lies outside of its queue. It matches
// ErrIllegalOffset.
type OffsetError struct {
	Topic  Resource
	Queue  QueueID
	Offset QueueOffset
	// The queue holds the offsets Min to Next-1; Next is where it goes on.
	Min, Next QueueOffset
}

// Error names the offset, the queue and the range.
func (e *OffsetError) Error() string {
	return fmt.Sprintf("offset %d: of queue %d of topic %s it must lie between %d, the oldest message, and %d, behind the newest: %v",
		e.Offset, e.Queue, e.Topic, e.Min, e.Next, ErrIllegalOffset)
}

// Unwrap returns ErrIllegalOffset.
func (e *OffsetError) Unwrap() error { return ErrIllegalOffset }

// Nearest returns the offset of the queue that is nearest to the one that was asked for.
func (e *OffsetError) Nearest() QueueOffset { return min(max(e.Offset, e.Min), e.Next) }

// A Position is how far a group is with one queue.
type Position struct {
	QueueRange
	// Known says that the group has a place in the queue, which is Offset: that of the
	// first message that it was never given. It is not outside of the range.
	Known  bool
	Offset QueueOffset

	InFlight int64 // messages leased to consumers
	Retrying int64 // messages that wait to be delivered again
	Blocked  int64 // messages that wait for an earlier one of their message group
	UsedUp   int64 // messages that wait for a dead-letter copy
}

// Ready returns how many messages of the queue wait for delivery.
func (p Position) Ready() int64 {
	if !p.Known {
		return 0
	}
	return int64(p.Next-p.Offset) + p.Retrying
}

// A Pull asks a shard for the messages of one queue from an offset on. It changes
// nothing: no lease, no progress.
type Pull struct {
	Topic  *Topic
	Queue  QueueID
	Offset QueueOffset
	// Tags are the tags wanted, sorted and without repeats; none: every message.
	Tags []string
	// Filter, instead of Tags, decides which messages are wanted.
	Filter Filter
	// Max is the largest number of messages, at least 1.
	Max int
	// Wait is how long to wait for the first message; 0: not at all.
	Wait time.Duration
	// Reserve and Waited are as in Receive.
	Reserve func(ctx context.Context, bytes int) error
	Waited  *time.Duration
}

// A Pulled is what a Pull has found.
type Pulled struct {
	// Messages are those that are wanted, in their order. Their leases name shard,
	// topic, queue and offset, and attempt 1; they can be used for nothing.
	Messages []Delivery
	// Next is where the next pull begins: behind everything that was looked at.
	Next QueueOffset
}

// An OffsetSet moves the progress of a group in queues of a topic on one shard.
type OffsetSet struct {
	Topic *Topic
	Group *Group
	// Drop ends everything that the group has of these queues under delivery. Without
	// it only what lies at the new progress or behind ends.
	Drop    bool
	Offsets map[QueueID]QueueOffset
}

// Remains is what is left on a shard.
type Remains struct {
	// Topics counts those that hold messages or have pending ones; Topic is one of them. Those of
	// dead letters count nowhere but in DeadLetters, which are their messages.
	Topics      int64
	Topic       Resource
	DeadLetters int64
	// Queues counts the queues that hold messages, Messages all that they hold, whether or
	// not anybody wants it, lite topics included.
	Queues, Messages int64
	// Pending counts delayed messages and half messages, which are in no queue yet.
	Pending int64
	// Owing counts the pairs of a group and a topic that have messages left to settle;
	// OwingGroup and OwingTopic are one of them.
	Owing                  int64
	OwingGroup, OwingTopic Resource
}

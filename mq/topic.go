package mq

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// TopicType says which message types a topic accepts.
type TopicType uint8

// A topic accepts the one message type of the same name; a mixed topic accepts
// NORMAL, FIFO, DELAY and TRANSACTION.
const (
	TopicNormal      = TopicType(Normal)
	TopicFIFO        = TopicType(FIFO)
	TopicDelay       = TopicType(Delay)
	TopicTransaction = TopicType(Transaction)
	TopicLite        = TopicType(Lite)
	TopicPriority    = TopicType(Priority)
	TopicMixed       = TopicType(100)
)

// String returns the name the command line uses.
func (t TopicType) String() string {
	if t == TopicMixed {
		return "MIXED"
	}
	return MessageType(t).String()
}

// ParseTopicType returns the topic type named s, in any case.
func ParseTopicType(s string) (TopicType, error) {
	if strings.EqualFold(s, "MIXED") {
		return TopicMixed, nil
	}
	if t, ok := ParseMessageType(s); ok {
		return TopicType(t), nil
	}
	return 0, &InvalidError{
		Kind: ErrInvalid, Field: "type", Value: Shorten(s),
		Reason: "must be one of NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY, LITE, MIXED",
	}
}

// MessageTypes returns the message types the topic accepts, in a stable order.
func (t TopicType) MessageTypes() []MessageType {
	if t == TopicMixed {
		return []MessageType{Normal, FIFO, Delay, Transaction}
	}
	return []MessageType{MessageType(t)}
}

// Accepts reports whether a message of type m may be sent to the topic.
func (t TopicType) Accepts(m MessageType) bool {
	for _, have := range t.MessageTypes() {
		if have == m {
			return true
		}
	}
	return false
}

// Permission says what clients may do with a topic; the numbers are the protocol's.
type Permission uint8

// The permissions of the protocol.
const (
	PermNone      Permission = 1
	PermRead      Permission = 2
	PermWrite     Permission = 3
	PermReadWrite Permission = 4
)

// CanRead reports whether receiving is permitted.
func (p Permission) CanRead() bool { return p == PermRead || p == PermReadWrite }

// CanWrite reports whether sending is permitted.
func (p Permission) CanWrite() bool { return p == PermWrite || p == PermReadWrite }

// MaxQueues is the largest number of queues a topic may have on one shard.
const MaxQueues = 1024

// The bounds of how long a topic may keep its messages.
const (
	MinRetention = time.Minute
	MaxRetention = 10 * 365 * 24 * time.Hour
)

// ValidateRetention checks how long messages are kept: 0 for the default of
// the node, or a time between MinRetention and MaxRetention. The error is an
// *InvalidError of kind ErrInvalid.
func ValidateRetention(d time.Duration) error {
	if d == 0 || MinRetention <= d && d <= MaxRetention {
		return nil
	}
	return &InvalidError{
		Kind: ErrInvalid, Field: "retention", Value: d.String(),
		Reason: fmt.Sprintf("must lie between %s and %s (10 years), or be 0s for the node's default", MinRetention, MaxRetention),
	}
}

// The bounds of how long a topic knows what it was sent.
const (
	DefaultDedup = 5 * time.Minute
	MinDedup     = time.Second
	MaxDedup     = time.Hour
)

// ValidateDedup checks how long a topic knows what it was sent: not at all, or a time
// from MinDedup to MaxDedup. The error is an *InvalidError of kind ErrInvalid.
func ValidateDedup(d time.Duration) error {
	if d == 0 || MinDedup <= d && d <= MaxDedup {
		return nil
	}
	return &InvalidError{
		Kind: ErrInvalid, Field: "dedup", Value: d.String(), Reason: fmt.Sprintf("must be 0s (off), or lie between %s and %s", MinDedup, MaxDedup),
	}
}

// The bounds of how long a lite topic lives that nobody writes to.
const (
	MinLiteTTL = time.Minute
	MaxLiteTTL = 30 * 24 * time.Hour
)

// ValidateLiteTTL checks how long the lite topics of a topic of that type live: for ever, 0,
// or a time from MinLiteTTL to MaxLiteTTL. The error is an *InvalidError of kind ErrInvalid.
func ValidateLiteTTL(t TopicType, d time.Duration) error {
	reason := ""
	switch {
	case d == 0:
	case t != TopicLite:
		reason = fmt.Sprintf("must be 0s for a topic of type %s", t)
	case d < MinLiteTTL || d > MaxLiteTTL:
		reason = fmt.Sprintf("must be 0s (for ever), or lie between %s and %s (30 days)", MinLiteTTL, MaxLiteTTL)
	}
	if reason == "" {
		return nil
	}
	return &InvalidError{Kind: ErrInvalid, Field: "lite-ttl", Value: d.String(), Reason: reason}
}

// A Topic is a topic as the router knows it. Values are shared between
// goroutines and must not be changed after they are published.
type Topic struct {
	ID TopicID
	Resource
	Type       TopicType
	Permission Permission
	// Shards lists where the queues are, sorted by shard name.
	Shards []ShardQueues
	// Retention is how long messages are kept after they were stored; 0 is the
	// default of the node.
	Retention time.Duration
	// Dedup is how long a message that was sent is known: sent again by then, with the
	// same id and content, it is not stored again. 0: not at all.
	Dedup time.Duration
	// LiteTTL is how long after it was written to last a lite topic of the topic lives; 0:
	// for ever.
	LiteTTL time.Duration
	// Version grows with every change of the topic, from 1.
	Version uint64
}

// ShardQueues says how many queues of a topic a shard serves. Queue ids count
// from 0; the first Read are readable, the first Write are writable.
type ShardQueues struct {
	Shard string
	Read  int32
	Write int32
}

// Queues returns how many queues exist on the shard: those readable or writable.
func (s ShardQueues) Queues() int32 { return max(s.Read, s.Write) }

// On returns the topic's queues on the named shard.
func (t *Topic) On(shard string) (ShardQueues, error) {
	for _, s := range t.Shards {
		if s.Shard == shard {
			return s, nil
		}
	}
	return ShardQueues{}, fmt.Errorf("topic %s on shard %q: %w", t.Resource, shard, ErrQueueNotFound)
}

// Without returns the topic as it is without the named shard.
func (t *Topic) Without(shard string) *Topic {
	other := *t
	other.Shards = slices.DeleteFunc(slices.Clone(t.Shards), func(s ShardQueues) bool { return s.Shard == shard })
	return &other
}

// PriorityQueue returns the queue of a PRIORITY topic in which messages of a priority
// belong: that of the same number, or the last one that is writable on any shard. The
// priority is not negative.
func (t *Topic) PriorityQueue(priority int32) QueueID {
	last := int32(0)
	for _, s := range t.Shards {
		last = max(last, s.Write-1)
	}
	return QueueID(min(priority, last))
}

// ShardsWith returns the shards on which the queue is writable, in order.
func (t *Topic) ShardsWith(queue QueueID) []string {
	var names []string
	for _, s := range t.Shards {
		if int32(queue) < s.Write {
			names = append(names, s.Shard)
		}
	}
	return names
}

// ShardOf returns one of the shards on which the queue is writable, the same one for the same
// key as long as these stay the same. It is false when there is none.
func (t *Topic) ShardOf(queue QueueID, key string) (shard string, ok bool) {
	has := t.ShardsWith(queue)
	if len(has) == 0 {
		return "", false
	}
	return has[placeHash(key)%uint64(len(has))], true
}

// QueueOf returns the queue of a message group: by a hash that never changes, over the
// topic's writable queues by shard and id. It is false when there is none.
//
// What a client chose has no part in it: each SDK hashes in its own way, and some in
// another one each time they start.
func (t *Topic) QueueOf(group string) (shard string, queue QueueID, ok bool) {
	var writable uint64
	for _, s := range t.Shards {
		writable += uint64(s.Write)
	}
	if writable == 0 {
		return "", 0, false
	}
	n := placeHash(group) % writable
	for _, s := range t.Shards {
		if n < uint64(s.Write) {
			return s.Shard, QueueID(n), true
		}
		n -= uint64(s.Write)
	}
	return "", 0, false
}

// placeHash is FNV-1a, mixed once more: the lowest bits of FNV alone are those of a
// few bits of each byte.
func placeHash(group string) uint64 {
	h := fnv1a(group)
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

// A QueueRange says which offsets a queue holds: Min to Next-1.
type QueueRange struct {
	Queue QueueID
	Min   QueueOffset
	Next  QueueOffset
}

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
	// Placed is the Version with which the topic last got another shard or another Use of
	// one; 0: it never did. A shard that knows of a later one refuses what follows from an
	// earlier one, see ErrStale.
	Placed uint64
	// Places are where message groups and lite topics lie, by their hash, see QueueOf. None:
	// in the writable queues of the open shards, in their order. They are written down as soon
	// as the topic gets another shard or closes one, so that no other ones move.
	Places []Place
}

// A Place is one queue on one shard.
type Place struct {
	Shard string
	Queue QueueID
}

// ShardQueues says how many queues of a topic a shard serves. Queue ids count
// from 0; the first Read are readable, the first Write are writable.
type ShardQueues struct {
	Shard string
	Read  int32
	Write int32
	// Use says whether anything is sent there. Since is the Version of the topic that brought
	// it; 0: the first.
	Use   ShardUse
	Since uint64
}

// ShardUse says what a topic does with its queues on a shard.
type ShardUse uint8

// The uses of a shard. A topic goes from one to the next, or from closing back to open.
const (
	// ShardOpen: they are written to and read.
	ShardOpen ShardUse = iota
	// ShardClosing: nothing is sent there any more, and the shard does not know yet that it
	// has to refuse it. Message groups that lie there go nowhere else until it does.
	ShardClosing
	// ShardClosed: the shard refuses what is sent there. Its queues are read until they are
	// empty; of a FIFO group before those of the open shards.
	ShardClosed
)

var shardUseNames = [...]string{ShardOpen: "open", ShardClosing: "closing", ShardClosed: "closed"}

// String returns the name that metadata use.
func (u ShardUse) String() string {
	if int(u) < len(shardUseNames) {
		return shardUseNames[u]
	}
	return fmt.Sprintf("ShardUse(%d)", uint8(u))
}

// ParseShardUse returns the use of that name; empty: open.
func ParseShardUse(name string) (ShardUse, error) {
	for u, n := range shardUseNames {
		if n == name || name == "" {
			return ShardUse(u), nil
		}
	}
	return 0, &InvalidError{Kind: ErrInvalid, Field: "use", Value: Shorten(name), Reason: "must be one of open, closing, closed"}
}

// Queues returns how many queues exist on the shard: those readable or writable.
func (s ShardQueues) Queues() int32 { return max(s.Read, s.Write) }

// Writable returns how many queues of the shard may be sent to now.
func (s ShardQueues) Writable() int32 {
	if s.Use != ShardOpen {
		return 0
	}
	return s.Write
}

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

// Ordered reports whether the topic has places in which the order of messages matters:
// those of message groups, or of lite topics.
func (t *Topic) Ordered() bool { return t.Type == TopicLite || t.Type.Accepts(FIFO) }

// Closed returns the names of the shards that refuse what is sent to the topic, in order.
func (t *Topic) Closed() []string {
	var names []string
	for _, s := range t.Shards {
		if s.Use == ShardClosed {
			names = append(names, s.Shard)
		}
	}
	return names
}

// PriorityQueue returns the queue of a PRIORITY topic in which messages of a priority
// belong: that of the same number, or the last one that is writable on any shard. The
// priority is not negative.
func (t *Topic) PriorityQueue(priority int32) QueueID {
	last := int32(0)
	for _, s := range t.Shards {
		last = max(last, s.Writable()-1)
	}
	return QueueID(min(priority, last))
}

// ShardsWith returns the shards on which the queue is writable, in order.
func (t *Topic) ShardsWith(queue QueueID) []string {
	var names []string
	for _, s := range t.Shards {
		if int32(queue) < s.Writable() {
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

// QueueOf returns the queue of a message group, or of a lite topic: by a hash that never
// changes, over the places of the topic. It is false when there is none. The shard may be
// closing: then the group has no place yet that can be sent to.
//
// What a client chose has no part in it: each SDK hashes in its own way, and some in
// another one each time they start.
func (t *Topic) QueueOf(group string) (shard string, queue QueueID, ok bool) {
	if len(t.Places) == 0 {
		return t.QueueFor(group)
	}
	p := t.Places[placeHash(group)%uint64(len(t.Places))]
	return p.Shard, p.Queue, true
}

// QueueFor returns the queue of a message without a message group, by a hash of its id over
// the writable queues of the open shards, by shard and id. It is false when there is none.
func (t *Topic) QueueFor(id string) (shard string, queue QueueID, ok bool) {
	var writable uint64
	for _, s := range t.Shards {
		writable += uint64(s.Writable())
	}
	if writable == 0 {
		return "", 0, false
	}
	n := placeHash(id) % writable
	for _, s := range t.Shards {
		if n < uint64(s.Writable()) {
			return s.Shard, QueueID(n), true
		}
		n -= uint64(s.Writable())
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

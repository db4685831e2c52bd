package mq

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// MessageType is the protocol's message type; the numbers are the protocol's.
type MessageType uint8

// The message types of the protocol.
const (
	Unspecified MessageType = 0
	Normal      MessageType = 1
	FIFO        MessageType = 2
	Delay       MessageType = 3
	Transaction MessageType = 4
	Lite        MessageType = 5
	Priority    MessageType = 6
)

var messageTypeNames = [...]string{"UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "LITE", "PRIORITY"}

// String returns the protocol's name of the type.
func (t MessageType) String() string {
	if int(t) < len(messageTypeNames) {
		return messageTypeNames[t]
	}
	return fmt.Sprintf("MessageType(%d)", uint8(t))
}

// ParseMessageType returns the type with the protocol's name s, in any case.
func ParseMessageType(s string) (MessageType, bool) {
	for t, name := range messageTypeNames {
		if t > 0 && strings.EqualFold(name, s) {
			return MessageType(t), true
		}
	}
	return Unspecified, false
}

// Numbers that must not mix have types of their own.
type (
	// TopicID identifies one life of a topic: a topic that is deleted and made
	// again gets a new one. The router hands them out, from 1.
	TopicID uint32
	// GroupID identifies one life of a consumer group, like TopicID.
	GroupID uint32
	// QueueID numbers the queues of a topic inside one shard, from 0.
	QueueID int32
	// QueueOffset is the place of a message in its queue, from 0 and without gaps.
	QueueOffset int64
	// PopID identifies one delivery. Within a shard a later delivery has a
	// greater one; it fences the lease of that delivery.
	PopID uint64
	// Attempt counts the deliveries of one message to one group, from 1.
	Attempt int32
	// PendingID identifies a message of a shard that waits for its time or for the end
	// of its transaction. Of two the one stored later has the greater one.
	PendingID uint64
)

// A Message is one message on its way into the store or out of it.
//
// Properties and System hold the protocol's own encoding (protobuf fields of
// Message.user_properties, and the inside of Message.system_properties without
// what the server adds at delivery), so that a delivery is put together from
// bytes and no tier between wire and disk decodes them. The fields beside them
// repeat what the store itself decides on.
//
// Whoever makes a Message hands over its byte slices: nobody changes them
// afterwards.
type Message struct {
	ID         string // chosen by the client; unique enough, not guaranteed to be
	Tag        string // empty: none
	Type       MessageType
	Group      string // message group of a FIFO message; empty: none
	Properties []byte
	System     []byte
	Body       []byte

	// What follows is not part of a stored message; a sender sets it.

	// DeliverAt is when a Delay message is to be delivered.
	DeliverAt time.Time
	// Delay, when above 0, is how long after it has come to the store a Delay message is to
	// be delivered, in place of DeliverAt.
	Delay time.Duration
	// Recovery is how long after it was stored a Transaction message is asked about
	// for the first time, 0: the server's default.
	Recovery time.Duration
	// Lite is the lite topic of a Lite message. LiteLimit is how many the topic may have,
	// 0: no limit; the store sets it.
	Lite      string
	LiteLimit uint32
	// Content is a fingerprint of what the message says. A message with the id and the
	// content of one before is that one, sent again.
	Content uint64
}

// Size returns the bytes the parts of m take, framing excluded.
func (m *Message) Size() int {
	return len(m.ID) + len(m.Tag) + len(m.Group) + len(m.Properties) + len(m.System) + len(m.Body)
}

// An Appended says where a message was stored.
type Appended struct {
	Queue     QueueID
	Offset    QueueOffset // 0 for a pending message
	StoreTime time.Time
	// Pending identifies a message that is in no queue yet; 0 for others.
	Pending PendingID
	// Repeated says that the message was stored by an earlier send, which this is the
	// answer to.
	Repeated bool
}

// A PendingHandle names a pending message to those who may change what becomes of it. It
// travels to the client as opaque text and back; who has it knows the message.
type PendingHandle struct {
	Shard string
	Topic TopicID
	ID    PendingID
	// MessageID is that of the message: who presents a handle with another one knows
	// another message. Empty in the hands of an operator, who may change any.
	MessageID string
}

// A PendingMark is a place in the order in which the states of pending messages end; the
// zero mark is before all.
type PendingMark struct {
	At int64 // Unix nanoseconds
	ID PendingID
}

// Before reports whether m comes before other.
func (m PendingMark) Before(other PendingMark) bool {
	return m.At < other.At || m.At == other.At && m.ID < other.ID
}

// Next returns the first mark behind m.
func (m PendingMark) Next() PendingMark {
	if m.ID++; m.ID == 0 {
		m.At++
	}
	return m
}

// A PendingQuery asks for the delayed messages of a topic, the first to be delivered first.
type PendingQuery struct {
	Topic TopicID
	From  PendingMark
	// Max is the largest number of messages, at least 1.
	Max int
	// MessageID, when set, is that of the messages wanted.
	MessageID string
}

// HashName returns the hash by which stored data know a message id, a message group or
// an attempt id: FNV-1a, and 0 for none at all. It never changes.
func HashName[T ~string | ~[]byte](name T) uint64 {
	if len(name) == 0 {
		return 0
	}
	return max(fnv1a(name), 1)
}

func fnv1a[T ~string | ~[]byte](name T) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * 1099511628211
	}
	return h
}

// A PendingMessage is what an operator wants to know of a pending message.
type PendingMessage struct {
	PendingHandle // its MessageID is empty when the message cannot be read, or is no longer needed
	Queue         QueueID
	Tag           string
	Keys          []string
	StoreTime     time.Time
	At            time.Time // when its state ends: the time of delivery; zero: never
	Checks        int       // how often producers of a half message have been asked
	BornHost      string    // the host of its sender, as that says
	Size          int       // bytes stored
}

// HalfStage says how far the questions about a half message have come.
type HalfStage uint8

// The stages of a half message whose transaction has not ended.
const (
	HalfWaiting   HalfStage = 0 // it is asked about later, or again
	HalfLastAsked HalfStage = 1 // the last question may still be answered
	HalfGivenUp   HalfStage = 2 // it waits for an operator, or a late answer
)

// A Check is a question to a producer of a half message: what becomes of it?
type Check struct {
	PendingHandle
	Message   Message
	Queue     QueueID
	StoreTime time.Time
	// Checks is how often producers have been asked, this time included.
	Checks int
}

// A Delivery is one message handed to one consumer, under a lease.
type Delivery struct {
	Message
	Lease     Lease
	StoreTime time.Time
}

// A Lease is the right of one consumer to settle one delivery. It travels to
// the client inside the receipt handle and back. PopID fences it: as soon as
// the message is delivered again, the lease of the earlier delivery is over.
type Lease struct {
	Shard   string
	Topic   TopicID
	Group   GroupID
	Queue   QueueID
	Offset  QueueOffset
	PopID   PopID
	Attempt Attempt
	// AutoRenew records that the server keeps the lease alive for the client:
	// the consumer asked for it when it received the message.
	AutoRenew bool
}

// A Receive asks a shard for messages of one topic for one group.
type Receive struct {
	Topic *Topic
	Group *Group
	// Tags are the tags wanted, sorted and without repeats; none: every message.
	Tags []string
	// Filter, when set, says which messages are wanted, in place of tags.
	Filter Filter
	// Max is the largest number of messages, at least 1.
	Max int
	// Invisible is how long they stay leased; above 0.
	Invisible time.Duration
	// Attempt is the client's id of the attempt; empty: none. A receive of a FIFO group
	// with that of an earlier one gets what is left of its messages again, as the same
	// delivery, as long as they are leased.
	Attempt string
	// Wait is how long to wait for the first message; 0: not at all.
	Wait time.Duration
	// AutoRenew is noted in the leases.
	AutoRenew bool
	// InFlight is how many messages of one queue the group may have under lease:
	// a queue with as many serves no more until some are settled. 0: no limit.
	InFlight int
	// Lite, when set, is the client whose lite topics are wanted, as it has synced them, in
	// place of the queues of the topic. Tags, Filter, Attempt and InFlight have no meaning.
	Lite string
	// Reserve is asked once messages are found and before they are read into
	// memory, with the bytes they take there; again, when none of them was there any
	// more and others are found. It may wait. Its error gives the messages back,
	// uncounted, and is that of the receive. Nil: nobody is asked.
	Reserve func(ctx context.Context, bytes int) error
	// Waited, when set, is increased by the time that the receive spent waiting for
	// a message. The caller reads it when the receive has returned.
	Waited *time.Duration
}

// A Filter says by the properties of a message whether it is wanted. It may be used
// from any goroutine, and says the same of a message every time.
type Filter interface {
	// String returns the expression that it is made of. Filters with the same one want
	// the same messages.
	String() string
	// Matches reports whether the message with these Properties and System, see
	// Message, is wanted. It neither changes nor keeps them.
	Matches(properties, system []byte) bool
}

// ChangeReason says who changes an invisible duration, and so what it means
// when the message has been delivered as often as it may be.
type ChangeReason uint8

const (
	// Extend is a consumer that wants more or less time; the delivery goes on.
	// 0 ends it.
	Extend ChangeReason = 0
	// Renew is the server keeping a lease alive for a consumer.
	Renew ChangeReason = 1
	// Nack is a consumer that gives up on the delivery. The last attempt given
	// up is dead-lettered at once.
	Nack ChangeReason = 2
	// GiveBack is the server taking back a delivery that never reached the
	// consumer: it does not count as an attempt, and ends at once.
	GiveBack ChangeReason = 3
	// Suspend is a consumer that puts the delivery off: it does not count as an attempt,
	// and the server renews it no more.
	Suspend ChangeReason = 4
)

// A LeaseChange sets when a delivery becomes visible again.
type LeaseChange struct {
	Lease     Lease
	Invisible time.Duration // from now; 0: at once
	Reason    ChangeReason
	// Keeper is the proxy that makes the change of its own accord, because it renews the
	// lease; 0: somebody asked for the change. When another proxy has taken the lease over
	// the change is refused, and the error wraps ErrLeaseEnded.
	Keeper KeeperID
	// Holder, of a Renew, is the client that is known to have the message. The store
	// remembers it for as long as the lease lasts, so that another proxy can take the lease
	// over, see Adoption. Empty: nobody can.
	Holder string
	// Orphaned, of a Renew with a holder, says that the keeper will not renew it again.
	Orphaned bool
}

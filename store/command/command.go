// Package command holds the commands of a shard and their encoding as the
// payloads of log records. A command is everything the machine needs to change
// its state: it carries its own time and limits, so that applying the same
// commands in the same order gives the same state.
//
// The encoding is hand-written: big-endian fixed integers for what is always
// there, length-prefixed bytes for the rest. docs/format/command.md shows it.
package command

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/perigee-mq/perigee/mq"
)

// Kind is the kind of a command, and of the log record that holds it. The
// numbers are on disk for ever.
type Kind uint8

// The kinds of commands.
const (
	KindTopic       Kind = 1 // register or change a topic
	KindTopicDelete Kind = 2
	KindGroup       Kind = 3 // register or change a consumer group
	KindGroupDelete Kind = 4
	KindAppend      Kind = 5
	KindPop         Kind = 6
	KindAck         Kind = 7
	KindChange      Kind = 8 // change invisible durations
	KindExpire      Kind = 9 // end the leases whose time has passed
	KindDeadLetter  Kind = 10
	KindTrim        Kind = 11 // move the beginnings of queues
	KindDrop        Kind = 12 // permit the log to begin later
	KindPopLimited  Kind = 13 // a pop that keeps to an in-flight limit
	KindSend        Kind = 14 // an append that keeps to the types of its messages, and knows repeats
	KindPopSelect   Kind = 15 // a pop with an order, and a choice made before

	KindFire          Kind = 16 // deliver timed messages whose time has come
	KindPendingChange Kind = 17 // recall, postpone or forget pending messages
	KindPendingMove   Kind = 18 // write pending messages again, at the end of the log

	KindEndTransaction Kind = 19 // commit a half message, or roll it back
	KindChecked        Kind = 20 // producers were asked about their half messages
	KindSetOffset      Kind = 21 // move the progress of a group

	KindLiteSubscribe Kind = 22 // make lite topics known to a group
	KindLitePop       Kind = 23
	KindLiteExpire    Kind = 24 // end the lives of lite topics
	KindLiteTrim      Kind = 25 // remove messages of lite topics
	KindLiteAttempt   Kind = 26 // a lite-pop that knows pops that come again

	KindPlace Kind = 27 // where a topic lies

	KindEndDeliveries Kind = 29 // end some of what a group has of a queue under delivery
	KindForget        Kind = 30 // forget what was sent, before its time
)

var kindNames = [...]string{
	KindTopic: "topic", KindTopicDelete: "topic-delete", KindGroup: "group", KindGroupDelete: "group-delete",
	KindAppend: "append", KindPop: "pop", KindAck: "ack", KindChange: "change",
	KindExpire: "expire", KindDeadLetter: "dead-letter", KindTrim: "trim", KindDrop: "drop", KindPopLimited: "pop-limited",
	KindSend: "send", KindPopSelect: "pop-select",
	KindFire: "fire", KindPendingChange: "pending-change", KindPendingMove: "pending-move",
	KindEndTransaction: "end-transaction", KindChecked: "checked",
	KindSetOffset:     "set-offset",
	KindLiteSubscribe: "lite-subscribe", KindLitePop: "lite-pop", KindLiteExpire: "lite-expire", KindLiteTrim: "lite-trim",
	KindLiteAttempt: "lite-attempt", KindPlace: "place",
	KindEndDeliveries: "end-deliveries", KindForget: "forget",
}

// String returns the name of the kind.
func (k Kind) String() string {
	if int(k) < len(kindNames) && kindNames[k] != "" {
		return kindNames[k]
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// A NewerError says that a record is of a kind that this version does not know. The log has
// verified its bytes, so they are no damage: a newer version has written it.
type NewerError struct{ Kind Kind }

// Error names the kind.
func (e *NewerError) Error() string {
	return fmt.Sprintf("the log was written by a newer version of perigee: it has a record of kind %d, which this one does not know", e.Kind)
}

// ErrCorrupt is the kind of every error about bytes that are no valid command.
var ErrCorrupt = errors.New("corrupt command")

// A reader takes fields off the front of a payload. After the first field that
// is not there it fails for good and yields zeros.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) take(n int) []byte {
	if r.bad || n < 0 || n > len(r.b) {
		r.bad = true
		return nil
	}
	b := r.b[:n:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) u8() uint8 {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) u32() uint32 {
	if b := r.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if b := r.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (r *reader) length() int {
	v, n := binary.Uvarint(r.b)
	if n <= 0 || v > uint64(len(r.b)-n) {
		r.bad = true
		return 0
	}
	r.b = r.b[n:]
	return int(v)
}

func (r *reader) bytes() []byte { return r.take(r.length()) }

func (r *reader) string() string { return string(r.bytes()) }

// done returns an error when a field was missing or bytes are left over.
func (r *reader) done(k Kind) error {
	if r.bad || len(r.b) != 0 {
		return fmt.Errorf("%w: %s", ErrCorrupt, k)
	}
	return nil
}

func appendBytes[T ~string | ~[]byte](dst []byte, b T) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(b))), b...)
}

// Time returns when the command that starts with b was made, in Unix
// nanoseconds: every payload begins with it.
func Time(b []byte) (int64, error) {
	if len(b) < 8 {
		return 0, fmt.Errorf("%w: %d bytes", ErrCorrupt, len(b))
	}
	return int64(binary.BigEndian.Uint64(b)), nil
}

// Topic registers a topic with the shard, or changes it. A topic is known to a
// shard from the first command that needs it.
type Topic struct {
	Time    int64
	ID      mq.TopicID
	Name    mq.Resource
	Queues  int32 // how many exist on this shard; never shrinks
	Version uint64
}

// Append appends the encoding of c.
func (c *Topic) Append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.Time))
	dst = binary.BigEndian.AppendUint32(dst, uint32(c.ID))
	dst = appendBytes(dst, c.Name.Namespace)
	dst = appendBytes(dst, c.Name.Name)
	dst = binary.BigEndian.AppendUint32(dst, uint32(c.Queues))
	return binary.BigEndian.AppendUint64(dst, c.Version)
}

// DecodeTopic decodes what Topic.Append wrote.
func DecodeTopic(b []byte) (Topic, error) {
	r := reader{b: b}
	c := Topic{
		Time: int64(r.u64()), ID: mq.TopicID(r.u32()),
		Name:   mq.Resource{Namespace: r.string(), Name: r.string()},
		Queues: int32(r.u32()), Version: r.u64(),
	}
	return c, r.done(KindTopic)
}

// Group registers a consumer group with the shard, or changes it.
type Group struct {
	Time        int64
	ID          mq.GroupID
	Name        mq.Resource
	FIFO        bool
	MaxAttempts mq.Attempt
	Start       mq.StartPolicy
	StartTime   int64 // Unix nanoseconds, with mq.StartTimestamp
	DeadLetter  mq.TopicID
	Version     uint64
}

// Append appends the encoding of c.
func (c *Group) Append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.Time))
	dst = binary.BigEndian.AppendUint32(dst, uint32(c.ID))
	dst = appendBytes(dst, c.Name.Namespace)
	dst = appendBytes(dst, c.Name.Name)
	dst = append(dst, boolByte(c.FIFO), byte(c.Start))
	dst = binary.BigEndian.AppendUint32(dst, uint32(c.MaxAttempts))
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.StartTime))
	dst = binary.BigEndian.AppendUint32(dst, uint32(c.DeadLetter))
	return binary.BigEndian.AppendUint64(dst, c.Version)
}

// DecodeGroup decodes what Group.Append wrote.
func DecodeGroup(b []byte) (Group, error) {
	r := reader{b: b}
	c := Group{
		Time: int64(r.u64()), ID: mq.GroupID(r.u32()),
		Name: mq.Resource{Namespace: r.string(), Name: r.string()},
		FIFO: r.u8() != 0, Start: mq.StartPolicy(r.u8()),
		MaxAttempts: mq.Attempt(r.u32()), StartTime: int64(r.u64()),
		DeadLetter: mq.TopicID(r.u32()), Version: r.u64(),
	}
	return c, r.done(KindGroup)
}

func boolByte(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// TopicDelete ends the life of a topic on the shard: its queues, and what every
// group has of it.
type TopicDelete struct {
	Time int64
	ID   mq.TopicID
}

// Append appends the encoding of c.
func (c *TopicDelete) Append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.Time))
	return binary.BigEndian.AppendUint32(dst, uint32(c.ID))
}

// DecodeTopicDelete decodes what TopicDelete.Append wrote.
func DecodeTopicDelete(b []byte) (TopicDelete, error) {
	r := reader{b: b}
	c := TopicDelete{Time: int64(r.u64()), ID: mq.TopicID(r.u32())}
	return c, r.done(KindTopicDelete)
}

// GroupDelete ends the life of a group on the shard: its progress and leases.
type GroupDelete struct {
	Time int64
	ID   mq.GroupID
}

// Append appends the encoding of c.
func (c *GroupDelete) Append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.Time))
	return binary.BigEndian.AppendUint32(dst, uint32(c.ID))
}

// DecodeGroupDelete decodes what GroupDelete.Append wrote.
func DecodeGroupDelete(b []byte) (GroupDelete, error) {
	r := reader{b: b}
	c := GroupDelete{Time: int64(r.u64()), ID: mq.GroupID(r.u32())}
	return c, r.done(KindGroupDelete)
}

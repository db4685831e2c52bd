package shard

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/machine"
)

// Properties that a dead-letter copy gets in addition to those of the original.
const (
	DeadLetterReason   = "perigee.dead-letter.reason"
	DeadLetterTopic    = "perigee.dead-letter.topic"
	DeadLetterGroup    = "perigee.dead-letter.group"
	DeadLetterQueue    = "perigee.dead-letter.queue"
	DeadLetterOffset   = "perigee.dead-letter.offset"
	DeadLetterAttempts = "perigee.dead-letter.attempts"
	DeadLetterFirst    = "perigee.dead-letter.first-delivery"
	DeadLetterTime     = "perigee.dead-letter.time"
)

// Reasons for a dead letter.
const (
	ReasonAttempts = "attempts used up"
	ReasonForward  = "forwarded by the consumer"
)

// deadLetterCopy is the original with its history added: origin in the
// protocol's own field, the rest in user properties. It keeps its message group.
func deadLetterCopy(m *mq.Message, u machine.UsedUpMessage, reason string, now time.Time) *mq.Message {
	const stamp = time.RFC3339Nano
	dead := *m
	dead.Type = mq.Normal
	dead.Properties = appendProperties(dropProperties(m.Properties),
		DeadLetterAttempts, fmt.Sprint(u.Lease.Attempt),
		DeadLetterFirst, time.Unix(0, u.Lease.First).UTC().Format(stamp),
		DeadLetterGroup, u.Group.Name,
		DeadLetterOffset, fmt.Sprint(u.Ref.Offset),
		DeadLetterQueue, fmt.Sprint(u.Ref.Queue),
		DeadLetterReason, reason,
		DeadLetterTime, now.UTC().Format(stamp),
		DeadLetterTopic, u.Topic.Name,
	)
	dead.System = deadLetterSystem(m, u.Topic.Name)
	return &dead
}

// Field numbers of the protocol's Message.user_properties and SystemProperties.
const (
	fieldUserProperties  = 2
	fieldMessageType     = 6
	fieldDeadLetterQueue = 20
)

// deadLetterSystem returns the system properties with the origin of the message,
// as a message of type NORMAL.
func deadLetterSystem(m *mq.Message, topic string) []byte {
	system := make([]byte, 0, len(m.System)+len(topic)+len(m.ID)+16)
	eachField(m.System, func(n protowire.Number, field []byte) {
		if n != fieldMessageType && n != fieldDeadLetterQueue {
			system = append(system, field...)
		}
	})
	var origin []byte
	origin = protowire.AppendTag(origin, 1, protowire.BytesType)
	origin = protowire.AppendString(origin, topic)
	origin = protowire.AppendTag(origin, 2, protowire.BytesType)
	origin = protowire.AppendString(origin, m.ID)
	system = protowire.AppendTag(system, fieldMessageType, protowire.VarintType)
	system = protowire.AppendVarint(system, uint64(mq.Normal))
	system = protowire.AppendTag(system, fieldDeadLetterQueue, protowire.BytesType)
	return protowire.AppendBytes(system, origin)
}

// dropProperties returns the user properties without those of an earlier death.
func dropProperties(properties []byte) []byte {
	var kept []byte
	eachField(properties, func(_ protowire.Number, field []byte) {
		_, _, n := protowire.ConsumeTag(field)
		entry, _ := protowire.ConsumeBytes(field[n:])
		_, _, n = protowire.ConsumeTag(entry)
		if n < 0 {
			return
		}
		switch key, _ := protowire.ConsumeString(entry[n:]); key {
		case DeadLetterReason, DeadLetterTopic, DeadLetterGroup, DeadLetterQueue,
			DeadLetterOffset, DeadLetterAttempts, DeadLetterFirst, DeadLetterTime:
		default:
			kept = append(kept, field...)
		}
	})
	return kept
}

// appendProperties appends user properties, given as keys and values in turn.
func appendProperties(dst []byte, pairs ...string) []byte {
	for i := 0; i < len(pairs); i += 2 {
		var entry []byte
		entry = protowire.AppendTag(entry, 1, protowire.BytesType)
		entry = protowire.AppendString(entry, pairs[i])
		entry = protowire.AppendTag(entry, 2, protowire.BytesType)
		entry = protowire.AppendString(entry, pairs[i+1])
		dst = protowire.AppendTag(dst, fieldUserProperties, protowire.BytesType)
		dst = protowire.AppendBytes(dst, entry)
	}
	return dst
}

// eachField calls fn for every field of an encoded message, tag included. It
// stops at the first malformed one.
func eachField(b []byte, fn func(n protowire.Number, field []byte)) {
	for len(b) > 0 {
		num, _, n := protowire.ConsumeField(b)
		if n < 0 {
			return
		}
		fn(num, b[:n])
		b = b[n:]
	}
}

package wire

import (
	"fmt"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
)

// maybe draws a value or its absence.
func maybe[T any](t *rapid.T, label string, g *rapid.Generator[T]) *T {
	if !rapid.Bool().Draw(t, label+" is set") {
		return nil
	}
	v := g.Draw(t, label)
	return &v
}

func randomTimestamp(t *rapid.T, label string) *timestamppb.Timestamp {
	if !rapid.Bool().Draw(t, label+" is set") {
		return nil
	}
	return &timestamppb.Timestamp{
		Seconds: rapid.Int64().Draw(t, label+" seconds"),
		Nanos:   rapid.Int32().Draw(t, label+" nanos"),
	}
}

func randomDuration(t *rapid.T, label string) *durationpb.Duration {
	if !rapid.Bool().Draw(t, label+" is set") {
		return nil
	}
	return &durationpb.Duration{
		Seconds: rapid.Int64().Draw(t, label+" seconds"),
		Nanos:   rapid.Int32().Draw(t, label+" nanos"),
	}
}

// randomMessage draws a message with any of its fields, those of the server
// included: a client may send them.
func randomMessage(t *rapid.T) *rmqpb.Message {
	text := rapid.String()
	m := &rmqpb.Message{
		Topic: &rmqpb.Resource{Name: text.Draw(t, "sent topic")},
		Body:  rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "body"),
	}
	if n := rapid.IntRange(0, 20).Draw(t, "properties"); n > 0 {
		m.UserProperties = make(map[string]string)
		for i := range n {
			m.UserProperties[text.Draw(t, fmt.Sprintf("key %d", i))] = text.Draw(t, fmt.Sprintf("value %d", i))
		}
	}
	if !rapid.Bool().Draw(t, "system properties are set") {
		return m
	}
	m.SystemProperties = &rmqpb.SystemProperties{
		Tag:                                 maybe(t, "tag", text),
		Keys:                                rapid.SliceOfN(text, 0, 4).Draw(t, "keys"),
		MessageId:                           text.Draw(t, "message id"),
		BodyDigest:                          &rmqpb.Digest{Type: rmqpb.DigestType_CRC32, Checksum: "wrong"},
		BodyEncoding:                        rmqpb.Encoding(rapid.Int32Range(0, 2).Draw(t, "encoding")),
		MessageType:                         rmqpb.MessageType(rapid.Int32Range(0, 6).Draw(t, "type")),
		BornTimestamp:                       randomTimestamp(t, "born"),
		BornHost:                            text.Draw(t, "born host"),
		StoreTimestamp:                      randomTimestamp(t, "stored"),
		StoreHost:                           text.Draw(t, "store host"),
		DeliveryTimestamp:                   randomTimestamp(t, "delivery"),
		ReceiptHandle:                       maybe(t, "handle", text),
		QueueId:                             rapid.Int32().Draw(t, "queue"),
		QueueOffset:                         maybe(t, "offset", rapid.Int64()),
		InvisibleDuration:                   randomDuration(t, "invisible"),
		DeliveryAttempt:                     maybe(t, "attempt", rapid.Int32()),
		MessageGroup:                        maybe(t, "message group", text),
		TraceContext:                        maybe(t, "trace context", text),
		OrphanedTransactionRecoveryDuration: randomDuration(t, "recovery"),
		LiteTopic:                           maybe(t, "lite topic", text),
		Priority:                            maybe(t, "priority", rapid.Int32()),
	}
	if rapid.Bool().Draw(t, "dead letter is set") {
		m.SystemProperties.DeadLetterQueue = &rmqpb.DeadLetterQueue{Topic: "t", MessageId: "m"}
	}
	return m
}

package proxy

import (
	"strings"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
)

// A typeField is a field that makes a message what it is. A message has the one
// of its type and none of another: SDKs refuse to build anything else, and what
// both together would mean, nobody has said. docs/adr/0005-answers.md has the table.
type typeField struct {
	name  string
	makes rmqpb.MessageType
	set   func(*rmqpb.SystemProperties) bool
}

var typeFields = []typeField{
	{"delivery_timestamp", rmqpb.MessageType_DELAY, func(p *rmqpb.SystemProperties) bool { return p.GetDeliveryTimestamp() != nil }},
	{"message_group", rmqpb.MessageType_FIFO, func(p *rmqpb.SystemProperties) bool { return p.GetMessageGroup() != "" }},
	{"priority", rmqpb.MessageType_PRIORITY, func(p *rmqpb.SystemProperties) bool { return p != nil && p.Priority != nil }},
	{"lite_topic", rmqpb.MessageType_LITE, func(p *rmqpb.SystemProperties) bool { return p.GetLiteTopic() != "" }},
}

// typeOf returns the type of a message: what it declares, else what its fields
// make of it. A transaction is never derived: no field stands for one.
func typeOf(m *rmqpb.Message) rmqpb.MessageType {
	sys := m.GetSystemProperties()
	if t := sys.GetMessageType(); t != rmqpb.MessageType_MESSAGE_TYPE_UNSPECIFIED {
		return t
	}
	for _, f := range typeFields {
		if f.set(sys) {
			return f.makes
		}
	}
	return rmqpb.MessageType_NORMAL
}

// validateType refuses a message that has a field of another type than its own,
// or not the one of its own: it would be delivered without what the sender asked
// for.
func validateType(sys *rmqpb.SystemProperties) *codeError {
	const code = rmqpb.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
	t := typeOf(&rmqpb.Message{SystemProperties: sys})
	if _, known := rmqpb.MessageType_name[int32(t)]; !known {
		return fault(code, "message_type", t.String(), "is no message type")
	}
	for _, f := range typeFields {
		switch set := f.set(sys); {
		case set && f.makes != t:
			return fault(code, "message_type", t.String(), "must not come with "+f.name)
		case !set && f.makes == t:
			return fault(code, "message_type", t.String(), "must come with "+f.name)
		}
	}
	return nil
}

// checkTypes makes sure that the topic accepts the type of every message.
func checkTypes(topic *mq.Topic, msgs []*rmqpb.Message) error {
	for i, m := range msgs {
		t := mq.MessageType(typeOf(m))
		if !topic.Type.Accepts(t) {
			return refuse(rmqpb.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "%smessage_type %q: topic %q takes %s messages",
				position(i, len(msgs)), t, topic.Resource, typeList(topic.Type.MessageTypes()))
		}
	}
	return nil
}

func typeList(types []mq.MessageType) string {
	texts := make([]string, len(types))
	for i, t := range types {
		texts[i] = t.String()
	}
	return strings.Join(texts, ", ")
}

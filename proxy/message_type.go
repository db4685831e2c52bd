package proxy

import (
	"strings"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
)

// typeOf returns the type of a message: what it declares, else what its fields
// make of it. A transaction is never derived: no field stands for one.
func typeOf(m *rmqpb.Message) rmqpb.MessageType {
	sys := m.GetSystemProperties()
	if t := sys.GetMessageType(); t != rmqpb.MessageType_MESSAGE_TYPE_UNSPECIFIED {
		return t
	}
	switch {
	case sys.GetDeliveryTimestamp() != nil:
		return rmqpb.MessageType_DELAY
	case sys.GetMessageGroup() != "":
		return rmqpb.MessageType_FIFO
	case sys.Priority != nil:
		return rmqpb.MessageType_PRIORITY
	case sys.GetLiteTopic() != "":
		return rmqpb.MessageType_LITE
	default:
		return rmqpb.MessageType_NORMAL
	}
}

// validateType refuses a NORMAL message with a field of another type: it would
// be delivered without what the sender asked for.
func validateType(sys *rmqpb.SystemProperties) *codeError {
	const code = rmqpb.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
	t := sys.GetMessageType()
	if _, known := rmqpb.MessageType_name[int32(t)]; !known {
		return fault(code, "message_type", t.String(), "is no message type")
	}
	if t != rmqpb.MessageType_NORMAL {
		return nil
	}
	for _, f := range []struct {
		field string
		set   bool
	}{
		{"message_group", sys.GetMessageGroup() != ""},
		{"delivery_timestamp", sys.GetDeliveryTimestamp() != nil},
		{"priority", sys.Priority != nil},
		{"lite_topic", sys.GetLiteTopic() != ""},
	} {
		if f.set {
			return fault(code, "message_type", t.String(), "must not come with "+f.field)
		}
	}
	return nil
}

// checkTypes makes sure that the topic accepts the type of every message, and
// that this server can keep what the type promises.
func checkTypes(topic *mq.Topic, msgs []*rmqpb.Message) error {
	for i, m := range msgs {
		t := mq.MessageType(typeOf(m))
		if !topic.Type.Accepts(t) {
			return refuse(rmqpb.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "%smessage_type %q: topic %q takes %s messages",
				position(i, len(msgs)), t, topic.Resource, typeList(topic.Type.MessageTypes()))
		}
		if t != mq.Normal {
			return refuse(rmqpb.Code_NOT_IMPLEMENTED, "%smessage_type %q: this server takes NORMAL messages only",
				position(i, len(msgs)), t)
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

package proxy

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
)

// delayProperty is a user property that every SDK can set: how long after it has come to
// the server a DELAY message is to be delivered. The protocol knows points in time only,
// which are wrong by as much as the clock of the client is. It is an instruction, and no
// part of the message: consumers do not get it, so who sends on what it has received
// delays nothing by accident. The delivery_timestamp, which SDKs demand of a DELAY
// message, may be any.
const delayProperty = "perigee.delay"

// validateDelay checks the property, where a message has it.
func (l messageLimits) validateDelay(m *rmqpb.Message) *codeError {
	text, ok := m.GetUserProperties()[delayProperty]
	if !ok {
		return nil
	}
	const field = "user_properties " + delayProperty
	if t := typeOf(m); t != rmqpb.MessageType_DELAY {
		return fault(rmqpb.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, field, text, fmt.Sprintf("must come with a message of type DELAY, not %s", t))
	}
	switch d, err := time.ParseDuration(text); {
	case err != nil || d < 0:
		return fault(rmqpb.Code_ILLEGAL_DELIVERY_TIME, field, text, "must be a time as 5s, 1500ms or 2h30m")
	case d > l.delay:
		return fault(rmqpb.Code_ILLEGAL_DELIVERY_TIME, field, text, fmt.Sprintf("the limit is %s (max_delay)", l.delay))
	}
	return nil
}

// takeDelay takes the property, which was checked, out of the message, and returns what it
// says. The delivery_timestamp becomes the time by the server's clock.
func takeDelay(m *rmqpb.Message, now time.Time) time.Duration {
	text, ok := m.GetUserProperties()[delayProperty]
	if !ok {
		return 0
	}
	d, _ := time.ParseDuration(text)
	delete(m.UserProperties, delayProperty)
	m.SystemProperties.DeliveryTimestamp = timestamppb.New(now.Add(d))
	return d
}

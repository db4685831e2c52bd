package wire

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
)

func TestTraceContextAndPropertiesAreFoundInStoredMessages(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &rmqpb.Message{
			UserProperties:   rapid.MapOf(rapid.String(), rapid.String()).Draw(t, "properties"),
			SystemProperties: &rmqpb.SystemProperties{MessageId: rapid.String().Draw(t, "id"), Keys: rapid.SliceOf(rapid.String()).Draw(t, "keys")},
		}
		if rapid.Bool().Draw(t, "traced") {
			context := rapid.String().Draw(t, "context")
			m.SystemProperties.TraceContext = &context
		}
		stored := FromProto(m, Arrival{})
		require.Equal(t, m.GetSystemProperties().GetTraceContext(), TraceContext(stored))
		for k, v := range m.GetUserProperties() {
			require.Equal(t, v, UserProperty(stored, k))
		}
		require.Empty(t, UserProperty(stored, rapid.StringN(50, 60, -1).Filter(func(k string) bool { _, there := m.GetUserProperties()[k]; return !there }).Draw(t, "other")))
	})
}

func TestDamagedBytesHoldNoContext(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &mq.Message{System: rapid.SliceOf(rapid.Byte()).Draw(t, "system"), Properties: rapid.SliceOf(rapid.Byte()).Draw(t, "properties")}
		TraceContext(m)
		UserProperty(m, "traceparent")
	})
}

package node_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/internal/config"
)

func named(name string) *rmqpb.Resource { return &rmqpb.Resource{Name: name} }

// take receives up to most messages, without waiting.
func (r *running) take(t *testing.T, topic, group string, most int32) (code rmqpb.Code, got []*rmqpb.Message) {
	t.Helper()
	stream, err := r.rmq.ReceiveMessage(as(t.Context()), &rmqpb.ReceiveMessageRequest{
		Group: named(group), MessageQueue: &rmqpb.MessageQueue{Topic: named(topic)},
		FilterExpression: &rmqpb.FilterExpression{Type: rmqpb.FilterType_TAG, Expression: "*"},
		BatchSize:        most, InvisibleDuration: durationpb.New(time.Minute), LongPollingTimeout: durationpb.New(0),
	})
	require.NoError(t, err)
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return code, got
		}
		require.NoError(t, err)
		if st := resp.GetStatus(); st != nil {
			code = st.GetCode()
		}
		if m := resp.GetMessage(); m != nil {
			got = append(got, m)
		}
	}
}

func handleOf(m *rmqpb.Message) string { return m.GetSystemProperties().GetReceiptHandle() }

// telemetry opens a stream and exchanges settings on it.
func (r *running) telemetry(t *testing.T, ctx context.Context, settings *rmqpb.Settings) (rmqpb.MessagingService_TelemetryClient, *rmqpb.Settings) {
	t.Helper()
	stream, err := r.rmq.Telemetry(as(ctx))
	require.NoError(t, err)
	require.NoError(t, stream.Send(&rmqpb.TelemetryCommand{Command: &rmqpb.TelemetryCommand_Settings{Settings: settings}}))
	cmd, err := stream.Recv()
	require.NoError(t, err)
	require.NotNil(t, cmd.GetSettings())
	return stream, cmd.GetSettings()
}

func TestAClientOfWhichNothingIsKnownConsumes(t *testing.T) {
	dir := t.TempDir()
	r := start(t, dir)
	r.createTopic(t, "t", 2)
	r.sendMany(t, "t", 3)
	ack := func(handle string) {
		t.Helper()
		resp, err := r.rmq.AckMessage(as(t.Context()), &rmqpb.AckMessageRequest{
			Group: named("g"), Topic: named("t"), Entries: []*rmqpb.AckMessageEntry{{ReceiptHandle: handle}},
		})
		require.NoError(t, err)
		require.Equal(t, rmqpb.Code_OK, resp.GetStatus().GetCode(), resp.GetStatus().GetMessage())
	}
	change := func(handle string, d time.Duration) {
		t.Helper()
		resp, err := r.rmq.ChangeInvisibleDuration(as(t.Context()), &rmqpb.ChangeInvisibleDurationRequest{
			Group: named("g"), Topic: named("t"), ReceiptHandle: handle, InvisibleDuration: durationpb.New(d),
		})
		require.NoError(t, err)
		require.Equal(t, rmqpb.Code_OK, resp.GetStatus().GetCode(), resp.GetStatus().GetMessage())
	}
	code, got := r.take(t, "t", "g", 32)
	require.Equal(t, rmqpb.Code_OK, code)
	require.Len(t, got, 3)
	ack(handleOf(got[0]))
	r.stop(t)

	r = start(t, dir) // nothing is known of anybody now
	ack(handleOf(got[1]))
	change(handleOf(got[2]), 0)
	code, got = r.take(t, "t", "g", 32)
	require.Equal(t, rmqpb.Code_OK, code)
	require.Len(t, got, 1)
	require.EqualValues(t, 2, got[0].GetSystemProperties().GetDeliveryAttempt())
	change(handleOf(got[0]), time.Hour)
	ack(handleOf(got[0]))
	r.stop(t)

	r = start(t, dir)
	heartbeat := func(kind rmqpb.ClientType) rmqpb.Code {
		resp, err := r.rmq.Heartbeat(as(t.Context()), &rmqpb.HeartbeatRequest{Group: named("g"), ClientType: kind})
		require.NoError(t, err)
		return resp.GetStatus().GetCode()
	}
	require.Equal(t, rmqpb.Code_UNRECOGNIZED_CLIENT_TYPE, heartbeat(rmqpb.ClientType_CLIENT_TYPE_UNSPECIFIED))
	require.Equal(t, rmqpb.Code_OK, heartbeat(rmqpb.ClientType_SIMPLE_CONSUMER))
	r.stop(t)
}

func TestTheServersLimitsWinOverWhatAClientWishes(t *testing.T) {
	r := start(t, t.TempDir())
	r.createTopic(t, "t", 2)
	r.sendMany(t, "t", 40)
	for _, kind := range []rmqpb.ClientType{rmqpb.ClientType_PUSH_CONSUMER, rmqpb.ClientType_SIMPLE_CONSUMER} {
		_, got := r.telemetry(t, t.Context(), &rmqpb.Settings{
			ClientType:    kind.Enum(),
			BackoffPolicy: &rmqpb.RetryPolicy{MaxAttempts: 1000},
			PubSub: &rmqpb.Settings_Subscription{Subscription: &rmqpb.Subscription{
				Group: named("g"), Fifo: new(true), ReceiveBatchSize: new(int32(10000)), LongPollingTimeout: durationpb.New(time.Hour),
				Subscriptions: []*rmqpb.SubscriptionEntry{{Topic: named("t")}},
			}},
		})
		require.EqualValues(t, 17, got.GetBackoffPolicy().GetMaxAttempts())
		require.Len(t, got.GetBackoffPolicy().GetCustomizedBackoff().GetNext(), 18)
		require.False(t, got.GetSubscription().GetFifo())
		require.EqualValues(t, 32, got.GetSubscription().GetReceiveBatchSize())
		require.Equal(t, config.Default().LongPollingMax, got.GetSubscription().GetLongPollingTimeout().AsDuration())
	}
	_, got := r.take(t, "t", "g", 10000)
	require.Len(t, got, 32)
	r.stop(t)
}

func TestACommandReachesAClientOverTheStreamItHasNow(t *testing.T) {
	r := start(t, t.TempDir())
	settings := &rmqpb.Settings{
		ClientType: rmqpb.ClientType_PRODUCER.Enum(), PubSub: &rmqpb.Settings_Publishing{Publishing: &rmqpb.Publishing{}},
	}
	reconnect := func() *adminpb.ReconnectClientsResponse {
		resp, err := r.admin.ReconnectClients(t.Context(), &adminpb.ReconnectClientsRequest{ClientIds: []string{"tester"}})
		require.NoError(t, err)
		return resp
	}
	first, cut := context.WithCancel(t.Context())
	r.telemetry(t, first, settings)
	second, cancel := context.WithCancel(t.Context())
	stream, _ := r.telemetry(t, second, settings)
	cut() // whether the server has seen the end of the first or not

	require.EqualValues(t, 1, reconnect().GetAsked())
	cmd, err := stream.Recv()
	require.NoError(t, err)
	require.NotEmpty(t, cmd.GetReconnectEndpointsCommand().GetNonce())

	cancel()
	require.Eventually(t, func() bool { return len(reconnect().GetUnreachable()) == 1 }, 30*time.Second, 10*time.Millisecond,
		"without a stream it is not reachable")
	r.stop(t)
}

func TestTheLargestMessageFitsTheSmallestSegmentsDeadLettersIncluded(t *testing.T) {
	topic, group := strings.Repeat("t", 127), strings.Repeat("g", 120)
	const body = 64 << 10
	r := start(t, t.TempDir(), func(c *config.Config) { c.SegmentSize, c.MaxBodySize = 128<<10, body })
	r.createTopic(t, topic, 1)
	largest := &rmqpb.Message{
		Topic: named(topic), Body: make([]byte, body),
		UserProperties:   map[string]string{"k": strings.Repeat("v", 16<<10-1)},
		SystemProperties: &rmqpb.SystemProperties{MessageId: strings.Repeat("i", 255), TraceContext: new(strings.Repeat("t", 15<<10))},
	}
	send := func(msgs ...*rmqpb.Message) *rmqpb.Status {
		resp, err := r.rmq.SendMessage(as(t.Context()), &rmqpb.SendMessageRequest{Messages: msgs})
		require.NoError(t, err)
		return resp.GetStatus()
	}
	st := send(largest, largest)
	require.Equal(t, rmqpb.Code_PAYLOAD_TOO_LARGE, st.GetCode(), "%v", st)
	for i := range 5 {
		largest.SystemProperties.MessageId = fmt.Sprint(i) + strings.Repeat("i", 254)
		st := send(largest)
		require.Equal(t, rmqpb.Code_OK, st.GetCode(), "%v", st)
		_, got := r.take(t, topic, group, 32)
		require.Len(t, got, 1)
		require.Len(t, got[0].GetBody(), body)
		resp, err := r.rmq.ForwardMessageToDeadLetterQueue(as(t.Context()), &rmqpb.ForwardMessageToDeadLetterQueueRequest{
			Group: named(group), Topic: named(topic), ReceiptHandle: handleOf(got[0]),
		})
		require.NoError(t, err)
		require.Equal(t, rmqpb.Code_OK, resp.GetStatus().GetCode(), resp.GetStatus().GetMessage())
		_, dead := r.take(t, "%DLQ%"+group, "undertaker", 32)
		require.Len(t, dead, 1)
		require.Equal(t, largest.GetUserProperties()["k"], dead[0].GetUserProperties()["k"])
	}
	r.stop(t)
}

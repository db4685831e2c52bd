package sdktest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	rmqpb "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"
)

// A liteSimple is a lite simple consumer, which this SDK does not have, made of its stubs:
// the calls are those that the SDKs with one make.
type liteSimple struct {
	rmqpb.MessagingServiceClient
	t            *testing.T
	id           string
	topic, group *rmqpb.Resource
	settings     *rmqpb.Settings
}

func (s server) liteSimple(id, topic, group string) *liteSimple {
	conn, err := grpc.NewClient(s.Endpoint(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(s.t, err)
	s.t.Cleanup(func() { require.NoError(s.t, conn.Close()) })
	c := &liteSimple{rmqpb.NewMessagingServiceClient(conn), s.t, id, &rmqpb.Resource{Name: topic}, &rmqpb.Resource{Name: group}, nil}
	ctx, cancel := context.WithCancel(c.ctx())
	s.t.Cleanup(cancel)
	stream, err := c.Telemetry(ctx)
	require.NoError(s.t, err)
	require.NoError(s.t, stream.Send(&rmqpb.TelemetryCommand{Command: &rmqpb.TelemetryCommand_Settings{Settings: &rmqpb.Settings{
		ClientType: rmqpb.ClientType_LITE_SIMPLE_CONSUMER.Enum(),
		PubSub: &rmqpb.Settings_Subscription{Subscription: &rmqpb.Subscription{
			Group: c.group, Subscriptions: []*rmqpb.SubscriptionEntry{{
				Topic: c.topic, Expression: &rmqpb.FilterExpression{Type: rmqpb.FilterType_TAG, Expression: "*"},
			}},
			LongPollingTimeout: durationpb.New(2 * time.Second),
		}},
	}}}))
	answer, err := stream.Recv()
	require.NoError(s.t, err)
	c.settings = answer.GetSettings()
	require.NotNil(s.t, c.settings)
	return c
}

func (c *liteSimple) ctx() context.Context {
	return metadata.AppendToOutgoingContext(c.t.Context(), "x-mq-client-id", c.id, "x-mq-language", "JAVA", "x-mq-client-version", "5.2.0")
}

func (c *liteSimple) sync(action rmqpb.LiteSubscriptionAction, option *rmqpb.OffsetOption, names ...string) {
	c.t.Helper()
	res, err := c.SyncLiteSubscription(c.ctx(), &rmqpb.SyncLiteSubscriptionRequest{
		Action: action, Topic: c.topic, Group: c.group, LiteTopicSet: names, OffsetOption: option,
	})
	require.NoError(c.t, err)
	require.Equal(c.t, rmqpb.Code_OK, res.GetStatus().GetCode(), res.GetStatus().GetMessage())
}

// receive receives once.
func (c *liteSimple) receive() (got []*rmqpb.Message) {
	c.t.Helper()
	stream, err := c.ReceiveMessage(c.ctx(), &rmqpb.ReceiveMessageRequest{
		Group: c.group, MessageQueue: &rmqpb.MessageQueue{Topic: c.topic, Id: -1}, BatchSize: 32,
		FilterExpression:  &rmqpb.FilterExpression{Type: rmqpb.FilterType_TAG, Expression: "*"},
		InvisibleDuration: durationpb.New(longInvisible), LongPollingTimeout: durationpb.New(2 * time.Second),
	})
	require.NoError(c.t, err)
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return got
		}
		require.NoError(c.t, err)
		if m := r.GetMessage(); m != nil {
			got = append(got, m)
		}
	}
}

// settle receives until it has n messages, acknowledges each, and returns their bodies.
func (c *liteSimple) settle(n int) (bodies []string) {
	c.t.Helper()
	for end := time.Now().Add(generousTimeout); len(bodies) < n; {
		require.True(c.t, time.Now().Before(end), "%d of %d messages within %v", len(bodies), n, generousTimeout)
		for _, m := range c.receive() {
			bodies = append(bodies, string(m.GetBody()))
			sys := m.GetSystemProperties()
			res, err := c.AckMessage(c.ctx(), &rmqpb.AckMessageRequest{Group: c.group, Topic: c.topic, Entries: []*rmqpb.AckMessageEntry{
				{MessageId: sys.GetMessageId(), ReceiptHandle: sys.GetReceiptHandle(), LiteTopic: sys.LiteTopic},
			}})
			require.NoError(c.t, err)
			require.Equal(c.t, rmqpb.Code_OK, res.GetStatus().GetCode(), res.GetStatus().GetMessage())
		}
	}
	return bodies
}

func TestLiteSimpleConsumersReceiveWhatTheySubscribeTo(t *testing.T) {
	t.Parallel()
	s := ownOneShardServer(t)
	topic := s.topic("--type", "LITE")
	group := s.group("--lite-topic", topic)
	p := startProducer(t, s.Endpoint(), topic)
	c := s.liteSimple("lite-simple", topic, group)
	require.True(t, c.settings.GetSubscription().GetFifo(), "lite topics are in order")
	c.sync(rmqpb.LiteSubscriptionAction_PARTIAL_ADD, nil, "a", "b")
	var want []string
	for i := range 5 {
		for _, lite := range []string{"a", "b", "other"} {
			body := fmt.Sprint(lite, " ", i)
			send(t, p, toLite(topic, lite, body))
			if lite != "other" {
				want = append(want, body)
			}
		}
	}
	got := c.settle(10)
	require.ElementsMatch(t, want, got)
	for _, lite := range []string{"a", "b"} {
		var order []string
		for _, body := range got {
			if body[:1] == lite {
				order = append(order, body)
			}
		}
		require.Equal(t, []string{lite + " 0", lite + " 1", lite + " 2", lite + " 3", lite + " 4"}, order)
	}

	// What is suspended comes again as if it had not come.
	send(t, p, toLite(topic, "a", "later"))
	held := c.receive()
	require.Len(t, held, 1)
	suspend := true
	res, err := c.ChangeInvisibleDuration(c.ctx(), &rmqpb.ChangeInvisibleDurationRequest{
		Group: c.group, Topic: c.topic, ReceiptHandle: held[0].GetSystemProperties().GetReceiptHandle(),
		InvisibleDuration: durationpb.New(time.Second), LiteTopic: held[0].GetSystemProperties().LiteTopic, Suspend: &suspend,
	})
	require.NoError(t, err)
	require.Equal(t, rmqpb.Code_OK, res.GetStatus().GetCode(), res.GetStatus().GetMessage())
	held = c.receive()
	require.Len(t, held, 1)
	require.EqualValues(t, 1, held[0].GetSystemProperties().GetDeliveryAttempt())

	// A crash loses none of it; the consumer says again what it wants.
	require.NoError(t, s.Kill())
	require.NoError(t, s.Start(t.Context()))
	c = s.liteSimple("lite-simple-2", topic, group)
	c.sync(rmqpb.LiteSubscriptionAction_COMPLETE_ADD, nil, "b")
	c.sync(rmqpb.LiteSubscriptionAction_PARTIAL_ADD, &rmqpb.OffsetOption{OffsetType: &rmqpb.OffsetOption_TailN{TailN: 2}}, "other")
	require.Eventually(t, func() bool {
		_, err := p.Send(t.Context(), toLite(topic, "b", "b 5"))
		return err == nil
	}, generousTimeout, 100*time.Millisecond)
	require.ElementsMatch(t, []string{"b 5", "other 3", "other 4"}, c.settle(3))
	c.sync(rmqpb.LiteSubscriptionAction_PARTIAL_REMOVE, nil, "b")
	c.sync(rmqpb.LiteSubscriptionAction_COMPLETE_REMOVE, nil)
	require.Empty(t, c.receive())
}

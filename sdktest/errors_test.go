package sdktest

import (
	"bytes"
	"context"
	"strings"
	"testing"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	rmqpb "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// maxBody is the server's default limit.
const maxBody = 4 << 20

func TestUnknownTopicIsNamedInTheError(t *testing.T) {
	t.Parallel()
	s := commonServer(t)
	topic, missing := s.topic(), s.name("missing")

	t.Run("producer start", func(t *testing.T) {
		p, err := rmq.NewProducer(&rmq.Config{Endpoint: s.Endpoint()}, rmq.WithTopics(missing))
		require.NoError(t, err)
		err = p.Start()
		require.ErrorContains(t, err, rmqpb.Code_TOPIC_NOT_FOUND.String())
		require.ErrorContains(t, err, missing)
	})
	t.Run("send", func(t *testing.T) {
		p := startProducer(t, s.Endpoint(), topic)
		_, err := p.Send(t.Context(), message(missing, "lost", ""))
		requireCode(t, err, rmqpb.Code_TOPIC_NOT_FOUND, missing, "topic create")
		send(t, p, message(topic, "the producer goes on", ""))
	})
	t.Run("simple consumer", func(t *testing.T) {
		s := server{s.Server, t}
		c := startSimpleConsumer(t, s.Endpoint(), s.group(), topic, everything)
		requireCode(t, c.Subscribe(missing, everything), rmqpb.Code_TOPIC_NOT_FOUND, missing)
	})
	t.Run("push consumer start", func(t *testing.T) {
		s := server{s.Server, t}
		c, err := rmq.NewPushConsumer(&rmq.Config{Endpoint: s.Endpoint(), ConsumerGroup: s.group()},
			rmq.WithPushSubscriptionExpressions(map[string]*rmq.FilterExpression{missing: everything}),
			rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: newInbox().accept}))
		require.NoError(t, err)
		err = c.Start()
		require.ErrorContains(t, err, rmqpb.Code_TOPIC_NOT_FOUND.String())
		require.ErrorContains(t, err, missing)
	})
}

func TestMessageBeyondALimitIsRefusedWithAReason(t *testing.T) {
	t.Parallel()
	s := commonServer(t)
	topic := s.topic()
	p := startProducer(t, s.Endpoint(), topic)
	for _, test := range []struct {
		name  string
		spoil func(*rmq.Message)
		code  rmqpb.Code
	}{
		{"empty body", func(m *rmq.Message) { m.Body = nil }, rmqpb.Code_MESSAGE_BODY_EMPTY},
		{"17 KiB of properties", func(m *rmq.Message) { m.AddProperty("k", strings.Repeat("x", 17<<10)) }, rmqpb.Code_MESSAGE_PROPERTIES_TOO_LARGE},
		{"tag with a bar", func(m *rmq.Message) { m.SetTag("a|b") }, rmqpb.Code_ILLEGAL_MESSAGE_TAG},
		{"blank key", func(m *rmq.Message) { m.SetKeys(" ") }, rmqpb.Code_ILLEGAL_MESSAGE_KEY},
		{"reserved property", func(m *rmq.Message) { m.AddProperty("UNIQ_KEY", "x") }, rmqpb.Code_ILLEGAL_MESSAGE_PROPERTY_KEY},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := message(topic, "body", "")
			test.spoil(m)
			_, err := p.Send(t.Context(), m)
			requireCode(t, err, test.code)
			require.NotEmpty(t, err.Error())
		})
	}
	t.Run("type the topic does not take", func(t *testing.T) {
		m := message(topic, "body", "")
		m.SetMessageGroup("ordered")
		_, err := p.Send(t.Context(), m)
		require.ErrorContains(t, err, "message type not match")
	})
	send(t, p, message(topic, "the producer goes on", ""))
}

func TestLargestBodyArrivesAndOneByteMoreIsRefused(t *testing.T) {
	t.Parallel()
	s := commonServer(t)
	topic, group := s.topic(), s.group()
	p := startProducer(t, s.Endpoint(), topic)
	body := bytes.Repeat([]byte("0123456789abcdef"), maxBody/16)

	// The SDK learns the limit from the server and checks it itself.
	_, err := p.Send(t.Context(), &rmq.Message{Topic: topic, Body: append(body, '!')})
	require.ErrorContains(t, err, "exceeds the threshold")
	// The server does not rely on that.
	require.Equal(t, rmqpb.Code_MESSAGE_BODY_TOO_LARGE, sendUnchecked(t, s, topic, append(body, '!')).GetCode())

	receipt := send(t, p, &rmq.Message{Topic: topic, Body: body})
	c := startSimpleConsumer(t, s.Endpoint(), group, topic, everything)
	got := c.receive(1, longInvisible)[0]
	require.Equal(t, receipt.MessageID, got.GetMessageId())
	require.True(t, bytes.Equal(body, got.GetBody()), "the bodies differ")
	c.ack(got)
	s.awaitSettled(group, topic)
}

// sendUnchecked sends a body without the checks of the SDK.
func sendUnchecked(t *testing.T, s server, topic string, body []byte) *rmqpb.Status {
	t.Helper()
	return sendEncoded(t, s, topic, body, rmqpb.Encoding_IDENTITY)
}

// sendEncoded sends a body in an encoding that this SDK does not send.
func sendEncoded(t *testing.T, s server, topic string, body []byte, encoding rmqpb.Encoding) *rmqpb.Status {
	t.Helper()
	conn, err := grpc.NewClient(s.Endpoint(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	ctx := metadata.AppendToOutgoingContext(context.Background(), "x-mq-client-id", "unchecked", "x-mq-language", "GO")
	resp, err := rmqpb.NewMessagingServiceClient(conn).SendMessage(ctx, &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{{
		Topic: &rmqpb.Resource{Name: topic},
		SystemProperties: &rmqpb.SystemProperties{
			MessageId: "01000000000000000000000000000000AA", MessageType: rmqpb.MessageType_NORMAL,
			BodyEncoding: encoding, BornHost: "here", BornTimestamp: timestamppb.Now(),
		},
		Body: body,
	}}})
	require.NoError(t, err)
	return resp.GetStatus()
}

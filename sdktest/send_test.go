package sdktest

import (
	"bytes"
	"context"
	"crypto/rand"
	"testing"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/stretchr/testify/require"
)

func TestMessageArrivesAsItWasSent(t *testing.T) {
	t.Parallel()
	s := commonServer(t)
	topic, group := s.topic(), s.group()
	p := startProducer(t, s.Endpoint(), topic)
	m := &rmq.Message{Topic: topic, Body: make([]byte, 100_000)}
	_, err := rand.Read(m.Body)
	require.NoError(t, err)
	m.SetTag("orders")
	m.SetKeys("key-1", "key-2")
	m.AddProperty("color", "blue")
	m.AddProperty("empty", "")
	m.AddProperty("ключ", "значение")

	receipt := send(t, p, m)
	c := startSimpleConsumer(t, s.Endpoint(), group, topic, everything)
	got := c.receive(1, longInvisible)[0]

	require.True(t, bytes.Equal(m.Body, got.GetBody()), "the bodies differ")
	require.Equal(t, "orders", *got.GetTag())
	require.Equal(t, []string{"key-1", "key-2"}, got.GetKeys())
	require.Equal(t, m.GetProperties(), got.GetProperties())
	require.Equal(t, receipt.MessageID, got.GetMessageId())
	require.Equal(t, receipt.MessageID, receipt.TransactionId)
	require.Equal(t, receipt.Offset, got.GetOffset())
	require.Equal(t, topic, got.GetTopic())
	require.EqualValues(t, 1, got.GetDeliveryAttempt())
	require.NotEmpty(t, *got.GetBornHost())
	require.NotZero(t, *got.GetBornTimestamp())
	c.ack(got)
	s.awaitSettled(group, topic)
}

func TestAsyncSendReportsTheReceiptOfItsMessage(t *testing.T) {
	t.Parallel()
	s := commonServer(t)
	topic, group := s.topic(), s.group()
	p := startProducer(t, s.Endpoint(), topic)
	type result struct {
		body     string
		receipts []*rmq.SendReceipt
		err      error
	}
	results := make(chan result, 3)
	for _, body := range []string{"a", "b", "c"} {
		p.SendAsync(t.Context(), message(topic, body, ""), func(_ context.Context, receipts []*rmq.SendReceipt, err error) {
			results <- result{body, receipts, err}
		})
	}
	idOf := map[string]string{}
	for range 3 {
		r := <-results
		require.NoError(t, r.err)
		require.Len(t, r.receipts, 1)
		idOf[r.body] = r.receipts[0].MessageID
	}
	c := startSimpleConsumer(t, s.Endpoint(), group, topic, everything)
	got := map[string]string{}
	for _, v := range c.receive(3, longInvisible) {
		got[string(v.GetBody())] = v.GetMessageId()
		c.ack(v)
	}
	require.Equal(t, idOf, got)
	s.awaitSettled(group, topic)
}

func TestEqualNamesInTwoNamespacesAreTwoTopics(t *testing.T) {
	t.Parallel()
	s := commonServer(t)
	topic, group := s.name("topic"), s.name("group")
	for _, namespace := range []string{"red", "blue"} {
		s.perigee("topic", "create", topic, "--namespace", namespace)
		s.perigee("group", "create", group, "--namespace", namespace)
		p, err := rmq.NewProducer(&rmq.Config{Endpoint: s.Endpoint(), NameSpace: namespace}, rmq.WithTopics(topic))
		require.NoError(t, err)
		require.NoError(t, p.Start())
		send(t, p, message(topic, "of "+namespace, ""))
		require.NoError(t, p.GracefulStop())
	}
	c, err := rmq.NewSimpleConsumer(&rmq.Config{Endpoint: s.Endpoint(), NameSpace: "red", ConsumerGroup: group},
		rmq.WithSimpleAwaitDuration(awaitDuration),
		rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: everything}))
	require.NoError(t, err)
	require.NoError(t, c.Start())
	t.Cleanup(func() { require.NoError(t, c.GracefulStop()) })
	reader := simpleConsumer{c, t}
	got := reader.receive(1, longInvisible)
	require.Equal(t, []string{"of red"}, bodies(got))
	reader.ack(got...)
	got, err = reader.poll(longInvisible)
	require.NoError(t, err)
	require.Empty(t, bodies(got))
}

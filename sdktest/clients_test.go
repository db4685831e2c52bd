package sdktest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	rmqpb "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"github.com/stretchr/testify/require"
)

const (
	// shortestInvisible is the shortest time that a receive may hide messages.
	shortestInvisible = 10 * time.Second
	longInvisible     = 10 * time.Minute
	// awaitDuration is how long a simple consumer's poll waits.
	awaitDuration = 2 * time.Second
)

// everything is the filter that wants all messages.
var everything = rmq.SUB_ALL

// startProducer returns a running producer for topics. The SDK's Start never
// returns without one.
func startProducer(t *testing.T, endpoint string, topics ...string) rmq.Producer {
	t.Helper()
	p, err := rmq.NewProducer(&rmq.Config{Endpoint: endpoint}, rmq.WithTopics(topics...))
	require.NoError(t, err)
	require.NoError(t, p.Start())
	t.Cleanup(func() { require.NoError(t, p.GracefulStop()) })
	return p
}

func send(t *testing.T, p rmq.Producer, m *rmq.Message) *rmq.SendReceipt {
	t.Helper()
	receipts, err := p.Send(t.Context(), m)
	require.NoError(t, err)
	require.Len(t, receipts, 1)
	return receipts[0]
}

// message returns a message of topic with the tag, which may be empty.
func message(topic, body, tag string) *rmq.Message {
	m := &rmq.Message{Topic: topic, Body: []byte(body)}
	if tag != "" {
		m.SetTag(tag)
	}
	return m
}

// simpleConsumer is the SDK's, with receives that wait for messages.
type simpleConsumer struct {
	rmq.SimpleConsumer
	t *testing.T
}

func startSimpleConsumer(t *testing.T, endpoint, group, topic string, filter *rmq.FilterExpression) simpleConsumer {
	t.Helper()
	c, err := rmq.NewSimpleConsumer(&rmq.Config{Endpoint: endpoint, ConsumerGroup: group},
		rmq.WithSimpleAwaitDuration(awaitDuration),
		rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: filter}))
	require.NoError(t, err)
	require.NoError(t, c.Start())
	t.Cleanup(func() { require.NoError(t, c.GracefulStop()) })
	return simpleConsumer{c, t}
}

// poll receives once. An empty poll is no error.
func (c simpleConsumer) poll(invisible time.Duration) ([]*rmq.MessageView, error) {
	got, err := c.Receive(c.t.Context(), 16, invisible)
	if hasCode(err, rmqpb.Code_MESSAGE_NOT_FOUND) {
		return nil, nil
	}
	return got, err
}

// receive polls until it has n messages.
func (c simpleConsumer) receive(n int, invisible time.Duration) []*rmq.MessageView {
	c.t.Helper()
	var got []*rmq.MessageView
	for end := time.Now().Add(generousTimeout); len(got) < n; {
		require.True(c.t, time.Now().Before(end), "%d of %d messages within %v", len(got), n, generousTimeout)
		more, err := c.poll(invisible)
		require.NoError(c.t, err)
		got = append(got, more...)
	}
	require.Len(c.t, got, n)
	return got
}

func (c simpleConsumer) ack(views ...*rmq.MessageView) {
	c.t.Helper()
	for _, v := range views {
		require.NoError(c.t, c.Ack(c.t.Context(), v))
	}
}

// An inbox holds what a push consumer's listener was given.
type inbox chan *rmq.MessageView

func newInbox() inbox { return make(inbox, 1<<14) }

// accept is a listener that takes everything.
func (b inbox) accept(v *rmq.MessageView) rmq.ConsumerResult {
	b <- v
	return rmq.SUCCESS
}

// reject is a listener that fails at everything.
func (b inbox) reject(v *rmq.MessageView) rmq.ConsumerResult {
	b <- v
	return rmq.FAILURE
}

// next returns the next message that the listener is given.
func (b inbox) next(t *testing.T) *rmq.MessageView {
	t.Helper()
	limit := time.NewTimer(generousTimeout)
	defer limit.Stop()
	select {
	case v := <-b:
		return v
	case <-limit.C:
		t.Fatalf("nothing was consumed within %v", generousTimeout)
		return nil
	}
}

// newPushConsumer returns a running push consumer that the caller stops.
func newPushConsumer(t *testing.T, endpoint, group, topic string, filter *rmq.FilterExpression, listener func(*rmq.MessageView) rmq.ConsumerResult) rmq.PushConsumer {
	t.Helper()
	c, err := rmq.NewPushConsumer(&rmq.Config{Endpoint: endpoint, ConsumerGroup: group},
		rmq.WithPushSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: filter}),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: listener}))
	require.NoError(t, err)
	require.NoError(t, c.Start())
	return c
}

func startPushConsumer(t *testing.T, endpoint, group, topic string, filter *rmq.FilterExpression, listener func(*rmq.MessageView) rmq.ConsumerResult) {
	t.Helper()
	c := newPushConsumer(t, endpoint, group, topic, filter, listener)
	t.Cleanup(func() { require.NoError(t, c.GracefulStop()) })
}

func hasCode(err error, code rmqpb.Code) bool {
	var status *rmq.ErrRpcStatus
	return errors.As(err, &status) && status.Code == int32(code)
}

// requireCode checks that err is the server's answer code, with a text that
// holds all parts.
func requireCode(t *testing.T, err error, code rmqpb.Code, parts ...string) {
	t.Helper()
	var status *rmq.ErrRpcStatus
	require.ErrorAs(t, err, &status)
	require.Equal(t, code.String(), rmqpb.Code(status.Code).String(), status.Message)
	for _, part := range parts {
		require.Contains(t, status.Message, part)
	}
}

func bodies(views []*rmq.MessageView) []string {
	var all []string
	for _, v := range views {
		all = append(all, string(v.GetBody()))
	}
	return all
}

// sendAll sends n messages at the same time and returns their bodies.
func sendAll(t *testing.T, p rmq.Producer, topic string, n int) []string {
	t.Helper()
	var sent []string
	failures := make(chan error, n)
	for i := range n {
		body := fmt.Sprintf("message %d", i)
		sent = append(sent, body)
		p.SendAsync(t.Context(), message(topic, body, ""), func(_ context.Context, _ []*rmq.SendReceipt, err error) { failures <- err })
	}
	for range n {
		require.NoError(t, <-failures)
	}
	return sent
}

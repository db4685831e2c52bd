package sdktest

import (
	"fmt"
	"sync"
	"testing"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/stretchr/testify/require"

	rmqpb "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
)

func toLite(topic, lite, body string) *rmq.Message {
	m := message(topic, body, "")
	m.SetLiteTopic(lite)
	return m
}

// startLiteConsumer starts a lite push consumer, whose sends to unknown lite topics end with
// the test.
func startLiteConsumer(t *testing.T, s server, group, topic string, listener func(*rmq.MessageView) rmq.ConsumerResult) rmq.LitePushConsumer {
	t.Helper()
	c, err := rmq.NewLitePushConsumer(&rmq.Config{Endpoint: s.Endpoint(), ConsumerGroup: group}, rmq.NewLitePushConsumerConfig(topic, longInvisible),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: listener}))
	require.NoError(t, err)
	require.NoError(t, c.Start())
	t.Cleanup(func() { require.NoError(t, c.GracefulStop()) })
	return c
}

// liteBodies are the bodies worked on, by lite topic.
type liteBodies struct {
	mu sync.Mutex
	of map[string][]string
	n  int
}

func (b *liteBodies) add(v *rmq.MessageView) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.of == nil {
		b.of = map[string][]string{}
	}
	b.of[v.GetLiteTopic()] = append(b.of[v.GetLiteTopic()], string(v.GetBody()))
	b.n++
}

func (b *liteBodies) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.n
}

func TestLitePushConsumersWorkThroughTheirLiteTopicsInOrder(t *testing.T) {
	t.Parallel()
	s := commonServer(t)
	topic := s.topic("--type", "LITE")
	group := s.group("--lite-topic", topic)
	p := startProducer(t, s.Endpoint(), topic)
	var one, two liteBodies
	failed := map[string]bool{}
	first := startLiteConsumer(t, s, group, topic, func(v *rmq.MessageView) rmq.ConsumerResult {
		one.mu.Lock()
		body := string(v.GetBody())
		fails := body == "a 3" && !failed[body]
		failed[body] = true
		one.mu.Unlock()
		if fails {
			return rmq.FAILURE
		}
		one.add(v)
		return rmq.SUCCESS
	})
	second := startLiteConsumer(t, s, group, topic, func(v *rmq.MessageView) rmq.ConsumerResult {
		two.add(v)
		return rmq.SUCCESS
	})
	require.NoError(t, first.SubscribeLite("a"))
	require.NoError(t, first.SubscribeLite("b"))
	require.NoError(t, second.SubscribeLite("c"))
	want := map[string][]string{}
	for i := range 10 {
		for _, lite := range []string{"a", "b", "c", "nobody"} {
			body := fmt.Sprint(lite, " ", i)
			send(t, p, toLite(topic, lite, body))
			want[lite] = append(want[lite], body)
		}
	}
	s.await("everything consumed", func() bool { return one.count() >= 20 && two.count() >= 10 })
	require.Equal(t, map[string][]string{"a": want["a"], "b": want["b"]}, one.of)
	require.Equal(t, map[string][]string{"c": want["c"]}, two.of)

	require.NoError(t, first.UnSubscribeLite("b"))
	require.NoError(t, second.SubscribeLite("b"))
	send(t, p, toLite(topic, "b", "b 10"))
	began := time.Now()
	s.await("the other gets it", func() bool { return two.count() >= 11 })
	require.Equal(t, []string{"b 10"}, two.of["b"])
	t.Logf("received after %v", time.Since(began))

	requireCode(t, first.SubscribeLite("no.name"), rmqpb.Code_ILLEGAL_LITE_TOPIC, "no.name")
	_, err := p.Send(t.Context(), toLite(topic, "no name", "body"))
	requireCode(t, err, rmqpb.Code_ILLEGAL_LITE_TOPIC, "no name")
}

// Who subscribes last has the lite topic; the other one is told, and keeps what it holds.
func TestALiteTopicOfAnExclusiveGroupHasOneConsumer(t *testing.T) {
	t.Parallel()
	s := commonServer(t)
	topic := s.topic("--type", "LITE")
	group := s.group("--lite-topic", topic, "--lite-exclusive")
	p := startProducer(t, s.Endpoint(), topic)
	var one, two liteBodies
	listener := func(b *liteBodies) func(*rmq.MessageView) rmq.ConsumerResult {
		return func(v *rmq.MessageView) rmq.ConsumerResult {
			b.add(v)
			return rmq.SUCCESS
		}
	}
	first := startLiteConsumer(t, s, group, topic, listener(&one))
	second := startLiteConsumer(t, s, group, topic, listener(&two))
	require.NoError(t, first.SubscribeLite("a"))
	send(t, p, toLite(topic, "a", "a 0"))
	s.await("the first one has it", func() bool { return one.count() == 1 })
	require.NoError(t, second.SubscribeLite("a"))
	for i := range 5 {
		send(t, p, toLite(topic, "a", fmt.Sprint("a ", i+1)))
	}
	s.await("the second one has the rest", func() bool { return two.count() == 5 })
	require.Equal(t, []string{"a 1", "a 2", "a 3", "a 4", "a 5"}, two.of["a"])
	require.Equal(t, 1, one.count())
}

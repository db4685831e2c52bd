package sdktest

import (
	"fmt"
	"testing"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/stretchr/testify/require"
)

func TestHigherPrioritiesArriveFirstAndKeepTheirPlaceWhenTheyFail(t *testing.T) {
	t.Parallel()
	s := oneShardServer(t)
	topic, group := s.topic("--type", "PRIORITY", "--queues", "4"), s.group()
	p := startProducer(t, s.Endpoint(), topic)
	for i, priority := range []int32{0, 2, 1, 9, 0, 3} {
		m := &rmq.Message{Topic: topic, Body: fmt.Appendf(nil, "%d priority %d", i, priority)}
		require.NoError(t, m.SetPriority(priority))
		send(t, p, m)
	}
	c := startSimpleConsumer(t, s.Endpoint(), group, topic, everything)
	got := c.receive(6, longInvisible)
	require.Equal(t, []string{
		"3 priority 9", "5 priority 3", "1 priority 2", "2 priority 1", "0 priority 0", "4 priority 0",
	}, bodies(got))

	for _, i := range []int{4, 2} { // the lower one is back first
		require.NoError(t, c.ChangeInvisibleDuration(got[i], 0))
	}
	c.ack(got[0], got[1], got[3], got[5])
	again := c.receive(2, longInvisible)
	require.Equal(t, []string{"1 priority 2", "0 priority 0"}, bodies(again))
	require.EqualValues(t, 2, again[0].GetDeliveryAttempt())
	c.ack(again...)
	s.awaitSettled(group, topic)
}

// TestMessagesAndPriorityTopicsMustFit: the SDK compares the type of a message with those
// that the route of its topic names.
func TestMessagesAndPriorityTopicsMustFit(t *testing.T) {
	t.Parallel()
	s := commonServer(t)
	urgent, plain := s.topic("--type", "PRIORITY"), s.topic()
	p := startProducer(t, s.Endpoint(), urgent, plain)
	_, err := p.Send(t.Context(), message(urgent, "without a priority", ""))
	require.ErrorContains(t, err, "type")
	m := message(plain, "with a priority", "")
	require.NoError(t, m.SetPriority(1))
	_, err = p.Send(t.Context(), m)
	require.ErrorContains(t, err, "type")
}

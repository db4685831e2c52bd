package sdktest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/stretchr/testify/require"
)

// Plain messages, those of a message group, delayed ones and half messages in one topic:
// each keeps what its type promises, with a push and with a simple consumer, which a FIFO
// group has.
func TestAMixedTopicKeepsForEachMessageWhatItsTypePromises(t *testing.T) {
	t.Parallel()
	s := commonServer(t)
	topic, group, simple := s.topic("--type", "MIXED"), s.group("--fifo"), s.group("--fifo")
	box := newInbox()
	startPushConsumer(t, s.Endpoint(), group, topic, everything, box.accept)
	p, _ := startTransactionProducer(t, s.Endpoint(), topic)
	due := time.Now().Add(3 * time.Second)
	var recalled string
	for _, body := range []string{"delayed", "recalled"} {
		m := message(topic, body, "")
		m.SetDelayTimestamp(due)
		recalled = send(t, p, m).RecallHandle
	}
	_, err := p.Recall(t.Context(), topic, recalled)
	require.NoError(t, err)
	require.NoError(t, half(t, p, topic, "committed").Commit())
	require.NoError(t, half(t, p, topic, "rolled back").RollBack())
	send(t, p, message(topic, "plain", ""))
	var ordered []string
	for i := range 5 {
		m := message(topic, fmt.Sprint("ordered ", i), "")
		m.SetMessageGroup("g")
		send(t, p, m)
		ordered = append(ordered, fmt.Sprint("ordered ", i))
	}

	want := append([]string{"delayed", "committed", "plain"}, ordered...)
	check := func(views []*rmq.MessageView) {
		t.Helper()
		require.ElementsMatch(t, want, bodies(views))
		var order []string
		for _, body := range bodies(views) {
			if strings.HasPrefix(body, "ordered") {
				order = append(order, body)
			}
		}
		require.Equal(t, ordered, order)
	}
	var pushed []*rmq.MessageView
	for range want {
		v := box.next(t)
		if string(v.GetBody()) == "delayed" {
			require.False(t, time.Now().Before(due), "early")
		}
		pushed = append(pushed, v)
	}
	check(pushed)
	s.awaitSettled(group, topic)
	require.Empty(t, box)
	c := startSimpleConsumer(t, s.Endpoint(), simple, topic, everything)
	got := c.receive(len(want), longInvisible)
	check(got)
	c.ack(got...)
	s.awaitSettled(simple, topic)
}

func TestAMixedTopicTakesNoPrioritiesAndNoLiteTopics(t *testing.T) {
	t.Parallel()
	s := commonServer(t)
	topic := s.topic("--type", "MIXED")
	p := startProducer(t, s.Endpoint(), topic)
	urgent := message(topic, "urgent", "")
	require.NoError(t, urgent.SetPriority(1))
	for _, m := range []*rmq.Message{urgent, toLite(topic, "a", "lite")} {
		_, err := p.Send(t.Context(), m)
		require.ErrorContains(t, err, "type")
	}
	send(t, p, message(topic, "plain", ""))
}

package sdktest

import (
	"encoding/json"
	"testing"
	"time"

	rmqpb "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"github.com/stretchr/testify/require"
)

// A delayed message comes at its time, one that was recalled does not, and an operator
// sees and moves those that wait.
func TestDelayedMessagesComeAtTheirTimeUnlessTheyAreRecalled(t *testing.T) {
	t.Parallel()
	s := oneShardServer(t)
	topic, group := s.topic("--type", "DELAY"), s.group()
	p := startProducer(t, s.Endpoint(), topic)
	sendAt := func(body string, at time.Time) (handle, id string) {
		m := message(topic, body, "")
		m.SetDelayTimestamp(at)
		m.SetKeys("key of "+body, "all")
		receipt := send(t, p, m)
		return receipt.RecallHandle, receipt.MessageID
	}
	due := time.Now().Add(3 * time.Second)
	handle, _ := sendAt("comes", due)
	require.NotEmpty(t, handle)
	recalled, id := sendAt("recalled", due)
	past, _ := sendAt("past", time.Now().Add(-time.Minute))
	require.Empty(t, past, "it is delivered at once")
	_, moved := sendAt("moved", time.Now().Add(time.Hour))

	for range 2 {
		got, err := p.Recall(t.Context(), topic, recalled)
		require.NoError(t, err)
		require.Equal(t, id, got)
	}
	c := startSimpleConsumer(t, s.Endpoint(), group, topic, everything)
	first := c.receive(1, longInvisible)
	require.Equal(t, []string{"past"}, bodies(first))
	second := c.receive(1, longInvisible)
	require.Equal(t, []string{"comes"}, bodies(second))
	require.False(t, time.Now().Before(due), "early")
	require.Equal(t, due.UTC(), second[0].GetDeliveryTimestamp().UTC())

	_, err := p.Recall(t.Context(), topic, handle)
	require.True(t, hasCode(err, rmqpb.Code_BAD_REQUEST), "too late: %v", err)
	_, err = p.Recall(t.Context(), topic, "nonsense")
	require.True(t, hasCode(err, rmqpb.Code_BAD_REQUEST), "%v", err)

	var listed struct {
		ID        string `json:"id"`
		MessageID string `json:"message_id"`
	}
	require.NoError(t, json.Unmarshal([]byte(s.perigee("timer", "list", topic, "--json")), &listed))
	require.Equal(t, moved, listed.MessageID)
	require.Contains(t, s.perigee("timer", "list", topic, "--key", "key of moved"), moved)
	require.Contains(t, s.perigee("timer", "list", topic, "--message-id", moved), "key of moved")
	require.NotContains(t, s.perigee("timer", "list", topic, "--key", "key of comes"), moved)
	s.perigee("timer", "postpone", topic, listed.ID, "--in", "0s")
	third := c.receive(1, longInvisible)
	require.Equal(t, []string{"moved"}, bodies(third))
	c.ack(first[0], second[0], third[0])
	s.awaitSettled(group, topic)
}

func TestADelayOfMoreThanTheLimitIsRefused(t *testing.T) {
	t.Parallel()
	s := commonServer(t)
	topic := s.topic("--type", "DELAY")
	p := startProducer(t, s.Endpoint(), topic)
	m := message(topic, "far", "")
	m.SetDelayTimestamp(time.Now().Add(41 * 24 * time.Hour))
	_, err := p.Send(t.Context(), m)
	require.True(t, hasCode(err, rmqpb.Code_ILLEGAL_DELIVERY_TIME), "%v", err)
	require.ErrorContains(t, err, "960h0m0s")
}

func TestDelayedMessagesSurviveTheEndOfTheServer(t *testing.T) {
	t.Parallel()
	s := ownServer(t)
	topic, group := s.topic("--type", "DELAY"), s.group()
	p := startProducer(t, s.Endpoint(), topic)
	due := time.Now().Add(5 * time.Second)
	for _, body := range []string{"a", "b"} {
		m := message(topic, body, "")
		m.SetDelayTimestamp(due)
		send(t, p, m)
	}
	require.NoError(t, s.Kill())
	require.NoError(t, s.Start(t.Context()))
	c := startSimpleConsumer(t, s.Endpoint(), group, topic, everything)
	got := c.receive(2, longInvisible)
	require.ElementsMatch(t, []string{"a", "b"}, bodies(got))
	require.False(t, time.Now().Before(due))
	c.ack(got...)
	s.awaitSettled(group, topic)
}

// The clock of the client is ten minutes off, one way or the other.
func TestADelayByTheClockOfTheServerIsRightWhateverTheClientSays(t *testing.T) {
	t.Parallel()
	s := commonServer(t)
	topic, group := s.topic("--type", "DELAY"), s.group()
	p := startProducer(t, s.Endpoint(), topic)
	c := startSimpleConsumer(t, s.Endpoint(), group, topic, everything)
	began := time.Now()
	for _, off := range []time.Duration{-10 * time.Minute, 10 * time.Minute} {
		m := message(topic, off.String(), "")
		m.SetDelayTimestamp(time.Now().Add(off))
		m.AddProperty("perigee.delay", "3s")
		m.AddProperty("color", "red")
		require.NotEmpty(t, send(t, p, m).RecallHandle)
	}
	sent := time.Now()
	got := c.receive(2, longInvisible)
	require.GreaterOrEqual(t, time.Since(began), 3*time.Second)
	require.Less(t, time.Since(sent), time.Minute)
	for _, v := range got {
		require.Equal(t, map[string]string{"color": "red"}, v.GetProperties())
		require.WithinDuration(t, sent.Add(3*time.Second), *v.GetDeliveryTimestamp(), time.Minute)
	}
	c.ack(got...)
	s.awaitSettled(group, topic)
}

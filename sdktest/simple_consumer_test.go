package sdktest

import (
	"testing"
	"time"

	rmqpb "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"github.com/stretchr/testify/require"
)

func TestAcknowledgedMessagesDoNotComeAgain(t *testing.T) {
	t.Parallel()
	s := commonServer(t)
	topic, group := s.topic(), s.group()
	sent := sendAll(t, startProducer(t, s.Endpoint(), topic), topic, 50)

	c := startSimpleConsumer(t, s.Endpoint(), group, topic, everything)
	got := c.receive(len(sent), longInvisible)
	require.ElementsMatch(t, sent, bodies(got))
	c.ack(got...)

	s.awaitSettled(group, topic)
	got, err := c.poll(longInvisible)
	require.NoError(t, err)
	require.Empty(t, bodies(got))
}

func TestEveryGroupGetsEveryMessage(t *testing.T) {
	t.Parallel()
	s := commonServer(t)
	topic := s.topic()
	send(t, startProducer(t, s.Endpoint(), topic), message(topic, "news", ""))
	for range 2 {
		group := s.group()
		c := startSimpleConsumer(t, s.Endpoint(), group, topic, everything)
		got := c.receive(1, longInvisible)
		require.Equal(t, []string{"news"}, bodies(got))
		c.ack(got...)
		s.awaitSettled(group, topic)
	}
}

func TestChangedInvisibleDurationDecidesWhenAMessageComesAgain(t *testing.T) {
	t.Parallel()
	s := commonServer(t)
	topic, group := s.topic(), s.group()
	receipt := send(t, startProducer(t, s.Endpoint(), topic), message(topic, "again", ""))
	c := startSimpleConsumer(t, s.Endpoint(), group, topic, everything)

	// The leases are longer than the test may take: only the change brings the
	// message back.
	for attempt, d := range []time.Duration{0, time.Second, 0} {
		got := c.receive(1, longInvisible)[0]
		require.Equal(t, receipt.MessageID, got.GetMessageId())
		require.EqualValues(t, attempt+1, got.GetDeliveryAttempt())
		require.NoError(t, c.ChangeInvisibleDuration(got, d))
	}
	got := c.receive(1, longInvisible)[0]
	require.EqualValues(t, 4, got.GetDeliveryAttempt())
	require.Equal(t, "again", string(got.GetBody()))
	// The handle stays good after a change that prolongs the lease.
	require.NoError(t, c.ChangeInvisibleDuration(got, longInvisible))
	c.ack(got)
	s.awaitSettled(group, topic)
}

func TestMessageComesAgainWhenItsLeaseEnds(t *testing.T) {
	t.Parallel()
	s := commonServer(t)
	topic, group := s.topic(), s.group()
	send(t, startProducer(t, s.Endpoint(), topic), message(topic, "forgotten", ""))
	c := startSimpleConsumer(t, s.Endpoint(), group, topic, everything)

	first := c.receive(1, shortestInvisible)[0]
	require.EqualValues(t, 1, first.GetDeliveryAttempt())
	second := c.receive(1, longInvisible)[0]
	require.Equal(t, first.GetMessageId(), second.GetMessageId())
	require.EqualValues(t, 2, second.GetDeliveryAttempt())

	requireCode(t, c.ChangeInvisibleDuration(first, longInvisible), rmqpb.Code_INVALID_RECEIPT_HANDLE)
	c.ack(second)
	s.awaitSettled(group, topic)
}

func TestEmptyPollWaitsAndSaysThatNothingWasFound(t *testing.T) {
	t.Parallel()
	s := commonServer(t)
	c := startSimpleConsumer(t, s.Endpoint(), s.group(), s.topic(), everything)
	start := time.Now()
	_, err := c.Receive(t.Context(), 1, shortestInvisible)
	requireCode(t, err, rmqpb.Code_MESSAGE_NOT_FOUND)
	require.Greater(t, time.Since(start), awaitDuration/2, "the poll did not wait")
}

func TestWaitingPollGetsAMessageThatIsSentMeanwhile(t *testing.T) {
	t.Parallel()
	s := commonServer(t)
	topic, group := s.topic(), s.group()
	p := startProducer(t, s.Endpoint(), topic)
	c := startSimpleConsumer(t, s.Endpoint(), group, topic, everything)
	got := make(chan []string, 1)
	go func() { // ends with its receive, which is bounded
		for range 30 {
			views, err := c.poll(longInvisible)
			if err != nil || len(views) > 0 {
				got <- bodies(views)
				return
			}
		}
		got <- nil
	}()
	send(t, p, message(topic, "just in time", ""))
	require.Equal(t, []string{"just in time"}, <-got)
}

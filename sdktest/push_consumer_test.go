package sdktest

import (
	"strconv"
	"strings"
	"testing"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/stretchr/testify/require"
)

// Properties that the server adds to a dead letter.
const (
	deadLetterReason   = "perigee.dead-letter.reason"
	deadLetterTopic    = "perigee.dead-letter.topic"
	deadLetterGroup    = "perigee.dead-letter.group"
	deadLetterAttempts = "perigee.dead-letter.attempts"
)

func TestPushConsumerGetsEachMessageOnce(t *testing.T) {
	t.Parallel()
	s := commonServer(t)
	topic, group := s.topic(), s.group()
	p := startProducer(t, s.Endpoint(), topic)
	before := sendAll(t, p, topic, 200)
	box := newInbox()
	startPushConsumer(t, s.Endpoint(), group, topic, everything, box.accept)
	var got []string
	for range before {
		got = append(got, string(box.next(t).GetBody()))
	}
	// The consumer waits at the server by now.
	for i := range 100 {
		body := "later " + strconv.Itoa(i)
		send(t, p, message(topic, body, ""))
		before = append(before, body)
		got = append(got, string(box.next(t).GetBody()))
	}
	s.awaitSettled(group, topic)
	require.ElementsMatch(t, before, got)
	require.Empty(t, box, "messages came again")
}

func TestTwoPushConsumersOfAGroupShareItsMessages(t *testing.T) {
	t.Parallel()
	s := commonServer(t)
	topic, group := s.topic(), s.group()
	box := newInbox()
	for range 2 {
		startPushConsumer(t, s.Endpoint(), group, topic, everything, box.accept)
	}
	sent := sendAll(t, startProducer(t, s.Endpoint(), topic), topic, 200)
	var got []string
	for range sent {
		got = append(got, string(box.next(t).GetBody()))
	}
	s.awaitSettled(group, topic)
	require.ElementsMatch(t, sent, got)
	require.Empty(t, box, "messages came again")
}

func TestFailedMessageIsRetriedByTheGroupsPolicyAndThenDeadLettered(t *testing.T) {
	t.Parallel()
	s := commonServer(t)
	topic, group := s.topic(), s.group("--retry-delays", "1s,1s,1s", "--max-attempts", "3")
	box := newInbox()
	startPushConsumer(t, s.Endpoint(), group, topic, everything, box.reject)
	m := message(topic, "poison", "bad")
	m.SetKeys("k")
	m.AddProperty("color", "green")
	receipt := send(t, startProducer(t, s.Endpoint(), topic), m)

	var deliveries []time.Time
	for attempt := range 3 {
		v := box.next(t)
		deliveries = append(deliveries, time.Now())
		require.Equal(t, receipt.MessageID, v.GetMessageId())
		require.EqualValues(t, attempt+1, v.GetDeliveryAttempt())
	}
	require.Greater(t, deliveries[2].Sub(deliveries[0]), time.Second, "the retries came without their delays")

	letter := readDeadLetter(t, s, group)
	require.Equal(t, "poison", string(letter.GetBody()))
	require.Equal(t, "bad", *letter.GetTag())
	require.Equal(t, []string{"k"}, letter.GetKeys())
	properties := letter.GetProperties()
	require.Equal(t, "green", properties["color"])
	require.Equal(t, "attempts used up", properties[deadLetterReason])
	require.Equal(t, topic, properties[deadLetterTopic])
	require.Equal(t, group, properties[deadLetterGroup])
	require.Equal(t, "3", properties[deadLetterAttempts])
	s.awaitSettled(group, topic)
	require.Empty(t, box, "the message came again after it was dead-lettered")
}

func TestRunningConsumerFollowsAChangedRetryPolicy(t *testing.T) {
	t.Parallel()
	s := commonServer(t)
	topic, group := s.topic(), s.group("--retry-delays", "1h", "--max-attempts", "9")
	box := newInbox()
	startPushConsumer(t, s.Endpoint(), group, topic, everything, box.reject)
	p := startProducer(t, s.Endpoint(), topic)
	s.perigee("group", "update", group, "--retry-delays", "1s", "--max-attempts", "3")
	// The settings are on their way; what fails before they arrive waits for an hour.
	s.await("a message comes again within its new delay", func() bool {
		send(t, p, message(topic, "poison", ""))
		id := box.next(t).GetMessageId()
		limit := time.NewTimer(5 * time.Second)
		defer limit.Stop()
		for attempt := 2; attempt <= 3; attempt++ {
			select {
			case v := <-box:
				require.Equal(t, id, v.GetMessageId())
				require.EqualValues(t, attempt, v.GetDeliveryAttempt())
			case <-limit.C:
				return false
			}
		}
		return true
	})
	require.Equal(t, "poison", string(readDeadLetter(t, s, group).GetBody()))
}

// readDeadLetter takes the one message from the dead-letter topic of a group, as
// a consumer of a group of its own.
func readDeadLetter(t *testing.T, s server, group string) *rmq.MessageView {
	t.Helper()
	topic, readers := "%DLQ%"+group, s.group()
	c := startSimpleConsumer(t, s.Endpoint(), readers, topic, everything)
	letter := c.receive(1, longInvisible)[0]
	c.ack(letter)
	s.awaitSettled(readers, topic)
	return letter
}

func TestMessageThatSucceedsAtARetryIsDone(t *testing.T) {
	t.Parallel()
	s := commonServer(t)
	topic, group := s.topic(), s.group("--retry-delays", "1s", "--max-attempts", "5")
	box := newInbox()
	startPushConsumer(t, s.Endpoint(), group, topic, everything, func(v *rmq.MessageView) rmq.ConsumerResult {
		box <- v
		if v.GetDeliveryAttempt() < 3 {
			return rmq.FAILURE
		}
		return rmq.SUCCESS
	})
	send(t, startProducer(t, s.Endpoint(), topic), message(topic, "third time lucky", ""))
	for attempt := range 3 {
		require.EqualValues(t, attempt+1, box.next(t).GetDeliveryAttempt())
	}
	s.awaitSettled(group, topic)
	require.Empty(t, box)
}

func TestListenerThatPanicsIsAFailure(t *testing.T) {
	t.Parallel()
	s := commonServer(t)
	topic, group := s.topic(), s.group("--retry-delays", "1s", "--max-attempts", "5")
	box := newInbox()
	startPushConsumer(t, s.Endpoint(), group, topic, everything, func(v *rmq.MessageView) rmq.ConsumerResult {
		box <- v
		if v.GetDeliveryAttempt() == 1 {
			panic("the listener's own fault")
		}
		return rmq.SUCCESS
	})
	send(t, startProducer(t, s.Endpoint(), topic), message(topic, "careful", ""))
	require.EqualValues(t, 1, box.next(t).GetDeliveryAttempt())
	require.EqualValues(t, 2, box.next(t).GetDeliveryAttempt())
	s.awaitSettled(group, topic)
}

func TestLongProcessingKeepsItsMessage(t *testing.T) {
	t.Parallel()
	s := commonServer(t)
	slice, err := time.ParseDuration(commonRenewal)
	require.NoError(t, err)
	topic, group := s.topic(), s.group("--retry-delays", "1s")
	box := newInbox()
	startPushConsumer(t, s.Endpoint(), group, topic, everything, func(v *rmq.MessageView) rmq.ConsumerResult {
		box <- v
		if string(v.GetBody()) == "slow" {
			<-time.After(4 * slice)
		}
		return rmq.SUCCESS
	})
	p := startProducer(t, s.Endpoint(), topic)
	send(t, p, message(topic, "slow", ""))
	require.Equal(t, "slow", string(box.next(t).GetBody()))
	// Others pass it by.
	send(t, p, message(topic, "fast", ""))
	require.Equal(t, "fast", string(box.next(t).GetBody()))
	s.awaitSettled(group, topic)
	require.Empty(t, box, "the message was delivered again while it was processed")
}

func TestStoppedPushConsumerDoesNotWaitForPollsThatHaveEnded(t *testing.T) {
	t.Parallel()
	s := ownServer(t, "--long-polling-max", "1s")
	topic, group := s.topic(), s.group()
	c := newPushConsumer(t, s.Endpoint(), group, topic, everything, newInbox().accept)
	s.await("empty polls", func() bool { return s.answered("ReceiveMessage") >= 3 })

	start := time.Now()
	require.NoError(t, c.GracefulStop())
	require.Less(t, time.Since(start), 20*time.Second)

	created := sdkLogged(t, "Create standard consume service", "consumerGroup="+group+",")
	require.Len(t, created, 1)
	_, clientID, found := strings.Cut(created[0], "clientId=")
	require.True(t, found, created[0])
	clientID, _, _ = strings.Cut(strings.TrimSpace(clientID), "\t")
	require.NotEmpty(t, sdkLogged(t, "All inflight receive requests have been finished", clientID))
	require.Empty(t, sdkLogged(t, "Timeout waiting for all inflight receive requests", clientID),
		"the SDK counts polls that have ended as under way")
}

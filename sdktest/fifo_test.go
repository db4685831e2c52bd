package sdktest

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/stretchr/testify/require"
)

// sendGroups sends n messages to each of some message groups, in turn. The body of one is
// its message group and its number there.
func sendGroups(t *testing.T, p rmq.Producer, topic string, groups, n int) (bodies []string) {
	t.Helper()
	for i := range n {
		for g := range groups {
			group := fmt.Sprint("customer-", g)
			body := fmt.Sprint(group, " ", i)
			m := message(topic, body, "")
			m.SetMessageGroup(group)
			send(t, p, m)
			bodies = append(bodies, body)
		}
	}
	return bodies
}

// A sequence is what was done with the messages of each message group, in order.
type sequence struct {
	mu   sync.Mutex
	done map[string][]string
	n    int
}

// add notes a message that was worked on with success.
func (s *sequence) add(v *rmq.MessageView) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done == nil {
		s.done = map[string][]string{}
	}
	s.done[*v.GetMessageGroup()] = append(s.done[*v.GetMessageGroup()], string(v.GetBody()))
	s.n++
}

func (s *sequence) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n
}

// requireInOrder checks that every message was worked on once, in the order in which
// those of its message group were sent.
func (s *sequence) requireInOrder(t *testing.T, sent []string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	want := map[string][]string{}
	for _, body := range sent {
		group, _, _ := strings.Cut(body, " ")
		want[group] = append(want[group], body)
	}
	require.Equal(t, want, s.done)
}

func TestPushConsumersOfAFIFOGroupWorkThroughEachMessageGroupInOrder(t *testing.T) {
	t.Parallel()
	s := commonServer(t)
	topic, group := s.topic("--type", "FIFO"), s.group("--fifo")
	p := startProducer(t, s.Endpoint(), topic)
	sent := sendGroups(t, p, topic, 5, 20)
	var done sequence
	for range 2 {
		startPushConsumer(t, s.Endpoint(), group, topic, everything, func(v *rmq.MessageView) rmq.ConsumerResult {
			done.add(v)
			return rmq.SUCCESS
		})
	}
	s.await("everything consumed", func() bool { return done.count() >= len(sent) })
	s.awaitSettled(group, topic)
	done.requireInOrder(t, sent)
}

// A consumer fails now and then. It gives back what it has of that message group, and
// another one, or itself, gets it again in order.
func TestSimpleConsumersOfAFIFOGroupThatFailNowAndThenKeepTheOrder(t *testing.T) {
	t.Parallel()
	s := commonServer(t)
	topic, group := s.topic("--type", "FIFO"), s.group("--fifo")
	p := startProducer(t, s.Endpoint(), topic)
	sent := sendGroups(t, p, topic, 5, 12)
	var done sequence
	var wg sync.WaitGroup
	for worker := range 2 {
		c := startSimpleConsumer(t, s.Endpoint(), group, topic, everything)
		wg.Go(func() {
			for end := time.Now().Add(generousTimeout); done.count() < len(sent) && time.Now().Before(end); {
				got, err := c.poll(longInvisible)
				if err != nil {
					t.Error(err)
					return
				}
				failed := map[string]bool{}
				for i, v := range got {
					g := *v.GetMessageGroup()
					if first := v.GetDeliveryAttempt() == 1 && (i+worker)%4 == 3; first || failed[g] {
						failed[g] = true
						if err := c.ChangeInvisibleDuration(v, time.Second); err != nil {
							t.Error(err)
						}
						continue
					}
					done.add(v)
					if err := c.Ack(t.Context(), v); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	s.awaitSettled(group, topic)
	done.requireInOrder(t, sent)
}

// The SDK tries a failed message itself, and forwards it after the last attempt: the
// message group goes on.
func TestAMessageGroupGoesOnAfterAMessageWasForwardedToTheDeadLetters(t *testing.T) {
	t.Parallel()
	s := commonServer(t)
	topic, group := s.topic("--type", "FIFO"), s.group("--fifo", "--retry-delays", "1s", "--max-attempts", "2")
	p := startProducer(t, s.Endpoint(), topic)
	var done sequence
	startPushConsumer(t, s.Endpoint(), group, topic, everything, func(v *rmq.MessageView) rmq.ConsumerResult {
		if string(v.GetBody()) == "customer-0 1" {
			return rmq.FAILURE
		}
		done.add(v)
		return rmq.SUCCESS
	})
	sent := sendGroups(t, p, topic, 2, 5)
	s.await("the others consumed", func() bool { return done.count() >= len(sent)-1 })
	dead := startSimpleConsumer(t, s.Endpoint(), s.group(), "%DLQ%"+group, everything).receive(1, longInvisible)
	require.Equal(t, "customer-0 1", string(dead[0].GetBody()))
	require.Equal(t, "forwarded by the consumer", dead[0].GetProperties()[deadLetterReason])
	s.awaitSettled(group, topic)
	var left []string
	for _, body := range sent {
		if body != "customer-0 1" {
			left = append(left, body)
		}
	}
	done.requireInOrder(t, left)
}

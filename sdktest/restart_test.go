package sdktest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/sdktest/internal/harness"
)

// retryPause is how long an application waits after an error of a client.
const retryPause = 100 * time.Millisecond

func TestRunningClientsGoOnAfterTheServerWasKilled(t *testing.T) {
	t.Parallel()
	times := 3
	if testing.Short() {
		times = 1
	}
	testRestarts(t, times, func(s *harness.Server, round int) error {
		if deployedStores() == 0 {
			return s.Kill()
		}
		// Everything, then what clients are connected to, then what has the messages.
		return []func() error{
			s.Kill,
			func() error { return s.KillTier("proxy") },
			func() error { return s.KillTier("store") },
		}[round%3]()
	})
}

func TestRunningClientsGoOnAfterTheServerWasStopped(t *testing.T) {
	if testing.Short() {
		t.Skip("the restart after a kill is the harder one")
	}
	t.Parallel()
	testRestarts(t, 2, func(s *harness.Server, _ int) error { return s.Close() })
}

// testRestarts ends and starts the server several times under clients that are
// never restarted themselves.
func testRestarts(t *testing.T, times int, end func(s *harness.Server, round int) error) {
	s := ownServer(t, "--renew-slice", "5s", "--long-polling-max", "4s")
	topic, pushGroup, simpleGroup := s.topic(), s.group("--retry-delays", "1s"), s.group("--retry-delays", "1s")
	pushed, polled := newSeen(), newSeen()
	startPushConsumer(t, s.Endpoint(), pushGroup, topic, everything, func(v *rmq.MessageView) rmq.ConsumerResult {
		pushed.add(string(v.GetBody()))
		return rmq.SUCCESS
	})
	p := startProducer(t, s.Endpoint(), topic)
	c := startSimpleConsumer(t, s.Endpoint(), simpleGroup, topic, everything)

	ctx, stopPolling := context.WithCancel(t.Context())
	poller := &poller{consumer: c, polled: polled, acked: newSeen()}
	var running sync.WaitGroup
	running.Go(func() { poller.run(ctx) })
	sending, stopSending := context.WithCancel(t.Context())
	sender := &sender{producer: p, topic: topic, acknowledged: newSeen()}
	var sends sync.WaitGroup
	sends.Go(func() { sender.run(sending) })
	t.Cleanup(func() { // when the test fails half-way
		stopSending()
		sends.Wait()
		stopPolling()
		running.Wait()
	})

	for round := range times {
		sent, got, taken := sender.acknowledged.count(), pushed.count(), polled.count()
		s.await("messages flow", func() bool {
			return sender.acknowledged.count() >= sent+200 && pushed.count() >= got+100 && polled.count() >= taken+100
		})
		poller.down.Store(true)
		require.NoError(t, end(s.Server, round))
		failures := sender.failures.Load()
		s.await("sends fail while the server is down", func() bool { return sender.failures.Load() > failures })
		require.NoError(t, s.Start(t.Context()))
	}
	sent := sender.acknowledged.count()
	s.await("sends go on after the restart", func() bool { return sender.acknowledged.count() >= sent+200 })
	stopSending()
	sends.Wait()

	sentBodies := sender.acknowledged.bodies()
	s.await("the push consumer has every acknowledged message", func() bool { return pushed.holds(sentBodies) })
	s.await("the simple consumer has every acknowledged message", func() bool { return polled.holds(sentBodies) })
	s.awaitSettled(pushGroup, topic)
	s.awaitSettled(simpleGroup, topic)
	stopPolling()
	running.Wait()
	require.Empty(t, poller.again(), "messages came again although their acknowledgment was answered before the server ended")
}

// seen is a set of bodies or message ids.
type seen struct {
	mu struct {
		sync.Mutex
		bodies map[string]bool
	}
}

func newSeen() *seen {
	s := &seen{}
	s.mu.bodies = map[string]bool{}
	return s
}

func (s *seen) add(body string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.bodies[body] = true
}

func (s *seen) has(body string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.bodies[body]
}

func (s *seen) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mu.bodies)
}

func (s *seen) bodies() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []string
	for body := range s.mu.bodies {
		list = append(list, body)
	}
	return list
}

// holds reports whether all bodies have been seen.
func (s *seen) holds(bodies []string) bool {
	return !slices.ContainsFunc(bodies, func(body string) bool { return !s.has(body) })
}

// sender sends numbered messages one after the other until its context ends.
type sender struct {
	producer     rmq.Producer
	topic        string
	acknowledged *seen
	failures     atomic.Int64
}

func (s *sender) run(ctx context.Context) {
	for i := 0; ctx.Err() == nil; i++ {
		body := fmt.Sprintf("message %d", i)
		// A send under way when the test ends is not cut off: its outcome counts.
		if _, err := s.producer.Send(context.WithoutCancel(ctx), message(s.topic, body, "")); err != nil {
			s.failures.Add(1)
			pause(ctx)
			continue
		}
		s.acknowledged.add(body)
	}
}

// poller receives and acknowledges until its context ends.
type poller struct {
	consumer simpleConsumer
	polled   *seen // bodies
	acked    *seen // ids of messages acknowledged while the server had never been down
	repeated *seen
	down     atomic.Bool
}

func (p *poller) run(ctx context.Context) {
	p.repeated = newSeen()
	for ctx.Err() == nil {
		views, err := p.consumer.poll(shortestInvisible)
		if err != nil {
			pause(ctx)
			continue
		}
		for _, v := range views {
			if p.acked.has(v.GetMessageId()) {
				p.repeated.add(v.GetMessageId())
			}
			p.polled.add(string(v.GetBody()))
			// The SDK reports only transport errors, and a lease may have ended
			// while the server was away; before that an answer means success.
			if err := p.consumer.Ack(context.WithoutCancel(ctx), v); err == nil && !p.down.Load() {
				p.acked.add(v.GetMessageId())
			}
		}
	}
}

// again returns the ids of messages that came after their acknowledgment. It
// may be called once run has returned.
func (p *poller) again() []string { return p.repeated.bodies() }

func pause(ctx context.Context) {
	timer := time.NewTimer(retryPause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

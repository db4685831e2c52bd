package sdktest

import (
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/sdktest/internal/harness"
)

// TestRunningClientsGoOnWhileProxiesAndAStoreNodeAreKilled: one process after the other is
// killed and started again, each on a host of its own, under clients that are never restarted.
func TestRunningClientsGoOnWhileProxiesAndAStoreNodeAreKilled(t *testing.T) {
	t.Parallel()
	testKills(t, true)
}

func TestRunningClientsNeedNoRouter(t *testing.T) {
	t.Parallel()
	testKills(t, false)
}

// testKills kills proxies at random, and store nodes, among them each at least once in a long
// run. Without routers, all of them are away from the first message to the last one.
func testKills(t *testing.T, routers bool) {
	if !harness.Hosts() {
		t.Skip("it needs hosts: make sdktest TIERS=netns")
	}
	seed := rand.Uint64()
	if text := os.Getenv("PERIGEE_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("PERIGEE_SEED=%d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	s := ownServer(t, "--renew-slice", "5s", "--long-polling-max", "4s")
	topic, pushGroup, simpleGroup := s.topic(), s.group("--retry-delays", "1s"), s.group("--retry-delays", "1s")
	if !routers {
		require.NoError(t, s.KillTier("router"))
	}
	pushed, polled := newSeen(), newSeen()
	startPushConsumer(t, s.Endpoint(), pushGroup, topic, everything, func(v *rmq.MessageView) rmq.ConsumerResult {
		pushed.add(string(v.GetBody()))
		return rmq.SUCCESS
	})
	p := startProducer(t, s.Endpoint(), topic)
	c := startSimpleConsumer(t, s.Endpoint(), simpleGroup, topic, everything)
	ctx, stopPolling := context.WithCancel(t.Context())
	poller := &poller{consumer: c, polled: polled, acked: newSeen()}
	var running, sends sync.WaitGroup
	running.Go(func() { poller.run(ctx) })
	sending, stopSending := context.WithCancel(t.Context())
	sender := &sender{producer: p, topic: topic, acknowledged: newSeen()}
	sends.Go(func() { sender.run(sending) })
	t.Cleanup(func() { // when the test fails half-way
		stopSending()
		sends.Wait()
		stopPolling()
		running.Wait()
	})
	flow := func(what string) {
		sent, got, taken := sender.acknowledged.count(), pushed.count(), polled.count()
		s.await("messages flow "+what, func() bool {
			return sender.acknowledged.count() >= sent+50 && pushed.count() >= got+50 && polled.count() >= taken+50
		})
	}
	flow("at first")
	poller.down.Store(true) // what comes again from now on may have a reason
	var plan []string
	for i := range s.Count("store") {
		if plan = append(plan, "proxy", "proxy", "store"); testing.Short() && i == 0 {
			break
		}
	}
	rng.Shuffle(len(plan), func(i, j int) { plan[i], plan[j] = plan[j], plan[i] })
	for _, tier := range plan {
		number := rng.IntN(s.Count(tier))
		require.NoError(t, s.KillOne(tier, number))
		flow("while " + tier + " " + strconv.Itoa(number) + " is away")
		require.NoError(t, s.StartTier(t.Context(), tier))
	}
	flow("in the end")
	stopSending()
	sends.Wait()
	sent := sender.acknowledged.bodies()
	s.await("the push consumer has every acknowledged message", func() bool { return pushed.holds(sent) })
	s.await("the simple consumer has every acknowledged message", func() bool { return polled.holds(sent) })
	s.awaitSettled(pushGroup, topic)
	s.awaitSettled(simpleGroup, topic)
	stopPolling()
	running.Wait()
	t.Logf("%d messages acknowledged, %d sends failed, %d processes killed", len(sent), sender.failures.Load(), len(plan))
	require.Empty(t, poller.again())
	require.NoError(t, s.StartTier(t.Context(), "router"))
}

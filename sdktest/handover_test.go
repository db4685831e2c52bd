package sdktest

import (
	"sync/atomic"
	"testing"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/stretchr/testify/require"
)

// TestALongHandlerKeepsItsMessageWhileProxiesAreKilled: whoever renews its lease dies twice
// under a handler that takes three slices. The message is delivered once.
func TestALongHandlerKeepsItsMessageWhileProxiesAreKilled(t *testing.T) {
	switch {
	case deployedStores() == 0:
		t.Skip("what renews leases has to end without the store: make sdktest TIERS=1")
	case testing.Short():
		t.Skip("it takes three slices of a lease")
	}
	t.Parallel()
	const slice = 30 * time.Second
	s := ownServer(t, "--renew-slice", slice.String(), "--long-polling-max", "4s")
	topic, group := s.topic(), s.group("--retry-delays", "1s")
	var handled atomic.Int32
	begun := make(chan struct{}, 100)
	startPushConsumer(t, s.Endpoint(), group, topic, everything, func(*rmq.MessageView) rmq.ConsumerResult {
		handled.Add(1)
		begun <- struct{}{}
		<-time.After(3 * slice) // a handler's work, in real time
		return rmq.SUCCESS
	})
	p := startProducer(t, s.Endpoint(), topic)
	_, err := p.Send(t.Context(), &rmq.Message{Topic: topic, Body: []byte("takes long")})
	require.NoError(t, err)
	<-begun
	for range 2 {
		<-time.After(slice * 2 / 3) // it is known to have arrived
		require.NoError(t, s.KillTier("proxy"))
		require.NoError(t, s.StartTier(t.Context(), "proxy"))
	}
	s.awaitSettled(group, topic)
	require.EqualValues(t, 1, handled.Load(), "deliveries")
}

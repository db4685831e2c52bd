package sdktest

import (
	"context"
	"strings"
	"testing"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/sdktest/internal/harness"
)

// deadEndpoint is an address that nobody answers at.
const deadEndpoint = "127.0.0.1:1"

// startLimit is how long clients may take to start and to send and receive one message.
const startLimit = 20 * time.Second

// inList is how the SDK takes several endpoints.
func inList(endpoints ...string) string { return "ip:///" + strings.Join(endpoints, ";") }

func TestClientsWorkWithADeadEndpointInTheirList(t *testing.T) {
	t.Parallel()
	s := commonServer(t)
	for name, list := range map[string][]string{
		"dead first": {deadEndpoint, s.Endpoint()},
		"dead last":  {s.Endpoint(), deadEndpoint},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			endpoints := inList(list...)
			topic, group := s.topic(), s.group()
			began := time.Now()
			p := startProducer(t, endpoints, topic)
			c := startSimpleConsumer(t, endpoints, group, topic, everything)
			send(t, p, &rmq.Message{Topic: topic, Body: []byte("x")})
			got, err := c.Receive(t.Context(), 1, 10*time.Second)
			require.NoError(t, err)
			require.Len(t, got, 1)
			require.NoError(t, c.Ack(t.Context(), got[0]))
			require.Less(t, time.Since(began), startLimit)
		})
	}
}

func TestSendsGoOnWhenAnEndpointOfTheListDies(t *testing.T) {
	if !harness.Hosts() {
		t.Skip("it needs two proxies with addresses of their own: make sdktest TIERS=netns")
	}
	t.Parallel()
	s := ownServer(t)
	topic := s.topic()
	p := startProducer(t, inList(s.Proxies()...), topic)
	goesOn := func(what string) {
		s.await("sends succeed "+what, func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			_, err := p.Send(ctx, &rmq.Message{Topic: topic, Body: []byte("x")})
			return err == nil
		})
	}
	goesOn("at first")
	for number := range s.Count("proxy") {
		require.NoError(t, s.KillOne("proxy", number))
		goesOn("without one proxy")
		require.NoError(t, s.StartTier(t.Context(), "proxy"))
		goesOn("with all of them again")
	}
}

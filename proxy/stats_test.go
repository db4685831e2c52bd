package proxy

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
)

func TestStatsTellWhatTheServerHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a")
		s.send(t, message("a", "1", "x"))
		require.Zero(t, s.Stats())
		ctx, cancel := context.WithCancel(from(t, "c"))
		stream := open(t, rmqpb.NewMessagingServiceClient(s.dial(t)), ctx)
		offer(t, stream, subscriber(rmqpb.ClientType_PUSH_CONSUMER, "g"))
		reply(t, stream)
		require.Equal(t, Stats{Sessions: 1, Streams: 1}, s.Stats())

		c := s.consumer("a", "g")
		c.id = "c"
		got := c.receive(t, c.push(1, 0))
		require.Equal(t, Stats{Sessions: 1, Streams: 1, Renewing: 1}, s.Stats())
		time.Sleep(time.Minute) // renewed every 40 s
		require.Equal(t, Stats{Sessions: 1, Streams: 1, Renewing: 1, Renewed: 1}, s.Stats())
		c.acked(t, got.handle(0))
		cancel()
		synctest.Wait()
		require.Equal(t, Stats{Sessions: 1, Renewed: 1}, s.Stats())
		time.Sleep(5 * time.Minute)
		require.Equal(t, Stats{Renewed: 1}, s.Stats())
	})
}

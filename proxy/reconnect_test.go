package proxy

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/proxy/session"
)

// reconnectNonce reads the next command, which must be the one to reconnect.
func reconnectNonce(t testing.TB, stream clientStream) string {
	t.Helper()
	cmd, err := stream.Recv()
	require.NoError(t, err)
	require.NotNil(t, cmd.GetReconnectEndpointsCommand(), "%v", cmd)
	return cmd.GetReconnectEndpointsCommand().GetNonce()
}

func TestClientsAreAskedToReconnectOverTheirNewestStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		c := rmqpb.NewMessagingServiceClient(s.dial(t))
		lost, loose := context.WithCancel(from(t, "a"))
		offer(t, open(t, c, lost), publisher())
		synctest.Wait()
		loose()
		second := open(t, c, from(t, "a"))
		offer(t, second, publisher())
		reply(t, second)
		starting := open(t, c, from(t, "b")) // no settings yet
		s.sessions.Touch("c")                // alive, without a stream

		asked, unreachable := s.Reconnect([]string{"d", "c", "b", "a", "a"}, 0)
		require.Equal(t, 1, asked)
		require.Equal(t, []string{"b", "c", "d"}, unreachable)
		nonce := reconnectNonce(t, second)
		require.NotEmpty(t, nonce)

		offer(t, starting, publisher())
		reply(t, starting)
		asked, unreachable = s.Reconnect(nil, 100)
		require.Equal(t, 2, asked)
		require.Empty(t, unreachable)
		require.NotEqual(t, nonce, reconnectNonce(t, second))
		reconnectNonce(t, starting)
	})
}

func TestAShareOfTheClientsIsAskedToReconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		c := rmqpb.NewMessagingServiceClient(s.dial(t))
		for i := range 10 {
			stream := open(t, c, from(t, fmt.Sprint("c", i)))
			offer(t, stream, publisher())
			reply(t, stream)
		}
		for percent, want := range map[int]int{1: 1, 10: 1, 11: 2, 50: 5, 99: 10, 100: 10} {
			asked, unreachable := s.Reconnect(nil, percent)
			require.Equal(t, want, asked, percent)
			require.Empty(t, unreachable)
		}
	})
}

func TestAClientThatReadsNothingIsNotReachable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		client := s.sessions.Touch("c")
		client.SetSettings(publisher())
		full := session.NewStream()
		for full.Send(&rmqpb.TelemetryCommand{}) {
		}
		client.Attach(full)
		asked, unreachable := s.Reconnect([]string{"c"}, 0)
		require.Zero(t, asked)
		require.Equal(t, []string{"c"}, unreachable)
		client.Detach(full)
	})
}

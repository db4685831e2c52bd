package proxy

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	grpccodes "google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
)

func TestMoreClientsThanMayBeKnownAreToldSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t, func(o *testOptions) { o.MaxSessions = 2 })
		s.topic(t, "a")
		beat := func(id string) *rmqpb.Status {
			resp, err := s.Heartbeat(as(t, id), &rmqpb.HeartbeatRequest{ClientType: rmqpb.ClientType_PRODUCER})
			require.NoError(t, err)
			return resp.GetStatus()
		}
		for i := range 2 {
			require.Equal(t, rmqpb.Code_OK, beat(fmt.Sprint(i)).GetCode())
		}
		refused := beat("2")
		require.Equal(t, rmqpb.Code_TOO_MANY_REQUESTS, refused.GetCode())
		require.Contains(t, refused.GetMessage(), "knows 2 clients, which is as many as it may (max_sessions)")
		require.Equal(t, rmqpb.Code_OK, beat("0").GetCode(), "who is known stays")

		c := s.consumer("a", "g")
		require.Equal(t, rmqpb.Code_TOO_MANY_REQUESTS, c.receive(t, c.simple(1, time.Minute, 0)).code)
		s.send(t, message("a", "1", "x")) // needs no session

		stream, err := rmqpb.NewMessagingServiceClient(s.dial(t)).Telemetry(from(t, "2"))
		require.NoError(t, err)
		_, err = stream.Recv()
		require.Equal(t, grpccodes.ResourceExhausted, grpcstatus.Code(err))
		require.ErrorContains(t, err, "max_sessions")

		time.Sleep(4 * time.Minute)
		require.Len(t, c.receive(t, c.simple(1, time.Minute, 0)).messages, 1, "silent clients are forgotten")
	})
}

func TestSettingsOfAllClientsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t, func(o *testOptions) { o.SettingsMemory = 10_000 })
		c := rmqpb.NewMessagingServiceClient(s.dial(t))
		long := publisher("a")
		long.UserAgent = &rmqpb.UA{Hostname: strings.Repeat("x", 6000)}
		first, second := open(t, c, from(t, "1")), open(t, c, from(t, "2"))
		offer(t, first, long)
		reply(t, first)
		offer(t, second, long)
		_, err := second.Recv()
		require.Equal(t, grpccodes.ResourceExhausted, grpcstatus.Code(err))
		require.ErrorContains(t, err, "those of all clients have 10000 bytes at the most")
		offer(t, first, long) // they replace its own
		reply(t, first)
	})
}

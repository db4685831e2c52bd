package proxy

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
)

func TestAnIdleProducerKeepsItsConnectionAndSendsAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		heartbeat time.Duration // 0: none
		stream    bool
		ping      time.Duration // of the connection, 0: none
	}{
		"heartbeats alone":        {heartbeat: 10 * time.Second},
		"slow heartbeats":         {heartbeat: 30 * time.Second},
		"a stream alone":          {stream: true},
		"a stream, and pings":     {stream: true, ping: 60 * time.Second},
		"everything, all at once": {heartbeat: 10 * time.Second, stream: true, ping: 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newTestServer(t)
				s.topic(t, "orders")
				var dialled atomic.Int32
				dial := s.serve(t)
				opts := []grpc.DialOption{
					grpc.WithTransportCredentials(insecure.NewCredentials()),
					grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
						dialled.Add(1)
						return dial(ctx, addr)
					}),
				}
				if c.ping > 0 {
					opts = append(opts, grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: c.ping, Timeout: 5 * time.Second, PermitWithoutStream: true}))
				}
				conn, err := grpc.NewClient("passthrough:///perigee.test:8081", opts...)
				require.NoError(t, err)
				defer conn.Close()
				client := rmqpb.NewMessagingServiceClient(conn)
				ended := make(chan error, 1)
				if c.stream {
					stream := open(t, client, from(t, "c"))
					offer(t, stream, publisher("orders"))
					reply(t, stream)
					go func() {
						_, err := stream.Recv()
						ended <- err
					}()
				}
				for start := time.Now(); time.Since(start) < 15*time.Minute; {
					if c.heartbeat == 0 {
						time.Sleep(15 * time.Minute)
						break
					}
					time.Sleep(c.heartbeat)
					res, err := client.Heartbeat(from(t, "c"), &rmqpb.HeartbeatRequest{ClientType: rmqpb.ClientType_PRODUCER})
					require.NoError(t, err)
					require.Equal(t, rmqpb.Code_OK, res.GetStatus().GetCode())
				}
				start := time.Now()
				res, err := client.SendMessage(from(t, "c"), &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{message("orders", "m", "body")}})
				require.NoError(t, err)
				require.Equal(t, rmqpb.Code_OK, res.GetStatus().GetCode())
				require.Less(t, time.Since(start), 500*time.Millisecond)
				require.EqualValues(t, 1, dialled.Load(), "the connection was kept")
				require.NotNil(t, s.sessions.Get("c"))
				require.Empty(t, ended, "the stream was kept")
			})
		})
	}
}

package proxy

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/internal/tether"
	"github.com/perigee-mq/perigee/proxy/transport"
)

// serveOn serves s on pipe as a node does, without TLS, until the test ends.
func (s *testServer) serveOn(t testing.TB, pipe net.Listener) {
	t.Helper()
	creds, err := transport.NewCredentials(transport.CredentialsOptions{Mode: transport.Disabled})
	require.NoError(t, err)
	g := grpc.NewServer(append(transport.ServerOptions(transport.ServerConfig{Credentials: creds}), s.Interceptors()...)...)
	s.Register(g)
	served := make(chan error, 1)
	go func() { served <- g.Serve(transport.NewListener(pipe, transport.ListenerOptions{})) }()
	t.Cleanup(func() {
		g.Stop()
		require.NoError(t, <-served)
	})
}

// dialOn returns a connection through pipe, over what wrap makes of it.
func dialOn(t testing.TB, pipe *bufconn.Listener, wrap func(net.Conn) net.Conn, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	dialer := func(ctx context.Context, _ string) (net.Conn, error) {
		conn, err := pipe.DialContext(ctx)
		if err != nil {
			return nil, err
		}
		return wrap(conn), nil
	}
	conn, err := grpc.NewClient("passthrough:///perigee.test:8081", append([]grpc.DialOption{
		grpc.WithContextDialer(dialer), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithIdleTimeout(0),
	}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

// noticed is how long after its last frame a peer that has vanished is given up.
const noticed = 50 * time.Second

func TestMessagesOfAClientThatVanishesAreHandedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		pipe := bufconn.Listen(1 << 20)
		s.serveOn(t, pipe)
		s.topic(t, "a")
		s.send(t, message("a", "1", "x"))
		c := s.consumer("a", "g")
		cut := make(chan struct{})
		conn := dialOn(t, pipe, func(conn net.Conn) net.Conn { return tether.New(conn, cut) })
		telemetry, err := rmqpb.NewMessagingServiceClient(conn).Telemetry(from(t, c.id))
		require.NoError(t, err)
		_, err = telemetry.Header()
		require.NoError(t, err)
		got, err := receiveOver(t, from(t, c.id), conn, c.push(1, 0))
		require.NoError(t, err)
		require.Len(t, got.messages, 1)
		// While the stream is open the client is there, heartbeats or not.
		c.quiet(t, 10*time.Minute)
		require.NotNil(t, s.sessions.Get(c.id))

		close(cut)
		d, again := c.back(t)
		require.LessOrEqual(t, d, noticed+s.opts.SessionTimeout+5*time.Second)
		require.Equal(t, []int32{2}, again.attempts())
	})
}

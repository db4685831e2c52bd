package transport

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
)

// A connectionService tells which connection each call came over.
type connectionService struct {
	rmqpb.UnimplementedMessagingServiceServer
	seen chan *Connection
}

func (s *connectionService) Heartbeat(ctx context.Context, _ *rmqpb.HeartbeatRequest) (*rmqpb.HeartbeatResponse, error) {
	s.seen <- ConnectionOf(ctx)
	p, _ := peer.FromContext(ctx)
	_, isTLS := p.AuthInfo.(credentials.TLSInfo)
	host, _, err := net.SplitHostPort(p.Addr.String())
	if isTLS {
		host += " tls"
	}
	return &rmqpb.HeartbeatResponse{Status: &rmqpb.Status{Message: host}}, err
}

func TestTheEndOfAConnectionIsTold(t *testing.T) {
	for name, c := range map[string]struct {
		server, client credentials.TransportCredentials
		want           string
	}{
		"without credentials": {nil, cleartext(), "127.0.0.1"},
		"cleartext":           {newCredentials(t, Permissive, io.Discard), cleartext(), "127.0.0.1"},
		"tls":                 {newCredentials(t, Permissive, io.Discard), credentials.NewTLS(&tls.Config{InsecureSkipVerify: true}), "127.0.0.1 tls"},
	} {
		t.Run(name, func(t *testing.T) {
			lis, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			svc := &connectionService{seen: make(chan *Connection, 1)}
			server := grpc.NewServer(ServerOptions(ServerConfig{Credentials: c.server})...)
			rmqpb.RegisterMessagingServiceServer(server, svc)
			served := make(chan error, 1)
			go func() { served <- server.Serve(lis) }()
			defer func() {
				server.Stop()
				require.NoError(t, <-served)
			}()
			call := func(conn *grpc.ClientConn) *Connection {
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				resp, err := rmqpb.NewMessagingServiceClient(conn).Heartbeat(ctx, &rmqpb.HeartbeatRequest{})
				require.NoError(t, err)
				require.Equal(t, c.want, resp.GetStatus().GetMessage())
				return <-svc.seen
			}
			connect := func() *grpc.ClientConn {
				conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(c.client))
				require.NoError(t, err)
				return conn
			}
			first, second := connect(), connect()
			defer second.Close()
			one := call(first)
			require.NotNil(t, one)
			require.Same(t, one, call(first))
			other := call(second)
			require.NotSame(t, one, other)

			value := new(int)
			require.Same(t, value, one.Attached(func() any { return value }))
			require.Same(t, value, one.Attached(func() any { return new(int) }))
			require.NotSame(t, value, other.Attached(func() any { return new(int) }))

			ended := make(chan bool, 1)
			one.AfterClose(func() { ended <- one.Closed() })
			require.False(t, one.Closed())
			require.NoError(t, first.Close())
			require.True(t, <-ended)
			late := false
			one.AfterClose(func() { late = true })
			require.True(t, late, "told at once when it has ended already")
			require.False(t, other.Closed())
		})
	}
}

func TestACallWithoutAConnectionHasNone(t *testing.T) {
	require.Nil(t, ConnectionOf(t.Context()))
	require.Nil(t, ConnectionOf(peer.NewContext(t.Context(), &peer.Peer{Addr: &net.TCPAddr{}})))
}

package transport

import (
	"io"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/test/bufconn"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
)

func TestConnectionsAboveTheLimitAreClosedAndLoggedOnce(t *testing.T) {
	var log logBuffer
	limit := NewLimit(2, slog.New(slog.NewJSONHandler(&log, nil)))
	// Listeners share the limit.
	first, _ := listenWith(t, Permissive, io.Discard, ListenerOptions{Limit: limit})
	second, _ := listenWith(t, Permissive, io.Discard, ListenerOptions{Limit: limit})
	one := dial(t, first, trusting())
	_, err := heartbeat(t, one)
	require.NoError(t, err)
	two, err := net.Dial("tcp", second)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return limit.Open() == 2 }, 10*time.Second, time.Millisecond)
	for range 10 {
		conn, err := net.Dial("tcp", second)
		require.NoError(t, err)
		requireClosed(t, conn)
		require.NoError(t, conn.Close())
	}
	require.EqualValues(t, 10, limit.Refused())
	require.EqualValues(t, 2, limit.Open())
	lines := log.lines(t)
	require.Len(t, lines, 1)
	require.EqualValues(t, 2, lines[0]["max_connections"])
	_, err = heartbeat(t, one)
	require.NoError(t, err, "those that are open are left alone")

	require.NoError(t, two.Close())
	require.Eventually(t, func() bool { return limit.Open() == 1 }, 10*time.Second, time.Millisecond)
	_, err = heartbeat(t, dial(t, second, cleartext()))
	require.NoError(t, err)
}

func TestAStopDoesNotWaitForConnectionsThatServeNothing(t *testing.T) {
	for name, sent := range map[string]string{"silent": "", "in its hello": "\x16\x03\x01\x02\x00\x01", "preface only": http2Preface} {
		for _, graceful := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					pipe := bufconn.Listen(1 << 16)
					server := grpc.NewServer(ServerOptions(ServerConfig{Credentials: newCredentials(t, Permissive, io.Discard)})...)
					served := make(chan error, 1)
					go func() { served <- server.Serve(NewListener(pipe, ListenerOptions{})) }()
					conn, err := pipe.Dial()
					require.NoError(t, err)
					defer conn.Close()
					_, err = conn.Write([]byte(sent))
					require.NoError(t, err)
					synctest.Wait()
					start := time.Now()
					if graceful {
						server.GracefulStop()
					} else {
						server.Stop()
					}
					require.NoError(t, <-served)
					require.Zero(t, time.Since(start))
				})
			})
		}
	}
}

func TestAGracefulStopLetsCallsFinish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pipe := bufconn.Listen(1 << 16)
		server := grpc.NewServer(ServerOptions(ServerConfig{Credentials: newCredentials(t, Permissive, io.Discard)})...)
		rmqpb.RegisterMessagingServiceServer(server, &service{receive: func(stream grpc.ServerStream) error {
			time.Sleep(5 * time.Second)
			return stream.SendMsg(&rmqpb.ReceiveMessageResponse{})
		}})
		served := make(chan error, 1)
		go func() { served <- server.Serve(NewListener(pipe, ListenerOptions{})) }()
		client := dial(t, "bufconn", trusting(), throughPipe(pipe))
		stream, err := client.ReceiveMessage(t.Context(), &rmqpb.ReceiveMessageRequest{})
		require.NoError(t, err)
		synctest.Wait()
		server.GracefulStop()
		require.NoError(t, <-served)
		_, err = stream.Recv()
		require.NoError(t, err)
		_, err = stream.Recv()
		require.Equal(t, io.EOF, err)
	})
}

func TestCutEndsAConnection(t *testing.T) {
	addr, svc := listenWith(t, Permissive, io.Discard, ListenerOptions{Limit: NewLimit(1, quiet())})
	for range 3 { // the limit of one shows that the last one is gone
		client := dial(t, addr, trusting())
		require.Eventually(t, func() bool {
			_, err := heartbeat(t, client)
			return err == nil
		}, 10*time.Second, time.Millisecond)
		Cut(peer.NewContext(t.Context(), svc.caller.Load()))
	}
}

package transport

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/test/bufconn"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
)

// A service answers Heartbeat with the auth type of the caller and
// ReceiveMessage with what its function sends. It remembers who called last.
type service struct {
	rmqpb.UnimplementedMessagingServiceServer
	receive func(grpc.ServerStream) error
	caller  atomic.Pointer[peer.Peer]
}

func (s *service) Heartbeat(ctx context.Context, _ *rmqpb.HeartbeatRequest) (*rmqpb.HeartbeatResponse, error) {
	p, _ := peer.FromContext(ctx)
	s.caller.Store(p)
	kind := p.AuthInfo.AuthType()
	if info, ok := p.AuthInfo.(credentials.TLSInfo); ok {
		kind += " " + info.State.NegotiatedProtocol
	}
	return &rmqpb.HeartbeatResponse{Status: &rmqpb.Status{Code: rmqpb.Code_OK, Message: kind}}, nil
}

func (s *service) ReceiveMessage(_ *rmqpb.ReceiveMessageRequest, stream grpc.ServerStreamingServer[rmqpb.ReceiveMessageResponse]) error {
	return s.receive(stream)
}

// serve runs a server with the options under test on lis until the test ends.
func serve(t testing.TB, lis net.Listener, creds *Credentials, svc *service) {
	t.Helper()
	server := grpc.NewServer(ServerOptions(ServerConfig{Credentials: creds})...)
	rmqpb.RegisterMessagingServiceServer(server, svc)
	done := make(chan error, 1)
	go func() { done <- server.Serve(lis) }()
	t.Cleanup(func() {
		server.Stop()
		require.NoError(t, <-done)
	})
}

// listen serves on a loopback port and returns its address.
func listen(t testing.TB, mode Mode, log io.Writer) string {
	t.Helper()
	addr, _ := listenWith(t, mode, log, ListenerOptions{})
	return addr
}

// listenWith serves on a loopback port with the options.
func listenWith(t testing.TB, mode Mode, log io.Writer, opts ListenerOptions) (addr string, svc *service) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	svc = &service{}
	serve(t, NewListener(lis, opts), newCredentials(t, mode, log), svc)
	return lis.Addr().String(), svc
}

func newCredentials(t testing.TB, mode Mode, log io.Writer) *Credentials {
	t.Helper()
	opts := CredentialsOptions{Mode: mode, Logger: slog.New(slog.NewJSONHandler(log, nil))}
	if mode != Disabled {
		cert, err := SelfSigned(t.TempDir(), slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		opts.Keyring, err = OpenKeyring(KeyringOptions{SelfSigned: cert})
		require.NoError(t, err)
	}
	creds, err := NewCredentials(opts)
	require.NoError(t, err)
	return creds
}

func dial(t testing.TB, addr string, creds credentials.TransportCredentials, opts ...grpc.DialOption) rmqpb.MessagingServiceClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, append(opts, grpc.WithTransportCredentials(creds))...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return rmqpb.NewMessagingServiceClient(conn)
}

// throughPipe dials a listener in memory.
func throughPipe(pipe *bufconn.Listener) grpc.DialOption {
	return grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return pipe.DialContext(ctx) })
}

func heartbeat(t testing.TB, client rmqpb.MessagingServiceClient) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	resp, err := client.Heartbeat(ctx, &rmqpb.HeartbeatRequest{})
	return resp.GetStatus().GetMessage(), err
}

func cleartext() credentials.TransportCredentials { return insecure.NewCredentials() }

// trusting are the credentials of the SDKs that accept any certificate; serverName
// is what one of them sends instead of a name.
func trusting() credentials.TransportCredentials {
	return credentials.NewTLS(&tls.Config{InsecureSkipVerify: true, ServerName: "IPAuthority"})
}

// A logBuffer collects log lines from several goroutines.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

// lines returns the attributes of the lines so far.
func (b *logBuffer) lines(t testing.TB) []map[string]any {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []map[string]any
	dec := json.NewDecoder(bytes.NewReader(b.buf.Bytes()))
	for dec.More() {
		var line map[string]any
		require.NoError(t, dec.Decode(&line))
		out = append(out, line)
	}
	return out
}

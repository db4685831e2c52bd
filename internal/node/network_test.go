package node_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/durationpb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/internal/config"
)

// connect returns a connection that ends with the test, cleartext unless opts say
// otherwise.
func connect(t *testing.T, address string, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+address, append([]grpc.DialOption{cleartext()}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

func cleartext() grpc.DialOption { return grpc.WithTransportCredentials(insecure.NewCredentials()) }

// overTLS trusts any certificate.
func overTLS() grpc.DialOption {
	return grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true}))
}

// behind begins every connection with a header.
func behind(header string) grpc.DialOption {
	return grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "tcp", address)
		if err == nil {
			_, err = conn.Write([]byte(header))
		}
		return conn, err
	})
}

// metrics returns what the node exports.
func (r *running) metrics(t *testing.T) string {
	t.Helper()
	resp, err := http.Get("http://" + r.info.HTTPAddr + "/metrics")
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return string(text)
}

func (r *running) topic(t *testing.T, name string) {
	t.Helper()
	_, err := r.admin.CreateTopic(t.Context(), &adminpb.CreateTopicRequest{Name: name})
	require.NoError(t, err)
}

func route(t *testing.T, conn *grpc.ClientConn, topic string, dialled *rmqpb.Endpoints) *rmqpb.Endpoints {
	t.Helper()
	res, err := rmqpb.NewMessagingServiceClient(conn).QueryRoute(as(t.Context()), &rmqpb.QueryRouteRequest{
		Topic: &rmqpb.Resource{Name: topic}, Endpoints: dialled,
	})
	require.NoError(t, err)
	require.Equal(t, rmqpb.Code_OK, res.GetStatus().GetCode(), res.GetStatus().GetMessage())
	return res.GetMessageQueues()[0].GetBroker().GetEndpoints()
}

func endpoints(scheme rmqpb.AddressScheme, host string, port int32) *rmqpb.Endpoints {
	return &rmqpb.Endpoints{Scheme: scheme, Addresses: []*rmqpb.Address{{Host: host, Port: port}}}
}

// sendAndReceive sends a message over conn and returns it as it is received.
func sendAndReceive(t *testing.T, conn *grpc.ClientConn, topic string) *rmqpb.Message {
	t.Helper()
	client := rmqpb.NewMessagingServiceClient(conn)
	res, err := client.SendMessage(as(t.Context()), &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{{
		Topic: &rmqpb.Resource{Name: topic}, Body: []byte("x"), SystemProperties: &rmqpb.SystemProperties{MessageId: "1"},
	}}})
	require.NoError(t, err)
	require.Equal(t, rmqpb.Code_OK, res.GetStatus().GetCode(), res.GetStatus().GetMessage())
	stream, err := client.ReceiveMessage(as(t.Context()), &rmqpb.ReceiveMessageRequest{
		Group: &rmqpb.Resource{Name: "g"}, MessageQueue: &rmqpb.MessageQueue{Topic: &rmqpb.Resource{Name: topic}},
		BatchSize: 1, InvisibleDuration: durationpb.New(time.Minute),
	})
	require.NoError(t, err)
	for {
		frame, err := stream.Recv()
		require.NoError(t, err)
		if m := frame.GetMessage(); m != nil {
			return m
		}
	}
}

func TestEachListenerNamesItsOwnAddress(t *testing.T) {
	r := start(t, t.TempDir(), func(c *config.Config) {
		c.Advertise = "inside.example:81"
		c.Listeners = []config.Listener{
			{Listen: "127.0.0.1:0", Advertise: "[2001:db8::1]:82"},
			{Listen: "127.0.0.1:0"},
		}
	})
	r.topic(t, "t")
	dialled := endpoints(rmqpb.AddressScheme_DOMAIN_NAME, "dialled.example", 83)
	require.Len(t, r.info.Listeners, 2)
	for address, want := range map[string]*rmqpb.Endpoints{
		r.info.GRPCAddr:     endpoints(rmqpb.AddressScheme_DOMAIN_NAME, "inside.example", 81),
		r.info.Listeners[0]: endpoints(rmqpb.AddressScheme_IPv6, "2001:db8::1", 82),
		r.info.Listeners[1]: dialled,
	} {
		for _, creds := range []grpc.DialOption{cleartext(), overTLS()} {
			require.Equal(t, want.String(), route(t, connect(t, address, creds), "t", dialled).String())
		}
	}
	r.stop(t)
}

func TestMessagesFromBehindABalancerAreBornAtTheClient(t *testing.T) {
	r := start(t, t.TempDir(), func(c *config.Config) {
		c.Listeners = []config.Listener{{Listen: "127.0.0.1:0", ProxyProtocol: config.ProxyProtocolRequired}}
	})
	for name, tc := range map[string]struct{ header, host string }{
		"v1-4": {"PROXY TCP4 192.0.2.7 192.0.2.8 56324 443\r\n", "192.0.2.7"},
		"v1-6": {"PROXY TCP6 ::1 ::2 56324 443\r\n", "::1"},
		"v2-4": {"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\xc0\x00\x02\x07\xc0\x00\x02\x08\xdc\x04\x01\xbb", "192.0.2.7"},
	} {
		for _, creds := range []grpc.DialOption{cleartext(), overTLS()} {
			r.topic(t, name)
			got := sendAndReceive(t, connect(t, r.info.Listeners[0], creds, behind(tc.header)), name)
			require.Equal(t, tc.host, got.GetSystemProperties().GetBornHost())
			_, err := r.admin.DeleteTopic(t.Context(), &adminpb.DeleteTopicRequest{Name: name})
			require.NoError(t, err)
		}
	}
	r.stop(t)
}

func TestIPv6ClientsGetIPv6Answers(t *testing.T) {
	if probe, err := net.Listen("tcp", "[::1]:0"); err != nil {
		t.Skip("this machine has no IPv6: ", err)
	} else {
		probe.Close()
	}
	r := start(t, t.TempDir(), func(c *config.Config) { c.GRPCListen = "[::]:0" })
	bound, err := netip.ParseAddrPort(r.info.GRPCAddr)
	require.NoError(t, err)
	conn := connect(t, netip.AddrPortFrom(netip.IPv6Loopback(), bound.Port()).String())
	r.topic(t, "t")
	asked := endpoints(rmqpb.AddressScheme_IPv6, "::1", int32(bound.Port()))
	for _, dialled := range []*rmqpb.Endpoints{asked, endpoints(rmqpb.AddressScheme_IPv6, "[::1]", int32(bound.Port())), nil} {
		require.Equal(t, asked.String(), route(t, conn, "t", dialled).String())
	}
	got := sendAndReceive(t, conn, "t")
	host, err := netip.ParseAddr(got.GetSystemProperties().GetBornHost())
	require.NoError(t, err)
	require.Equal(t, netip.IPv6Loopback(), host)
	// The same socket serves IPv4.
	asked = endpoints(rmqpb.AddressScheme_IPv4, "127.0.0.1", int32(bound.Port()))
	require.Equal(t, asked.String(), route(t, connect(t, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), bound.Port()).String()), "t", nil).String())
	r.stop(t)
}

func TestHealthNeedsNoHeader(t *testing.T) {
	r := start(t, t.TempDir())
	for _, creds := range []grpc.DialOption{cleartext(), overTLS()} {
		res, err := healthpb.NewHealthClient(connect(t, r.info.GRPCAddr, creds)).Check(t.Context(), &healthpb.HealthCheckRequest{})
		require.NoError(t, err)
		require.Equal(t, healthpb.HealthCheckResponse_SERVING, res.GetStatus())
	}
	r.stop(t)
}

func TestConnectionsAboveTheLimitAreRefusedAndCounted(t *testing.T) {
	r := start(t, t.TempDir(), func(c *config.Config) { c.MaxConnections = 1 })
	r.topic(t, "t") // takes the one
	for range 3 {
		conn, err := net.Dial("tcp", r.info.GRPCAddr)
		require.NoError(t, err)
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(30*time.Second)))
		_, err = conn.Read(make([]byte, 1))
		require.Error(t, err)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
		conn.Close()
	}
	require.Equal(t, rmqpb.Code_OK, r.send(t, "t").GetCode())
	require.Contains(t, r.metrics(t), `perigee_connections_refused_total{reason="limit"} 3`)
	require.Contains(t, r.metrics(t), "perigee_connections 1")
	r.stop(t)
}

func TestTheHTTPPortBoundsItsConnections(t *testing.T) {
	r := start(t, t.TempDir())
	const bound = 256
	var held []net.Conn
	defer func() {
		for _, conn := range held {
			conn.Close()
		}
	}()
	for range bound {
		conn, err := net.Dial("tcp", r.info.HTTPAddr)
		require.NoError(t, err)
		held = append(held, conn)
	}
	conn, err := net.Dial("tcp", r.info.HTTPAddr)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(30*time.Second)))
	_, err = conn.Read(make([]byte, 1))
	require.Error(t, err)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	// One that has been taken is served.
	_, err = held[0].Write([]byte("GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"))
	require.NoError(t, err)
	require.NoError(t, held[0].SetReadDeadline(time.Now().Add(30*time.Second)))
	answer := make([]byte, 15)
	_, err = io.ReadFull(held[0], answer)
	require.NoError(t, err)
	require.Equal(t, "HTTP/1.1 200 OK", string(answer))
	r.stop(t)
}

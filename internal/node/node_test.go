package node_test

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/internal/config"
	"github.com/perigee-mq/perigee/internal/node"
)

// running is a node in this process and a connection to it.
type running struct {
	info   node.Info
	conn   *grpc.ClientConn
	rmq    rmqpb.MessagingServiceClient
	admin  adminpb.AdminServiceClient
	cancel context.CancelFunc
	done   chan error
}

func configOf(dir string, change ...func(*config.Config)) config.Config {
	cfg := config.Default()
	cfg.DataDir, cfg.GRPCListen, cfg.HTTPListen = dir, "127.0.0.1:0", "127.0.0.1:0"
	full := config.Watermark{Percent: 100} // however full the disk of the test is
	cfg.Retention.Disk = config.DiskRetention{Clean: full, Force: full, Refuse: full}
	for _, c := range change {
		c(&cfg)
	}
	return cfg
}

func start(t *testing.T, dir string, change ...func(*config.Config)) *running {
	t.Helper()
	cfg := configOf(dir, change...)
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{cancel: cancel, done: make(chan error, 1)}
	ready := make(chan node.Info, 1)
	go func() { r.done <- node.Run(ctx, cfg, slog.New(slog.DiscardHandler), func(i node.Info) { ready <- i }) }()
	select {
	case r.info = <-ready:
	case err := <-r.done:
		t.Fatal("not started: ", err)
	}
	var err error
	r.conn, err = grpc.NewClient(r.info.GRPCAddr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	r.rmq, r.admin = rmqpb.NewMessagingServiceClient(r.conn), adminpb.NewAdminServiceClient(r.conn)
	t.Cleanup(func() {
		_ = r.conn.Close()
		cancel()
	})
	return r
}

// stop ends the node and waits for it; a node that hangs fails the test.
func (r *running) stop(t *testing.T) {
	t.Helper()
	r.cancel()
	select {
	case err := <-r.done:
		require.NoError(t, err)
	case <-time.After(time.Minute):
		t.Fatal("the node does not stop")
	}
}

func as(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "x-mq-client-id", "tester")
}

func (r *running) send(t *testing.T, topic string) *rmqpb.Status {
	t.Helper()
	resp, err := r.rmq.SendMessage(as(t.Context()), &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{{
		Topic: &rmqpb.Resource{Name: topic}, Body: []byte("x"),
		SystemProperties: &rmqpb.SystemProperties{MessageId: rand.Text()},
	}}})
	require.NoError(t, err)
	return resp.GetStatus()
}

// receive returns the codes and bodies of one receive.
func (r *running) receive(ctx context.Context, topic string, wait time.Duration) (code rmqpb.Code, bodies []string, err error) {
	stream, err := r.rmq.ReceiveMessage(as(ctx), &rmqpb.ReceiveMessageRequest{
		Group: &rmqpb.Resource{Name: "g"}, MessageQueue: &rmqpb.MessageQueue{Topic: &rmqpb.Resource{Name: topic}},
		BatchSize: 32, InvisibleDuration: durationpb.New(time.Minute), LongPollingTimeout: durationpb.New(wait),
	})
	if err != nil {
		return 0, nil, err
	}
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return code, bodies, nil
		}
		if err != nil {
			return 0, nil, err
		}
		if st := resp.GetStatus(); st != nil {
			code = st.GetCode()
		}
		if m := resp.GetMessage(); m != nil {
			bodies = append(bodies, string(m.GetBody()))
		}
	}
}

func TestNodeServesAndSaysSo(t *testing.T) {
	r := start(t, t.TempDir())
	health, err := healthpb.NewHealthClient(r.conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	require.Equal(t, healthpb.HealthCheckResponse_SERVING, health.GetStatus())
	for _, path := range []string{"/livez", "/readyz", "/metrics"} {
		resp, err := http.Get("http://" + r.info.HTTPAddr + path)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, resp.StatusCode, path)
		require.NoError(t, resp.Body.Close())
	}
	require.Equal(t, rmqpb.Code_TOPIC_NOT_FOUND, r.send(t, "missing").GetCode())
	r.stop(t)
}

func TestWaitingReceiveEndsEmptyWhenTheNodeStops(t *testing.T) {
	r := start(t, t.TempDir())
	_, err := r.admin.CreateTopic(t.Context(), &adminpb.CreateTopicRequest{Name: "t"})
	require.NoError(t, err)
	telemetry, err := r.rmq.Telemetry(as(t.Context()))
	require.NoError(t, err)
	_, err = telemetry.Header()
	require.NoError(t, err)
	type answer struct {
		code rmqpb.Code
		err  error
	}
	answers := make(chan answer, 1)
	go func() {
		code, _, err := r.receive(context.Background(), "t", 20*time.Second)
		answers <- answer{code, err}
	}()
	require.Eventually(t, func() bool { // the receive has fixed where the group starts: it waits
		resp, err := r.admin.GetGroup(t.Context(), &adminpb.GetGroupRequest{Name: "g"})
		return err == nil && len(resp.GetTopics()) == 1
	}, 30*time.Second, 10*time.Millisecond)
	r.stop(t)
	got := <-answers
	require.NoError(t, got.err)
	require.Equal(t, rmqpb.Code_MESSAGE_NOT_FOUND, got.code)
}

func TestMessagesAndDeletionsSurviveARestart(t *testing.T) {
	dir := t.TempDir()
	r := start(t, dir)
	for _, name := range []string{"kept", "deleted"} {
		_, err := r.admin.CreateTopic(t.Context(), &adminpb.CreateTopicRequest{Name: name})
		require.NoError(t, err)
		require.Equal(t, rmqpb.Code_OK, r.send(t, name).GetCode())
	}
	_, err := r.admin.DeleteTopic(t.Context(), &adminpb.DeleteTopicRequest{Name: "deleted"})
	require.NoError(t, err)
	r.stop(t)

	r = start(t, dir)
	require.Equal(t, rmqpb.Code_TOPIC_NOT_FOUND, r.send(t, "deleted").GetCode())
	_, err = r.admin.CreateTopic(t.Context(), &adminpb.CreateTopicRequest{Name: "deleted"})
	require.NoError(t, err)
	for name, want := range map[string][]string{"kept": {"x"}, "deleted": nil} {
		_, bodies, err := r.receive(t.Context(), name, 0)
		require.NoError(t, err)
		require.Equal(t, want, bodies, name)
	}
	r.stop(t)
}

func TestANodeListsItsClients(t *testing.T) {
	r := start(t, t.TempDir())
	_, err := r.rmq.Heartbeat(as(t.Context()), &rmqpb.HeartbeatRequest{ClientType: rmqpb.ClientType_PRODUCER})
	require.NoError(t, err)
	resp, err := adminpb.NewClientServiceClient(r.conn).ListClients(t.Context(), &adminpb.ListClientsRequest{})
	require.NoError(t, err)
	require.Len(t, resp.GetClients(), 1)
	c := resp.GetClients()[0]
	require.Equal(t, "tester", c.GetId())
	require.Equal(t, adminpb.ClientType_CLIENT_TYPE_PRODUCER, c.GetType())
	require.Regexp(t, `^127\.0\.0\.1:\d+$`, c.GetAddress())
	require.NotEmpty(t, c.GetNode())
	r.stop(t)
}

func TestSecondNodeOnTheSameDataIsRefused(t *testing.T) {
	dir := t.TempDir()
	r := start(t, dir)
	cfg := config.Default()
	cfg.DataDir, cfg.GRPCListen, cfg.HTTPListen = dir, "127.0.0.1:0", "127.0.0.1:0"
	err := node.Run(t.Context(), cfg, slog.New(slog.DiscardHandler), func(node.Info) { t.Error("ready") })
	require.ErrorContains(t, err, "data_dir "+dir)
	require.ErrorContains(t, err, "in use by another process")
	require.ErrorContains(t, err, "set data_dir to another folder")
	require.Equal(t, rmqpb.Code_TOPIC_NOT_FOUND, r.send(t, "missing").GetCode(), "the first one is unharmed")
	r.stop(t)
}

func TestAnAddressInUseIsNamedWithItsKey(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, taken.Close()) }()
	address := taken.Addr().String()
	for key, set := range map[string]func(*config.Config){
		"http_listen":         func(c *config.Config) { c.HTTPListen = address },
		"grpc_listen":         func(c *config.Config) { c.GRPCListen = address },
		"listeners[0].listen": func(c *config.Config) { c.Listeners = []config.Listener{{Listen: address}} },
	} {
		cfg := config.Default()
		cfg.DataDir, cfg.GRPCListen, cfg.HTTPListen = t.TempDir(), "127.0.0.1:0", "127.0.0.1:0"
		set(&cfg)
		err := node.Run(t.Context(), cfg, slog.New(slog.DiscardHandler), func(node.Info) { t.Error("ready") })
		require.ErrorContains(t, err, key+": listen tcp "+address+": ")
		require.ErrorContains(t, err, "set "+key+" to another address")
	}
}

func TestOnlySendsAreLarge(t *testing.T) {
	r := start(t, t.TempDir())
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-mq-client-id", "tester")
	_, err := r.rmq.Heartbeat(ctx, &rmqpb.HeartbeatRequest{Group: &rmqpb.Resource{Name: strings.Repeat("x", 5<<20)}})
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	require.ErrorContains(t, err, "4194304")
	r.topic(t, "orders")
	var large []*rmqpb.Message
	for range 2 {
		large = append(large, &rmqpb.Message{
			Topic: &rmqpb.Resource{Name: "orders"}, Body: make([]byte, 3<<20), SystemProperties: &rmqpb.SystemProperties{MessageId: "1"},
		})
	}
	resp, err := r.rmq.SendMessage(ctx, &rmqpb.SendMessageRequest{Messages: large})
	require.NoError(t, err)
	require.Equal(t, rmqpb.Code_OK, resp.GetStatus().GetCode(), resp.GetStatus().GetMessage())
	r.stop(t)
}

func TestLimitsOfTheConfigurationReachTheTiers(t *testing.T) {
	r := start(t, t.TempDir(), func(c *config.Config) {
		c.InFlightLimit, c.MaxWaitingReceives = 1, 1
		c.MaxRecvSize, c.MaxBodySize = 128<<10, 64<<10
		c.AutoCreateTopics, c.DefaultQueues = true, 1
	})
	large := &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{{Topic: &rmqpb.Resource{Name: "a"}, Body: make([]byte, 200<<10)}}}
	resp, err := r.rmq.SendMessage(as(t.Context()), large)
	require.NoError(t, err)
	require.Equal(t, rmqpb.Code_PAYLOAD_TOO_LARGE, resp.GetStatus().GetCode())
	require.Contains(t, resp.GetStatus().GetMessage(), "the limit is 131072")

	for range 2 {
		require.Equal(t, rmqpb.Code_OK, r.send(t, "a").GetCode())
	}
	_, bodies, err := r.receive(t.Context(), "a", 0)
	require.NoError(t, err)
	require.Len(t, bodies, 1)
	code, bodies, err := r.receive(t.Context(), "a", 0)
	require.NoError(t, err)
	require.Equal(t, rmqpb.Code_TOO_MANY_REQUESTS, code)
	require.Empty(t, bodies)

	require.Equal(t, rmqpb.Code_OK, r.send(t, "quiet").GetCode())
	_, _, err = r.receive(t.Context(), "quiet", 0)
	require.NoError(t, err)
	codes := make(chan rmqpb.Code, 2)
	for range 2 {
		go func() {
			code, _, _ := r.receive(t.Context(), "quiet", 20*time.Second)
			codes <- code
		}()
	}
	require.Equal(t, rmqpb.Code_TOO_MANY_REQUESTS, <-codes, "one of them may wait")
	require.Equal(t, rmqpb.Code_OK, r.send(t, "quiet").GetCode())
	<-codes
	r.stop(t)
}

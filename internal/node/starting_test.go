package node

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
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

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/internal/config"
)

// starting returns a node whose ports are open and whose tiers are not, the context
// that ends with it, and a connection to it.
func starting(t *testing.T) (*node, context.Context, *grpc.ClientConn) {
	t.Helper()
	cfg := config.Default()
	cfg.DataDir, cfg.GRPCListen, cfg.HTTPListen = t.TempDir(), "127.0.0.1:0", "127.0.0.1:0"
	full := config.Watermark{Percent: 100} // what else is on the disk is no part of a test
	cfg.Retention.Disk = config.DiskRetention{Clean: full, Force: full, Refuse: full}
	n := newNode(cfg, slog.New(slog.DiscardHandler))
	background, cancel := context.WithCancel(context.Background())
	n.cancel = cancel
	require.NoError(t, n.open(background))
	conn, err := grpc.NewClient(n.grpcListeners[0].Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return n, background, conn
}

func TestHealthSaysThatANodeIsStartingAndCallsWait(t *testing.T) {
	n, background, conn := starting(t)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-mq-client-id", "c")
	health := healthpb.NewHealthClient(conn)
	resp, err := health.Check(t.Context(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	require.Equal(t, healthpb.HealthCheckResponse_NOT_SERVING, resp.GetStatus())
	watch, err := health.Watch(t.Context(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	next, err := watch.Recv()
	require.NoError(t, err)
	require.Equal(t, healthpb.HealthCheckResponse_NOT_SERVING, next.GetStatus())

	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	_, err = rmqpb.NewMessagingServiceClient(conn).Heartbeat(short, &rmqpb.HeartbeatRequest{ClientType: rmqpb.ClientType_PRODUCER})
	require.Equal(t, codes.DeadlineExceeded, status.Code(err), "it waits no longer than it may")

	waiting := make(chan error, 2)
	go func() {
		_, err := adminpb.NewAdminServiceClient(conn).CreateTopic(ctx, &adminpb.CreateTopicRequest{Name: "t"})
		waiting <- err
	}()
	go func() {
		stream, err := rmqpb.NewMessagingServiceClient(conn).Telemetry(ctx)
		if err == nil {
			_, err = stream.Header()
		}
		waiting <- err
	}()
	require.NoError(t, n.recoverTiers(background))
	for range 2 {
		require.NoError(t, <-waiting)
	}
	next, err = watch.Recv()
	require.NoError(t, err)
	require.Equal(t, healthpb.HealthCheckResponse_SERVING, next.GetStatus())
	require.NoError(t, n.stop())
}

func TestANodeThatCannotStartLetsItsCallersGo(t *testing.T) {
	n, background, conn := starting(t)
	store := filepath.Join(n.cfg.DataDir, StoreDir)
	require.NoError(t, os.WriteFile(store, nil, 0o600)) // a file where the folder should be
	waiting := make(chan error, 1)
	stream, err := rmqpb.NewMessagingServiceClient(conn).Telemetry(metadata.AppendToOutgoingContext(t.Context(), "x-mq-client-id", "c"))
	require.NoError(t, err)
	go func() {
		_, err := stream.Recv()
		waiting <- err
	}()
	require.ErrorContains(t, n.recoverTiers(background), store)
	require.NoError(t, n.stop())
	require.Equal(t, codes.Unavailable, status.Code(<-waiting))
}

func TestAProxyThatFindsNoRouterSaysWhatItWaitsFor(t *testing.T) {
	cfg := config.DefaultOf(config.Proxy)
	cfg.DataDir, cfg.GRPCListen, cfg.HTTPListen, cfg.Routers = t.TempDir(), "127.0.0.1:0", "127.0.0.1:0", []string{"127.0.0.1:1"}
	n := newNode(cfg, slog.New(slog.DiscardHandler))
	background, cancel := context.WithCancel(context.Background())
	n.cancel = cancel
	require.NoError(t, n.open(background))
	started := make(chan error, 1)
	go func() { started <- n.recoverTiers(background) }()
	require.Eventually(t, func() bool {
		err := n.ready()
		return err != nil && strings.Contains(err.Error(), "nothing is known of the metadata yet: unavailable: no router answers: 127.0.0.1:1")
	}, 20*time.Second, 10*time.Millisecond)
	cancel()
	require.Error(t, <-started)
	require.NoError(t, n.stop())
}

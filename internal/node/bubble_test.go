package node

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/internal/config"
)

// A bubbleNode is a node whose store lies on disk and whose clients come through
// memory, so that it runs in fake time.
type bubbleNode struct {
	*node
	rmq   rmqpb.MessagingServiceClient
	admin adminpb.AdminServiceClient
	conn  *grpc.ClientConn

	closed bool
}

// startInBubble starts a node on the folder dir; it ends with the test at the latest.
func startInBubble(t *testing.T, dir string, change ...func(*config.Config)) *bubbleNode {
	t.Helper()
	cfg := config.Default()
	cfg.DataDir, cfg.TLS.Mode = dir, config.TLSDisabled
	full := config.Watermark{Percent: 100} // whatever the disk of the test
	cfg.Retention.Disk = config.DiskRetention{Clean: full, Force: full, Refuse: full}
	for _, c := range change {
		c(&cfg)
	}
	b := &bubbleNode{node: &node{
		cfg: cfg, logger: slog.New(slog.DiscardHandler), draining: make(chan struct{}), recovered: make(chan struct{}), failures: make(chan error, 1),
	}}
	t.Cleanup(func() { b.close(t) })
	b.health = health.NewServer()
	var err error
	b.metrics, err = newMetrics(cfg, b.ready, b.logger)
	require.NoError(t, err)
	require.NoError(t, b.openCredentials())
	require.NoError(t, b.buildServer())
	listener := bufconn.Listen(1 << 20)
	b.serve("grpc", func() error { return b.grpcServer.Serve(listener) })
	background, cancel := context.WithCancel(context.Background())
	b.cancel = cancel
	require.NoError(t, b.recoverTiers(background))
	b.conn, err = grpc.NewClient("passthrough:///node", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	require.NoError(t, err)
	b.rmq, b.admin = rmqpb.NewMessagingServiceClient(b.conn), adminpb.NewAdminServiceClient(b.conn)
	return b
}

func (b *bubbleNode) close(t *testing.T) {
	t.Helper()
	if b.closed {
		return
	}
	b.closed = true
	if b.conn != nil {
		require.NoError(t, b.conn.Close())
	}
	require.NoError(t, b.stop())
}

func (b *bubbleNode) createTopic(t *testing.T, name string, retention time.Duration) {
	t.Helper()
	_, err := b.admin.CreateTopic(t.Context(), &adminpb.CreateTopicRequest{Name: name, Retention: durationpb.New(retention)})
	require.NoError(t, err)
}

func asTester(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "x-mq-client-id", "tester")
}

func (b *bubbleNode) send(t *testing.T, topic string, bodies ...string) {
	t.Helper()
	for _, body := range bodies {
		require.Equal(t, rmqpb.Code_OK, b.trySend(t, topic, body).GetCode())
	}
}

func (b *bubbleNode) trySend(t *testing.T, topic, body string) *rmqpb.Status {
	t.Helper()
	resp, err := b.rmq.SendMessage(asTester(t.Context()), &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{{
		Topic: &rmqpb.Resource{Name: topic}, Body: []byte(body), SystemProperties: &rmqpb.SystemProperties{MessageId: body},
	}}})
	require.NoError(t, err)
	return resp.GetStatus()
}

// receive returns what is there for the group, until nothing comes any more.
func (b *bubbleNode) receive(t *testing.T, topic, group string) (all []*rmqpb.Message) {
	t.Helper()
	for {
		stream, err := b.rmq.ReceiveMessage(asTester(t.Context()), &rmqpb.ReceiveMessageRequest{
			Group: &rmqpb.Resource{Name: group}, MessageQueue: &rmqpb.MessageQueue{Topic: &rmqpb.Resource{Name: topic}},
			BatchSize: 32, InvisibleDuration: durationpb.New(time.Hour),
		})
		require.NoError(t, err)
		n := len(all)
		for {
			resp, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err)
			if m := resp.GetMessage(); m != nil {
				all = append(all, m)
			}
		}
		if len(all) == n {
			return all
		}
	}
}

func bodies(messages []*rmqpb.Message) (list []string) {
	for _, m := range messages {
		list = append(list, string(m.GetBody()))
	}
	return list
}

func (b *bubbleNode) ack(t *testing.T, topic, group string, messages []*rmqpb.Message) rmqpb.Code {
	t.Helper()
	req := &rmqpb.AckMessageRequest{Group: &rmqpb.Resource{Name: group}, Topic: &rmqpb.Resource{Name: topic}}
	for _, m := range messages {
		req.Entries = append(req.Entries, &rmqpb.AckMessageEntry{
			MessageId: m.GetSystemProperties().GetMessageId(), ReceiptHandle: m.GetSystemProperties().GetReceiptHandle(),
		})
	}
	resp, err := b.rmq.AckMessage(asTester(t.Context()), req)
	require.NoError(t, err)
	return resp.GetStatus().GetCode()
}

// lag returns what the group has before it in the topic: ready, in flight, used up.
func (b *bubbleNode) lag(t *testing.T, topic, group string) [3]int64 {
	t.Helper()
	resp, err := b.admin.GetGroup(t.Context(), &adminpb.GetGroupRequest{Name: group})
	require.NoError(t, err)
	for _, g := range resp.GetTopics() {
		if g.GetName() == topic {
			return [3]int64{g.GetReady(), g.GetInFlight(), g.GetUsedUp()}
		}
	}
	return [3]int64{}
}

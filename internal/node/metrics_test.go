package node

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/internal/config"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/proxy"
	"github.com/perigee-mq/perigee/proxy/transport"
	"github.com/perigee-mq/perigee/router"
	"github.com/perigee-mq/perigee/store"
	storeremote "github.com/perigee-mq/perigee/store/remote"
)

// A scene is the tiers in memory with the metrics of a node, and a client of them.
// It runs in a bubble.
type scene struct {
	*metrics
	t      *testing.T
	store  *store.Store
	router *router.Router
	proxy  *proxy.Server
	rmq    rmqpb.MessagingServiceClient
	notUp  error
	opened store.Options
}

const sceneShard = "s0"

func newScene(t *testing.T, maxTopics int) *scene {
	s := &scene{t: t, notUp: errors.New("starting")}
	cfg := config.Default()
	cfg.Version, cfg.Metrics.MaxTopics = "v1.2.3", maxTopics
	var err error
	s.metrics, err = newMetrics(cfg, func() error { return s.notUp }, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	s.disk = func() (vfs.DiskUsage, error) {
		return vfs.DiskUsage{TotalBytes: 1000, UsedBytes: 600, AvailBytes: 350}, nil
	}
	t.Cleanup(func() { require.NoError(t, s.metrics.close()) })
	fs := vfs.NewMem()
	s.opened = store.Options{FS: fs, Dir: "data", Shards: []string{sceneShard}, SegmentSize: 1 << 20, ZeroFill: -1, MaxSeries: maxTopics}
	s.store, err = store.Open(s.opened)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.store.Close()) })
	s.router, err = router.Open(router.Options{FS: fs, Dir: "meta", Shards: []string{sceneShard}, AutoCreateGroups: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.router.Close()) })
	s.proxy, err = proxy.New(proxy.Options{Store: s.store, Router: s.router, Transactions: s.store, Observe: s.calls.observe})
	require.NoError(t, err)
	s.metrics.store.Store(s.store)
	s.metrics.router.Store(s.router)
	s.metrics.proxy.Store(s.proxy)

	network := &networkReading{connections: transport.NewLimit(5, slog.New(slog.DiscardHandler))}
	self, err := transport.SelfSigned(t.TempDir(), slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	network.keyring, err = transport.OpenKeyring(transport.KeyringOptions{SelfSigned: self})
	require.NoError(t, err)
	network.credentials, err = transport.NewCredentials(transport.CredentialsOptions{Mode: transport.Permissive, Keyring: network.keyring})
	require.NoError(t, err)
	s.network.Store(network)
	s.deployment.Store(&deployment{
		problem: func() error { return nil },
		known: func() (uint64, []router.Node, []router.Shard) {
			return s.router.Revision(), []router.Node{{Name: "n", Tier: router.TierStore, Shards: []string{sceneShard}}}, []router.Shard{
				{Name: "gone", State: router.ShardRemoved}, {Name: "lost", State: router.ShardDraining}, {Name: sceneShard, State: router.ShardActive},
			}
		},
		stores: func() storeremote.Stats {
			return storeremote.Stats{Connected: 3, Unreachable: 1, Answered: 7, Unknown: 2}
		},
	})
	s.tierCalls.stream("/perigee.store.v1.StoreService/Calls", 1)
	s.tierCalls.observe("client", "/perigee.store.v1.StoreService/Pull", status.Error(codes.Unavailable, "gone"), time.Second)

	listener := bufconn.Listen(1 << 20)
	opts := transport.ServerOptions(transport.ServerConfig{Credentials: network.credentials})
	server := grpc.NewServer(append(opts, s.proxy.Interceptors()...)...)
	s.proxy.Register(server)
	go func() {
		_ = server.Serve(transport.NewListener(listener, transport.ListenerOptions{Limit: network.connections}))
	}()
	conn, err := grpc.NewClient("passthrough:///perigee.test:8081",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, conn.Close())
		server.Stop()
		s.proxy.Close()
	})
	s.rmq = rmqpb.NewMessagingServiceClient(conn)
	return s
}

// restartStore closes the store and opens it again. Calls of clients fail from then on.
func (s *scene) restartStore() {
	require.NoError(s.t, s.store.Close())
	var err error
	s.store, err = store.Open(s.opened)
	require.NoError(s.t, err)
	s.metrics.store.Store(s.store)
}

func (s *scene) as() context.Context {
	return metadata.AppendToOutgoingContext(s.t.Context(), "x-mq-client-id", "tester")
}

func (s *scene) topic(name string) *mq.Topic {
	t, _, err := s.router.CreateTopic(s.t.Context(), router.TopicSpec{Resource: mq.Resource{Name: name}, Queues: 1})
	require.NoError(s.t, err)
	return t
}

func (s *scene) send(topic string, ids ...string) {
	req := &rmqpb.SendMessageRequest{}
	for _, id := range ids {
		req.Messages = append(req.Messages, &rmqpb.Message{
			Topic: &rmqpb.Resource{Name: topic}, Body: []byte("12345"), SystemProperties: &rmqpb.SystemProperties{MessageId: id},
		})
	}
	res, err := s.rmq.SendMessage(s.as(), req)
	require.NoError(s.t, err)
	require.Equal(s.t, rmqpb.Code_OK, res.GetStatus().GetCode())
}

// receive returns the receipt handles of what one receive gets.
func (s *scene) receive(topic, group string, most int32, renewed bool) (handles []string) {
	stream, err := s.rmq.ReceiveMessage(s.as(), &rmqpb.ReceiveMessageRequest{
		Group: &rmqpb.Resource{Name: group}, MessageQueue: &rmqpb.MessageQueue{Topic: &rmqpb.Resource{Name: topic}},
		BatchSize: most, InvisibleDuration: durationpb.New(30 * time.Second), AutoRenew: renewed, LongPollingTimeout: durationpb.New(5 * time.Second),
	})
	require.NoError(s.t, err)
	for {
		res, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return handles
		}
		require.NoError(s.t, err)
		if m := res.GetMessage(); m != nil {
			handles = append(handles, m.GetSystemProperties().GetReceiptHandle())
		}
	}
}

func (s *scene) ack(topic, group, handle string) rmqpb.Code {
	res, err := s.rmq.AckMessage(s.as(), &rmqpb.AckMessageRequest{
		Group: &rmqpb.Resource{Name: group}, Topic: &rmqpb.Resource{Name: topic},
		Entries: []*rmqpb.AckMessageEntry{{ReceiptHandle: handle}},
	})
	require.NoError(s.t, err)
	return res.GetStatus().GetCode()
}

func (s *scene) change(topic, group, handle string, d time.Duration) {
	res, err := s.rmq.ChangeInvisibleDuration(s.as(), &rmqpb.ChangeInvisibleDurationRequest{
		Group: &rmqpb.Resource{Name: group}, Topic: &rmqpb.Resource{Name: topic},
		ReceiptHandle: handle, InvisibleDuration: durationpb.New(d),
	})
	require.NoError(s.t, err)
	require.Equal(s.t, rmqpb.Code_OK, res.GetStatus().GetCode())
}

// scrape returns what /metrics serves, after what is kept from before is too old.
func (s *scene) scrape() map[string]*dto.MetricFamily {
	time.Sleep(surveyInterval)
	synctest.Wait()
	rec := httptest.NewRecorder()
	s.handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	require.Equal(s.t, http.StatusOK, rec.Code, rec.Body.String())
	parser := expfmt.NewTextParser(model.UTF8Validation)
	list, err := parser.TextToMetricFamilies(rec.Body)
	require.NoError(s.t, err)
	return list
}

// own returns the metrics in a scrape that are the project's.
func own(list map[string]*dto.MetricFamily) map[string]*dto.MetricFamily {
	list = maps.Clone(list)
	maps.DeleteFunc(list, func(name string, _ *dto.MetricFamily) bool { return !strings.HasPrefix(name, "perigee_") })
	return list
}

// figures returns every value in a scrape by its name and labels, as Prometheus
// writes them; of a histogram its count.
func figures(list map[string]*dto.MetricFamily) map[string]float64 {
	values := map[string]float64{}
	for name, f := range own(list) {
		for _, m := range f.GetMetric() {
			labels := []string{}
			for _, l := range m.GetLabel() {
				if l.GetName() != "shard" {
					labels = append(labels, l.GetName()+"="+l.GetValue())
				}
			}
			key := name
			if len(labels) > 0 {
				key += "{" + strings.Join(labels, ",") + "}"
			}
			values[key] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return values
}

// labelsOf returns the names of the labels of a family, and requires that all its
// metrics have the same.
func labelsOf(t *testing.T, f *dto.MetricFamily) []string {
	var all []string
	for i, m := range f.GetMetric() {
		names := []string{}
		for _, l := range m.GetLabel() {
			names = append(names, l.GetName())
		}
		slices.Sort(names)
		if i > 0 {
			require.Equal(t, all, names, f.GetName())
		}
		all = names
	}
	return all
}

package proxy

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/proxy/transport"
	"github.com/perigee-mq/perigee/router"
	"github.com/perigee-mq/perigee/store"
	"github.com/perigee-mq/perigee/store/filter"
)

const testShard = "perigee-0"

// A testServer is a Server on a real store and a real router, both on one file
// system in memory. Its handlers can be called directly, with a context of as.
type testServer struct {
	*Server
	nodes *store.Store
	meta  *router.Router
	sent  int // by stored
}

type testOptions struct {
	Options
	router   router.Options
	deployed bool // there may be other proxies before the store, see second
}

// newTestServer starts a server that ends with the test. Groups are made when
// they are first named, topics are not.
func newTestServer(t testing.TB, change ...func(*testOptions)) *testServer {
	t.Helper()
	fs := vfs.NewMem()
	o := testOptions{router: router.Options{FS: fs, Dir: "meta", Shards: []string{testShard}, AutoCreateGroups: true}}
	for _, c := range change {
		c(&o)
	}
	nodes, err := store.Open(store.Options{
		FS: fs, Dir: "data", Shards: o.router.Shards, SegmentSize: 64 << 20, ZeroFill: 1 << 20,
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, nodes.Close()) })
	meta, err := router.Open(o.router)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, meta.Close()) })
	o.Store, o.Router, o.Transactions = nodes, meta, nodes
	if o.deployed {
		o.Handover = nodes
	}
	o.CompileFilter = compileFilter
	s, err := New(o.Options)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return &testServer{Server: s, nodes: nodes, meta: meta}
}

func compileFilter(expression string) (mq.Filter, error) { return filter.Compile(expression) }

// topic creates a topic, NORMAL and with two queues unless spec says otherwise.
func (s *testServer) topic(t testing.TB, name string, spec ...router.TopicSpec) *mq.Topic {
	t.Helper()
	want := router.TopicSpec{Queues: 2}
	if len(spec) > 0 {
		want = spec[0]
	}
	want.Name = name
	topic, _, err := s.meta.CreateTopic(t.Context(), want)
	require.NoError(t, err)
	return topic
}

// group creates a group with the defaults of the router unless spec says otherwise.
func (s *testServer) group(t testing.TB, name string, spec ...router.GroupSpec) *mq.Group {
	t.Helper()
	var want router.GroupSpec
	if len(spec) > 0 {
		want = spec[0]
	}
	want.Name = name
	group, _, err := s.meta.CreateGroup(t.Context(), want)
	require.NoError(t, err)
	return group
}

// as returns the context of a call by the client, for a handler called directly.
// More headers are pairs of key and value.
func as(t testing.TB, clientID string, headers ...string) context.Context {
	return metadata.NewIncomingContext(t.Context(), metadata.Pairs(append([]string{headerClientID, clientID}, headers...)...))
}

// from returns the context of a call by the client over a connection of dial.
func from(t testing.TB, clientID string, headers ...string) context.Context {
	return metadata.NewOutgoingContext(t.Context(), metadata.Pairs(append([]string{headerClientID, clientID}, headers...)...))
}

// serve serves s over pipes and returns what opens one.
func (s *testServer) serve(t testing.TB) func(context.Context, string) (net.Conn, error) {
	t.Helper()
	listener := bufconn.Listen(1 << 20)
	g := grpc.NewServer(append(transport.ServerOptions(transport.ServerConfig{}), s.Interceptors()...)...)
	s.Register(g)
	served := make(chan error, 1)
	go func() { served <- g.Serve(listener) }()
	t.Cleanup(func() {
		g.Stop()
		if err := <-served; !errors.Is(err, grpc.ErrServerStopped) { // before it had begun
			require.NoError(t, err)
		}
	})
	return func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }
}

// dial serves s over a pipe and returns a connection to it.
func (s *testServer) dial(t testing.TB) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///perigee.test:8081", grpc.WithContextDialer(s.serve(t)),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(128<<20)))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return conn
}

// named returns a resource of the default namespace.
func named(name string) *rmqpb.Resource { return &rmqpb.Resource{Name: name} }

// message returns a NORMAL message as an SDK sends it.
func message(topic, id string, body string) *rmqpb.Message {
	return &rmqpb.Message{
		Topic:            named(topic),
		SystemProperties: &rmqpb.SystemProperties{MessageId: id, MessageType: rmqpb.MessageType_NORMAL},
		Body:             []byte(body),
	}
}

// send sends messages and requires that they are stored.
func (s *testServer) send(t testing.TB, msgs ...*rmqpb.Message) []*rmqpb.SendResultEntry {
	t.Helper()
	res, err := s.SendMessage(as(t, "sender"), &rmqpb.SendMessageRequest{Messages: msgs})
	require.NoError(t, err)
	require.Equal(t, rmqpb.Code_OK, res.GetStatus().GetCode(), res.GetStatus().GetMessage())
	return res.GetEntries()
}

// leased takes messages of the topic from its shard, without the front.
func (s *testServer) leased(t testing.TB, topic, group string, most int, wait time.Duration) []mq.Delivery {
	t.Helper()
	tp, err := s.meta.Topic(t.Context(), mq.Resource{Name: topic})
	require.NoError(t, err)
	g, err := s.meta.EnsureGroup(t.Context(), mq.Resource{Name: group})
	require.NoError(t, err)
	got, err := s.nodes.Receive(t.Context(), tp.Shards[0].Shard, mq.Receive{
		Topic: tp, Group: g, Max: most, Invisible: time.Minute, Wait: wait,
	})
	require.NoError(t, err)
	return got
}

package proxy

import (
	"context"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	grpccodes "google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
)

func textLogger(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }

// A brokenRouter panics when it is asked for a topic.
type brokenRouter struct{ Router }

func (brokenRouter) EnsureTopic(context.Context, mq.Resource) (*mq.Topic, error) { panic("boom") }
func (brokenRouter) EnsureGroup(context.Context, mq.Resource) (*mq.Group, error) { panic("boom") }

// An observer keeps the codes it is told of, by method.
type observer struct {
	mu    sync.Mutex
	codes map[string]rmqpb.Code
}

func (o *observer) observe(method string, code rmqpb.Code, _ time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.codes == nil {
		o.codes = map[string]rmqpb.Code{}
	}
	o.codes[method] = code
}

// require checks what was observed of the method, once everything has settled.
func (o *observer) require(t *testing.T, method string, want rmqpb.Code) {
	t.Helper()
	synctest.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	require.Equal(t, want, o.codes["/apache.rocketmq.v2.MessagingService/"+method])
}

func TestPanicCostsOneCallAndIsLogged(t *testing.T) {
	var log strings.Builder
	s := newTestServer(t, func(o *testOptions) { o.Logger = textLogger(&log) })
	s.topic(t, "orders")
	working := s.Server.router
	s.Server.router = brokenRouter{working}
	c := rmqpb.NewMessagingServiceClient(s.dial(t))
	_, err := c.QueryRoute(from(t, "client-7"), &rmqpb.QueryRouteRequest{Topic: named("orders")})
	require.Equal(t, grpccodes.Internal, grpcstatus.Code(err))
	require.NotContains(t, err.Error(), "boom")
	require.Contains(t, log.String(), "boom")
	require.Contains(t, log.String(), "client-7")
	require.Contains(t, log.String(), "QueryRoute")
	require.Contains(t, log.String(), "interceptors_test.go")

	s.Server.router = working
	res, err := c.QueryRoute(from(t, "client-7"), &rmqpb.QueryRouteRequest{Topic: named("orders")})
	require.NoError(t, err)
	require.Equal(t, rmqpb.Code_OK, res.GetStatus().GetCode())
}

func TestPanicIsObservedAsAnInternalError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := observer{}
		s := newTestServer(t, func(o *testOptions) { o.Observe = seen.observe })
		s.Server.router = brokenRouter{s.Server.router}
		_, err := rmqpb.NewMessagingServiceClient(s.dial(t)).QueryRoute(from(t, "c"), &rmqpb.QueryRouteRequest{Topic: named("orders")})
		require.Error(t, err)
		seen.require(t, "QueryRoute", rmqpb.Code_INTERNAL_SERVER_ERROR)
	})
}

func TestPanicOverSettingsCostsOneStream(t *testing.T) {
	s := newTestServer(t)
	s.Server.router = brokenRouter{s.Server.router}
	c := rmqpb.NewMessagingServiceClient(s.dial(t))
	for range 2 {
		stream := open(t, c, from(t, "c"))
		offer(t, stream, subscriber(rmqpb.ClientType_PUSH_CONSUMER, "g"))
		_, err := stream.Recv()
		require.Equal(t, grpccodes.Internal, grpcstatus.Code(err))
	}
}

func TestEveryCallIsObservedWithItsCode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := observer{}
		s := newTestServer(t, func(o *testOptions) { o.Observe = seen.observe })
		c := rmqpb.NewMessagingServiceClient(s.dial(t))
		_, err := c.QueryRoute(from(t, "c"), &rmqpb.QueryRouteRequest{Topic: named("missing")})
		require.NoError(t, err)
		seen.require(t, "QueryRoute", rmqpb.Code_TOPIC_NOT_FOUND)
		pull, err := c.PullMessage(from(t, "c"), &rmqpb.PullMessageRequest{})
		require.NoError(t, err)
		_, err = pull.Recv()
		require.NoError(t, err)
		seen.require(t, "PullMessage", rmqpb.Code_NOT_IMPLEMENTED)

		ctx, cancel := context.WithCancel(from(t, "c"))
		stream := open(t, c, ctx)
		offer(t, stream, publisher())
		reply(t, stream)
		cancel()
		seen.require(t, "Telemetry", rmqpb.Code_OK)
		offer(t, open(t, c, from(t, "c")), publisher("a.b"))
		seen.require(t, "Telemetry", rmqpb.Code_BAD_REQUEST)
	})
}

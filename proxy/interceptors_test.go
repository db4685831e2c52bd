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
	"google.golang.org/protobuf/types/known/durationpb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
)

func textLogger(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }

// A brokenRouter panics when it is asked for a topic.
type brokenRouter struct{ Router }

func (brokenRouter) EnsureTopic(context.Context, mq.Resource) (*mq.Topic, error) { panic("boom") }
func (brokenRouter) EnsureGroup(context.Context, mq.Resource) (*mq.Group, error) { panic("boom") }

// An observer keeps the last call it is told of, by method.
type observer struct {
	mu    sync.Mutex
	calls map[string]Call
}

func (o *observer) observe(c Call) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.calls == nil {
		o.calls = map[string]Call{}
	}
	o.calls[c.Method] = c
}

// last returns the last call of the method, once everything has settled.
func (o *observer) last(method string) Call {
	synctest.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.calls["/apache.rocketmq.v2.MessagingService/"+method]
}

// require checks what was observed of the method: its code, and nothing on the
// transport unless the code is unspecified.
func (o *observer) require(t *testing.T, method string, want rmqpb.Code, transport ...grpccodes.Code) {
	t.Helper()
	c := o.last(method)
	require.Equal(t, want, c.Code)
	require.Equal(t, append(transport, grpccodes.OK)[0], c.GRPC)
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

func TestWhatAClientCallsItselfIsShortInTheLog(t *testing.T) {
	var log strings.Builder
	s := newTestServer(t, func(o *testOptions) { o.Logger = textLogger(&log) })
	s.Server.router = brokenRouter{s.Server.router}
	id := strings.Repeat("i", maxClientID)
	_, err := rmqpb.NewMessagingServiceClient(s.dial(t)).QueryRoute(from(t, id), &rmqpb.QueryRouteRequest{Topic: named("orders")})
	require.Error(t, err)
	require.Contains(t, log.String(), "client=iii")
	require.NotContains(t, log.String(), strings.Repeat("i", 100))
}

func TestPanicIsObservedAsInternal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := observer{}
		s := newTestServer(t, func(o *testOptions) { o.Observe = seen.observe })
		s.Server.router = brokenRouter{s.Server.router}
		_, err := rmqpb.NewMessagingServiceClient(s.dial(t)).QueryRoute(from(t, "c"), &rmqpb.QueryRouteRequest{Topic: named("orders")})
		require.Error(t, err)
		seen.require(t, "QueryRoute", rmqpb.Code_CODE_UNSPECIFIED, grpccodes.Internal)
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
		seen.require(t, "PullMessage", rmqpb.Code_ILLEGAL_CONSUMER_GROUP)

		ctx, cancel := context.WithCancel(from(t, "c"))
		stream := open(t, c, ctx)
		offer(t, stream, publisher())
		reply(t, stream)
		cancel()
		seen.require(t, "Telemetry", rmqpb.Code_OK)
		offer(t, open(t, c, from(t, "c")), publisher("a.b"))
		seen.require(t, "Telemetry", rmqpb.Code_CODE_UNSPECIFIED, grpccodes.InvalidArgument)
	})
}

func TestWaitingOnPurposeIsMeasuredApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := observer{}
		s := newTestServer(t, func(o *testOptions) { o.Observe = seen.observe })
		s.topic(t, "orders")
		c := rmqpb.NewMessagingServiceClient(s.dial(t))
		receive := func(topic string) {
			stream, err := c.ReceiveMessage(from(t, "c"), &rmqpb.ReceiveMessageRequest{
				Group: named("g"), MessageQueue: &rmqpb.MessageQueue{Topic: named(topic)},
				InvisibleDuration: durationpb.New(time.Minute), LongPollingTimeout: durationpb.New(10 * time.Second),
			})
			require.NoError(t, err)
			for err == nil {
				_, err = stream.Recv()
			}
			require.ErrorIs(t, err, io.EOF)
		}
		receive("orders") // empty
		call := seen.last("ReceiveMessage")
		require.Equal(t, 10*time.Second, call.Waited)
		require.Equal(t, call.Waited, call.Took)

		time.AfterFunc(7*time.Second, func() { s.send(t, message("orders", "1", "x")) })
		receive("orders") // woken
		require.Equal(t, 7*time.Second, seen.last("ReceiveMessage").Waited)

		s.send(t, message("orders", "2", "x"))
		receive("orders") // at once
		require.Zero(t, seen.last("ReceiveMessage").Waited)

		receive("missing") // an error that is held back
		require.Equal(t, errorPause, seen.last("ReceiveMessage").Waited)
		seen.require(t, "ReceiveMessage", rmqpb.Code_TOPIC_NOT_FOUND)
	})
}

package node

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"

	"github.com/perigee-mq/perigee/internal/config"
)

// A collector takes spans over gRPC, as the ones that people run do.
type collector struct {
	collectorpb.UnimplementedTraceServiceServer
	mu    sync.Mutex
	spans []*tracepb.ResourceSpans
}

func (c *collector) Export(_ context.Context, req *collectorpb.ExportTraceServiceRequest) (*collectorpb.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.spans = append(c.spans, req.GetResourceSpans()...)
	return &collectorpb.ExportTraceServiceResponse{}, nil
}

func TestSpansReachTheCollectorBeforeTheNodeHasEnded(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var taken collector
	server := grpc.NewServer()
	collectorpb.RegisterTraceServiceServer(server, &taken)
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()

	cfg := config.Default()
	cfg.Version, cfg.Tracing = "v1.2.3", config.Tracing{Endpoint: listener.Addr().String(), Ratio: 1}
	tr, err := openTracing(cfg, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	_, span := tr.tracer().Start(t.Context(), "send orders")
	span.End()
	tr.close()
	require.Len(t, taken.spans, 1)
	about := taken.spans[0].GetResource().String()
	for _, want := range []string{`"service.name"`, `"perigee"`, `"v1.2.3"`, `"perigee-0"`} {
		require.Contains(t, about, want)
	}
	require.Equal(t, "send orders", taken.spans[0].GetScopeSpans()[0].GetSpans()[0].GetName())
}

func TestACollectorThatIsNotThereHoldsNobodyUp(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := listener.Addr().String()
	require.NoError(t, listener.Close())
	var log strings.Builder
	cfg := config.Default()
	cfg.Tracing = config.Tracing{Endpoint: address, Ratio: 1}
	tr, err := openTracing(cfg, slog.New(slog.NewTextHandler(&log, nil)))
	require.NoError(t, err)
	_, span := tr.tracer().Start(t.Context(), "send orders")
	span.End()
	start := time.Now()
	tr.close()
	require.Less(t, time.Since(start), 30*time.Second)
	require.Contains(t, log.String(), "spans not taken by the collector")
}

func TestWithoutAnEndpointNoSpansAreMade(t *testing.T) {
	tr, err := openTracing(config.Default(), slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.Nil(t, tr.tracer())
	tr.close()
}

func TestSamplingFollowsWhoeverDecidedFirst(t *testing.T) {
	of := func(sampled bool, remote bool) trace.SpanContext {
		return trace.NewSpanContext(trace.SpanContextConfig{
			TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, TraceFlags: trace.TraceFlags(0).WithSampled(sampled), Remote: remote,
		})
	}
	links := func(list ...bool) (links []trace.Link) {
		for _, sampled := range list {
			links = append(links, trace.Link{SpanContext: of(sampled, true)})
		}
		return links
	}
	ask := func(ratio float64, parent trace.SpanContext, links []trace.Link) bool {
		return samplerOf(ratio).ShouldSample(sdktrace.SamplingParameters{
			ParentContext: trace.ContextWithRemoteSpanContext(context.Background(), parent), TraceID: trace.TraceID{9}, Links: links,
		}).Decision == sdktrace.RecordAndSample
	}
	none := trace.SpanContext{}
	require.True(t, ask(0, of(true, true), nil), "the caller")
	require.False(t, ask(1, of(false, true), links(true)), "the caller before the sender of the message")
	require.True(t, ask(0, none, links(false, true)), "the sender of one of the messages")
	require.False(t, ask(1, none, links(false)), "the sender of the message")
	require.True(t, ask(1, none, nil), "nobody: the ratio")
	require.False(t, ask(0, none, nil))
}

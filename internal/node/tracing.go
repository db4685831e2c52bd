package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/perigee-mq/perigee/internal/config"
)

// Names by which traces are told apart.
const (
	serviceName = "perigee"
	scopeName   = "github.com/perigee-mq/perigee"
)

// traceFlushTime bounds how long a stopping node waits for the last spans to be
// taken. A collector that does not answer must not hold up the end.
const traceFlushTime = time.Second

// tracing makes spans and sends them to a collector. The zero value makes none.
type tracing struct {
	provider *sdktrace.TracerProvider
	exporter *boundedExporter
}

// openTracing returns tracing as configured. The collector need not be there: spans
// that it does not take are lost, and the log says so.
func openTracing(cfg config.Config, logger *slog.Logger) (tracing, error) {
	if cfg.Tracing.Endpoint == "" {
		return tracing{}, nil
	}
	exporter, err := otlptracegrpc.New(context.Background(), otlptracegrpc.WithEndpointURL(cfg.Tracing.EndpointURL()))
	if err != nil {
		return tracing{}, fmt.Errorf("tracing.endpoint %s: %w", cfg.Tracing.Endpoint, err)
	}
	// The environment may name the service otherwise.
	about, err := resource.New(context.Background(), resource.WithAttributes(
		attribute.String("service.name", serviceName),
		attribute.String("service.version", cmp.Or(cfg.Version, "dev")),
		attribute.String("service.instance.id", cfg.Shard),
	), resource.WithFromEnv())
	if err != nil {
		return tracing{}, errors.Join(fmt.Errorf("attributes of traces: %w", err), exporter.Shutdown(context.Background()))
	}
	bounded := &boundedExporter{SpanExporter: exporter, logger: logger, ended: make(chan struct{})}
	return tracing{sdktrace.NewTracerProvider(
		sdktrace.WithResource(about),
		sdktrace.WithSampler(samplerOf(cfg.Tracing.Ratio)),
		sdktrace.WithBatcher(bounded),
	), bounded}, nil
}

// tracer returns what makes the spans, nil when there are to be none.
func (t tracing) tracer() trace.Tracer {
	if t.provider == nil {
		return nil
	}
	return t.provider.Tracer(scopeName)
}

// close sends what is left, as far as the collector takes it in time.
func (t tracing) close() {
	if t.provider == nil {
		return
	}
	patience := time.AfterFunc(traceFlushTime, func() { close(t.exporter.ended) })
	defer patience.Stop()
	// What is lost is in the log; it is no failure of the node.
	_ = t.provider.Shutdown(context.Background())
}

// samplerOf samples what the caller has sampled, and nothing that it has not. Of
// calls that nobody has decided about, it samples those about messages that are
// traced, and of those about others the ratio.
func samplerOf(ratio float64) sdktrace.Sampler {
	return sdktrace.ParentBased(linkedSampler{sdktrace.TraceIDRatioBased(ratio)})
}

// A linkedSampler decides as those have decided who made what the span is linked
// to. It asks rest where there is nobody.
type linkedSampler struct{ rest sdktrace.Sampler }

// ShouldSample implements sdktrace.Sampler.
func (s linkedSampler) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	if len(p.Links) == 0 {
		return s.rest.ShouldSample(p)
	}
	result := sdktrace.SamplingResult{Decision: sdktrace.Drop}
	for _, l := range p.Links {
		if l.SpanContext.IsSampled() {
			result.Decision = sdktrace.RecordAndSample
		}
	}
	return result
}

// Description implements sdktrace.Sampler.
func (s linkedSampler) Description() string { return "Linked{" + s.rest.Description() + "}" }

// A boundedExporter gives up what it is sending when ended is closed. It logs what
// could not be sent, instead of telling the SDK, which would write to standard
// error on its own.
type boundedExporter struct {
	sdktrace.SpanExporter
	logger *slog.Logger
	ended  chan struct{}
}

// ExportSpans implements sdktrace.SpanExporter.
func (e *boundedExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sent := make(chan error, 1)
	go func() { sent <- e.SpanExporter.ExportSpans(ctx, spans) }()
	var err error
	select {
	case err = <-sent:
	case <-e.ended:
		cancel()
		err = errors.Join(errTracesEnded, <-sent)
	}
	if err != nil {
		e.logger.Warn("spans not taken by the collector", "spans", len(spans), "error", err)
	}
	return nil
}

var errTracesEnded = errors.New("the node has stopped")

package node

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/attribute"
	otelprom "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/store"
	"github.com/perigee-mq/perigee/store/shard"
)

// metrics are the OpenTelemetry instruments of the process, read by Prometheus.
// Their names are stable.
type metrics struct {
	registry *prometheus.Registry
	provider *sdkmetric.MeterProvider
	meter    metric.Meter
	calls    metric.Float64Histogram
	labels   sync.Map // callKey -> metric.MeasurementOption
}

// Bounds of the latency histogram, in seconds.
var latencyBounds = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}

func newMetrics() (*metrics, error) {
	m := &metrics{registry: prometheus.NewRegistry()}
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	exporter, err := otelprom.New(otelprom.WithRegisterer(m.registry), otelprom.WithoutScopeInfo(), otelprom.WithoutTargetInfo())
	if err != nil {
		return nil, err
	}
	m.provider = sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter))
	m.meter = m.provider.Meter("github.com/perigee-mq/perigee")
	m.calls, err = m.meter.Float64Histogram("perigee.rpc.duration", metric.WithUnit("s"),
		metric.WithDescription("Time to answer a call, by RPC and the code in its status."),
		metric.WithExplicitBucketBoundaries(latencyBounds...))
	return m, err
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

func (m *metrics) close() error { return m.provider.Shutdown(context.Background()) }

type callKey struct {
	method string
	code   rmqpb.Code
}

// observeCall counts one answered call.
func (m *metrics) observeCall(method string, code rmqpb.Code, d time.Duration) {
	key := callKey{method, code}
	labels, ok := m.labels.Load(key)
	if !ok {
		set := attribute.NewSet(attribute.String("method", method), attribute.String("code", code.String()))
		labels, _ = m.labels.LoadOrStore(key, metric.WithAttributeSet(set))
	}
	m.calls.Record(context.Background(), d.Seconds(), labels.(metric.MeasurementOption))
}

// observeStore makes the counters of the shards readable.
func (m *metrics) observeStore(s *store.Store) {
	type instrument struct {
		name, help string
		gauge      bool
		value      func(shard.Stats) uint64
	}
	list := []instrument{
		{"perigee.messages.appended", "Messages stored.", false, func(s shard.Stats) uint64 { return s.Appended }},
		{"perigee.messages.appended.bytes", "Bytes of the bodies stored.", false, func(s shard.Stats) uint64 { return s.AppendedBytes }},
		{"perigee.messages.delivered", "Messages leased to consumers, redeliveries included.", false, func(s shard.Stats) uint64 { return s.Delivered }},
		{"perigee.messages.redelivered", "Messages leased for the second or a later time.", false, func(s shard.Stats) uint64 { return s.Redelivered }},
		{"perigee.messages.acknowledged", "Deliveries settled by an acknowledgement.", false, func(s shard.Stats) uint64 { return s.Settled }},
		{"perigee.acks.refused", "Acknowledgements of deliveries that were over.", false, func(s shard.Stats) uint64 { return s.Refused }},
		{"perigee.messages.dead.lettered", "Messages moved to a dead-letter topic.", false, func(s shard.Stats) uint64 { return s.DeadLettered }},
		{"perigee.messages.unreadable", "Reads of stored messages that failed.", false, func(s shard.Stats) uint64 { return s.Unreadable }},
		{"perigee.messages.lost", "Deliveries dropped because the message is no longer stored.", false, func(s shard.Stats) uint64 { return s.Lost }},
		{"perigee.log.records", "Records written to the log.", false, func(s shard.Stats) uint64 { return s.Records }},
		{"perigee.log.syncs", "Syncs of the log.", false, func(s shard.Stats) uint64 { return s.Syncs }},
		{"perigee.receives.waiting", "Receives that wait for a message.", true, func(s shard.Stats) uint64 { return uint64(s.Waiting) }},
		{"perigee.log.first.position", "Oldest position in the log.", true, func(s shard.Stats) uint64 { return s.LogFirst }},
		{"perigee.log.appended.position", "Position behind the last record written.", true, func(s shard.Stats) uint64 { return s.LogAppended }},
		{"perigee.log.flushed.position", "Position behind the last record that is durable.", true, func(s shard.Stats) uint64 { return s.LogFlushed }},
	}
	for _, in := range list {
		observe := func(_ context.Context, o metric.Int64Observer) error {
			for name, stats := range s.Stats() {
				o.Observe(int64(in.value(stats)), metric.WithAttributes(attribute.String("shard", name)))
			}
			return nil
		}
		// The names are constants; creating an instrument of a valid name cannot fail.
		if in.gauge {
			_, _ = m.meter.Int64ObservableGauge(in.name, metric.WithDescription(in.help), metric.WithInt64Callback(observe))
		} else {
			_, _ = m.meter.Int64ObservableCounter(in.name, metric.WithDescription(in.help), metric.WithInt64Callback(observe))
		}
	}
}

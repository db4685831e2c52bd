package node

import (
	"context"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	otelprom "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/perigee-mq/perigee/internal/config"
	"github.com/perigee-mq/perigee/proxy"
	"github.com/perigee-mq/perigee/router"
	"github.com/perigee-mq/perigee/store"
)

// metrics are the metrics of the process, read by Prometheus. What is counted is
// counted where it happens; a scrape collects it here and hands it to
// OpenTelemetry, whose exporter serves it. Their names are stable, and listed in
// catalog.go.
type metrics struct {
	registry *prometheus.Registry
	provider *sdkmetric.MeterProvider
	calls    calls
	version  string
	disk     func() (vfs.DiskUsage, error)
	surveys  *surveys

	// The network and the tiers, as soon as they are open.
	network atomic.Pointer[networkReading]
	store   atomic.Pointer[store.Store]
	router  atomic.Pointer[router.Router]
	proxy   atomic.Pointer[proxy.Server]
	// deployment is nil in a server in one process.
	deployment atomic.Pointer[deployment]
	tierCalls  tierCalls

	started   time.Time
	recovered atomic.Int64 // how long the start took, in nanoseconds; 0: not ready
	ready     func() error
}

// newMetrics returns metrics of a process that starts now, with its data in
// cfg.DataDir. ready says why it cannot serve, or nil.
func newMetrics(cfg config.Config, ready func() error, logger *slog.Logger) (*metrics, error) {
	m := &metrics{
		registry: prometheus.NewRegistry(), version: cfg.Version, started: time.Now(), ready: ready,
		disk: func() (vfs.DiskUsage, error) { return vfs.Default.GetDiskUsage(cfg.DataDir) },
	}
	m.surveys = &surveys{store: m.store.Load, logger: logger}
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	exporter, err := otelprom.New(otelprom.WithRegisterer(m.registry), otelprom.WithProducer(m),
		otelprom.WithoutScopeInfo(), otelprom.WithoutTargetInfo())
	if err != nil {
		return nil, err
	}
	m.provider = sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter))
	return m, nil
}

// handler serves the metrics. A scrape at a time is enough; others wait for it.
func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
}

func (m *metrics) close() error {
	m.surveys.close()
	return m.provider.Shutdown(context.Background())
}

// serving notes that the start is over.
func (m *metrics) serving() { m.recovered.Store(int64(time.Since(m.started))) }

// Produce implements sdkmetric.Producer: it is asked at every scrape.
func (m *metrics) Produce(context.Context) ([]metricdata.ScopeMetrics, error) {
	surveys, age := m.surveys.get()
	e := emission{start: m.started, now: time.Now()}
	m.emitProcess(&e, age)
	m.emitCalls(&e)
	m.emitNetwork(&e)
	if p := m.proxy.Load(); p != nil {
		emit(&e, proxyMetrics, []proxy.Stats{p.Stats()}, noLabels)
	}
	m.emitDeployment(&e)
	if s := m.store.Load(); s != nil {
		m.emitStore(&e, s)
	}
	emitSurveys(&e, surveys)
	return []metricdata.ScopeMetrics{{Metrics: e.metrics}}, nil
}

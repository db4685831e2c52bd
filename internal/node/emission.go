package node

import (
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/perigee-mq/perigee/internal/histogram"
)

// A kind is how the values of a metric are to be read.
type kind string

// The kinds of metrics.
const (
	counter   kind = "counter" // grows since the process started
	gauge     kind = "gauge"
	durations kind = "histogram"
)

// Units of metrics, as OpenTelemetry calls them. Seconds and bytes become part of
// the name that Prometheus sees.
const (
	seconds = "s"
	bytes   = "By"
	none    = ""
)

// A family is what is said about one metric.
type family struct {
	name   string // Prometheus reads underscores for dots, and the unit and kind behind it
	kind   kind
	unit   string
	labels []string
	help   string
}

// A column is a metric with a value in every row of some kind.
type column[R any] struct {
	family
	value func(r R) float64
}

// An emission is what is collected for one scrape.
type emission struct {
	start, now time.Time
	metrics    []metricdata.Metrics
}

// emit adds each column with the values of the rows, and the labels of each row.
func emit[R any](e *emission, columns []column[R], rows []R, labels func(R) attribute.Set) {
	if len(rows) == 0 {
		return
	}
	sets := make([]attribute.Set, len(rows))
	for i := range rows {
		sets[i] = labels(rows[i])
	}
	for _, c := range columns {
		points := make([]metricdata.DataPoint[float64], len(rows))
		for i := range rows {
			points[i] = metricdata.DataPoint[float64]{Attributes: sets[i], StartTime: e.start, Time: e.now, Value: c.value(rows[i])}
		}
		var data metricdata.Aggregation = metricdata.Gauge[float64]{DataPoints: points}
		if c.kind == counter {
			data = metricdata.Sum[float64]{DataPoints: points, Temporality: metricdata.CumulativeTemporality, IsMonotonic: true}
		}
		e.add(c.family, data)
	}
}

// A spread is a histogram with its labels.
type spread struct {
	labels attribute.Set
	histogram.Snapshot
}

// emitDurations adds a histogram for each set of labels.
func (e *emission) emitDurations(f family, list []spread) {
	if len(list) == 0 {
		return
	}
	bounds := histogram.Bounds()
	points := make([]metricdata.HistogramDataPoint[float64], len(list))
	for i, s := range list {
		points[i] = metricdata.HistogramDataPoint[float64]{
			Attributes: s.labels, StartTime: e.start, Time: e.now,
			Count: s.Count, Bounds: bounds, BucketCounts: s.Counts, Sum: s.Sum.Seconds(),
		}
	}
	e.add(f, metricdata.Histogram[float64]{DataPoints: points, Temporality: metricdata.CumulativeTemporality})
}

func (e *emission) add(f family, data metricdata.Aggregation) {
	e.metrics = append(e.metrics, metricdata.Metrics{Name: f.name, Description: f.help, Unit: f.unit, Data: data})
}

func noLabels[R any](R) attribute.Set { return *attribute.EmptySet() }

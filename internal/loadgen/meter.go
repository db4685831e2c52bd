package loadgen

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Latencies are kept between a microsecond and two minutes, to three digits.
const (
	minLatency    = int64(time.Microsecond)
	maxLatency    = int64(2 * time.Minute)
	latencyDigits = 3
)

func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(minLatency, maxLatency, latencyDigits)
}

// record adds d to h, cut to what h holds.
func record(h *hdrhistogram.Histogram, d time.Duration) {
	_ = h.RecordValue(min(max(int64(d), minLatency), maxLatency)) // within its range
}

// meter is what one worker measures. The counters are read while it works; the
// rest belongs to the worker until it has ended.
type meter struct {
	messages atomic.Int64
	bytes    atomic.Int64
	failures atomic.Int64

	requests int64
	latency  *hdrhistogram.Histogram
	ack      *hdrhistogram.Histogram
	errors   map[string]int64
	handles  []Handle
	gone     bool     // the latest call found no server
	_        [64]byte // workers do not share a cache line
}

func newMeter() *meter {
	return &meter{latency: newHistogram(), ack: newHistogram(), errors: map[string]int64{}}
}

// done counts good messages.
func (m *meter) done(messages, bytes int) {
	m.messages.Add(int64(messages))
	m.bytes.Add(int64(bytes))
}

// failed counts n messages or calls that failed for the reason name.
func (m *meter) failed(name string, n int) {
	m.failures.Add(int64(n))
	m.errors[name] += int64(n)
}

// Result is what a load measured.
type Result struct {
	Elapsed  time.Duration
	Messages int64 // with a good result
	Bytes    int64 // of their bodies
	Requests int64
	// Errors counts what failed, by the name of the protocol's code or, for
	// calls that were not answered, of gRPC's.
	Errors map[string]int64
	// Gone says that the latest call of a worker found no server.
	Gone bool
	// Latency is in nanoseconds: per request, or per message from send to
	// receive in an end-to-end load.
	Latency *hdrhistogram.Histogram
	// AckLatency is in nanoseconds, per request; empty when nothing was
	// acknowledged.
	AckLatency *hdrhistogram.Histogram
	// Handles are the deliveries that were kept.
	Handles []Handle
}

// Failures is the sum of all errors.
func (r Result) Failures() (n int64) {
	for _, count := range r.Errors {
		n += count
	}
	return n
}

// PerSecond returns the messages and the bytes per second.
func (r Result) PerSecond() (messages, bytes float64) {
	if s := r.Elapsed.Seconds(); s > 0 {
		return float64(r.Messages) / s, float64(r.Bytes) / s
	}
	return 0, 0
}

// gather adds up what the workers measured.
func gather(elapsed time.Duration, meters []*meter) Result {
	r := Result{Elapsed: elapsed, Errors: map[string]int64{}, Latency: newHistogram(), AckLatency: newHistogram()}
	for _, m := range meters {
		r.Messages += m.messages.Load()
		r.Bytes += m.bytes.Load()
		r.Requests += m.requests
		r.Gone = r.Gone || m.gone
		for name, n := range maps.All(m.errors) {
			r.Errors[name] += n
		}
		r.Latency.Merge(m.latency)
		r.AckLatency.Merge(m.ack)
		r.Handles = append(r.Handles, m.handles...)
	}
	return r
}

// watch calls report once a second until stop is closed.
func watch(start time.Time, meters []*meter, report func(Progress), stop <-chan struct{}) (wait func()) {
	if report == nil {
		return func() {}
	}
	var done sync.WaitGroup
	done.Go(func() {
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		for {
			select {
			case <-stop:
				return
			case <-ticker.C:
			}
			p := Progress{Elapsed: time.Since(start)}
			for _, m := range meters {
				p.Messages += m.messages.Load()
				p.Bytes += m.bytes.Load()
				p.Errors += m.failures.Load()
			}
			report(p)
		}
	})
	return done.Wait
}

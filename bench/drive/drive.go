// Package drive puts the same load on servers of different protocols: so many messages
// of 1 KiB in flight, sent, received and acknowledged, or sent at a fixed rate. Each
// driver does it in its protocol's own way, over as many connections, and measures with
// the same histograms.
//
// A driver is cheap itself, or it measures itself: the server has the same processors.
// That is why messages are sent from where an answer arrives, with clients' low-level
// interfaces, rather than from a goroutine per message.
package drive

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/perigee-mq/perigee/internal/loadgen"
)

const (
	// BodySize is the number of bytes of each message.
	BodySize = 1024
	// Connections is the number of connections of a load, unless fewer are in flight.
	Connections = 4
	// ReceiveBatch is the number of messages that a receive asks for.
	ReceiveBatch = 32
	// invisible is beyond the end of any load: nothing is delivered twice.
	invisible = time.Hour
	// grace is how long a load that is over may wait for its last answers.
	grace = 20 * time.Second
)

// Load is a load of sends or of receives.
type Load struct {
	// InFlight is the number of requests in flight. Each has Batch messages; protocols
	// without batches have so many more messages in flight.
	InFlight, Batch int
	// Each says that messages are acknowledged one by one, and that each acknowledgment
	// is waited for where the protocol has an answer to it.
	Each bool
	loadgen.Limit
}

// Topic names of a round. What a load finds is of the same round.
func roundName(round int) string   { return fmt.Sprint("load-", round) }
func latencyName(round int) string { return fmt.Sprint("latency-", round) }

// The names that there are besides those of rounds.
const (
	startName = "start"
	groupName = "readers"
)

// Topics returns the topics of so many rounds, for servers that have them from the start.
func Topics(rounds int) []string {
	names := []string{startName}
	for round := range rounds {
		names = append(names, roundName(round), latencyName(round))
	}
	return names
}

// Groups returns the consumer groups of all loads.
func Groups() []string { return []string{groupName} }

// The range of the histograms, the one that package loadgen has.
const (
	minLatency    = int64(time.Microsecond)
	maxLatency    = int64(2 * time.Minute)
	latencyDigits = 3
)

func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(minLatency, maxLatency, latencyDigits)
}

func record(h *hdrhistogram.Histogram, d time.Duration) {
	_ = h.RecordValue(min(max(int64(d), minLatency), maxLatency)) // within its range
}

// meter is what one connection measures. Only one goroutine uses it at a time.
type meter struct {
	messages int64
	latency  *hdrhistogram.Histogram
	errors   map[string]int64
}

func newMeters(n int) []*meter {
	meters := make([]*meter, n)
	for i := range meters {
		meters[i] = &meter{latency: newHistogram(), errors: map[string]int64{}}
	}
	return meters
}

func (m *meter) done(latency time.Duration) {
	m.messages++
	record(m.latency, latency)
}

func (m *meter) failed(reason string) { m.errors[reason]++ }

// gather adds up what the connections measured.
func gather(elapsed time.Duration, meters []*meter) loadgen.Result {
	r := loadgen.Result{Elapsed: elapsed, Errors: map[string]int64{}, Latency: newHistogram(), AckLatency: newHistogram()}
	for _, m := range meters {
		r.Messages += m.messages
		r.Latency.Merge(m.latency)
		for reason, n := range m.errors {
			r.Errors[reason] += n
		}
	}
	return r
}

// budget hands out the messages of a load until its limit.
type budget struct {
	deadline time.Time // zero: none
	counted  bool
	left     atomic.Int64
}

func newBudget(l loadgen.Limit) *budget {
	b := &budget{counted: l.Count > 0}
	b.left.Store(l.Count)
	if l.Duration > 0 {
		b.deadline = time.Now().Add(l.Duration)
	}
	return b
}

// take says whether one more message may go at the time now.
func (b *budget) take(now time.Time) bool {
	if !b.deadline.IsZero() && !now.Before(b.deadline) {
		return false
	}
	return !b.counted || b.left.Add(-1) >= 0
}

// split returns the i-th of n shares of a number, which differ by 1 at most.
func split(number, i, n int) int { return number*(i+1)/n - number*i/n }

// connections is how many connections a load uses.
func (l Load) connections() int { return min(l.InFlight, Connections) }

// await waits until done is closed, for at most the load's time and grace.
func await(ctx context.Context, l loadgen.Limit, done <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(ctx, l.Duration+grace)
	defer cancel()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("answers are missing: %w", ctx.Err())
	}
}

// stamps are the times at which the messages of one open loop should be sent, carried in
// their bodies.
type stamps struct{ start time.Time }

func (s stamps) put(body []byte, due time.Time) {
	binary.BigEndian.PutUint64(body, uint64(due.Sub(s.start)))
}

func (s stamps) age(body []byte) time.Duration {
	return time.Since(s.start) - time.Duration(binary.BigEndian.Uint64(body))
}

// openLoop calls send at a fixed rate, whatever becomes of what was sent, with the time
// at which it should be called. It returns the number of calls.
func openLoop(ctx context.Context, rate float64, d time.Duration, send func(due time.Time) error) (int64, error) {
	start := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for n := int64(0); ; n++ {
		after := time.Duration(float64(n) * float64(time.Second) / rate)
		if after >= d {
			return n, nil
		}
		due := start.Add(after)
		if wait := time.Until(due); wait > 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-ctx.Done():
				return n, ctx.Err()
			}
		}
		if err := send(due); err != nil {
			return n, err
		}
	}
}

// arrivals waits for messages of an open loop.
type arrivals struct {
	count atomic.Int64
	want  atomic.Int64 // 0: not known yet
	all   chan struct{}
}

func newArrivals() *arrivals { return &arrivals{all: make(chan struct{}, 1)} }

func (a *arrivals) add() { a.check(a.count.Add(1)) }

func (a *arrivals) check(count int64) {
	if want := a.want.Load(); want > 0 && count >= want {
		select {
		case a.all <- struct{}{}:
		default:
		}
	}
}

// await waits until n messages have arrived, for at most drain, and returns how many have.
func (a *arrivals) await(ctx context.Context, n int64, drain time.Duration) int64 {
	a.want.Store(n)
	a.check(a.count.Load())
	ctx, cancel := context.WithTimeout(ctx, drain)
	defer cancel()
	select {
	case <-a.all:
	case <-ctx.Done():
	}
	return a.count.Load()
}

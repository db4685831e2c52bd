// Package histogram counts durations in fixed buckets, each twice as wide as the
// one before. Counting takes a few nanoseconds and no memory, so that it may be
// done for every call; whoever serves metrics takes snapshots.
//
// It knows nothing of what is measured or where the counts go.
package histogram

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// The bounds go from 4 microseconds to 34 seconds.
const (
	bounds   = 24
	firstLog = 2 // the first bound is 1<<firstLog microseconds
)

// Bounds returns the upper bounds of the buckets in seconds, without the last
// bucket, which has none. A bound belongs to its bucket.
func Bounds() []float64 {
	list := make([]float64, bounds)
	for i := range list {
		list[i] = float64(uint64(1)<<(firstLog+i)) / 1e6
	}
	return list
}

// bucket returns the first bucket whose bound is not below d.
func bucket(d time.Duration) int {
	if d <= 0 {
		return 0
	}
	return min(bits.Len64(uint64(d-1)/1000>>firstLog), bounds)
}

// A Histogram may be used from any goroutine. The zero value is empty.
type Histogram struct {
	counts [bounds + 1]atomic.Uint64
	sum    atomic.Uint64 // nanoseconds
}

// Observe counts d; a negative one counts as 0.
func (h *Histogram) Observe(d time.Duration) {
	h.counts[bucket(d)].Add(1)
	h.sum.Add(uint64(max(d, 0)))
}

// A Snapshot is what a histogram had counted.
type Snapshot struct {
	Counts []uint64 // of each bucket by itself, one more than Bounds
	Count  uint64   // of all
	Sum    time.Duration
}

// Snapshot returns the counts. One that is being added may be in Counts and not
// yet in Sum.
func (h *Histogram) Snapshot() Snapshot {
	s := Snapshot{Counts: make([]uint64, len(h.counts)), Sum: time.Duration(h.sum.Load())}
	for i := range h.counts {
		s.Counts[i] = h.counts[i].Load()
		s.Count += s.Counts[i]
	}
	return s
}

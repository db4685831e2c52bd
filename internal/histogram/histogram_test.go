package histogram

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestBoundsBelongToTheirBuckets(t *testing.T) {
	for i, bound := range Bounds() {
		d := time.Duration(bound*1e9 + .5)
		require.Equal(t, i, bucket(d), d)
		require.Equal(t, i+1, bucket(d+1), d)
	}
	require.InDelta(t, 4e-6, Bounds()[0], 1e-12)
	require.InDelta(t, 33.554432, Bounds()[bounds-1], 1e-9)
	require.Zero(t, bucket(0))
	require.Zero(t, bucket(-time.Second))
	require.Equal(t, bounds, bucket(1<<63-1))
}

func TestASnapshotHasWhatWasObserved(t *testing.T) {
	var h Histogram
	for _, d := range []time.Duration{-1, 0, time.Microsecond, 5 * time.Microsecond, time.Second, time.Hour} {
		h.Observe(d)
	}
	s := h.Snapshot()
	require.Equal(t, uint64(6), s.Count)
	require.Equal(t, uint64(3), s.Counts[0])
	require.Equal(t, uint64(1), s.Counts[1])
	require.Equal(t, uint64(1), s.Counts[bounds])
	require.Equal(t, time.Hour+time.Second+6*time.Microsecond, s.Sum)
}

func TestObservingAllocatesNothing(t *testing.T) {
	var h Histogram
	require.Zero(t, testing.AllocsPerRun(100, func() { h.Observe(time.Millisecond) }))
}

func BenchmarkObserve(b *testing.B) {
	var h Histogram
	for b.Loop() {
		h.Observe(time.Millisecond)
	}
}

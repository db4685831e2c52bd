package shard

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A reading with a monotonic part is what time.Since goes by: a step of the wall clock
// while the shard runs moves neither the next command's time nor any deadline.
func TestClockRunsOnTheMonotonicClock(t *testing.T) {
	c := newClock(0, time.Now())
	require.Contains(t, c.base.String(), " m=", "without a monotonic reading")
}

func TestClockGoesOnFromTheLastTimeAndGivesNoneTwice(t *testing.T) {
	for _, last := range []int64{0, time.Now().Add(100 * 365 * 24 * time.Hour).UnixNano()} {
		c := newClock(last, time.Now())
		require.GreaterOrEqual(t, c.peek(), last)
		for range 1000 {
			now := c.now()
			require.Greater(t, now, last)
			last = now
		}
	}
}

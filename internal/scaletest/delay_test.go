package scaletest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/internal/histogram"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/shard"
)

// fillDelayed sends n delayed messages; at says when the message i is to be delivered.
func fillDelayed(t testing.TB, s *shard.Shard, topic *mq.Topic, n int, at func(i int) time.Time) {
	t.Helper()
	for i := 0; i < n; {
		msgs := messages(min(n-i, 1000), 100, "")
		for _, m := range msgs {
			m.Type, m.DeliverAt = mq.Delay, at(i)
			i++
		}
		_, err := s.Append(t.Context(), topic, mq.QueueID(i/1000%8), msgs)
		require.NoError(t, err)
	}
}

// quantile returns a bound of the bucket that the quantile is in, and of the worst one.
func quantile(s histogram.Snapshot, q float64) time.Duration {
	bounds := histogram.Bounds()
	seen := uint64(0)
	for i, n := range s.Counts {
		if seen += n; float64(seen) >= q*float64(s.Count) {
			if i == len(bounds) {
				return 1 << 62 // beyond all
			}
			return time.Duration(bounds[i] * float64(time.Second))
		}
	}
	return 0
}

func awaitFired(t *testing.T, s *shard.Shard, n uint64) {
	t.Helper()
	for s.Stats().Fired < n {
		require.NoError(t, s.Err())
		wait(10 * time.Millisecond)
	}
	require.Equal(t, n, s.Stats().Fired)
	require.Zero(t, s.Stats().Timed)
}

// TestPendingDelaysCostDiskAndNoMemory has many messages wait over forty days, and opens
// the shard again.
func TestPendingDelaysCostDiskAndNoMemory(t *testing.T) {
	n := number(1_000_000, 20_000)
	dir := t.TempDir()
	s := openShard(t, dir, shard.FlushAsync)
	topic := topicOf(1, 8)
	fillDelayed(t, s, topic, 1000, func(int) time.Time { return time.Now().Add(40 * 24 * time.Hour) })
	before := measure()
	start := time.Now()
	span := 40 * 24 * time.Hour / time.Duration(n)
	fillDelayed(t, s, topic, n-1000, func(i int) time.Time { return start.Add(time.Hour + time.Duration(i)*span) })
	sent := time.Since(start)
	require.NoError(t, s.Close()) // what is in memory for the disk is no cost of what waits
	start = time.Now()
	s = openShard(t, dir, shard.FlushAsync)
	opened := time.Since(start)
	after := measure()
	require.EqualValues(t, n, s.Stats().Timed)
	t.Logf("%d pending over 40 days: sent in %v, before %v, opened again in %v with %v, disk %s",
		n, sent.Round(time.Millisecond), before, opened.Round(time.Millisecond), after, size(dirSize(t, dir)))
	// One counter for each minute in which some are due: 57,600 at most. The cache of the
	// views, which is full after the start, is part of the heap in a build without cgo.
	const cache = 96 << 20
	require.Less(t, after.heap-before.heap, int64(cache+32<<20))
	require.NoError(t, s.Close())
}

// TestDelaysThatAreDueAllTheTimeComeOnTime has messages become due one after the other.
func TestDelaysThatAreDueAllTheTimeComeOnTime(t *testing.T) {
	n, over := number(1_000_000, 2000), time.Duration(number(60, 1))*time.Second
	for name, mode := range map[string]shard.FlushMode{"async": shard.FlushAsync, "sync": shard.FlushSync} {
		t.Run(name, func(t *testing.T) {
			s := openShard(t, t.TempDir(), mode)
			defer func() { require.NoError(t, s.Close()) }()
			// The sends are to be over before.
			first := time.Now().Add(time.Duration(number(30_000, 500)) * time.Millisecond)
			fillDelayed(t, s, topicOf(1, 8), n, func(i int) time.Time { return first.Add(over / time.Duration(n) * time.Duration(i)) })
			t.Logf("sent %v before the first is due", time.Until(first).Round(time.Millisecond))
			awaitFired(t, s, uint64(n))
			late := s.Stats().Late
			t.Logf("%d due over %v: late by p50 <= %v, p99 <= %v, max <= %v, mean %v", n, over,
				quantile(late, 0.5), quantile(late, 0.99), quantile(late, 1), (late.Sum / time.Duration(n)).Round(time.Microsecond))
		})
	}
}

// TestManyDelaysThatAreDueAtOnceDoNotStallSends has all become due at one moment, and
// sends to another topic meanwhile.
func TestManyDelaysThatAreDueAtOnceDoNotStallSends(t *testing.T) {
	n := number(1_000_000, 2000)
	for name, mode := range map[string]shard.FlushMode{"async": shard.FlushAsync, "sync": shard.FlushSync} {
		t.Run(name, func(t *testing.T) {
			s := openShard(t, t.TempDir(), mode)
			defer func() { require.NoError(t, s.Close()) }()
			held, other := topicOf(1, 8), topicOf(2, 8)
			at := time.Now().Add(time.Duration(number(30_000, 500)) * time.Millisecond)
			fillDelayed(t, s, held, n, func(int) time.Time { return at })
			quiet := sendFor(t, s, other, 4, min(3*time.Second, max(time.Until(at), 0)))
			wait(time.Until(at))
			stop := make(chan struct{})
			burst := make(chan latencies, 1)
			go func() { burst <- senders(t, s, other, 4, stop) }()
			start := time.Now()
			awaitFired(t, s, uint64(n))
			took := time.Since(start)
			close(stop)
			t.Logf("sends before: %v", quiet)
			t.Logf("sends while %d delays come, for %v: %v", n, took.Round(time.Millisecond), <-burst)
			late := s.Stats().Late
			t.Logf("late by p50 <= %v, p99 <= %v; then %v", quantile(late, 0.5), quantile(late, 0.99), measure())
		})
	}
}

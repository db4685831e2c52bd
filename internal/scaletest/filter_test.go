package scaletest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/filter"
	"github.com/perigee-mq/perigee/store/shard"
)

// TestASparseFilterDoesNotStallSends lets a group with an SQL filter that wants one
// message of ten thousand come through a backlog, and sends to another topic meanwhile.
func TestASparseFilterDoesNotStallSends(t *testing.T) {
	backlog, rare := number(1_000_000, 20_000), number(100, 2)
	for name, mode := range map[string]shard.FlushMode{"async": shard.FlushAsync, "sync": shard.FlushSync} {
		t.Run(name, func(t *testing.T) {
			s := openShard(t, t.TempDir(), mode)
			defer func() { require.NoError(t, s.Close()) }()
			topic, other, group := topicOf(1, 8), topicOf(2, 8), groupOf(1)
			wanted := messages(1, 1000, "")
			// The tag, as the system properties have it.
			wanted[0].System = append([]byte{0x0a, 4}, "rare"...)
			for range rare {
				fill(t, s, topic, backlog/rare-1, 1000, "")
				_, err := s.Append(t.Context(), topic, 7, wanted)
				require.NoError(t, err)
			}
			f, err := filter.Compile("TAGS = 'rare' AND price IS NULL")
			require.NoError(t, err)
			quiet := sendFor(t, s, other, 4, time.Duration(number(3000, 50))*time.Millisecond)

			stop, busy := make(chan struct{}), make(chan latencies, 1)
			go func() { busy <- senders(t, s, other, 4, stop) }()
			start, before, got := time.Now(), s.Stats().Records, 0
			var first time.Duration
			for got < rare {
				d, err := s.Receive(t.Context(), mq.Receive{Topic: topic, Group: group, Max: 32, Invisible: time.Hour, Filter: f, Wait: time.Minute})
				require.NoError(t, err)
				require.NotEmpty(t, d)
				if got += len(d); first == 0 {
					first = time.Since(start)
				}
			}
			took := time.Since(start)
			close(stop)
			slow := <-busy
			records := s.Stats().Records - before - uint64(len(slow))
			require.Equal(t, rare, got)
			t.Logf("%d messages, %d wanted: %v, the first after %v, %d records; sends before: %v; meanwhile: %v",
				backlog, rare, took.Round(time.Millisecond), first.Round(time.Millisecond), records, quiet, slow)
		})
	}
}

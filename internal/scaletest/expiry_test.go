package scaletest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/shard"
)

// senders send single messages one after the other until stop, and return how
// long each took.
func senders(t *testing.T, s *shard.Shard, topic *mq.Topic, n int, stop <-chan struct{}) latencies {
	var mu sync.Mutex
	var all latencies
	var running sync.WaitGroup
	for i := range n {
		running.Go(func() {
			var own latencies
			msgs := messages(1, 100, "")
			for {
				select {
				case <-stop:
					mu.Lock()
					defer mu.Unlock()
					all = append(all, own...)
					return
				case <-time.After(time.Millisecond): // a steady load, not all that goes
				}
				start := time.Now()
				if _, err := s.Append(context.Background(), topic, mq.QueueID(i), msgs); err != nil {
					t.Error(err)
					return
				}
				own = append(own, time.Since(start))
			}
		})
	}
	running.Wait()
	return all
}

// sendFor measures sends for a time.
func sendFor(t *testing.T, s *shard.Shard, topic *mq.Topic, n int, d time.Duration) latencies {
	stop := make(chan struct{})
	time.AfterFunc(d, func() { close(stop) })
	return senders(t, s, topic, n, stop)
}

// TestManyLeasesThatEndAtOnceDoNotStallSends leases many messages until the same
// moment, and sends to another topic while they end.
func TestManyLeasesThatEndAtOnceDoNotStallSends(t *testing.T) {
	onlyFull(t)
	const leases = 1_000_000
	for name, mode := range map[string]shard.FlushMode{"async": shard.FlushAsync, "sync": shard.FlushSync} {
		t.Run(name, func(t *testing.T) {
			s := openShard(t, t.TempDir(), mode)
			defer func() { require.NoError(t, s.Close()) }()
			held, other, group := topicOf(1, 8), topicOf(2, 8), groupOf(1)
			fill(t, s, held, leases, 100, "")
			before := measure()
			end := time.Now().Add(30 * time.Second)
			for n := 0; n < leases; {
				got, err := s.Receive(t.Context(), mq.Receive{Topic: held, Group: group, Max: 2000, Invisible: max(time.Until(end), 1)})
				require.NoError(t, err)
				n += len(got)
			}
			leased := measure()
			t.Logf("%d leases: before %v; leased %v, to spare %v", leases, before, leased, time.Until(end).Round(time.Millisecond))
			quiet := sendFor(t, s, other, 4, min(3*time.Second, max(time.Until(end), 0)))
			wait(time.Until(end))

			stop := make(chan struct{})
			burst := make(chan latencies, 1)
			go func() { burst <- senders(t, s, other, 4, stop) }()
			start := time.Now()
			for {
				list, err := s.Backlogs(t.Context(), group.ID)
				require.NoError(t, err)
				if list[0].InFlight == 0 {
					require.Equal(t, int64(leases), list[0].Ready)
					break
				}
				wait(10 * time.Millisecond)
			}
			took := time.Since(start)
			close(stop)
			t.Logf("sends before: %v", quiet)
			t.Logf("sends while the leases end, for %v: %v", took.Round(time.Millisecond), <-burst)
			t.Logf("then: %v", measure())
		})
	}
}

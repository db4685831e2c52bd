package machine_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
)

// BenchmarkSetOffset sets a group back that has as many messages under lease in the
// queue as it may: the loop does nothing else meanwhile.
func BenchmarkSetOffset(b *testing.B) {
	for _, n := range []int{100, 20_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := newStory(b, 1)
			for range n / 100 {
				s.send(0, 100, "")
			}
			var spent time.Duration
			for b.Loop() {
				b.StopTimer()
				res, _ := s.pop(command.Pop{Max: int32(n), Scan: int32(n)})
				require.Len(b, res.Popped, n)
				require.NoError(b, s.m.Commit())
				s.m.Effects.Reset()
				b.StartTimer()
				start := time.Now()
				require.Equal(b, n, s.setOffset(true, command.QueueSet{Queue: mq.QueueID(0)}).Dropped)
				require.NoError(b, s.m.Commit())
				spent += time.Since(start)
			}
			b.ReportMetric(float64(spent.Nanoseconds())/float64(b.N*n), "ns/delivery")
		})
	}
}

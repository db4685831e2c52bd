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

// BenchmarkSetOffsetOfALane sets a group back whose messages wait for the first one of their
// message group.
func BenchmarkSetOffsetOfALane(b *testing.B) {
	for _, n := range []int{1000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := newStory(b, 1)
			s.apply(command.KindGroup, &command.Group{Time: s.tick(), ID: 1, MaxAttempts: 10, Version: 100, FIFO: true})
			for range n / 100 {
				c := &command.Append{Time: s.tick(), Topic: 1}
				for range 100 {
					c.Messages = append(c.Messages, &mq.Message{ID: "m", Group: "a"})
				}
				s.apply(command.KindAppend, c)
			}
			var spent time.Duration
			for b.Loop() {
				b.StopTimer()
				for range 2 {
					s.pop(command.Pop{Max: 1, Scan: int32(n)})
				}
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

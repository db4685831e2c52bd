package machine_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
)

// BenchmarkRegroup makes a group FIFO that has as many messages of one message group under
// lease, and then parked, and back: the loop does nothing else meanwhile.
func BenchmarkRegroup(b *testing.B) {
	for _, n := range []int{1000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var on, off time.Duration
			for b.Loop() {
				s := newStory(b, 1)
				regroup := func(fifo bool) time.Duration {
					require.NoError(b, s.m.Commit())
					s.m.Effects.Reset()
					start := time.Now()
					s.apply(command.KindGroup, &command.Group{Time: s.tick(), ID: 1, MaxAttempts: 10, Version: uint64(s.now), FIFO: fifo})
					require.NoError(b, s.m.Commit())
					return time.Since(start)
				}
				for range n / 100 {
					c := &command.Append{Time: s.tick(), Topic: 1}
					for range 100 {
						c.Messages = append(c.Messages, &mq.Message{ID: "m", Group: "a"})
					}
					s.apply(command.KindAppend, c)
				}
				res, _ := s.pop(command.Pop{Max: int32(n), Scan: int32(n)})
				require.Len(b, res.Popped, n)
				on += regroup(true)
				s.now += int64(time.Hour)
				for s.due() {
					s.apply(command.KindExpire, &command.Expire{Time: s.now, Limit: 1000})
				}
				off += regroup(false)
			}
			b.ReportMetric(float64(on.Nanoseconds())/float64(b.N*n), "ns/on")
			b.ReportMetric(float64(off.Nanoseconds())/float64(b.N*n), "ns/off")
		})
	}
}

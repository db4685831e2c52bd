package shard_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/filter"
	"github.com/perigee-mq/perigee/store/shard"
)

// BenchmarkFilteredBacklog receives through a backlog of which few messages are wanted.
// An operation is one message of the backlog, wanted or not.
func BenchmarkFilteredBacklog(b *testing.B) {
	for _, c := range []struct {
		name string
		of   int
		sql  bool
	}{{"tags 1%", 100, false}, {"sql 1%", 100, true}, {"sql 0.01%", 10_000, true}} {
		b.Run(c.name, func(b *testing.B) {
			s, err := shard.Open(shard.Options{Name: shardName, FS: vfs.Default, Dir: b.TempDir(), Flush: shard.FlushAsync, SegmentSize: 256 << 20, ZeroFill: -1})
			require.NoError(b, err)
			defer func() { require.NoError(b, s.Close()) }()
			topic, group := topicOf(4), groupOf(9)
			n := max(b.N, 20_000)
			for i := 0; i < n; {
				var msgs []*mq.Message
				for ; i < n && len(msgs) < 1000; i++ {
					m := with(fmt.Sprint(i), "price", "3", "region", "eu-west")
					m.Tag = "common"
					if i%c.of == c.of-1 {
						m = with(fmt.Sprint(i), "price", "12", "region", "eu-west")
						m.Tag = "rare"
					}
					m.Body = make([]byte, 1024)
					msgs = append(msgs, m)
				}
				_, err := s.Append(b.Context(), topic, mq.QueueID(i/1000%4), msgs)
				require.NoError(b, err)
			}
			r := mq.Receive{Topic: topic, Group: group, Max: 32, Invisible: time.Hour}
			if f, err := filter.Compile("price > 5 AND region IN ('eu-west', 'eu-north')"); c.sql {
				require.NoError(b, err)
				r.Filter = f
			} else {
				r.Tags = []string{"rare"}
			}
			b.ReportAllocs()
			b.ResetTimer()
			for got := 1; got > 0; {
				d, err := s.Receive(b.Context(), r)
				require.NoError(b, err)
				got = len(d)
			}
			b.StopTimer()
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/message")
		})
	}
}

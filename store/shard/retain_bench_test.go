package shard

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/internal/histogram"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/machine"
)

// BenchmarkPass measures a pass over many topics of 8 queues: with nothing to do, with a message to
// trim in each, and the same when the machine has not read them yet. It reports how long
// the loop was not there for others meanwhile, and below what the longest of its rounds
// was.
func BenchmarkPass(b *testing.B) {
	const topics, queues, senders = 100_000, 8, 64
	fs := vfs.NewMem()
	age := time.Hour
	var s *Shard
	var r *retainer
	open := func() {
		var err error
		s, err = Open(Options{Name: "s", FS: fs, Dir: "shard", Flush: FlushAsync, ZeroFill: -1})
		require.NoError(b, err)
		s.opts.Retention = Retention{Of: func(mq.TopicID) (time.Duration, bool) { return age, true }}
		r = &retainer{s: s}
	}
	open()
	defer func() { require.NoError(b, s.Close()) }()
	sendAll := func() {
		var wg sync.WaitGroup
		for i := range senders {
			wg.Go(func() {
				for id := i; id < topics; id += senders {
					m := &mq.Message{ID: fmt.Sprint(id), Type: mq.Normal, Body: make([]byte, 100)}
					topic := ownTopic(mq.TopicID(id + 1))
					topic.Shards[0].Read, topic.Shards[0].Write = queues, queues
					if _, err := s.Append(context.Background(), topic, mq.QueueID(id%queues), []*mq.Message{m}); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	sendAll()
	require.NoError(b, r.pass())

	// pass times passes, and the longest that a look at the machine took beside them.
	pass := func(b *testing.B, before func()) {
		var longest, round time.Duration
		for b.Loop() {
			b.StopTimer()
			before()
			rounds := s.stages.spent[StageApply].Snapshot()
			stop, done := make(chan struct{}), make(chan time.Duration)
			go func() {
				var longest time.Duration
				for {
					select {
					case <-stop:
						done <- longest
						return
					default:
					}
					start := time.Now()
					_ = s.look(context.Background(), func(*machine.Machine) error { return nil })
					longest = max(longest, time.Since(start))
					time.Sleep(time.Millisecond)
				}
			}()
			b.StartTimer()
			if err := r.pass(); err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			close(stop)
			longest = max(longest, <-done)
			for i, n := range s.stages.spent[StageApply].Snapshot().Counts {
				if n > rounds.Counts[i] {
					round = max(round, time.Duration(histogram.Bounds()[i]*float64(time.Second)))
				}
			}
			b.StartTimer()
		}
		b.ReportMetric(float64(longest.Microseconds())/1000, "ms-longest-wait")
		b.ReportMetric(float64(round.Microseconds())/1000, "ms-rounds-below")
	}
	fill := func() {
		age = time.Hour
		if err := r.pass(); err != nil {
			b.Fatal(err)
		}
		sendAll()
	}
	b.Run("idle", func(b *testing.B) { pass(b, func() {}) })
	b.Run("trim", func(b *testing.B) {
		pass(b, func() {
			fill()
			age = time.Nanosecond
		})
	})
	b.Run("trim after a restart", func(b *testing.B) {
		pass(b, func() {
			fill()
			require.NoError(b, s.Close())
			open()
			age = time.Nanosecond
		})
	})
}

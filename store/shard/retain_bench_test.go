package shard

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/machine"
)

// BenchmarkPass measures a pass over many topics, with nothing to do and with a message
// to trim in each, and how long the loop was not there for others meanwhile.
func BenchmarkPass(b *testing.B) {
	const topics, senders = 100_000, 64
	s, err := Open(Options{Name: "s", FS: vfs.NewMem(), Dir: "shard", Flush: FlushAsync, ZeroFill: -1})
	require.NoError(b, err)
	defer func() { require.NoError(b, s.Close()) }()
	age := time.Hour
	r := &retainer{s: s}
	s.opts.Retention = Retention{Of: func(mq.TopicID) (time.Duration, bool) { return age, true }}
	sendAll := func() {
		var wg sync.WaitGroup
		for i := range senders {
			wg.Go(func() {
				for id := i; id < topics; id += senders {
					m := &mq.Message{ID: fmt.Sprint(id), Type: mq.Normal, Body: make([]byte, 100)}
					if _, err := s.Append(context.Background(), ownTopic(mq.TopicID(id+1)), 0, []*mq.Message{m}); err != nil {
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
		var longest time.Duration
		for b.Loop() {
			b.StopTimer()
			before()
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
			b.StartTimer()
		}
		b.ReportMetric(float64(longest.Microseconds())/1000, "ms-longest-wait")
	}
	b.Run("idle", func(b *testing.B) { pass(b, func() {}) })
	b.Run("trim", func(b *testing.B) {
		pass(b, func() {
			age = time.Hour
			if err := r.pass(); err != nil {
				b.Fatal(err)
			}
			sendAll()
			age = time.Nanosecond
		})
	})
}

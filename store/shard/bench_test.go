package shard_test

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/shard"
)

func benchShard(b *testing.B, mode shard.FlushMode) *shard.Shard {
	b.Helper()
	s, err := shard.Open(shard.Options{Name: shardName, FS: vfs.Default, Dir: b.TempDir(), Flush: mode})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	})
	return s
}

func benchMessages(n int) []*mq.Message {
	msgs := make([]*mq.Message, n)
	for i := range msgs {
		msgs[i] = &mq.Message{
			ID: fmt.Sprintf("01%032d", i), Type: mq.Normal, Tag: "tag",
			System: make([]byte, 120), Body: make([]byte, 1024),
		}
	}
	return msgs
}

// BenchmarkAppend stores 1 KiB messages, each new, with ids as SDKs make them; an
// iteration is one message.
func BenchmarkAppend(b *testing.B) {
	for _, bc := range []struct {
		name      string
		mode      shard.FlushMode
		producers int
		batch     int
	}{
		{"async/producers=64/batch=1", shard.FlushAsync, 64, 1},
		{"async/producers=1/batch=1", shard.FlushAsync, 1, 1},
		{"async/producers=8/batch=32", shard.FlushAsync, 8, 32},
		{"sync/producers=16/batch=1", shard.FlushSync, 16, 1},
	} {
		for _, window := range []time.Duration{0, mq.DefaultDedup} {
			b.Run(fmt.Sprint(bc.name, "/window=", window), func(b *testing.B) { benchAppend(b, bc.mode, bc.producers, bc.batch, window) })
		}
	}
}

func benchAppend(b *testing.B, mode shard.FlushMode, producers, batch int, window time.Duration) {
	s := benchShard(b, mode)
	topic := topicOf(8)
	topic.Dedup = window
	sends := make([][]*mq.Message, (b.N+batch-1)/batch)
	system, body := make([]byte, 120), make([]byte, 1024)
	for i := range sends {
		msgs := make([]mq.Message, batch)
		for j := range msgs {
			msgs[j] = mq.Message{
				ID:   fmt.Sprintf("01%012X%04X%08X%08X", i%producers*0x9e3779b97f4a, i%producers, 0x2a2b2c2d, i/producers*batch+j),
				Type: mq.Normal, Tag: "tag", System: system, Body: body,
			}
			sends[i] = append(sends[i], &msgs[j])
		}
	}
	b.ReportAllocs()
	b.SetBytes(1024)
	cpu := processorTime(b)
	b.ResetTimer()
	each(b, producers, batch, b.N, func(i int) error {
		_, err := s.Append(context.Background(), topic, mq.QueueID(i%8), sends[i])
		return err
	})
	b.StopTimer()
	b.ReportMetric(float64((processorTime(b)-cpu).Nanoseconds())/float64(b.N), "cpu-ns/op")
	st := s.Stats()
	b.ReportMetric(float64(st.Appended)/float64(max(st.Syncs, 1)), "msgs/sync")
	if st.Repeated > 0 {
		b.Error("messages were taken for others")
	}
}

// processorTime returns what the process has used.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// BenchmarkPopAck receives 32 at a time and settles them, 32 in one call or one
// by one; an iteration is one message.
func BenchmarkPopAck(b *testing.B) {
	for _, acks := range []int{32, 1} {
		b.Run(fmt.Sprint("async/acks=", acks), func(b *testing.B) {
			s := benchShard(b, shard.FlushAsync)
			topic, group, msgs := topicOf(8), groupOf(16), benchMessages(32)
			for range b.N/32 + 9 {
				if _, err := s.Append(context.Background(), topic, 0, msgs); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			b.ResetTimer()
			each(b, 8, 32, b.N, func(int) error {
				got, err := s.Receive(context.Background(), mq.Receive{Topic: topic, Group: group, Max: 32, Invisible: time.Minute})
				if err != nil {
					return err
				}
				for len(got) > 0 {
					var refs []command.LeaseRef
					for _, d := range got[:min(acks, len(got))] {
						refs = append(refs, command.LeaseRef{Queue: d.Lease.Queue, Offset: d.Lease.Offset, PopID: d.Lease.PopID})
					}
					got = got[len(refs):]
					if _, err := s.Ack(context.Background(), topic.ID, group.ID, refs); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
}

// each shares n iterations out in steps among goroutines.
func each(b *testing.B, goroutines, step, n int, fn func(i int) error) {
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := g * step; i < n; i += goroutines * step {
				if err := fn(i / step); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// BenchmarkSurvey looks at 100,000 queues of 12,500 topics, each with one group that
// lags, while one producer sends. It reports how long the producer had to wait at
// worst, and how long it has to without surveys.
func BenchmarkSurvey(b *testing.B) {
	s := benchShard(b, shard.FlushAsync)
	const topics = 12_500
	group, msgs := groupOf(16), benchMessages(2)
	each(b, 64, 1, topics, func(i int) error {
		topic := named(mq.TopicID(1000+i), fmt.Sprint("topic-", i), 8)
		if _, err := s.Append(context.Background(), topic, mq.QueueID(i%8), msgs); err != nil {
			return err
		}
		_, err := s.Receive(context.Background(), mq.Receive{Topic: topic, Group: group, Max: 1, Invisible: time.Hour})
		return err
	})
	topic := topicOf(8)
	worst := func(stop <-chan struct{}) (d time.Duration) {
		for {
			select {
			case <-stop:
				return d
			default:
			}
			start := time.Now()
			if _, err := s.Append(context.Background(), topic, 0, msgs[:1]); err != nil {
				b.Error(err)
			}
			d = max(d, time.Since(start))
		}
	}
	while := func(fn func()) time.Duration {
		stop, result := make(chan struct{}), make(chan time.Duration)
		go func() { result <- worst(stop) }()
		fn()
		close(stop)
		return <-result
	}
	b.ReportAllocs()
	b.ResetTimer()
	start := time.Now()
	with := while(func() {
		for range b.N {
			if v, err := s.Survey(context.Background()); err != nil || v.GroupsDropped != topics-1000 {
				b.Error(v.GroupsDropped, err)
			}
		}
	})
	took := time.Since(start)
	b.StopTimer()
	without := while(func() { time.Sleep(took) })
	b.ReportMetric(float64(with.Microseconds()), "worst-us")
	b.ReportMetric(float64(without.Microseconds()), "worst-us-without")
}

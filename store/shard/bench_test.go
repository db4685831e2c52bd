package shard_test

import (
	"context"
	"fmt"
	"sync"
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

// BenchmarkAppend stores 1 KiB messages; an iteration is one message.
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
		b.Run(bc.name, func(b *testing.B) {
			s := benchShard(b, bc.mode)
			topic, msgs := topicOf(8), benchMessages(bc.batch)
			b.ReportAllocs()
			b.SetBytes(1024)
			b.ResetTimer()
			each(b, bc.producers, bc.batch, func(i int) error {
				_, err := s.Append(context.Background(), topic, mq.QueueID(i%8), msgs)
				return err
			})
			b.StopTimer()
			st := s.Stats()
			b.ReportMetric(float64(st.Appended)/float64(max(st.Syncs, 1)), "msgs/sync")
		})
	}
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
			each(b, 8, 32, func(int) error {
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

// each shares b.N iterations out in steps among goroutines.
func each(b *testing.B, goroutines, step int, fn func(i int) error) {
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := g * step; i < b.N; i += goroutines * step {
				if err := fn(i / step); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

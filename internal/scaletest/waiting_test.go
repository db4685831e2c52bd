package scaletest

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/internal/client"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/shard"
)

// pollMemory is what a waiting receive may take in the shard; the race detector
// takes as much again.
var pollMemory = int64(number(10<<10, 20<<10))

// used is what the heap and the stacks of this process take.
func used() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// TestWaitingReceivesAreCheap: each takes a few KiB, they cost no time while
// nothing happens, and waking one does not look at the others.
func TestWaitingReceivesAreCheap(t *testing.T) {
	polls := number(100_000, 5_000)
	s := openShard(t, t.TempDir(), shard.FlushAsync)
	defer func() { require.NoError(t, s.Close()) }()
	topic, group := topicOf(1, 8), groupOf(1)
	receive := func(ctx context.Context, tags ...string) ([]mq.Delivery, error) {
		return s.Receive(ctx, mq.Receive{Topic: topic, Group: group, Tags: tags, Max: 32, Invisible: time.Minute, Wait: time.Hour})
	}
	ctx, cancel := context.WithCancel(t.Context())
	before := used()
	var running sync.WaitGroup
	got := make(chan int, polls)
	for i := range polls {
		running.Go(func() {
			// A tenth of them in a queue of its own each, with a filter of its own.
			var list []mq.Delivery
			if i%10 == 0 {
				list, _ = receive(ctx, fmt.Sprint("tag-", i))
			} else {
				list, _ = receive(ctx, "A")
			}
			if len(list) > 0 {
				got <- i
			}
		})
	}
	for s.Stats().Waiting < polls {
		runtime.Gosched()
	}
	each := (used() - before) / int64(polls)
	t.Logf("%d waiting receives take %d bytes each", polls, each)
	require.Less(t, each, pollMemory)
	if full {
		idle := cpuTime()
		wait(5 * time.Second)
		t.Logf("they cost %v of CPU time in 5 s", cpuTime()-idle)
	}

	woken, records := s.Stats().Woken, s.Stats().Records
	var took latencies
	for range number(1000, 100) {
		start := time.Now()
		_, err := s.Append(t.Context(), topic, 0, messages(1, 100, "A"))
		require.NoError(t, err)
		<-got
		took = append(took, time.Since(start))
	}
	t.Logf("from a send to the receive it ends: %v", took)
	require.Equal(t, uint64(len(took)), s.Stats().Woken-woken, "each message wakes one")
	require.Equal(t, 2*uint64(len(took)), s.Stats().Records-records)

	woken = s.Stats().Woken
	for range 100 {
		_, err := s.Append(t.Context(), topic, 0, messages(10, 100, "of nobody"))
		require.NoError(t, err)
	}
	require.Equal(t, woken, s.Stats().Woken, "what nobody wants wakes nobody")
	cancel()
	running.Wait()
}

// TestWaitingReceivesOverTheNetwork measures what the gRPC streams add.
func TestWaitingReceivesOverTheNetwork(t *testing.T) {
	bin := binary(t)
	p := start(t, bin, t.TempDir(), []string{"--max-waiting-receives", "0", "--long-polling-max", "1h"}, nil)
	p.run("topic", "create", "quiet")
	conns := make([]*client.Conn, 16) // one takes 10,000 streams
	for i := range conns {
		conns[i] = p.dial()
	}
	before := p.rss()
	const polls = 100_000
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	parked := 0
	for _, target := range []int{1_000, 10_000, polls} {
		opening := time.Now()
		for ; parked < target; parked++ {
			stream, err := rmqpb.NewMessagingServiceClient(conns[parked%len(conns)]).ReceiveMessage(ctx, &rmqpb.ReceiveMessageRequest{
				Group:        &rmqpb.Resource{Name: "group"},
				MessageQueue: &rmqpb.MessageQueue{Topic: &rmqpb.Resource{Name: "quiet"}},
				BatchSize:    32, InvisibleDuration: durationpb.New(time.Minute), LongPollingTimeout: durationpb.New(time.Hour),
			})
			require.NoError(t, err)
			_ = stream // it answers when the test ends it
		}
		waiting := p.gauge("perigee_receives_waiting")
		for waiting < float64(target) {
			wait(100 * time.Millisecond)
			waiting = p.gauge("perigee_receives_waiting")
		}
		took := time.Since(opening)
		wait(2 * time.Second)
		idle := p.cpu()
		wait(5 * time.Second)
		t.Logf("%d waiting receives over %d connections, opened in %v: rss %s, %d bytes each; %v of CPU time in 5 s",
			target, len(conns), took.Round(time.Millisecond), size(p.rss()), (p.rss()-before)/int64(target), p.cpu()-idle)
	}
}

package scaletest

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
)

// TestMemoryStaysWithinItsLimitUnderLoad: many connections send large messages, and
// others send, receive and settle small ones.
func TestMemoryStaysWithinItsLimitUnderLoad(t *testing.T) {
	bin := binary(t)
	for _, limit := range []struct {
		text  string
		bytes int64
	}{{"300MiB", 300 << 20}, {"512MiB", 512 << 20}} {
		t.Run(limit.text, func(t *testing.T) {
			p := start(t, bin, t.TempDir(), []string{"--flush", "async"}, []string{"GOMEMLIMIT=" + limit.text})
			p.run("topic", "create", "large")
			p.run("topic", "create", "small")
			ctx, cancel := context.WithTimeout(t.Context(), 25*time.Second)
			defer cancel()
			var sent, refused, failed, small, received atomic.Int64
			var running sync.WaitGroup
			sender := func(topic string, n, size int, count *atomic.Int64) {
				client := rmqpb.NewMessagingServiceClient(p.dial())
				running.Go(func() {
					req := sendRequest(topic, n, size)
					for ctx.Err() == nil {
						call, done := context.WithTimeout(context.Background(), 10*time.Second)
						resp, err := client.SendMessage(call, req)
						done()
						switch {
						case err != nil:
							if failed.Add(1) == 1 {
								t.Logf("the first that failed: %v", err)
							}
						case resp.GetStatus().GetCode() == rmqpb.Code_TOO_MANY_REQUESTS:
							if refused.Add(1)%100 == 1 {
								t.Logf("refused: %s", resp.GetStatus().GetMessage())
							}
							wait(50 * time.Millisecond)
						case resp.GetStatus().GetCode() != rmqpb.Code_OK:
							failed.Add(1)
						default:
							count.Add(1)
						}
					}
				})
			}
			for range 64 {
				sender("large", 1, 4<<20-1000, &sent)
			}
			for range 4 {
				sender("small", 1, 1000, &small)
				client := rmqpb.NewMessagingServiceClient(p.dial())
				running.Go(func() {
					for ctx.Err() == nil {
						n, err := receive(context.Background(), client, receiveRequest("large", "group", 4, time.Hour))
						if err != nil {
							failed.Add(1)
							return
						}
						received.Add(int64(n))
						wait(time.Duration(50-10*n) * time.Millisecond)
					}
				})
			}
			running.Wait()
			t.Logf("CPU time: server %v, clients %v", p.cpu(), cpuTime())
			t.Logf("GOMEMLIMIT=%s: peak rss %s; %d sends of 4 MiB, %d refused, %d small sends, %d of 4 MiB received, %d failed",
				limit.text, size(p.peak()), sent.Load(), refused.Load(), small.Load(), received.Load(), failed.Load())
			require.Less(t, p.peak(), limit.bytes*5/4)
		})
	}
}

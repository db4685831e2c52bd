package node

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	grpccodes "google.golang.org/grpc/codes"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/proxy"
)

func TestCountingACallAllocatesNothing(t *testing.T) {
	var c calls
	call := proxy.Call{Method: "/a/B", Code: rmqpb.Code_OK, Took: time.Second, Waited: time.Millisecond}
	c.observe(call)
	require.Zero(t, testing.AllocsPerRun(100, func() { c.observe(call) }))
}

func TestCallsAreCountedByHowTheyEnd(t *testing.T) {
	var c calls
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				c.observe(proxy.Call{Method: "/a/B", Code: rmqpb.Code_OK})
				c.observe(proxy.Call{Method: "/a/B", Code: rmqpb.Code_BAD_REQUEST})
				c.observe(proxy.Call{Method: "/a/B", GRPC: grpccodes.Canceled})
				c.observe(proxy.Call{Method: "/a/C", Code: rmqpb.Code_OK, Took: 3 * time.Second, Waited: 2 * time.Second})
			}
		})
	}
	wg.Wait()
	list := c.list()
	require.Len(t, list, 4)
	for _, s := range list {
		require.Equal(t, uint64(800), s.Count)
	}
	require.Equal(t, 800*time.Second, list[3].Sum, "without what it waited")
	require.Equal(t, uint64(800), c.waits.Snapshot().Count)
	code, _ := list[0].labels.Value("code")
	require.Empty(t, code.AsString(), "the client has read none")
}

func BenchmarkObserveCall(b *testing.B) {
	var c calls
	call := proxy.Call{Method: "/apache.rocketmq.v2.MessagingService/SendMessage", Code: rmqpb.Code_OK, Took: time.Second}
	for b.Loop() {
		c.observe(call)
	}
}

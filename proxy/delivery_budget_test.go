package proxy

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/test/bufconn"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
)

func TestALeaseDoesNotEndWhileItsMessageWaitsForMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slice = 3 * time.Second
		s := newTestServer(t, func(o *testOptions) { o.RenewSlice, o.DeliveryMemory = slice, budgetUnit })
		s.topic(t, "a")
		s.send(t, message("a", "1", "x"))
		c := s.consumer("a", "g")
		all := s.deliveries.take(t, nil, budgetUnit)
		start := time.Now()
		require.Equal(t, rmqpb.Code_TOO_MANY_REQUESTS, c.receive(t, c.push(1, 0)).code)
		require.Less(t, time.Since(start), slice, "it would have been delivered to another one meanwhile")

		const waited = slice/3 - 100*time.Millisecond
		time.AfterFunc(waited, all.release)
		a := c.receive(t, c.push(1, 0))
		require.Equal(t, []int32{1}, a.attempts())
		next, some := s.renewals.untilNext()
		require.True(t, some)
		require.Equal(t, s.renewals.ahead()-waited, next, "the lease began before the wait")
		c.quiet(t, time.Minute)
	})
}

func TestAConnectionThatDoesNotReadLeavesMemoryForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t, func(o *testOptions) { o.DeliveryMemory = 4 << 20 })
		pipe := bufconn.Listen(1 << 20)
		s.serveOn(t, pipe)
		s.topic(t, "a")
		s.sendLarge(t, "a", 100)
		c := s.consumer("a", "g")
		conn := dialOn(t, pipe, asIs)
		for range 10 {
			c.ignore(t, conn, c.simple(4, time.Hour, 0))
		}
		synctest.Wait()
		require.Positive(t, s.Stats().Delivering)
		require.LessOrEqual(t, s.Stats().Delivering, int64(2<<20))

		other := *c
		other.id = "other"
		start := time.Now()
		require.Len(t, other.receive(t, other.simple(4, time.Hour, 0)).messages, 4)
		require.Zero(t, time.Since(start))
	})
}

package proxy

import (
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/test/bufconn"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
)

// large is the size of a body of which gRPC takes only one when nobody reads.
const large = 256 << 10

// sendLarge sends n large messages.
func (s *testServer) sendLarge(t testing.TB, topic string, n int) {
	t.Helper()
	for i := range n {
		s.send(t, message(topic, fmt.Sprint(i), strings.Repeat("x", large)))
	}
}

func asIs(conn net.Conn) net.Conn { return conn }

// ignore begins a receive, without a deadline, that nobody reads.
func (c *consumer) ignore(t testing.TB, conn *grpc.ClientConn, req *rmqpb.ReceiveMessageRequest) grpc.ServerStreamingClient[rmqpb.ReceiveMessageResponse] {
	t.Helper()
	stream, err := rmqpb.NewMessagingServiceClient(conn).ReceiveMessage(from(t, c.id), req)
	require.NoError(t, err)
	return stream
}

func TestAClientThatNeverReadsLosesItsConnectionAndItsMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		pipe := bufconn.Listen(1 << 20)
		s.serveOn(t, pipe)
		s.topic(t, "a")
		s.sendLarge(t, "a", 4)
		c := s.consumer("a", "g")
		conn := dialOn(t, pipe, asIs)
		stream := c.ignore(t, conn, c.simple(32, time.Hour, 0))
		synctest.Wait()
		other := *c
		other.id = "other"
		require.Empty(t, other.receive(t, other.simple(32, time.Hour, 0)).messages, "the first one has them all")

		start := time.Now()
		again := other.receive(t, other.simple(32, time.Hour, 20*time.Second))
		for len(again.messages) == 0 {
			again = other.receive(t, other.simple(32, time.Hour, 20*time.Second))
		}
		require.LessOrEqual(t, time.Since(start), 2*deliveryStall)
		require.Len(t, again.messages, 3, "gRPC had taken one, which may have been seen")
		require.Equal(t, []int32{1, 1, 1}, again.attempts())
		for err := error(nil); err == nil; {
			_, err = stream.Recv()
		}
	})
}

func TestAClientThatReadsSlowlyGetsEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		pipe := bufconn.Listen(1 << 20)
		s.serveOn(t, pipe)
		s.topic(t, "a")
		s.sendLarge(t, "a", 4)
		c := s.consumer("a", "g")
		stream := c.ignore(t, dialOn(t, pipe, asIs), c.simple(32, time.Hour, 0))
		received := 0
		for range 6 {
			time.Sleep(deliveryStall/2 - time.Second)
			frame, err := stream.Recv()
			require.NoError(t, err)
			if frame.GetMessage() != nil {
				received++
			}
		}
		require.Equal(t, 4, received)
	})
}

// countedFrames counts the bytes of frames that are not written yet.
type countedFrames struct {
	mem.BufferPool
	now, most atomic.Int64
}

func (p *countedFrames) Get(size int) *[]byte {
	buf := p.BufferPool.Get(size)
	now := p.now.Add(int64(cap(*buf)))
	for most := p.most.Load(); now > most && !p.most.CompareAndSwap(most, now); most = p.most.Load() {
	}
	return buf
}

func (p *countedFrames) Put(buf *[]byte) {
	p.now.Add(-int64(cap(*buf)))
	p.BufferPool.Put(buf)
}

func TestManyClientsThatNeverReadHoldBoundedMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const memory = 2 << 20
		s := newTestServer(t, func(o *testOptions) { o.DeliveryMemory = memory })
		frames := &countedFrames{BufferPool: s.frames}
		s.frames = frames
		pipe := bufconn.Listen(1 << 20)
		s.serveOn(t, pipe)
		s.topic(t, "a")
		s.sendLarge(t, "a", 100)
		c := s.consumer("a", "g")
		streams := make([]grpc.ServerStreamingClient[rmqpb.ReceiveMessageResponse], 20)
		for i := range streams {
			streams[i] = c.ignore(t, dialOn(t, pipe, asIs), c.simple(4, time.Hour, 0))
			synctest.Wait() // the last one comes too late
		}
		require.NotZero(t, frames.most.Load())
		// A frame above the size of its message comes from the next tier of the pool.
		require.LessOrEqual(t, frames.most.Load(), int64(2*memory))
		require.Positive(t, s.Stats().Delivering)
		require.LessOrEqual(t, s.Stats().Delivering, int64(memory))

		// The others are told to come again, and what they had found is not counted
		// as delivered.
		start := time.Now()
		refused, err := streams[len(streams)-1].Recv()
		require.NoError(t, err)
		require.Equal(t, rmqpb.Code_TOO_MANY_REQUESTS, refused.GetStatus().GetCode())
		require.Contains(t, refused.GetStatus().GetMessage(), "delivery_memory")
		require.LessOrEqual(t, time.Since(start), budgetWait+2*errorPause)
		require.Positive(t, s.Stats().DeliveriesRefused)

		time.Sleep(2 * deliveryStall)
		require.LessOrEqual(t, frames.most.Load(), int64(2*memory))
		got := 0
		for {
			a := c.receive(t, c.simple(4, time.Hour, 0))
			if len(a.messages) == 0 {
				break
			}
			got += len(a.messages)
			for _, attempt := range a.attempts() {
				require.EqualValues(t, 1, attempt)
			}
		}
		// gRPC had taken one on each of the connections that were cut.
		require.GreaterOrEqual(t, got, 100-len(streams))
		require.Zero(t, s.Stats().Delivering)
	})
}

func TestAReceiveLargerThanTheDeliveryMemoryGoesAlone(t *testing.T) {
	s := newTestServer(t, func(o *testOptions) { o.DeliveryMemory = 1000 })
	s.topic(t, "a")
	s.sendLarge(t, "a", 3)
	c := s.consumer("a", "g")
	require.Len(t, c.receive(t, c.simple(2, time.Minute, 0)).messages, 2)
	require.Len(t, c.receive(t, c.simple(2, time.Minute, 0)).messages, 1)
}

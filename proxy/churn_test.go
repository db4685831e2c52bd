package proxy

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/router"
)

// A line is a client's connection. Once it is cut nothing goes through it, in
// either direction, and neither end is told: what a host without power leaves.
type line struct {
	net.Conn
	dead   atomic.Bool
	closed chan struct{}
	once   sync.Once
}

func (l *line) Write(b []byte) (int, error) {
	if l.dead.Load() {
		return len(b), nil
	}
	return l.Conn.Write(b)
}

func (l *line) Read(b []byte) (int, error) {
	n, err := l.Conn.Read(b)
	if l.dead.Load() {
		<-l.closed
		return 0, net.ErrClosed
	}
	return n, err
}

// Close closes the client's end. The server's end of a dead line stays as it is.
func (l *line) Close() error {
	l.once.Do(func() { close(l.closed) })
	if l.dead.Load() {
		return nil
	}
	return l.Conn.Close()
}

// The ways in which a client leaves.
const (
	saysGoodbye = iota
	closes      // its connection, and says nothing
	losesPower  // the connection stays open, and dead
	fallsSilent // with its connection alive
	waysOfLeaving
)

// A visitor is a consumer that comes, receives a little and leaves.
type visitor struct {
	t      *testing.T
	id     string
	conn   *grpc.ClientConn
	client rmqpb.MessagingServiceClient
	line   *line
	poll   context.CancelFunc
	ended  sync.WaitGroup
}

func visit(t *testing.T, id string, dial func(context.Context, string) (net.Conn, error)) *visitor {
	t.Helper()
	v := &visitor{t: t, id: id}
	var err error
	v.conn, err = grpc.NewClient("passthrough:///perigee.test:8081", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			if v.line != nil {
				return nil, net.ErrClosed // one that has gone does not come back
			}
			c, err := dial(ctx, addr)
			v.line = &line{Conn: c, closed: make(chan struct{})}
			return v.line, err
		}))
	require.NoError(t, err)
	v.client = rmqpb.NewMessagingServiceClient(v.conn)
	return v
}

// consume subscribes, receives, acknowledges every other message and leaves a
// receive waiting. It returns the ids of what it acknowledged.
func (v *visitor) consume(req *rmqpb.ReceiveMessageRequest, telemetry bool) (acked []string) {
	t := v.t
	topic, group := req.GetMessageQueue().GetTopic(), req.GetGroup()
	ctx, cancel := context.WithCancel(from(t, v.id))
	v.poll = cancel
	if telemetry {
		stream := open(t, v.client, ctx)
		offer(t, stream, subscriber(rmqpb.ClientType_PUSH_CONSUMER, group.GetName(), topic.GetName()))
		reply(t, stream)
	}
	a, err := receiveOver(t, from(t, v.id), v.conn, req)
	require.NoError(t, err)
	ack := &rmqpb.AckMessageRequest{Group: group, Topic: topic}
	for i := 0; i < len(a.messages); i += 2 {
		ack.Entries = append(ack.Entries, &rmqpb.AckMessageEntry{ReceiptHandle: a.handle(i)})
		acked = append(acked, a.ids()[i])
	}
	if len(acked) > 0 {
		resp, err := v.client.AckMessage(from(t, v.id), ack)
		require.NoError(t, err)
		require.Equal(t, rmqpb.Code_OK, resp.GetStatus().GetCode())
	}
	v.ended.Go(func() {
		stream, err := v.client.ReceiveMessage(ctx, req)
		for err == nil {
			_, err = stream.Recv()
		}
	})
	return acked
}

// leave leaves in one of the ways. gone ends what is left of the client itself.
func (v *visitor) leave(way int) {
	switch way {
	case saysGoodbye:
		_, err := v.client.NotifyClientTermination(from(v.t, v.id), &rmqpb.NotifyClientTerminationRequest{})
		require.NoError(v.t, err)
		v.poll()
		require.NoError(v.t, v.conn.Close())
	case closes:
		require.NoError(v.t, v.conn.Close())
	case losesPower:
		v.line.dead.Store(true)
	case fallsSilent:
		v.poll()
	}
}

func (v *visitor) gone() {
	v.poll()
	_ = v.conn.Close() // some have closed it
	v.ended.Wait()
}

func TestClientsThatComeAndGoLeaveNothingBehind(t *testing.T) {
	rounds, visitors := 6, 40
	if testing.Short() {
		rounds, visitors = 3, 16
	}
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(1, 2))
		s := newTestServer(t)
		s.topic(t, "stable", router.TopicSpec{Queues: 4})
		s.group(t, "everybody", router.GroupSpec{Retry: deliveries(1000).Retry})
		dial := s.serve(t)
		sent, settled := map[string]bool{}, map[string]bool{}
		var all []*visitor
		goroutines := 0
		for round := range rounds {
			for i := range visitors {
				id := fmt.Sprintf("m-%d-%d", round, i)
				s.send(t, message("stable", id, "body"))
				sent[id] = true
			}
			var present []*visitor
			for i := range visitors {
				topic, group := "stable", "everybody"
				if i%4 == 3 { // a topic and a group of its own
					topic, group = fmt.Sprintf("topic-%d-%d", round, i), fmt.Sprintf("group-%d-%d", round, i)
					s.topic(t, topic)
					s.send(t, message(topic, "1", "body"), message(topic, "2", "body"))
				}
				v := visit(t, fmt.Sprintf("visitor-%d-%d", round, i), dial)
				c := s.consumer(topic, group)
				req := c.push(3, 20*time.Second)
				if rng.IntN(3) == 0 {
					req = c.simple(3, 30*time.Second, 20*time.Second)
				}
				req.LongPollingTimeout.Seconds = int64(rng.IntN(2) * 20)
				acked := v.consume(req, rng.IntN(4) > 0)
				if topic == "stable" {
					for _, id := range acked {
						require.False(t, settled[id], "%s was acknowledged before", id)
						settled[id] = true
					}
				}
				present = append(present, v)
			}
			for _, v := range present {
				v.leave(rng.IntN(waysOfLeaving))
			}
			all = append(all, present...)
			time.Sleep(5 * time.Minute)
			synctest.Wait()
			require.Zero(t, s.sessions.Len())
			require.Zero(t, s.renewals.len())
			require.Empty(t, s.renewals.mu.clients)
			require.Empty(t, s.renewals.mu.due)
			require.Zero(t, s.nodes.Stats()[testShard].Waiting)
			for _, v := range present {
				if v.line.dead.Load() { // the server has given up its end
					_, err := v.line.Conn.Read(make([]byte, 1<<20))
					for err == nil {
						_, err = v.line.Conn.Read(make([]byte, 1<<20))
					}
				}
				v.gone()
			}
			synctest.Wait()
			if round == 0 {
				goroutines = runtime.NumGoroutine()
			}
			// Those of the runtime come and go too, but one or two.
			require.LessOrEqual(t, runtime.NumGoroutine(), goroutines+4, "round %d", round)
		}

		// What nobody acknowledged is still there, and nothing else.
		c := s.consumer("stable", "everybody")
		for {
			a := c.receive(t, c.simple(32, time.Hour, 0))
			if len(a.messages) == 0 {
				break
			}
			for i, id := range a.ids() {
				require.False(t, settled[id], "%s came again after its acknowledgement", id)
				settled[id] = true
				c.acked(t, a.handle(i))
			}
		}
		require.Equal(t, sent, settled)
		require.Len(t, all, rounds*visitors)
	})
}

package proxy

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/proxy/transport"
	"github.com/perigee-mq/perigee/router"
)

// A cable is the client's end of a connection that a test can break.
type cable struct {
	net.Conn
	deaf   atomic.Bool // what the server sends never arrives
	once   sync.Once
	closed chan struct{}
}

func (w *cable) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	if err == nil && w.deaf.Load() {
		<-w.closed
		return 0, io.EOF
	}
	return n, err
}

// Close is what the end of the process does.
func (w *cable) Close() error {
	w.once.Do(func() { close(w.closed) })
	return w.Conn.Close()
}

// A machine is where clients run: its connections can be broken.
type machine struct {
	rmqpb.MessagingServiceClient
	conn   *grpc.ClientConn
	cables []*cable
}

// crash ends every connection, as the end of the process would.
func (m *machine) crash() {
	for _, w := range m.cables {
		_ = w.Close()
	}
	synctest.Wait()
}

// machines serves s over pipes and returns what makes clients of it.
func (s *testServer) machines(t testing.TB) func() *machine {
	t.Helper()
	listener := bufconn.Listen(1 << 20)
	g := grpc.NewServer(append(transport.ServerOptions(transport.ServerConfig{}), s.Interceptors()...)...)
	s.Register(g)
	served := make(chan error, 1)
	go func() { served <- g.Serve(listener) }()
	var all []*machine
	t.Cleanup(func() {
		for _, m := range all {
			require.NoError(t, m.conn.Close())
		}
		g.Stop()
		require.NoError(t, <-served)
	})
	return func() *machine {
		m := new(machine)
		var err error
		m.conn, err = grpc.NewClient("passthrough:///perigee.test:8081", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
				conn, err := listener.DialContext(ctx)
				if err != nil {
					return nil, err
				}
				w := &cable{Conn: conn, closed: make(chan struct{})}
				m.cables = append(m.cables, w)
				return w, nil
			}))
		require.NoError(t, err)
		m.MessagingServiceClient = rmqpb.NewMessagingServiceClient(m.conn)
		all = append(all, m)
		return m
	}
}

// beat sends heartbeats every ten seconds until ctx ends.
func (m *machine) beat(t testing.TB, ctx context.Context, c *consumer) {
	for {
		resp, err := m.Heartbeat(from(t, c.id), &rmqpb.HeartbeatRequest{Group: named(c.group), ClientType: rmqpb.ClientType_PUSH_CONSUMER})
		if ctx.Err() != nil {
			return
		}
		require.NoError(t, err)
		require.Equal(t, rmqpb.Code_OK, resp.GetStatus().GetCode())
		if !pause(ctx, 10*time.Second) {
			return
		}
	}
}

// holding returns a server with n messages that a consumer on the machine holds.
func holding(t *testing.T, n int, change ...func(*testOptions)) (s *testServer, machines func() *machine, m *machine, c *consumer, a *answer) {
	t.Helper()
	s = newTestServer(t, change...)
	s.topic(t, "a", router.TopicSpec{Queues: 1})
	for i := range n {
		s.send(t, message("a", fmt.Sprint(i), "x"))
	}
	machines = s.machines(t)
	m, c = machines(), s.consumer("a", "g")
	a, err := receiveOver(t, from(t, c.id), m.conn, c.push(32, 0))
	require.NoError(t, err)
	require.Len(t, a.messages, n)
	return s, machines, m, c, a
}

// A consumer that has all it can hold does not poll. What tells of its death is
// the end of its connection.
func TestMessagesOfADeadConsumerThatDidNotPollAreHandedOver(t *testing.T) {
	for _, telemetry := range []bool{true, false} {
		t.Run(fmt.Sprintf("telemetry %t", telemetry), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, _, m, c, _ := holding(t, 32)
				if telemetry {
					open(t, m, from(t, c.id))
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go m.beat(t, ctx, c)
				time.Sleep(95 * time.Second)
				cancel()
				synctest.Wait()
				m.crash()
				d, back := c.back(t)
				require.LessOrEqual(t, d, 10*time.Second)
				require.Len(t, back.messages, 32)
				require.EqualValues(t, 2, back.attempts()[0])
				require.Zero(t, s.renewals.len())
				require.Empty(t, s.links.mu.open)
			})
		})
	}
}

// Whatever the renewals are doing when the consumer dies, they give up in time.
func TestADeathIsNoticedAtAnyPointOfTheSlice(t *testing.T) {
	for at := 30 * time.Second; at <= 44*time.Second; at += 500 * time.Millisecond {
		synctest.Test(t, func(t *testing.T) {
			s, _, m, c, _ := holding(t, 1)
			store := &faultyStore{Store: s.store}
			store.failing(func(call string) error {
				if call == "renew" {
					time.Sleep(2 * time.Second) // it may die while the store is asked
				}
				return nil
			})
			s.store = store
			alive, cancel := context.WithTimeout(t.Context(), 15*time.Second)
			defer cancel()
			m.beat(t, alive, c) // so that it has the message for certain
			time.Sleep(at - 15*time.Second)
			m.crash()
			d, _ := c.back(t)
			require.LessOrEqual(t, d, 12*time.Second, "died after %v", at)
			require.Zero(t, s.renewals.len())
		})
	}
}

func TestAConsumerWithAllHandsFullThatReconnectsKeepsItsMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, machines, m, c, a := holding(t, 2)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		beating, stop := context.WithTimeout(t.Context(), 15*time.Second)
		defer stop()
		m.beat(t, beating, c)
		m.crash() // the balancer did it
		time.Sleep(7 * time.Second)
		m = machines()
		go m.beat(t, ctx, c)
		c.quiet(t, 5*time.Minute)
		resp, err := m.AckMessage(from(t, c.id), &rmqpb.AckMessageRequest{
			Group: named("g"), Topic: named("a"), Entries: []*rmqpb.AckMessageEntry{{ReceiptHandle: a.handle(0)}, {ReceiptHandle: a.handle(1)}},
		})
		require.NoError(t, err)
		require.Equal(t, rmqpb.Code_OK, resp.GetStatus().GetCode())
	})
}

func TestTheEndOfOneOfSeveralConnectionsMeansNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, machines, m, c, _ := holding(t, 1)
		second := machines()
		for i := range 3 {
			s.send(t, message("a", fmt.Sprint("second ", i), "x"))
			a, err := receiveOver(t, from(t, c.id), second.conn, c.push(1, 0))
			require.NoError(t, err)
			require.Len(t, a.messages, 1)
		}
		c.live(t, 100*time.Second) // nothing that was on its way then still is
		m.crash()
		c.live(t, time.Minute)
		require.Equal(t, 4, s.renewals.len())
		second.crash()
		time.Sleep(11 * time.Second)
		require.Zero(t, s.renewals.len())
	})
}

// The connection breaks behind the server's back while it answers, and the
// client goes on over another one: it lives, and does not know of the message.
func TestAnAnswerThatNeverArrivedIsNotRenewedForALivingClient(t *testing.T) {
	for _, after := range []time.Duration{0, 5 * time.Second, 40 * time.Second} {
		t.Run(after.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, machines, m, c, a := holding(t, 1)
				time.Sleep(10 * time.Second)
				for _, w := range m.cables {
					w.deaf.Store(true)
				}
				ctx, cancel := context.WithTimeout(from(t, c.id), 15*time.Second)
				defer cancel()
				lost := make(chan error, 1)
				go func() {
					_, err := receiveOver(t, ctx, m.conn, c.push(32, 10*time.Second))
					lost <- err
				}()
				time.Sleep(5 * time.Second)
				s.send(t, message("a", "lost", "x"))
				synctest.Wait()
				require.Equal(t, 2, s.renewals.len(), "as far as the server can tell it was delivered")
				living, stop := context.WithCancel(t.Context())
				defer stop()
				other := machines()
				go other.beat(t, living, c)
				time.Sleep(after)
				m.crash() // the transport gives it up
				start := time.Now()
				got, err := receiveOver(t, from(t, c.id), other.conn, c.push(32, 20*time.Second))
				require.NoError(t, err)
				require.Equal(t, []string{"lost"}, got.ids())
				require.LessOrEqual(t, time.Since(start), 5*time.Second)
				require.Error(t, <-lost)
				c.quiet(t, 5*time.Minute) // what it has it keeps
				require.Equal(t, 2, s.renewals.len())
				c.acked(t, a.handle(0))
				c.acked(t, got.handle(0))
			})
		})
	}
}

// Behind a sidecar the connection outlives the client. What the server sees is
// that a stream ends, which also happens to clients that live.
func TestAClientThatLosesOnlyItsTelemetryStreamHasTimeForAHeartbeat(t *testing.T) {
	for _, lives := range []bool{true, false} {
		t.Run(fmt.Sprintf("lives %t", lives), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, _, m, c, _ := holding(t, 1)
				stream, end := context.WithCancel(from(t, c.id))
				defer end()
				open(t, m, stream)
				time.Sleep(5 * time.Second)
				end()
				if lives {
					time.Sleep(29 * time.Second)
					c.heartbeat(t)
					c.quiet(t, 2*time.Minute)
					return
				}
				d, _ := c.back(t)
				require.Greater(t, d, 30*time.Second)
				require.LessOrEqual(t, d, 40*time.Second)
				require.Zero(t, s.renewals.len())
			})
		})
	}
}

// A leavingStore says goodbye for the client at the moment it has messages.
type leavingStore struct {
	Store
	leave func()
}

func (l leavingStore) Receive(ctx context.Context, shard string, r mq.Receive) ([]mq.Delivery, error) {
	got, err := l.Store.Receive(ctx, shard, r)
	if len(got) > 0 {
		l.leave()
	}
	return got, err
}

func TestAGoodbyeThatMeetsADeliveryLeavesNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a")
		c := s.consumer("a", "g", headerLanguage, "JAVA")
		whole := s.store
		for name, leave := range map[string]func(){
			"goodbye":          func() { c.terminate(t) },
			"and another life": func() { c.terminate(t); c.heartbeat(t) },
		} {
			s.send(t, message("a", name, "x"))
			s.store = leavingStore{whole, leave}
			require.Empty(t, c.receive(t, c.push(1, 0)).messages, name)
			s.store = whole
			require.Zero(t, s.renewals.len(), name)
			other := s.consumer("a", "g")
			other.id = "heir"
			a := other.receive(t, other.simple(1, 10*time.Second, 0))
			require.Equal(t, []string{name}, a.ids())
			require.Equal(t, []int32{1}, a.attempts(), name)
			other.acked(t, a.handle(0))
		}
	})
}

// SDKs say goodbye and close their connections while handlers still run.
func TestAcksOfALeavingClientOverANewConnectionAreTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, machines, m, c, a := holding(t, 3)
		resp, err := m.NotifyClientTermination(from(t, c.id), &rmqpb.NotifyClientTerminationRequest{Group: named("g")})
		require.NoError(t, err)
		require.Equal(t, rmqpb.Code_OK, resp.GetStatus().GetCode())
		goodbye := time.Now()
		m.crash()
		other := machines()
		ack := func(i int) rmqpb.Code {
			resp, err := other.AckMessage(from(t, c.id), &rmqpb.AckMessageRequest{
				Group: named("g"), Topic: named("a"), Entries: []*rmqpb.AckMessageEntry{{ReceiptHandle: a.handle(i)}},
			})
			require.NoError(t, err)
			return resp.GetStatus().GetCode()
		}
		time.Sleep(7 * time.Second)
		require.Equal(t, rmqpb.Code_OK, ack(0))
		time.Sleep(time.Until(goodbye.Add(9 * time.Second)))
		require.Equal(t, rmqpb.Code_OK, ack(1), "nobody has it yet")
		heir := s.consumer("a", "g")
		heir.id = "heir"
		got := heir.receive(t, heir.simple(32, time.Hour, 0))
		require.Equal(t, []string{"2"}, got.ids(), "the unfinished one, within ten seconds")
		time.Sleep(time.Until(goodbye.Add(29 * time.Second)))
		require.Equal(t, rmqpb.Code_INVALID_RECEIPT_HANDLE, ack(2), "the heir has it now")
		heir.holds(t, got.handle(0))
	})
}

// The client opens the poll and never reads: what it does not take goes to others
// when its deadline has passed.
func TestAnAnswerThatTheClientDoesNotReadIsTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, m, c, _ := holding(t, 1)
		body := string(make([]byte, 100_000))
		for i := range 20 {
			s.send(t, message("a", fmt.Sprint("big ", i), body))
		}
		ctx, cancel := context.WithTimeout(from(t, c.id), 23*time.Second)
		defer cancel()
		_, err := m.ReceiveMessage(ctx, c.push(32, 20*time.Second))
		require.NoError(t, err)
		time.Sleep(22 * time.Second)
		c.heartbeat(t) // it lives all the same
		require.Equal(t, 21, s.renewals.len())
		<-ctx.Done()
		synctest.Wait()
		start := time.Now()
		other := s.consumer("a", "g")
		other.id = "heir"
		seen := map[string]bool{}
		for len(seen) < 20 {
			a := other.receive(t, other.simple(32, time.Hour, 5*time.Second))
			require.NotEmpty(t, a.messages)
			for _, id := range a.ids() {
				seen[id] = true
			}
		}
		require.LessOrEqual(t, time.Since(start), 2*time.Second)
		require.Equal(t, 1, s.renewals.len(), "what it has read it keeps")
	})
}

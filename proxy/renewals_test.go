package proxy

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/proxy/session"
	"github.com/perigee-mq/perigee/router"
)

// quiet requires that nothing is delivered to another client of the group for d.
func (c *consumer) quiet(t testing.TB, d time.Duration) {
	t.Helper()
	other := *c
	other.id = "onlooker"
	for start := time.Now(); time.Since(start) < d; c.heartbeat(t) {
		require.Empty(t, other.receive(t, other.simple(32, time.Hour, 10*time.Second)).messages)
	}
}

// back returns how long it takes until another client of the group gets messages.
func (c *consumer) back(t testing.TB) (time.Duration, *answer) {
	t.Helper()
	other := *c
	other.id = "heir"
	for start := time.Now(); time.Since(start) < 13*time.Hour; {
		if a := other.receive(t, other.simple(32, time.Hour, 20*time.Second)); len(a.messages) > 0 {
			return time.Since(start), a
		}
	}
	require.FailNow(t, "no message came back")
	return 0, nil
}

func TestARenewedMessageIsDeliveredOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, store := withFaults(t)
		s.topic(t, "a")
		for i := range 32 {
			s.send(t, message("a", fmt.Sprint(i), "x"))
		}
		c := s.consumer("a", "g")
		a := c.receive(t, c.push(32, 0))
		require.Len(t, a.messages, 32)
		require.Equal(t, time.Minute, a.messages[0].GetSystemProperties().GetInvisibleDuration().AsDuration())
		c.quiet(t, 30*time.Minute)
		synctest.Wait() // a renewal is due at this very moment
		// One call renews the whole batch.
		require.InDelta(t, 45, store.renewed(), 2)
		for i := range a.messages {
			c.acked(t, a.handle(i))
		}
		require.Zero(t, s.renewals.len())
		before := store.renewed()
		c.quiet(t, 10*time.Minute)
		require.Equal(t, before, store.renewed())
	})
}

func TestMessagesOfASilentClientComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a")
		s.send(t, message("a", "1", "x"))
		c := s.consumer("a", "g")
		c.receive(t, c.push(1, 0))
		c.live(t, 10*time.Minute)
		d, a := c.back(t)
		require.InDelta(t, 91*time.Second, d, float64(2*time.Second))
		require.Equal(t, []int32{2}, a.attempts())
		require.Zero(t, s.renewals.len())
	})
}

func TestRenewalOfAClientNeverOutlivesItsSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a")
		s.send(t, message("a", "1", "x"))
		c := s.consumer("a", "g")
		c.receive(t, c.push(1, 0))
		time.Sleep(30 * time.Second)
		s.sessions.Remove(c.id) // however that came to be
		d, _ := c.back(t)
		require.LessOrEqual(t, d, 12*time.Second)
		require.Zero(t, s.renewals.len())
	})
}

func TestMessagesOfAClientWhoseConnectionBreaksAreHandedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a")
		for i := range 32 {
			s.send(t, message("a", fmt.Sprint(i), "x"))
		}
		conn := s.dial(t)
		c := s.consumer("a", "g")
		connected, breaks := context.WithCancel(from(t, c.id)) // all that the server sees of it
		defer breaks()
		telemetry, err := rmqpb.NewMessagingServiceClient(conn).Telemetry(connected)
		require.NoError(t, err)
		require.NoError(t, telemetry.Send(&rmqpb.TelemetryCommand{}))
		a, err := receiveOver(t, from(t, c.id), conn, c.push(32, 0))
		require.NoError(t, err)
		require.Len(t, a.messages, 32)
		polling := make(chan error, 1)
		go func() {
			_, err := receiveOver(t, connected, conn, c.push(32, 20*time.Second))
			polling <- err
		}()
		time.Sleep(10 * time.Second)
		breaks()
		require.Error(t, <-polling)
		d, back := c.back(t)
		require.LessOrEqual(t, d, 10*time.Second)
		require.Len(t, back.messages, 32)
	})
}

func TestAClientThatComesBackAfterALostConnectionKeepsItsMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a")
		s.send(t, message("a", "1", "x"))
		c := s.consumer("a", "g")
		h := c.receive(t, c.push(1, 0)).handle(0)
		for range 10 {
			ctx, cancel := context.WithCancel(c.ctx(t))
			time.AfterFunc(5*time.Second, cancel)
			require.Error(t, s.ReceiveMessage(c.push(1, 20*time.Second), &frameStream{ctx: ctx, t: t}))
			time.Sleep(2 * time.Second)
			c.heartbeat(t)
			c.quiet(t, 20*time.Second)
		}
		c.acked(t, h)
	})
}

func TestMessagesOfALeavingClientComeBackSoonAndCanStillBeAcked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a", router.TopicSpec{Queues: 1})
		s.send(t, message("a", "finished late", "x"))
		s.send(t, message("a", "unfinished", "x"))
		c := s.consumer("a", "g")
		a := c.receive(t, c.push(2, 0))
		simple := s.consumer("a", "h")
		simple.id = c.id
		held := simple.receive(t, simple.simple(2, time.Minute, 0))
		require.Len(t, held.messages, 2)
		c.live(t, 5*time.Minute)

		// The simple consumer's ones are not touched: they came back long ago.
		held = simple.receive(t, simple.simple(2, time.Minute, 0))
		require.Len(t, held.messages, 2)
		c.terminate(t)
		require.Zero(t, s.renewals.len())
		time.Sleep(5 * time.Second)
		c.acked(t, a.handle(0))
		d, back := c.back(t)
		require.LessOrEqual(t, 5*time.Second+d, 10*time.Second)
		require.Equal(t, []string{"unfinished"}, back.ids())
		require.Equal(t, []int32{2}, back.attempts())
		d, back = simple.back(t)
		require.Greater(t, 5*time.Second+d, 50*time.Second)
		require.Len(t, back.messages, 2)
	})
}

func TestAnAckAfterTheGoodbyeIsOKWhileNobodyHasTheMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a")
		s.send(t, message("a", "1", "x"))
		c := s.consumer("a", "g")
		h := c.receive(t, c.push(1, 0)).handle(0)
		c.terminate(t)
		c.terminate(t) // an unknown client may say goodbye too
		time.Sleep(30 * time.Second)
		c.acked(t, h)
		require.Nil(t, s.sessions.Get(c.id))
		c.quiet(t, time.Minute)
	})
}

func TestRenewalEndsAtItsLimitWithTheGroupsRetryDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t, func(o *testOptions) { o.RenewLimit = 10*time.Minute - 5*time.Second })
		s.topic(t, "a")
		s.group(t, "g", router.GroupSpec{Retry: mq.RetryPolicy{MaxAttempts: 2, Customized: []time.Duration{30 * time.Second}}})
		s.send(t, message("a", "1", "x"))
		c := s.consumer("a", "g")
		c.receive(t, c.push(1, 0))
		c.quiet(t, 10*time.Minute)
		require.Zero(t, s.renewals.len())
		d, a := c.back(t)
		require.InDelta(t, 25*time.Second, d, float64(time.Second))
		require.Equal(t, []int32{2}, a.attempts())
	})
}

func TestTheLastAttemptIsDeadLetteredWhenRenewalEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t, func(o *testOptions) { o.RenewLimit = 5 * time.Minute })
		s.topic(t, "a")
		s.group(t, "g", router.GroupSpec{Retry: mq.RetryPolicy{MaxAttempts: 1, Customized: []time.Duration{2 * time.Hour}}})
		s.send(t, message("a", "1", "x"))
		c := s.consumer("a", "g")
		c.receive(t, c.push(1, 0))
		c.live(t, 5*time.Minute-time.Second)
		require.Empty(t, c.deadLetters(t))
		c.live(t, 3*time.Second)
		require.Equal(t, []string{"1"}, c.deadLetters(t))
	})
}

func TestARenewalThatFailsIsTriedAgainInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, store := withFaults(t)
		s.topic(t, "a")
		s.send(t, message("a", "1", "x"))
		c := s.consumer("a", "g")
		c.receive(t, c.push(1, 0))
		failures := 0
		store.failing(func(call string) error {
			if call == "renew" && failures < maxRenewFailures {
				failures++
				return errors.New("disk on fire")
			}
			return nil
		})
		c.quiet(t, 10*time.Minute)
		require.Equal(t, maxRenewFailures, failures)
		require.Equal(t, 1, s.renewals.len())

		store.failing(func(call string) error {
			if call == "renew" {
				return mq.ErrStopped
			}
			return nil
		})
		before := store.renewed()
		c.live(t, 2*time.Minute)
		require.Equal(t, before+maxRenewFailures+1, store.renewed())
		require.Zero(t, s.renewals.len())
	})
}

// A nack that meets the renewal of its message keeps its own delay.
func TestANackIsNotUndoneByARenewalUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, store := withFaults(t)
		s.topic(t, "a")
		s.send(t, message("a", "1", "x"))
		c := s.consumer("a", "g")
		h := c.receive(t, c.push(1, 0)).handle(0)
		slow := true
		store.failing(func(call string) error {
			if call == "renew" && slow {
				slow = false
				time.Sleep(3 * time.Second)
			}
			return nil
		})
		time.Sleep(41 * time.Second) // the renewal is in the store's hands
		require.Equal(t, rmqpb.Code_OK, c.change(t, h, 5*time.Second).GetStatus().GetCode())
		require.Zero(t, s.renewals.len())
		d, a := c.back(t)
		require.InDelta(t, 5*time.Second, d, float64(time.Second))
		require.Equal(t, []int32{2}, a.attempts())
	})
}

func TestANackThatFailedKeepsTheMessageRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, store := withFaults(t)
		s.topic(t, "a")
		s.send(t, message("a", "1", "x"))
		c := s.consumer("a", "g")
		h := c.receive(t, c.push(1, 0)).handle(0)
		store.failing(func(call string) error {
			if call == "change" {
				return mq.ErrBusy
			}
			return nil
		})
		require.Equal(t, rmqpb.Code_TOO_MANY_REQUESTS, c.change(t, h, time.Second).GetStatus().GetCode())
		store.failing(nil)
		c.quiet(t, 5*time.Minute)
		require.Equal(t, rmqpb.Code_OK, c.change(t, h, time.Second).GetStatus().GetCode())
		d, _ := c.back(t)
		require.LessOrEqual(t, d, 2*time.Second)
		c.quiet(t, 5*time.Minute)
	})
}

// die ends the renewals as the end of the process does.
func (s *testServer) die() {
	s.adopter.close()
	s.renewals.closed.Do(func() {})
	s.renewals.cancel()
	s.renewals.done.Wait()
}

// second returns another proxy before the same store.
func (s *testServer) second(t testing.TB, change ...func(*Options)) *testServer {
	t.Helper()
	o := Options{Store: s.nodes, Router: s.meta, Transactions: s.nodes, Handover: s.opts.Handover, RenewLimit: s.opts.RenewLimit}
	for _, c := range change {
		c(&o)
	}
	proxy, err := New(o)
	require.NoError(t, err)
	t.Cleanup(proxy.Close)
	return &testServer{Server: proxy, nodes: s.nodes, meta: s.meta}
}

func TestAnotherProxySettlesWhatOneRenewsAndWhatADeadOneHasRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, store := withFaults(t)
		s.topic(t, "a", router.TopicSpec{Queues: 1})
		for i := range 3 {
			s.send(t, message("a", fmt.Sprint(i), "x"))
		}
		c := s.consumer("a", "g")
		a := c.receive(t, c.push(32, 0))
		require.Len(t, a.messages, 3)
		c.live(t, 90*time.Second)
		require.Equal(t, 2, store.renewed())
		elsewhere := s.second(t).consumer("a", "g")
		elsewhere.acked(t, a.handle(0))
		s.die()
		died := time.Now()
		elsewhere.acked(t, a.handle(1)) // the handle that the client got first
		d, back := elsewhere.back(t)
		require.LessOrEqual(t, d, time.Minute)
		require.Equal(t, a.ids()[2:], back.ids())
		require.Equal(t, []int32{2}, back.attempts())
		time.Sleep(time.Until(died.Add(10 * time.Minute)))
		require.Empty(t, elsewhere.receive(t, elsewhere.push(32, 0)).messages)
	})
}

func TestAProxyThatIsStoppedLeavesHandlersAWholeSlice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a")
		c := s.consumer("a", "g")
		for i := range 600 { // more than one call to the store takes
			s.send(t, message("a", fmt.Sprint(i), "x"))
		}
		var handles []string
		for len(handles) < 600 {
			a := c.receive(t, c.push(32, 0))
			for i := range a.messages {
				handles = append(handles, a.handle(i))
			}
		}
		c.live(t, 79*time.Second) // 21 s are left
		s.Close()
		elsewhere := s.second(t).consumer("a", "g")
		elsewhere.quiet(t, 39*time.Second)
		for _, h := range handles[1:] {
			elsewhere.acked(t, h)
		}
		d, back := elsewhere.back(t)
		require.LessOrEqual(t, 39*time.Second+d, 62*time.Second)
		require.Len(t, back.messages, 1)
	})
}

func TestDeletedTopicsAreNotRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, store := withFaults(t)
		topic := s.topic(t, "a")
		s.send(t, message("a", "1", "x"))
		c := s.consumer("a", "g")
		c.receive(t, c.push(1, 0))
		require.NoError(t, s.nodes.DeleteTopic(t.Context(), topic.ID))
		c.live(t, 2*time.Minute)
		require.Zero(t, s.renewals.len())
		require.Equal(t, 1, store.renewed())
	})
}

func TestDeliveriesOfOneSecondAreRenewedInOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, store := withFaults(t)
		s.topic(t, "a")
		c := s.consumer("a", "g")
		for i := range 9 {
			s.send(t, message("a", fmt.Sprint(i), "x"))
			require.Len(t, c.receive(t, c.push(1, 0)).messages, 1)
			time.Sleep(100 * time.Millisecond)
		}
		c.live(t, 100*time.Second)
		require.Equal(t, 2, store.renewed())
	})
}

func TestALostPollMeansNothingWhileTheClientHasAStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a")
		s.send(t, message("a", "1", "x"))
		c := s.consumer("a", "g")
		c.receive(t, c.push(1, 0))
		s.sessions.Touch(c.id).Attach(session.NewStream())
		ctx, cancel := context.WithCancel(c.ctx(t))
		cancel()
		require.Error(t, s.ReceiveMessage(c.push(1, 20*time.Second), &frameStream{ctx: ctx, t: t}))
		time.Sleep(30 * time.Second)
		require.Equal(t, 1, s.renewals.len())
	})
}

func TestAClientThatCameBackAsItsSessionEndedKeepsItsMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a")
		s.send(t, message("a", "1", "x"))
		c := s.consumer("a", "g")
		c.receive(t, c.push(1, 0))
		old := s.sessions.Remove(c.id)
		c.heartbeat(t)
		s.sessionEnded(old)
		require.Equal(t, 1, s.renewals.len())
		s.sessionEnded(s.sessions.Remove(c.id))
		require.Zero(t, s.renewals.len())
	})
}

func TestRenewalsOfManyClientsKeepTheirOwnTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a")
		var all []*consumer
		for i := range 20 {
			c := s.consumer("a", "g")
			c.id = fmt.Sprint("client-", i)
			s.send(t, message("a", fmt.Sprint(i), "x"))
			require.Len(t, c.receive(t, c.push(1, 0)).messages, 1)
			all = append(all, c)
			time.Sleep(700 * time.Millisecond)
		}
		for range 60 {
			time.Sleep(10 * time.Second)
			for _, c := range all {
				c.heartbeat(t)
			}
		}
		require.Equal(t, 20, s.renewals.len())
		for i, c := range all {
			c.terminate(t)
			require.Equal(t, 19-i, s.renewals.len())
		}
		require.Empty(t, s.renewals.mu.clients)
		require.Empty(t, s.renewals.mu.due)
	})
}

func TestHeartbeatsNeedAClientTypeOrAKnownClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		beat := func(id string, typ rmqpb.ClientType, group *rmqpb.Resource) rmqpb.Code {
			resp, err := s.Heartbeat(as(t, id), &rmqpb.HeartbeatRequest{ClientType: typ, Group: group})
			require.NoError(t, err)
			return resp.GetStatus().GetCode()
		}
		require.Equal(t, rmqpb.Code_UNRECOGNIZED_CLIENT_TYPE, beat("c", 0, nil))
		require.Zero(t, s.sessions.Len())
		require.Equal(t, rmqpb.Code_OK, beat("c", rmqpb.ClientType_PRODUCER, nil))
		require.Equal(t, rmqpb.Code_OK, beat("c", 0, nil))
		require.Equal(t, rmqpb.Code_OK, beat("c", 0, named("")))
		require.Equal(t, rmqpb.Code_ILLEGAL_CONSUMER_GROUP, beat("c", rmqpb.ClientType_PUSH_CONSUMER, named("g g")))
		require.Equal(t, rmqpb.Code_CLIENT_ID_REQUIRED, beat("", rmqpb.ClientType_PRODUCER, nil))
		time.Sleep(2 * time.Minute)
		require.Equal(t, rmqpb.Code_UNRECOGNIZED_CLIENT_TYPE, beat("c", 0, nil))

		// A poll makes a client known too.
		s.topic(t, "a")
		c := s.consumer("a", "g")
		c.receive(t, c.simple(1, time.Minute, 0))
		require.Equal(t, rmqpb.Code_OK, beat(c.id, 0, nil))
	})
}

// More leases are due than one call renews, and the server stops during that call.
func TestAStopWhileLeasesAreDueLeavesEachOfThemAWholeSlice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const messages = 19 * 32
		s, store := withFaults(t)
		s.topic(t, "a")
		for i := range messages {
			s.send(t, message("a", fmt.Sprint(i), "x"))
		}
		c := s.consumer("a", "g")
		for s.renewals.len() < messages {
			c.receive(t, c.push(32, 0))
		}
		require.Greater(t, messages, renewBatch)
		store.failing(func(call string) error {
			if call == "renew" {
				s.renewals.cancel()
			}
			return nil
		})
		time.Sleep(s.renewals.ahead())
		synctest.Wait()
		s.renewals.close()
		c.quiet(t, 50*time.Second)
	})
}

func TestADeliveryOnceMoreToTheSameAttemptDoesNotRaceWithItsRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a")
		s.send(t, message("a", "1", "x"))
		c := s.consumer("a", "g")
		got := s.leased(t, "a", "g", 1, time.Hour)
		group, err := s.meta.Group(t.Context(), mq.Resource{Name: "g"})
		require.NoError(t, err)
		r := s.renewals
		r.add(client{ID: c.id}, group, got, time.Time{})
		r.mu.Lock()
		var l *dueLine
		for _, l = range r.mu.due {
		}
		batch := r.takeLocked(l, time.Hour)
		r.mu.Unlock()
		require.Len(t, batch, 1)
		added := make(chan struct{})
		go func() {
			r.add(client{ID: c.id}, group, got, time.Time{})
			close(added)
		}()
		r.renew(t.Context(), batch) // the race detector judges
		<-added
	})
}

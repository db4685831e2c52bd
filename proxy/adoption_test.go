package proxy

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

func deployed(o *testOptions) { o.deployed = true }

// two returns two proxies before one store, and n messages that a consumer got from the first
// one. The consumer at the second one is the same client.
func two(t *testing.T, n int, change ...func(*testOptions)) (first, second *testServer, at, there *consumer, a *answer) {
	t.Helper()
	first = newTestServer(t, append(change, deployed)...)
	first.topic(t, "a", router.TopicSpec{Queues: 1})
	first.group(t, "g", router.GroupSpec{Retry: mq.RetryPolicy{MaxAttempts: 3, Customized: []time.Duration{30 * time.Second}}})
	for i := range n {
		first.send(t, message("a", fmt.Sprint(i), "x"))
	}
	second = first.second(t)
	at, there = first.consumer("a", "g"), second.consumer("a", "g")
	a = at.receive(t, at.push(32, 0))
	require.Len(t, a.messages, n)
	return first, second, at, there, a
}

// ends are how a proxy may end.
var ends = map[string]func(*testServer){
	"stopped": func(s *testServer) { s.Drain(); s.Close() },
	"killed":  func(s *testServer) { s.die() },
}

func TestALongHandlerKeepsItsMessagesWhenItsProxyEnds(t *testing.T) {
	for how, end := range ends {
		for after := 16 * time.Second; after < 100*time.Second; after += 13 * time.Second {
			synctest.Test(t, func(t *testing.T) {
				first, second, at, there, a := two(t, 3)
				at.live(t, after)
				end(first)
				time.Sleep(7 * time.Second) // it looks for another one
				there.heartbeat(t)
				there.quiet(t, 5*time.Minute)
				require.Equal(t, 3, second.renewals.len(), "%s after %v", how, after)
				require.EqualValues(t, 3, second.Stats().Adopted)
				for i := range a.messages {
					there.acked(t, a.handle(i))
				}
				require.Zero(t, second.renewals.len())
				there.quiet(t, 3*time.Minute)
				require.Zero(t, second.renewals.len())
			})
		}
	}
}

// One proxy after the other is replaced, and the client moves each time.
func TestALongHandlerOutlivesManyProxies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second, at, there, a := two(t, 1)
		at.live(t, 20*time.Second)
		first.die()
		for range 5 {
			there.quiet(t, 100*time.Second)
			require.Equal(t, 1, second.renewals.len())
			last := second
			second = first.second(t)
			there = second.consumer("a", "g")
			last.die()
		}
		there.quiet(t, 100*time.Second)
		there.acked(t, a.handle(0))
	})
}

func TestMessagesOfAClientThatDoesNotComeBackComeAgain(t *testing.T) {
	for how, end := range ends {
		synctest.Test(t, func(t *testing.T) {
			first, second, at, there, _ := two(t, 2)
			at.live(t, 30*time.Second)
			end(first)
			d, back := there.back(t) // to another client
			require.LessOrEqual(t, d, 61*time.Second, how)
			require.Len(t, back.messages, 2)
			require.Equal(t, []int32{2, 2}, back.attempts())
			require.Zero(t, second.renewals.len())
		})
	}
}

// What was taken over is let go by the rules for what the proxy has delivered itself.
func TestWhatWasTakenOverIsLetGoLikeAllElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second, at, there, a := two(t, 2)
		at.live(t, 20*time.Second)
		first.die()
		there.quiet(t, 100*time.Second)
		there.terminate(t)
		require.Zero(t, second.renewals.len())
		time.Sleep(5 * time.Second)
		there.acked(t, a.handle(0))
		d, back := there.back(t)
		require.LessOrEqual(t, 5*time.Second+d, 10*time.Second)
		require.Equal(t, []string{"1"}, back.ids())
	})
	synctest.Test(t, func(t *testing.T) {
		first, _, at, there, _ := two(t, 1)
		at.live(t, 20*time.Second)
		first.die()
		there.quiet(t, 100*time.Second)
		d, _ := there.back(t) // it falls silent
		require.InDelta(t, 91*time.Second, d, float64(2*time.Second))
	})
	synctest.Test(t, func(t *testing.T) {
		first, second, at, there, _ := two(t, 1)
		at.live(t, 20*time.Second)
		first.die()
		m := second.machines(t)()
		beating, stop := context.WithCancel(t.Context())
		defer stop()
		go m.beat(t, beating, there)
		time.Sleep(100 * time.Second)
		require.Equal(t, 1, second.renewals.len())
		stop()
		synctest.Wait()
		m.crash()
		d, _ := there.back(t)
		require.LessOrEqual(t, d, 10*time.Second)
	})
}

func TestTheLimitOfRenewalCountsFromTheDeliveryThroughAnotherProxy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second, at, there, _ := two(t, 1, func(o *testOptions) { o.RenewLimit = 5 * time.Minute })
		start := time.Now()
		at.live(t, 2*time.Minute)
		first.die()
		there.quiet(t, 3*time.Minute+15*time.Second)
		require.Zero(t, second.renewals.len())
		_, back := there.back(t)
		require.InDelta(t, 5*time.Minute+30*time.Second, time.Since(start), float64(2*time.Second), "with the delay of the group")
		require.Equal(t, []int32{2}, back.attempts())
	})
}

func TestWhatIsOverIsNotTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second, at, there, a := two(t, 4)
		at.live(t, 20*time.Second)
		there.acked(t, a.handle(0)) // the first one is still there
		require.Equal(t, rmqpb.Code_OK, there.change(t, a.handle(1), 45*time.Second).GetStatus().GetCode())
		require.Equal(t, rmqpb.Code_OK, there.forward(t, a.handle(2)))
		first.die()
		there.quiet(t, 40*time.Second)
		d, back := there.back(t)
		require.LessOrEqual(t, d, 7*time.Second)
		require.Equal(t, []string{"1"}, back.ids(), "the nack keeps its delay")
		there.live(t, 6*time.Second)
		require.Equal(t, 1, second.renewals.len())
		there.quiet(t, 3*time.Minute)
		there.acked(t, a.handle(3))
	})
}

// The answer was on its way when the proxy died. Its client lives, and does not know of the
// message: it must not be renewed for that.
func TestADeliveryThatIsNotKnownToHaveArrivedIsNotTakenOver(t *testing.T) {
	for how, end := range ends {
		synctest.Test(t, func(t *testing.T) {
			first, second, _, there, _ := two(t, 1)
			end(first)
			there.heartbeat(t)
			there.quiet(t, 50*time.Second)
			d, _ := there.back(t)
			require.LessOrEqual(t, d, 11*time.Second, how)
			require.Zero(t, second.renewals.len())
		})
	}
	synctest.Test(t, func(t *testing.T) { // what shows it is a call over the connection of the delivery
		s, machines, _, c, _ := holding(t, 1, deployed)
		second := s.second(t)
		other := machines()
		beating, stop := context.WithCancel(t.Context())
		go other.beat(t, beating, c)
		time.Sleep(20 * time.Second)
		s.die()
		stop()
		synctest.Wait()
		there := second.consumer("a", "g")
		there.heartbeat(t)
		d, _ := there.back(t)
		require.LessOrEqual(t, d, 56*time.Second)
		require.Zero(t, second.renewals.len())
	})
}

// A proxy that hangs is taken for one that is gone, and comes back.
func TestTwoProxiesThatRenewTheSameDoNoHarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second, at, there, a := two(t, 2)
		slow := &faultyStore{Store: first.Server.store}
		first.Server.store = slow
		var hangs atomic.Bool
		slow.failing(func(string) error {
			if hangs.CompareAndSwap(true, false) {
				time.Sleep(40 * time.Second)
			}
			return nil
		})
		at.live(t, 50*time.Second)
		hangs.Store(true)
		there.heartbeat(t)
		there.quiet(t, 30*time.Second)
		require.Equal(t, 2, second.renewals.len())
		require.Equal(t, 2, first.renewals.len())
		there.quiet(t, 3*time.Minute) // the client is silent at the first one
		require.Zero(t, first.renewals.len())
		require.Equal(t, 2, second.renewals.len())
		there.acked(t, a.handle(0))
		there.terminate(t)
		d, _ := there.back(t)
		require.LessOrEqual(t, d, 10*time.Second)
	})
}

// While a proxy drains its clients are silent there, which says nothing about them.
func TestAProxyThatDrainsForLongGivesNothingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second, at, there, a := two(t, 1)
		at.live(t, 30*time.Second)
		first.Drain()
		there.heartbeat(t)
		there.quiet(t, 4*time.Minute)
		require.Equal(t, 1, first.renewals.len())
		first.Close()
		there.quiet(t, 4*time.Minute)
		require.Equal(t, 1, second.renewals.len())
		there.acked(t, a.handle(0))
	})
}

// goneOrphans is a store tier of the version before, or one that does not answer.
type goneOrphans struct {
	Handover
	err atomic.Pointer[error]
}

func (g *goneOrphans) Orphans(ctx context.Context) ([]string, error) {
	if err := g.err.Load(); err != nil {
		return nil, *err
	}
	return g.Handover.Orphans(ctx)
}

func TestOrphansAreFoundAfterTroubleWithTheStore(t *testing.T) {
	for _, failure := range []error{mq.ErrNotImplemented, errors.New("trouble")} {
		synctest.Test(t, func(t *testing.T) {
			first, _, at, _, a := two(t, 1)
			gone := &goneOrphans{Handover: first.opts.Handover}
			gone.err.Store(&failure)
			there := first.second(t, func(o *Options) { o.Handover = gone }).consumer("a", "g")
			at.live(t, 20*time.Second)
			first.die()
			there.heartbeat(t)
			there.quiet(t, 40*time.Second) // 15 s are left
			gone.err.Store(nil)
			there.quiet(t, 3*time.Minute)
			there.acked(t, a.handle(0))
		})
	}
}

// A leavingHandover says goodbye for the client at the moment its leases are taken over.
type leavingHandover struct {
	Handover
	leave func()
}

func (l leavingHandover) Adopt(ctx context.Context, a mq.Adoption) ([]mq.Adopted, error) {
	adopted, err := l.Handover.Adopt(ctx, a)
	if len(adopted) > 0 {
		l.leave()
	}
	return adopted, err
}

func TestAGoodbyeThatMeetsATakeoverLeavesNothingBehind(t *testing.T) {
	for _, again := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			first, _, at, there, _ := two(t, 1)
			var left atomic.Int64
			second := first.second(t, func(o *Options) {
				o.Handover = leavingHandover{o.Handover, func() {
					there.terminate(t)
					left.Store(time.Now().UnixNano())
					if again {
						there.heartbeat(t)
					}
				}}
			})
			there.s = second
			at.live(t, 20*time.Second)
			first.die()
			there.live(t, 38*time.Second)
			there.back(t)
			require.LessOrEqual(t, time.Since(time.Unix(0, left.Load())), 10*time.Second)
			require.Zero(t, second.renewals.len())
		})
	}
}

// The client used both proxies, and died with the first one. That its session lasts at the
// second one is no reason to go on for it.
func TestNothingIsTakenOverForAClientThatIsOnlyRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second, at, there, _ := two(t, 1)
		at.live(t, 25*time.Second)
		there.heartbeat(t)
		at.live(t, 5*time.Second)
		first.die()
		d, _ := there.back(t)
		require.InDelta(t, 45*time.Second, d, float64(time.Second), "what was left of the slice")
		require.NotNil(t, second.sessions.Get(there.id))
	})
}

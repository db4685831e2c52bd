package proxy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/proxy/wire"
	"github.com/perigee-mq/perigee/router"
)

// onShards is a server whose topics are on three shards.
func onShards(o *testOptions) { o.router.Shards = []string{"a", "b", "c"} }

// onShard stores messages on one of them.
func (s *testServer) onShard(t testing.TB, shard, topic string, ids ...string) {
	t.Helper()
	tp, err := s.meta.Topic(t.Context(), mq.Resource{Name: topic})
	require.NoError(t, err)
	for _, id := range ids {
		m := wire.FromProto(message(topic, id, "x"), wire.Arrival{})
		if tp.Type == mq.TopicFIFO {
			m.Type, m.Group = mq.FIFO, "a message group"
		}
		_, err := s.nodes.Append(t.Context(), shard, tp, 0, []*mq.Message{m})
		require.NoError(t, err)
	}
}

// at is a receive that names a shard.
func at(shard string, req *rmqpb.ReceiveMessageRequest) *rmqpb.ReceiveMessageRequest {
	req.MessageQueue.Broker = &rmqpb.Broker{Name: shard}
	return req
}

func TestAReceiveThatWaitsAtAnEmptyShardIsGivenTheBacklogOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t, onShards)
		s.topic(t, "t")
		c := s.consumer("t", "g")
		for i := range 40 {
			s.onShard(t, "b", "t", fmt.Sprint(i))
		}
		start := time.Now()
		seen := map[string]bool{}
		for i := range 4 {
			a := c.receive(t, at([]string{"a", "c"}[i%2], c.simple(10, time.Minute, 20*time.Second)))
			require.Len(t, a.messages, 10)
			for i, id := range a.ids() {
				seen[id] = true
				require.EqualValues(t, 1, a.messages[i].GetSystemProperties().GetDeliveryAttempt())
				c.acked(t, a.handle(i))
			}
		}
		require.Len(t, seen, 40)
		require.Zero(t, time.Since(start), "nobody has waited")

		s.onShard(t, "a", "t", "here")
		s.onShard(t, "b", "t", "there")
		require.Equal(t, []string{"here"}, c.receive(t, at("a", c.simple(10, time.Minute, 20*time.Second))).ids(), "the shard that is named comes first")
	})
}

func TestAMessageForAnyShardEndsAReceiveThatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t, onShards)
		s.topic(t, "t")
		for _, shard := range []string{"a", "b", "c"} {
			c := s.consumer("t", "g")
			got := make(chan *answer, 1)
			start := time.Now()
			go func() { got <- c.receive(t, at("a", c.simple(10, time.Minute, 20*time.Second))) }()
			time.Sleep(5 * time.Second)
			s.onShard(t, shard, "t", "to "+shard)
			a := <-got
			require.Equal(t, []string{"to " + shard}, a.ids())
			require.Equal(t, 5*time.Second, time.Since(start))
			c.acked(t, a.handle(0))
		}
	})
}

// TestOfShardsThatHaveMessagesAtOnceOneAnswers: what the others have stays there, and was not
// delivered.
func TestOfShardsThatHaveMessagesAtOnceOneAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t, onShards)
		s.topic(t, "t")
		c := s.consumer("t", "g")
		for round := range 50 {
			got := make(chan *answer, 1)
			go func() { got <- c.receive(t, at("a", c.simple(10, time.Hour, 20*time.Second))) }()
			synctest.Wait()
			var sending sync.WaitGroup
			for _, shard := range []string{"b", "c"} {
				sending.Go(func() { s.onShard(t, shard, "t", fmt.Sprint(shard, round)) })
			}
			sending.Wait()
			a := <-got
			require.Len(t, a.messages, 1)
			b := c.receive(t, at("a", c.simple(10, time.Hour, 20*time.Second)))
			require.ElementsMatch(t, []string{fmt.Sprint("b", round), fmt.Sprint("c", round)}, append(a.ids(), b.ids()...))
			require.Equal(t, []int32{1, 1}, append(a.attempts(), b.attempts()...))
			c.acked(t, a.handle(0), b.handle(0))
		}
	})
}

func TestWhoAsksEachShardByItselfIsAnsweredByItAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t, onShards)
		s.topic(t, "t")
		s.group(t, "ordered", router.GroupSpec{FIFO: true})
		s.onShard(t, "b", "t", "m")
		c, ordered := s.consumer("t", "g"), s.consumer("t", "ordered")
		again := ordered.simple(1, time.Minute, 20*time.Second)
		again.AttemptId = proto.String("an attempt")
		for name, a := range map[string]*answer{
			"a push consumer":                 c.receive(t, at("a", c.push(1, 20*time.Second))),
			"a push consumer of a FIFO group": ordered.receive(t, at("a", ordered.push(1, 20*time.Second))),
			"one without wait":                c.receive(t, at("a", c.simple(1, time.Minute, 0))),
			"an attempt that may be repeated": ordered.receive(t, at("a", again)),
			"a FIFO group that does not wait": ordered.receive(t, at("a", ordered.simple(1, time.Minute, 0))),
		} {
			require.Empty(t, a.messages, name)
		}
	})
}

// TestAFIFOGroupThatWaitsAtAnEmptyShardIsGivenWhatOthersHave: a backlog at once, and what
// comes while it waits soon; in order, and nothing twice.
func TestAFIFOGroupThatWaitsAtAnEmptyShardIsGivenWhatOthersHave(t *testing.T) {
	for _, typ := range []mq.TopicType{mq.TopicNormal, mq.TopicFIFO} {
		t.Run(fmt.Sprint(typ), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newTestServer(t, onShards)
				s.topic(t, "t", router.TopicSpec{Type: typ})
				s.group(t, "g", router.GroupSpec{FIFO: true})
				c := s.consumer("t", "g")
				for i := range 40 {
					s.onShard(t, "b", "t", fmt.Sprint(i))
				}
				start := time.Now()
				var seen []string
				for i := range 40 {
					a := c.receive(t, at([]string{"a", "c"}[i%2], c.simple(1, time.Minute, 20*time.Second)))
					require.Equal(t, []int32{1}, a.attempts())
					seen = append(seen, a.ids()...)
					c.acked(t, a.handle(0))
				}
				for i, id := range seen {
					require.Equal(t, fmt.Sprint(i), id)
				}
				require.Zero(t, time.Since(start), "nobody has waited")

				for _, shard := range []string{"a", "b", "c"} {
					got := make(chan *answer, 1)
					start := time.Now()
					go func() { got <- c.receive(t, at("a", c.simple(10, time.Minute, 20*time.Second))) }()
					time.Sleep(5 * time.Second)
					s.onShard(t, shard, "t", "to "+shard)
					a := <-got
					require.Equal(t, []string{"to " + shard}, a.ids())
					require.LessOrEqual(t, time.Since(start), 5*time.Second+maxTurn)
					c.acked(t, a.handle(0))
				}

				start = time.Now()
				require.Empty(t, c.receive(t, at("a", c.simple(10, time.Minute, 20*time.Second))).messages)
				require.Equal(t, 20*time.Second, time.Since(start))
			})
		})
	}
}

// A hinderedStore is one whose shards answer, or not, as hinder says.
type hinderedStore struct {
	Store
	hinder func(ctx context.Context, shard string) error // nil: nothing is in the way
}

func (s *hinderedStore) Receive(ctx context.Context, shard string, r mq.Receive) ([]mq.Delivery, error) {
	if err := s.hinder(ctx, shard); err != nil {
		return nil, err
	}
	return s.Store.Receive(ctx, shard, r)
}

func (s *hinderedStore) Owed(ctx context.Context, shard string, topic mq.TopicID, group mq.GroupID) (bool, error) {
	if err := s.hinder(ctx, shard); err != nil {
		return false, err
	}
	return s.Store.Owed(ctx, shard, topic, group)
}

func hangs(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// waitingAtA lets a FIFO group wait at shard a for 20 s, and returns the answer and when it came;
// later is done after a while.
func waitingAtA(t *testing.T, s *testServer, c *consumer, after time.Duration, later func()) (*answer, time.Duration) {
	t.Helper()
	start := time.Now()
	got := make(chan *answer, 1)
	go func() { got <- c.receive(t, at("a", c.simple(1, time.Minute, 20*time.Second))) }()
	time.Sleep(after)
	later()
	a := <-got
	return a, time.Since(start)
}

// TestShardsThatDoNotAnswerHoldUpNoFIFOGroup: neither those that hang, however many, nor one
// that is away for a moment keep it from what the others have, and what has not answered in
// time is not asked for it again.
func TestShardsThatDoNotAnswerHoldUpNoFIFOGroup(t *testing.T) {
	hanging := func(ctx context.Context, shard string) error {
		if shard[0] == 'm' {
			return hangs(ctx)
		}
		return nil
	}
	var looks atomic.Int32 // at the one that was away
	for name, c := range map[string]struct {
		hinder func(ctx context.Context, shard string) error
		shard  string // that a message comes to
	}{
		"others hang":                       {hanging, "z"},
		"others hang, and it comes to that": {hanging, "a"},
		"one was away": {func(_ context.Context, shard string) error {
			if shard == "z" && looks.Add(1) <= 2 {
				return fmt.Errorf("%w: it restarts", mq.ErrUnavailable)
			}
			return nil
		}, "z"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newTestServer(t, func(o *testOptions) {
					o.router.Shards = []string{"a", "m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8", "z"}
				})
				var asked sync.Map
				s.Server.store = &hinderedStore{s.Server.store, func(ctx context.Context, shard string) error {
					err := c.hinder(ctx, shard)
					if _, before := asked.Swap(shard, true); before && errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("%s was asked again", shard)
					}
					return err
				}}
				s.topic(t, "t")
				s.group(t, "g", router.GroupSpec{FIFO: true})
				g := s.consumer("t", "g")
				a, took := waitingAtA(t, s, g, 2*time.Second, func() { s.onShard(t, c.shard, "t", "m") })
				require.Equal(t, []string{"m"}, a.ids())
				require.LessOrEqual(t, took, 2*time.Second+maxTurn)
				g.acked(t, a.handle(0))
				asked.Clear()
				a, took = waitingAtA(t, s, g, 100*time.Millisecond, func() { s.onShard(t, c.shard, "t", "again") })
				require.Equal(t, []string{"again"}, a.ids())
				require.LessOrEqual(t, took, time.Second)
			})
		})
	}
}

// TestAFullFIFOGroupIsGivenWhatThereIsRoomFor: at the shard that is named as soon as there is,
// however many the topic has, and at another one soon.
func TestAFullFIFOGroupIsGivenWhatThereIsRoomFor(t *testing.T) {
	for _, shards := range [][]string{{"a"}, {"a", "b"}} {
		for _, full := range shards {
			synctest.Test(t, func(t *testing.T) {
				s := newTestServer(t, func(o *testOptions) { o.router.Shards, o.InFlight = shards, 1 })
				s.topic(t, "t", router.TopicSpec{Queues: 1})
				s.group(t, "g", router.GroupSpec{FIFO: true})
				c := s.consumer("t", "g")
				s.onShard(t, full, "t", "1", "2")
				first := c.receive(t, at(full, c.simple(1, time.Minute, 20*time.Second)))
				a, took := waitingAtA(t, s, c, 300*time.Millisecond, func() { c.acked(t, first.handle(0)) })
				require.Equal(t, []string{"2"}, a.ids(), "%v, %s is full", shards, full)
				if full == "a" {
					require.Equal(t, 300*time.Millisecond, took, "%v", shards)
				}
				require.LessOrEqual(t, took, 300*time.Millisecond+maxTurn)

				start := time.Now()
				b := c.receive(t, at("a", c.simple(1, time.Minute, 20*time.Second)))
				require.Empty(t, b.messages)
				if full == "a" && len(shards) == 1 {
					require.Equal(t, rmqpb.Code_MESSAGE_NOT_FOUND, b.code, "nothing is left to wait for room")
				}
				require.LessOrEqual(t, time.Since(start), 20*time.Second)
			})
		}
	}
}

// TestAShardThatStopsEndsTheReceiveOfAFIFOGroupEmpty: as when it is the only one.
func TestAShardThatStopsEndsTheReceiveOfAFIFOGroupEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t, onShards)
		began := time.Now()
		s.Server.store = &hinderedStore{s.Server.store, func(_ context.Context, shard string) error {
			if shard == "a" && time.Since(began) > 5*time.Second {
				return fmt.Errorf("%w: it stops", mq.ErrUnavailable)
			}
			return nil
		}}
		s.topic(t, "t")
		s.group(t, "g", router.GroupSpec{FIFO: true})
		c := s.consumer("t", "g")
		a, took := waitingAtA(t, s, c, 0, func() {})
		require.Equal(t, rmqpb.Code_MESSAGE_NOT_FOUND, a.code)
		require.LessOrEqual(t, took, 5*time.Second+maxTurn)
		a, _ = waitingAtA(t, s, c, 0, func() {})
		require.Equal(t, rmqpb.Code_TOO_MANY_REQUESTS, a.code)
		require.Contains(t, a.text, "it stops")
		s.onShard(t, "c", "t", "m")
		a, _ = waitingAtA(t, s, c, 0, func() {})
		require.Equal(t, []string{"m"}, a.ids())
	})
}

// An absentStore is one whose shard nobody reaches, once it is said which.
type absentStore struct {
	Store
	away string
}

func (s *absentStore) Receive(ctx context.Context, shard string, r mq.Receive) ([]mq.Delivery, error) {
	if shard == s.away {
		return nil, fmt.Errorf("%w: store node of %s", mq.ErrUnavailable, shard)
	}
	return s.Store.Receive(ctx, shard, r)
}

func TestAShardThatIsAwayHoldsUpNoReceiveOfWhatOthersHave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t, onShards)
		s.Server.store = &absentStore{s.Server.store, "a"}
		s.topic(t, "t")
		c := s.consumer("t", "g")
		s.onShard(t, "c", "t", "m")
		start := time.Now()
		got := c.receive(t, at("a", c.simple(10, time.Minute, 20*time.Second)))
		require.Equal(t, []string{"m"}, got.ids())
		require.Zero(t, time.Since(start))
		c.acked(t, got.handle(0))

		// Without any the client hears of it, soon, and not that there is nothing.
		got = c.receive(t, at("a", c.simple(10, time.Minute, 20*time.Second)))
		require.Equal(t, rmqpb.Code_TOO_MANY_REQUESTS, got.code)
		require.Contains(t, got.text, "store node of a")
		require.LessOrEqual(t, time.Since(start), 2*errorPause)

		// Another one that is away is no error.
		start = time.Now()
		got = c.receive(t, at("b", c.simple(10, time.Minute, 20*time.Second)))
		require.Equal(t, rmqpb.Code_MESSAGE_NOT_FOUND, got.code)
		require.Equal(t, 20*time.Second, time.Since(start))
	})
}

func TestAFullShardEndsTheReceiveThatNamesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t, onShards, func(o *testOptions) { o.InFlight = 1 })
		s.topic(t, "t", router.TopicSpec{Queues: 1})
		c := s.consumer("t", "g")
		s.onShard(t, "a", "t", "1", "2")
		held := c.receive(t, at("a", c.simple(10, time.Hour, 20*time.Second)))
		require.Len(t, held.messages, 1)
		start := time.Now()
		got := c.receive(t, at("a", c.simple(10, time.Hour, 20*time.Second)))
		require.Equal(t, rmqpb.Code_TOO_MANY_REQUESTS, got.code)
		require.LessOrEqual(t, time.Since(start), 2*time.Second)
		// As long as others have some they are given.
		s.onShard(t, "b", "t", "3")
		require.Equal(t, []string{"3"}, c.receive(t, at("a", c.simple(10, time.Hour, 20*time.Second))).ids())
		c.acked(t, held.handle(0))
		require.Equal(t, []string{"2"}, c.receive(t, at("a", c.simple(10, time.Hour, 20*time.Second))).ids())
	})
}

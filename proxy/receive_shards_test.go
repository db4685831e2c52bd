package proxy

import (
	"context"
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

// A muteStore is one of which a shard does not answer to receives.
type muteStore struct {
	Store
	silent string
	asked  atomic.Int32
}

func (s *muteStore) Receive(ctx context.Context, shard string, r mq.Receive) ([]mq.Delivery, error) {
	if shard == s.silent {
		s.asked.Add(1)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return s.Store.Receive(ctx, shard, r)
}

func TestAShardThatDoesNotAnswerHoldsUpNoFIFOGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t, onShards)
		silent := &muteStore{Store: s.Server.store, silent: "b"}
		s.Server.store = silent
		s.topic(t, "t")
		s.group(t, "g", router.GroupSpec{FIFO: true})
		c := s.consumer("t", "g")
		start := time.Now()
		got := make(chan *answer, 1)
		go func() { got <- c.receive(t, at("a", c.simple(1, time.Minute, 20*time.Second))) }()
		time.Sleep(10 * time.Second)
		s.onShard(t, "c", "t", "m")
		a := <-got
		require.Equal(t, []string{"m"}, a.ids())
		require.LessOrEqual(t, time.Since(start), 10*time.Second+maxTurn)
		require.EqualValues(t, 1, silent.asked.Load(), "it is asked once")
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

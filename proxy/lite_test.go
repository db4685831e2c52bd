package proxy

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

func liteMessage(lite, id string) *rmqpb.Message {
	m := message("parent", id, "body of "+id)
	m.SystemProperties.MessageType, m.SystemProperties.LiteTopic = rmqpb.MessageType_LITE, &lite
	return m
}

func (s *testServer) liteParent(t testing.TB) {
	s.topic(t, "parent", router.TopicSpec{Type: mq.TopicLite, Queues: 2})
}

// lite returns a client of the parent's lite topics.
func (s *testServer) lite(id, group string) *consumer {
	return &consumer{s: s, id: id, topic: "parent", group: group}
}

func (c *consumer) sync(t testing.TB, action rmqpb.LiteSubscriptionAction, option *rmqpb.OffsetOption, names ...string) *rmqpb.Status {
	t.Helper()
	resp, err := c.s.SyncLiteSubscription(c.ctx(t), &rmqpb.SyncLiteSubscriptionRequest{
		Action: action, Topic: named(c.topic), Group: named(c.group), LiteTopicSet: names, OffsetOption: option,
	})
	require.NoError(t, err)
	return resp.GetStatus()
}

func (c *consumer) synced(t testing.TB, action rmqpb.LiteSubscriptionAction, option *rmqpb.OffsetOption, names ...string) {
	t.Helper()
	st := c.sync(t, action, option, names...)
	require.Equal(t, rmqpb.Code_OK, st.GetCode(), st.GetMessage())
}

const (
	liteAdd     = rmqpb.LiteSubscriptionAction_PARTIAL_ADD
	liteRemove  = rmqpb.LiteSubscriptionAction_PARTIAL_REMOVE
	liteReplace = rmqpb.LiteSubscriptionAction_COMPLETE_ADD
	liteLeave   = rmqpb.LiteSubscriptionAction_COMPLETE_REMOVE
)

func TestEveryActionOnALiteSubscriptionTakesEffectAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.liteParent(t)
		c := s.lite("c", "g")
		got := func() []string {
			a := c.receive(t, c.simple(32, time.Minute, 0))
			for i := range a.messages {
				require.NotEmpty(t, a.messages[i].GetSystemProperties().GetLiteTopic())
				c.acked(t, a.handle(i))
			}
			return a.ids()
		}
		round := 0
		send := func() {
			round++
			for _, name := range []string{"a", "b", "c"} {
				s.send(t, liteMessage(name, fmt.Sprint(name, round)))
			}
		}
		c.synced(t, liteReplace, nil)
		c.synced(t, liteAdd, nil, "a", "b")
		send()
		require.ElementsMatch(t, []string{"a1", "b1"}, got())
		c.synced(t, liteRemove, nil, "a", "never")
		send()
		require.ElementsMatch(t, []string{"b2"}, got())
		time.Sleep(10 * time.Second) // see TestAWholeSetTakesNothingBackThatWasAddedAMomentAgo
		c.synced(t, liteReplace, nil, "c", "a")
		require.ElementsMatch(t, []string{"a2"}, got(), "the group had a place in a, and none in c")
		send()
		require.ElementsMatch(t, []string{"a3", "c3"}, got())
		c.synced(t, liteLeave, nil)
		send()
		require.Empty(t, got())
		c.synced(t, liteReplace, nil, "b")
		require.ElementsMatch(t, []string{"b3", "b4"}, got())
	})
}

func TestEveryOffsetOptionOfALiteSubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.liteParent(t)
		for i := range 6 {
			s.send(t, liteMessage("a", fmt.Sprint("m", i)))
			time.Sleep(time.Second)
		}
		at := time.Now().Add(-2 * time.Second).UnixMilli()
		policy := func(p rmqpb.OffsetOption_Policy) *rmqpb.OffsetOption {
			return &rmqpb.OffsetOption{OffsetType: &rmqpb.OffsetOption_Policy_{Policy: p}}
		}
		for what, c := range map[string]struct {
			option       *rmqpb.OffsetOption
			first, again []string // without a place, and with one behind m3
		}{
			"none":      {nil, []string{}, []string{"m4", "m5"}},
			"LAST":      {policy(rmqpb.OffsetOption_LAST), []string{}, []string{"m4", "m5"}},
			"MIN":       {policy(rmqpb.OffsetOption_MIN), []string{"m0", "m1", "m2", "m3", "m4", "m5"}, []string{"m0", "m1", "m2", "m3", "m4", "m5"}},
			"MAX":       {policy(rmqpb.OffsetOption_MAX), []string{}, []string{}},
			"offset":    {&rmqpb.OffsetOption{OffsetType: &rmqpb.OffsetOption_Offset{Offset: 5}}, []string{"m5"}, []string{"m5"}},
			"beyond":    {&rmqpb.OffsetOption{OffsetType: &rmqpb.OffsetOption_Offset{Offset: 500}}, []string{}, []string{}},
			"tail":      {&rmqpb.OffsetOption{OffsetType: &rmqpb.OffsetOption_TailN{TailN: 2}}, []string{"m4", "m5"}, []string{"m2", "m3", "m4", "m5"}},
			"timestamp": {&rmqpb.OffsetOption{OffsetType: &rmqpb.OffsetOption_Timestamp{Timestamp: at}}, []string{"m4", "m5"}, []string{"m4", "m5"}},
		} {
			first := s.lite("c", "first-"+what)
			first.synced(t, liteAdd, c.option, "a")
			require.Equal(t, c.first, first.receive(t, first.simple(32, time.Minute, 0)).ids(), what)
			again := s.lite("c", "again-"+what)
			again.synced(t, liteAdd, policy(rmqpb.OffsetOption_MIN), "a")
			require.Len(t, again.receive(t, again.simple(4, time.Minute, 0)).ids(), 4)
			again.synced(t, liteRemove, nil, "a")
			again.synced(t, liteAdd, c.option, "a")
			got := again.receive(t, again.simple(32, time.Minute, 0)).ids()
			if c.option == nil || what == "LAST" {
				require.Empty(t, got, "%s: what is under delivery stays so", what)
				time.Sleep(61 * time.Second)
				require.Equal(t, []string{"m0", "m1", "m2", "m3", "m4", "m5"}, again.receive(t, again.simple(32, time.Minute, 0)).ids(), what)
				continue
			}
			require.Equal(t, c.again, got, what)
			again.synced(t, liteReplace, c.option, "a")
			require.Empty(t, again.receive(t, again.simple(32, time.Minute, 0)).ids(), "%s: a complete set never moves a group", what)
		}
		c := s.lite("c", "bad")
		st := c.sync(t, liteAdd, &rmqpb.OffsetOption{OffsetType: &rmqpb.OffsetOption_Offset{Offset: -1}}, "a")
		require.Equal(t, rmqpb.Code_ILLEGAL_OFFSET, st.GetCode())
	})
}

func TestLiteCallsAreRefusedWithTheirCodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t, func(o *testOptions) { o.LiteClientQuota, o.LiteTotalQuota = 2, 3 })
		s.liteParent(t)
		s.topic(t, "normal")
		s.group(t, "bound", router.GroupSpec{LiteTopic: "another"})
		c := s.lite("c", "g")
		for want, st := range map[rmqpb.Code]*rmqpb.Status{
			rmqpb.Code_ILLEGAL_LITE_TOPIC:               c.sync(t, liteAdd, nil, "a.b"),
			rmqpb.Code_BAD_REQUEST:                      (&consumer{s: s, id: "c", topic: "normal", group: "g"}).sync(t, liteAdd, nil, "a"),
			rmqpb.Code_TOPIC_NOT_FOUND:                  (&consumer{s: s, id: "c", topic: "none", group: "g"}).sync(t, liteAdd, nil, "a"),
			rmqpb.Code_PRECONDITION_FAILED:              s.lite("c", "bound").sync(t, liteAdd, nil, "a"),
			rmqpb.Code_LITE_SUBSCRIPTION_QUOTA_EXCEEDED: c.sync(t, liteReplace, nil, "a", "b", "c"),
		} {
			require.Equal(t, want, st.GetCode(), st.GetMessage())
		}
		c.synced(t, liteReplace, nil, "a", "b")
		other := s.lite("other", "g")
		require.Equal(t, rmqpb.Code_LITE_SUBSCRIPTION_QUOTA_EXCEEDED, other.sync(t, liteAdd, nil, "a", "b").GetCode())
		other.synced(t, liteAdd, nil, "a")

		sent := func(msgs ...*rmqpb.Message) rmqpb.Code {
			res, err := s.SendMessage(as(t, "sender"), &rmqpb.SendMessageRequest{Messages: msgs})
			require.NoError(t, err)
			return res.GetStatus().GetCode()
		}
		require.Equal(t, rmqpb.Code_ILLEGAL_LITE_TOPIC, sent(liteMessage("a", "1"), liteMessage("b", "2")))
		require.Equal(t, rmqpb.Code_ILLEGAL_LITE_TOPIC, sent(liteMessage("a b", "1")))
		require.Equal(t, rmqpb.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, sent(message("parent", "1", "normal")))
		inNormal := liteMessage("a", "1")
		inNormal.Topic = named("normal")
		require.Equal(t, rmqpb.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, sent(inNormal))
	})
}

func TestALiteClientIsToldWhatAnotherHasTakenFromIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.liteParent(t)
		s.group(t, "g", router.GroupSpec{LiteExclusive: true, LiteTopic: "parent"})
		client := rmqpb.NewMessagingServiceClient(s.dial(t))
		streams := map[string]clientStream{}
		for id, kind := range map[string]rmqpb.ClientType{
			"lite": rmqpb.ClientType_LITE_PUSH_CONSUMER, "taker": rmqpb.ClientType_LITE_SIMPLE_CONSUMER, "other": rmqpb.ClientType_SIMPLE_CONSUMER,
		} {
			streams[id] = open(t, client, from(t, id, headerLanguage, "GO"))
			offer(t, streams[id], subscriber(kind, "g", "parent"))
			subscription := reply(t, streams[id]).GetSubscription()
			if id == "other" {
				require.Zero(t, subscription.GetLiteSubscriptionQuota())
				continue
			}
			require.EqualValues(t, 2000, subscription.GetLiteSubscriptionQuota())
			require.EqualValues(t, 64, subscription.GetMaxLiteTopicSize())
			require.True(t, subscription.GetFifo())
		}
		s.lite("lite", "g").synced(t, liteAdd, nil, "a", "b")
		s.lite("other", "g").synced(t, liteAdd, nil, "c")
		s.lite("taker", "g").synced(t, liteAdd, nil, "a", "c")
		synctest.Wait()
		cmd, err := streams["lite"].Recv()
		require.NoError(t, err)
		require.Equal(t, "a", cmd.GetNotifyUnsubscribeLiteCommand().GetLiteTopic())
		// It has not heard it, or does not believe it: it is not given it, and told again.
		s.lite("lite", "g").synced(t, liteReplace, nil, "a", "b")
		synctest.Wait()
		cmd, err = streams["lite"].Recv()
		require.NoError(t, err)
		require.Equal(t, "a", cmd.GetNotifyUnsubscribeLiteCommand().GetLiteTopic())
		// One that is no lite consumer is told nothing: the next it hears are settings.
		offer(t, streams["other"], subscriber(rmqpb.ClientType_SIMPLE_CONSUMER, "g", "parent"))
		require.NotNil(t, reply(t, streams["other"]))

		s.send(t, liteMessage("a", "a1"))
		s.send(t, liteMessage("b", "b1"))
		lite, taker, other := s.lite("lite", "g"), s.lite("taker", "g"), s.lite("other", "g")
		require.Equal(t, []string{"a1"}, taker.receive(t, taker.simple(32, time.Minute, 0)).ids())
		require.Equal(t, []string{"b1"}, lite.receive(t, lite.push(32, 0)).ids())
		refused := make(chan *answer, 1)
		go func() { refused <- other.receive(t, other.simple(32, time.Minute, 0)) }()
		require.Equal(t, rmqpb.Code_BAD_REQUEST, (<-refused).code)
	})
}

func TestSuspendPutsADeliveryOffWithoutCountingIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.liteParent(t)
		s.topic(t, "normal")
		s.group(t, "g", router.GroupSpec{Retry: mq.RetryPolicy{MaxAttempts: 2, Customized: seconds(1)}})
		lite, normal := s.lite("c", "g"), s.consumer("normal", "g")
		lite.synced(t, liteAdd, nil, "a")
		s.send(t, liteMessage("a", "m"))
		s.send(t, message("normal", "m", "body"))
		for _, c := range []*consumer{lite, normal} {
			for _, req := range []*rmqpb.ReceiveMessageRequest{c.push(1, 5*time.Second), c.simple(1, time.Minute, 5*time.Second)} {
				for range 5 {
					a := c.receive(t, req)
					require.Equal(t, []string{"m"}, a.ids(), a.text)
					require.Equal(t, []int32{1}, a.attempts())
					for range 2 { // an SDK may say it again
						resp, err := s.ChangeInvisibleDuration(c.ctx(t), &rmqpb.ChangeInvisibleDurationRequest{
							Group: named(c.group), Topic: named(c.topic), ReceiptHandle: a.handle(0),
							InvisibleDuration: durationpb.New(50 * time.Millisecond), Suspend: new(true),
						})
						require.NoError(t, err)
						require.Equal(t, rmqpb.Code_OK, resp.GetStatus().GetCode())
					}
				}
			}
		}
	})
}

// SDKs send their whole set beside the additions, with what it was before: the set overtakes
// an addition, or is overtaken by it.
func TestAWholeSetTakesNothingBackThatWasAddedAMomentAgo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.liteParent(t)
		c := s.lite("c", "g")
		round := 0
		gets := func(want ...string) {
			t.Helper()
			round++
			var ids []string
			for _, name := range []string{"a", "b", "c", "d", "e"} {
				s.send(t, liteMessage(name, fmt.Sprint(name, round)))
			}
			a := c.receive(t, c.simple(32, time.Minute, 0))
			for i := range a.messages {
				c.acked(t, a.handle(i))
			}
			for _, name := range want {
				ids = append(ids, fmt.Sprint(name, round))
			}
			require.ElementsMatch(t, ids, a.ids())
		}
		c.synced(t, liteAdd, nil, "a")
		c.synced(t, liteReplace, nil) // of before
		gets("a")
		c.synced(t, liteAdd, nil, "b", "c")
		c.synced(t, liteReplace, nil, "a")
		gets("a", "b", "c")
		c.synced(t, liteRemove, nil, "b")
		c.synced(t, liteReplace, nil, "a")
		gets("a", "c")
		s.lite("c", "other").synced(t, liteReplace, nil)
		gets("a", "c")
		time.Sleep(10 * time.Second)
		c.synced(t, liteReplace, nil, "a")
		gets("a")
		// Who counts its changes says itself what is newer.
		c.synced(t, liteAdd, nil, "d")
		gets("a", "d")
		resp, err := s.SyncLiteSubscription(c.ctx(t), &rmqpb.SyncLiteSubscriptionRequest{
			Action: liteReplace, Topic: named("parent"), Group: named("g"), LiteTopicSet: []string{"a"}, Version: new(int64(7)),
		})
		require.NoError(t, err)
		require.Equal(t, rmqpb.Code_OK, resp.GetStatus().GetCode())
		gets("a")
		c.synced(t, liteAdd, nil, "e")
		c.synced(t, liteLeave, nil)
		c.synced(t, liteReplace, nil, "a")
		gets("a")
	})
}

// The first two syncs of a client come together, and wait for their group to be made.
func TestTheFirstSyncsOfAClientMayComeInAnyOrder(t *testing.T) {
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			s := newTestServer(t)
			s.liteParent(t)
			c := s.lite("c", "g")
			var calls sync.WaitGroup
			calls.Go(func() { c.synced(t, liteReplace, nil) })
			calls.Go(func() { c.synced(t, liteAdd, nil, "a") })
			calls.Wait()
			s.send(t, liteMessage("a", "a1"))
			require.Equal(t, []string{"a1"}, c.receive(t, c.simple(32, time.Minute, 0)).ids())
		})
	}
}

// What another client has taken is not added any more.
func TestAWholeSetTakesNothingFromWhoHasTakenIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.liteParent(t)
		s.group(t, "g", router.GroupSpec{LiteTopic: "parent", LiteExclusive: true})
		one, two := s.lite("one", "g"), s.lite("two", "g")
		one.synced(t, liteAdd, nil, "a")
		two.synced(t, liteAdd, nil, "a")
		one.synced(t, liteReplace, nil)
		s.send(t, liteMessage("a", "a1"))
		require.Empty(t, one.receive(t, one.simple(32, time.Minute, 0)).ids())
		require.Equal(t, []string{"a1"}, two.receive(t, two.simple(32, time.Minute, 0)).ids())
	})
}

func TestALiteReceiveWithTheSameAttemptIDIsAnsweredAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.liteParent(t)
		c := s.lite("c", "g")
		c.synced(t, liteAdd, nil, "a", "b")
		for _, lite := range []string{"a", "b"} {
			for i := range 3 {
				s.send(t, liteMessage(lite, fmt.Sprint(lite, i)))
			}
		}
		receive := func(attempt string) *answer {
			req := c.simple(4, time.Minute, 0)
			req.AttemptId = &attempt
			return c.receive(t, req)
		}
		first := receive("one")
		require.Len(t, first.ids(), 4)
		again := receive("one")
		require.Equal(t, first.ids(), again.ids())
		require.Equal(t, first.attempts(), again.attempts())
		require.Equal(t, first.handle(0), again.handle(0))
		require.Empty(t, receive("two").ids(), "all else waits for these")
		for i := range 4 {
			c.acked(t, again.handle(i))
		}
		require.Len(t, receive("one").ids(), 2)
	})
}

// TestALiteClientOfAnotherProxyIsToldWithItsNextSync: the proxy that takes a lite topic from
// it does not know it.
func TestALiteClientOfAnotherProxyIsToldWithItsNextSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.liteParent(t)
		s.group(t, "g", router.GroupSpec{LiteExclusive: true, LiteTopic: "parent"})
		second, err := New(Options{Store: s.nodes, Router: s.meta, Transactions: s.nodes})
		require.NoError(t, err)
		t.Cleanup(second.Close)
		elsewhere := &testServer{Server: second, nodes: s.nodes, meta: s.meta}
		stream := open(t, rmqpb.NewMessagingServiceClient(s.dial(t)), from(t, "lite", headerLanguage, "GO"))
		offer(t, stream, subscriber(rmqpb.ClientType_LITE_PUSH_CONSUMER, "g", "parent"))
		require.NotNil(t, reply(t, stream))
		lite, taker := s.lite("lite", "g"), elsewhere.lite("taker", "g")
		lite.synced(t, liteAdd, nil, "a", "b")
		time.Sleep(time.Minute)
		taker.synced(t, liteAdd, nil, "a")
		s.send(t, liteMessage("a", "a1"))
		require.Empty(t, lite.receive(t, lite.push(32, 0)).ids(), "it is not given it any more")
		lite.synced(t, liteReplace, nil, "a", "b") // SDKs do so every 30 s
		cmd, err := stream.Recv()
		require.NoError(t, err)
		require.Equal(t, "a", cmd.GetNotifyUnsubscribeLiteCommand().GetLiteTopic())
		require.Equal(t, []string{"a1"}, taker.receive(t, taker.simple(32, time.Minute, 0)).ids())
	})
}

// TestALiteTopicThatHasMovedIsReadInBothPlaces: what was sent before its shard was drained
// is there, and none is made where nothing is sent any more.
func TestALiteTopicThatHasMovedIsReadInBothPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t, func(o *testOptions) { o.router.Shards = []string{"s0", "s1"} })
		s.liteParent(t)
		parent := s.topicNamed(t, "parent")
		for _, shard := range []string{"s0", "s1"} {
			_, err := s.meta.AddShard(t.Context(), shard)
			require.NoError(t, err)
		}
		c := s.lite("c", "g")
		names := []string{"a", "b", "c", "d", "e", "f"}
		c.synced(t, liteReplace, nil, names[:5]...)
		var want []string
		for _, name := range names[:5] {
			s.send(t, liteMessage(name, name+"1"))
			want = append(want, name+"1")
		}
		_, err := s.meta.SetShard(t.Context(), "s0", router.ShardDraining)
		require.NoError(t, err)
		closing := s.topicNamed(t, "parent")
		require.NoError(t, s.nodes.Place(t.Context(), "s0", closing))
		require.NoError(t, s.meta.ShardClosed(t.Context(), "s0", []router.ClosedTopic{{ID: parent.ID, Placed: closing.Placed}}))
		before, err := s.nodes.LiteStock(t.Context(), "s0", parent.ID)
		require.NoError(t, err)
		require.Positive(t, before.Topics)
		c.synced(t, liteReplace, nil, names...)
		for _, name := range names {
			s.send(t, liteMessage(name, name+"2"))
			want = append(want, name+"2")
		}
		after, err := s.nodes.LiteStock(t.Context(), "s0", parent.ID)
		require.NoError(t, err)
		require.Equal(t, before, after)
		var got []string
		for _, shard := range []string{"s0", "s1", "s0", "s1"} {
			req := c.simple(32, time.Minute, 0)
			req.MessageQueue.Broker = &rmqpb.Broker{Name: shard}
			a := c.receive(t, req)
			got = append(got, a.ids()...)
			for i := range a.messages {
				c.acked(t, a.handle(i))
			}
		}
		require.ElementsMatch(t, want, got)
	})
}

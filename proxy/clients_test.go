package proxy

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
)

func (s *testServer) clients(sel mq.ClientSelection) []mq.Client {
	if sel.Max == 0 {
		sel.Max = 100
	}
	list, _ := s.Clients(sel)
	return list
}

func TestClientsAreListedFromConnectToDisconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "orders")
		c := rmqpb.NewMessagingServiceClient(s.dial(t))
		require.Empty(t, s.clients(mq.ClientSelection{}))

		ctx, leave := context.WithCancel(from(t, "consumer", headerLanguage, "JAVA", headerVersion, "5.0.7", headerNamespace, "shop"))
		stream := open(t, c, ctx)
		offer(t, stream, subscriber(rmqpb.ClientType_PUSH_CONSUMER, "billing", "orders"))
		reply(t, stream)
		connected := time.Now()
		want := mq.Client{
			ID: "consumer", Address: "bufconn", Language: "JAVA", Version: "5.0.7", Type: mq.ClientPushConsumer,
			Group:         mq.Resource{Namespace: "shop", Name: "billing"},
			Subscriptions: []mq.Subscription{{Topic: mq.Resource{Namespace: "shop", Name: "orders"}, Expression: "*"}},
			Streams:       1, Seen: connected,
		}
		require.Equal(t, []mq.Client{want}, s.clients(mq.ClientSelection{}))
		require.Equal(t, []mq.Client{want}, s.clients(mq.ClientSelection{Group: want.Group, Topic: want.Subscriptions[0].Topic}))
		require.Empty(t, s.clients(mq.ClientSelection{Group: mq.Resource{Name: "billing"}}), "of another namespace")
		require.Empty(t, s.clients(mq.ClientSelection{Topic: mq.Resource{Name: "orders"}}))

		time.Sleep(time.Second)
		_, err := c.Heartbeat(ctx, &rmqpb.HeartbeatRequest{ClientType: rmqpb.ClientType_PUSH_CONSUMER, Group: named("billing")})
		require.NoError(t, err)
		want.Seen = connected.Add(time.Second)
		require.Equal(t, []mq.Client{want}, s.clients(mq.ClientSelection{}))

		time.Sleep(time.Second)
		leave()
		synctest.Wait()
		want.Seen, want.Streams, want.Lost = connected.Add(2*time.Second), 0, true
		require.Equal(t, []mq.Client{want}, s.clients(mq.ClientSelection{}), "its stream has ended")

		time.Sleep(time.Second)
		ctx = from(t, "consumer", headerLanguage, "JAVA", headerVersion, "5.0.7", headerNamespace, "shop")
		_, err = c.Heartbeat(ctx, &rmqpb.HeartbeatRequest{ClientType: rmqpb.ClientType_PUSH_CONSUMER, Group: named("billing")})
		require.NoError(t, err)
		require.False(t, s.clients(mq.ClientSelection{})[0].Lost, "it is still there")
		_, err = c.NotifyClientTermination(ctx, &rmqpb.NotifyClientTerminationRequest{Group: named("billing")})
		require.NoError(t, err)
		require.Empty(t, s.clients(mq.ClientSelection{}), "it said goodbye")
	})
}

func TestAClientWithoutSettingsIsKnownByWhatItReceives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a")
		s.topic(t, "b")
		s.send(t, message("a", "1", "x"), message("a", "2", "x"))
		c := s.consumer("a", "g")
		require.Len(t, c.receive(t, c.push(32, 0)).messages, 2)
		c.topic = "b"
		for range 3 {
			c.receive(t, c.push(32, 0))
		}
		got := s.clients(mq.ClientSelection{Group: mq.Resource{Name: "g"}, Topic: mq.Resource{Name: "b"}})
		require.Len(t, got, 1)
		require.Equal(t, []mq.Subscription{
			{Topic: mq.Resource{Name: "a"}, Expression: "*"}, {Topic: mq.Resource{Name: "b"}, Expression: "*"},
		}, got[0].Subscriptions)
		require.Equal(t, 2, got[0].Renewing)
		require.Zero(t, got[0].Streams)
		require.False(t, got[0].Lost)
		require.Equal(t, mq.ClientUnspecified, got[0].Type)
		c.heartbeat(t)
		require.NotEqual(t, mq.ClientUnspecified, s.clients(mq.ClientSelection{})[0].Type)
		time.Sleep(5 * time.Minute)
		require.Empty(t, s.clients(mq.ClientSelection{}), "its session has ended")
	})
}

func TestClientsAreListedInPages(t *testing.T) {
	s := newTestServer(t)
	beat := &rmqpb.HeartbeatRequest{ClientType: rmqpb.ClientType_PRODUCER}
	for i := range 10 {
		_, err := s.Heartbeat(as(t, fmt.Sprint("c", i)), beat)
		require.NoError(t, err)
	}
	_, err := s.Heartbeat(as(t, "no\xfftext"), beat)
	require.NoError(t, err)
	var ids []string
	for sel := (mq.ClientSelection{Max: 4}); ; {
		list, more := s.Clients(sel)
		for _, c := range list {
			ids = append(ids, c.ID)
		}
		if !more {
			require.Len(t, list, 2)
			break
		}
		require.Len(t, list, 4)
		sel.After = ids[len(ids)-1]
	}
	require.Equal(t, []string{"c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8", "c9"}, ids)
}

func TestAListOfClientsWithManyTopicsIsShort(t *testing.T) {
	s := newTestServer(t)
	topics := &rmqpb.Publishing{}
	for i := range maxListed {
		topics.Topics = append(topics.Topics, named(fmt.Sprint("t", i)))
	}
	for i := range 3 {
		s.sessions.Touch(fmt.Sprint("c", i)).SetSettings(&rmqpb.Settings{PubSub: &rmqpb.Settings_Publishing{Publishing: topics}})
	}
	list, more := s.Clients(mq.ClientSelection{Max: 100})
	require.Len(t, list, 1)
	require.True(t, more)
	list, more = s.Clients(mq.ClientSelection{Max: 100, After: "c1"})
	require.Len(t, list, 1)
	require.False(t, more)
}

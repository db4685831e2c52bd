package proxy

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

// skewed returns a message of a client whose clock is off, to be delivered after a delay.
func skewed(topic, id string, off time.Duration, delay string) *rmqpb.Message {
	m := delayedMessage(topic, id, off+time.Second)
	m.SystemProperties.BornTimestamp = timestamppb.New(time.Now().Add(off))
	m.UserProperties = map[string]string{"perigee.delay": delay, "other": "property"}
	return m
}

func TestADelayByTheServersClockIsRightWhateverTheClientsClockSays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "mixed", router.TopicSpec{Type: mq.TopicMixed, Queues: 1})
		c := s.consumer("mixed", "g")
		for i, off := range []time.Duration{0, -10 * time.Minute, 10 * time.Minute, 1000 * time.Hour, -1000 * time.Hour} {
			began, id := time.Now(), fmt.Sprint("m", i)
			sent := s.send(t, skewed("mixed", id, off, "5s"))[0]
			require.NotEmpty(t, sent.GetRecallHandle())
			got := c.receive(t, c.simple(1, time.Minute, 10*time.Second))
			require.Equal(t, []string{id}, got.ids())
			require.Equal(t, 5*time.Second, time.Since(began), off)
			c.acked(t, got.handle(0))
			sys := got.messages[0].GetSystemProperties()
			require.Equal(t, began.Add(off).UTC(), sys.GetBornTimestamp().AsTime(), "as it was sent")
			require.Equal(t, began.Add(5*time.Second).UTC(), sys.GetDeliveryTimestamp().AsTime())
			require.Equal(t, map[string]string{"other": "property"}, got.messages[0].GetUserProperties())
			if off == 0 {
				continue
			}
			// Without the property the delay is wrong by as much as the clock. Receiving is not.
			m := delayedMessage("mixed", "absolute "+id, off+5*time.Second)
			if off > 900*time.Hour {
				require.Equal(t, rmqpb.Code_ILLEGAL_DELIVERY_TIME, s.try(t, m).GetStatus().GetCode())
				continue
			}
			s.send(t, m)
			began = time.Now()
			got = c.receive(t, c.simple(1, time.Minute, 20*time.Second))
			for len(got.ids()) == 0 {
				got = c.receive(t, c.simple(1, time.Minute, 20*time.Second))
			}
			require.Equal(t, max(0, off+5*time.Second), time.Since(began))
			c.acked(t, got.handle(0))
		}
		// 0s is at once.
		require.Empty(t, s.send(t, skewed("mixed", "now", time.Hour, "0s"))[0].GetRecallHandle())
		require.Equal(t, []string{"now"}, c.receive(t, c.simple(1, time.Minute, 0)).ids())
	})
}

// The time of delivery is another one at each try; the message is the same.
func TestAMessageWithADelayThatIsSentAgainIsStoredOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.delayTopic(t, "later")
		first := s.send(t, skewed("later", "m", 0, "5s"))[0]
		time.Sleep(2 * time.Second)
		require.Equal(t, first.GetRecallHandle(), s.send(t, skewed("later", "m", 0, "5s"))[0].GetRecallHandle())
		require.NotEqual(t, first.GetRecallHandle(), s.send(t, skewed("later", "m", 0, "6s"))[0].GetRecallHandle(), "another delay is another message")
		c := s.consumer("later", "g")
		for _, after := range []time.Duration{3 * time.Second, 3 * time.Second} {
			began := time.Now()
			require.Len(t, c.receive(t, c.simple(1, time.Minute, 10*time.Second)).ids(), 1)
			require.Equal(t, after, time.Since(began))
		}
		require.Empty(t, c.receive(t, c.simple(1, time.Minute, 10*time.Second)).ids())
	})
}

func TestDelaysThatAreNoneAreRefused(t *testing.T) {
	s := newTestServer(t)
	s.topic(t, "mixed", router.TopicSpec{Type: mq.TopicMixed})
	s.topic(t, "plain")
	for text, why := range map[string]string{
		"": "must be a time", "5": "must be a time", "soon": "must be a time", "-1ns": "must be a time", "1d": "must be a time",
		"960h0m1s": "limit is 960h0m0s (max_delay)", "2562047h": "limit",
	} {
		res := s.try(t, message("mixed", "before", "x"), skewed("mixed", "m", 0, text))
		require.Equal(t, rmqpb.Code_ILLEGAL_DELIVERY_TIME, res.GetStatus().GetCode(), text)
		require.Contains(t, res.GetStatus().GetMessage(), "message 2 of 2: user_properties perigee.delay", text)
		require.Contains(t, res.GetStatus().GetMessage(), why, text)
	}
	for _, topic := range []string{"mixed", "plain"} {
		m := message(topic, "m", "x")
		m.UserProperties = map[string]string{"perigee.delay": "5s"}
		res := s.try(t, m)
		require.Equal(t, rmqpb.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, res.GetStatus().GetCode())
		require.Contains(t, res.GetStatus().GetMessage(), "perigee.delay")
		require.Contains(t, res.GetStatus().GetMessage(), "NORMAL")
	}
	require.Zero(t, s.nodes.Stats()[testShard].Appended)
}

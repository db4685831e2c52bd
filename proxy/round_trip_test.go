package proxy

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"fmt"
	"hash/crc32"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/proxy/wire"
	"github.com/perigee-mq/perigee/router"
)

// deliveries is a group's retry policy of so many deliveries, a second apart.
func deliveries(n mq.Attempt) router.GroupSpec {
	return router.GroupSpec{Retry: mq.RetryPolicy{MaxAttempts: n, Customized: []time.Duration{time.Second}}}
}

// one receives exactly one message.
func (c *consumer) one(t testing.TB) (m *rmqpb.Message, handle string) {
	t.Helper()
	a := c.receive(t, c.simple(32, minReceiveInvisible, 15*time.Second))
	require.Len(t, a.messages, 1, "%s %s", a.code, a.text)
	return a.messages[0], a.handle(0)
}

// fail receives the one message so many times and lets each lease end.
func (c *consumer) fail(t testing.TB, times int32) {
	t.Helper()
	for attempt := range times {
		m, _ := c.one(t)
		require.Equal(t, attempt+1, m.GetSystemProperties().GetDeliveryAttempt())
	}
	time.Sleep(minReceiveInvisible + 2*time.Second)
	require.Empty(t, c.receive(t, c.simple(32, minReceiveInvisible, 0)).messages, "its attempts are used up")
}

func TestAReceivedMessageSentAgainWithItsPropertiesIsLikeAnyOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a")
		s.topic(t, "b")
		first := message("a", "1", "body")
		first.UserProperties = map[string]string{"k": "v", "empty": "", "Keys": "not reserved"}
		first.SystemProperties.Tag, first.SystemProperties.Keys = new("t"), []string{"key"}
		s.send(t, first)
		got, handle := s.consumer("a", "g").one(t)
		s.consumer("a", "g").acked(t, handle)
		require.Equal(t, first.GetUserProperties(), got.GetUserProperties(), "nothing of the server's own is among them")

		forwarded := message("b", "2", string(got.GetBody()))
		forwarded.UserProperties = got.GetUserProperties()
		s.send(t, forwarded)
		c := s.consumer("b", "g")
		again, _ := c.one(t)
		require.Equal(t, first.GetUserProperties(), again.GetUserProperties())
		again, handle = c.one(t) // the lease of the first delivery has ended
		require.EqualValues(t, 2, again.GetSystemProperties().GetDeliveryAttempt())
		c.acked(t, handle)
		time.Sleep(time.Minute)
		require.Empty(t, c.receive(t, c.simple(32, minReceiveInvisible, 0)).messages)
	})
}

func TestADeadLetterAtEveryLimitCanBeSentAgainWithItsProperties(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a")
		s.group(t, "g", deliveries(1))
		original := message("a", "1", "body")
		original.UserProperties = map[string]string{}
		for i := range maxUserProperties - 1 {
			original.UserProperties[fmt.Sprint("key-", i)] = "v"
		}
		size := 0
		for k, v := range original.GetUserProperties() {
			size += len(k) + len(v)
		}
		original.UserProperties["rest"] = strings.Repeat("r", maxProperties-size-len("rest"))
		dead := s.consumer(mq.DeadLetterPrefix+"g", "undertaker")
		next := original
		for range 3 { // a history of one death, however often it died
			s.send(t, next)
			s.consumer("a", "g").fail(t, 1)
			m, handle := dead.one(t)
			dead.acked(t, handle)
			added := map[string]bool{}
			for k, v := range m.GetUserProperties() {
				if sent, ok := original.GetUserProperties()[k]; ok {
					require.Equal(t, sent, v)
				} else {
					added[k] = true
				}
			}
			require.Equal(t, deadLetterKeys, added)
			next = message("a", "1", "body")
			next.UserProperties = m.GetUserProperties()
		}
		next.UserProperties["one more"] = ""
		res := s.try(t, next)
		require.Equal(t, rmqpb.Code_MESSAGE_PROPERTIES_TOO_LARGE, res.GetStatus().GetCode())
		require.Contains(t, res.GetStatus().GetMessage(), "129 entries")
	})
}

func TestNamesOfTheGreatestLengthKeepRetriesAndDeadLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		topic, group := strings.Repeat("t", mq.MaxTopicName), strings.Repeat("g", mq.MaxGroupName)
		s.topic(t, topic)
		s.group(t, group, deliveries(2))
		s.send(t, message(topic, "1", "body"))
		c := s.consumer(topic, group)
		c.fail(t, 2)
		m, handle := s.consumer(mq.DeadLetterPrefix+group, group).one(t)
		require.Equal(t, "body", string(m.GetBody()))
		require.Equal(t, topic, m.GetSystemProperties().GetDeadLetterQueue().GetTopic())
		s.consumer(mq.DeadLetterPrefix+group, group).acked(t, handle)

		// One character more is refused wherever it is used.
		require.Equal(t, rmqpb.Code_ILLEGAL_TOPIC, s.try(t, message(topic+"t", "1", "body")).GetStatus().GetCode())
		require.Equal(t, rmqpb.Code_ILLEGAL_TOPIC, s.routeOf(t, as(t, "c"), topic+"t").GetStatus().GetCode())
		long := s.consumer(topic+"t", group)
		require.Equal(t, rmqpb.Code_ILLEGAL_TOPIC, long.receive(t, long.simple(1, time.Minute, 0)).code)
		long = s.consumer(topic, group+"g")
		require.Equal(t, rmqpb.Code_ILLEGAL_CONSUMER_GROUP, long.receive(t, long.simple(1, time.Minute, 0)).code)
		require.Equal(t, rmqpb.Code_ILLEGAL_CONSUMER_GROUP, s.assignmentsOf(t, topic, group+"g").GetStatus().GetCode())
		_, _, err := s.meta.CreateTopic(t.Context(), router.TopicSpec{Resource: mq.Resource{Name: topic + "t"}})
		require.ErrorIs(t, err, mq.ErrIllegalTopic)
		_, _, err = s.meta.CreateGroup(t.Context(), router.GroupSpec{Resource: mq.Resource{Name: group + "g"}})
		require.ErrorIs(t, err, mq.ErrIllegalGroup)
	})
}

func TestAMessageAtEveryLimitIsDeliveredRetriedAndDeadLettered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		group := strings.Repeat("g", mq.MaxGroupName)
		s.topic(t, "a", router.TopicSpec{Queues: 1})
		s.group(t, group, deliveries(2))
		largest := message("a", strings.Repeat("i", maxMessageID), "")
		largest.Body = bytes.Repeat([]byte{7}, s.opts.MaxBodySize)
		largest.UserProperties = map[string]string{"k": strings.Repeat("v", maxProperties-1)}
		stored := wire.FromProto(largest, wire.Arrival{Time: time.Now()})
		const frame = 4 // tag and length of the trace
		room := maxStoredProperties - len(stored.System) - len(stored.Properties) - frame
		largest.SystemProperties.TraceContext = new(strings.Repeat("t", room+1))
		require.Equal(t, rmqpb.Code_MESSAGE_PROPERTIES_TOO_LARGE, s.try(t, largest).GetStatus().GetCode())
		largest.SystemProperties.TraceContext = new(strings.Repeat("t", room))
		s.send(t, largest)
		s.send(t, message("a", "neighbour", "body"))

		requireLargest := func(m *rmqpb.Message) {
			t.Helper()
			require.True(t, bytes.Equal(largest.GetBody(), m.GetBody()))
			require.Equal(t, largest.GetUserProperties()["k"], m.GetUserProperties()["k"])
			require.True(t, largest.GetSystemProperties().GetTraceContext() == m.GetSystemProperties().GetTraceContext())
		}
		c := s.consumer("a", group)
		for attempt := range int32(2) {
			m, _ := c.one(t)
			requireLargest(m)
			require.Equal(t, attempt+1, m.GetSystemProperties().GetDeliveryAttempt())
			if attempt == 0 { // the lease of the largest is held: it holds up nobody
				start := time.Now()
				m, handle := c.one(t)
				require.Equal(t, "neighbour", m.GetSystemProperties().GetMessageId())
				require.Less(t, time.Since(start), time.Second)
				c.acked(t, handle)
			}
		}
		time.Sleep(minReceiveInvisible + 2*time.Second)
		m, _ := s.consumer(mq.DeadLetterPrefix+group, "undertaker").one(t)
		requireLargest(m)
	})
}

func TestABodyIsDeliveredAsItCameWithADigestOfItsBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a")
		c := s.consumer("a", "g")
		plain := bytes.Repeat([]byte("perigee "), 100<<10/8)
		packed := func(open func(io.Writer) io.WriteCloser) []byte {
			var out bytes.Buffer
			w := open(&out)
			_, err := w.Write(plain)
			require.NoError(t, err)
			require.NoError(t, w.Close())
			return out.Bytes()
		}
		bodies := map[string][]byte{
			"plain":  plain,
			"zlib":   packed(func(w io.Writer) io.WriteCloser { return zlib.NewWriter(w) }),
			"gzip":   packed(func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) }),
			"a byte": {0},
			"binary": {0xff, 0x00, 0xfe, 0x0a},
		}
		for i := 0; len(bodies) < 10; i++ { // those whose CRC-32 begins with zeros
			if body := fmt.Appendf(nil, "body %d", i); crc32.ChecksumIEEE(body) < 1<<24 {
				bodies[string(body)] = body
			}
		}
		for name, body := range bodies {
			m := message("a", name, "")
			m.Body = body
			if name == "zlib" || name == "gzip" {
				m.SystemProperties.BodyEncoding = rmqpb.Encoding_GZIP
			}
			s.send(t, m)
			got, handle := c.one(t)
			c.acked(t, handle)
			require.Equal(t, body, got.GetBody(), name)
			sys := got.GetSystemProperties()
			require.Equal(t, max(m.GetSystemProperties().GetBodyEncoding(), rmqpb.Encoding_IDENTITY), sys.GetBodyEncoding(), name)
			require.NotEmpty(t, sys.GetBodyDigest().GetChecksum(), name)
			require.Nil(t, verifyDigest(sys.GetBodyDigest(), body), name)
		}
	})
}

func TestMessagesOfABatchAreSettledOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a", router.TopicSpec{Queues: 4})
		var batch []*rmqpb.Message
		for i := range 10 {
			batch = append(batch, message("a", fmt.Sprint("id-", i), "body"))
		}
		s.send(t, batch...)
		c := s.consumer("a", "g")
		a := c.receive(t, c.simple(32, minReceiveInvisible, 0))
		require.Len(t, a.messages, 10)
		var left []string
		for i, m := range a.messages {
			sys := m.GetSystemProperties()
			require.Equal(t, fmt.Sprint("id-", i), sys.GetMessageId())
			require.Equal(t, a.messages[0].GetSystemProperties().GetQueueOffset()+int64(i), sys.GetQueueOffset())
			require.Equal(t, a.messages[0].GetSystemProperties().GetQueueId(), sys.GetQueueId())
			if i%2 == 0 {
				c.acked(t, a.handle(i))
			} else {
				left = append(left, sys.GetMessageId())
			}
		}
		time.Sleep(minReceiveInvisible + time.Second)
		require.Equal(t, left, c.receive(t, c.simple(32, minReceiveInvisible, 0)).ids())
	})
}

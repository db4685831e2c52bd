package proxy

import (
	"bytes"
	"compress/zlib"
	"context"
	"crypto/sha1"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

// A pulled is what a pull streamed.
type pulled struct {
	code     rmqpb.Code
	text     string
	messages []*rmqpb.Message
	next     int64
	kinds    string // s, m and n for status, message and next offset, in order
}

func (p *pulled) ids() []string { return (&answer{messages: p.messages}).ids() }

// queueAtOf returns the message queue of requests about one queue.
func queueNumber(topic string, id int32) *rmqpb.MessageQueue {
	return &rmqpb.MessageQueue{Topic: named(topic), Id: id, Broker: &rmqpb.Broker{Name: testShard}}
}

func pullRequest(topic string, offset int64, poll time.Duration) *rmqpb.PullMessageRequest {
	return &rmqpb.PullMessageRequest{
		Group: named("g"), MessageQueue: queueNumber(topic, 0), Offset: offset, BatchSize: 32, LongPollingTimeout: durationpb.New(poll),
	}
}

// pullOver makes a pull over a connection and requires that the stream ends well.
func pullOver(t testing.TB, conn *grpc.ClientConn, req *rmqpb.PullMessageRequest) *pulled {
	t.Helper()
	stream, err := rmqpb.NewMessagingServiceClient(conn).PullMessage(from(t, "puller"), req)
	require.NoError(t, err)
	var p pulled
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return &p
		}
		require.NoError(t, err)
		switch c := r.GetContent().(type) {
		case *rmqpb.PullMessageResponse_Status:
			p.code, p.text, p.kinds = c.Status.GetCode(), c.Status.GetMessage(), p.kinds+"s"
		case *rmqpb.PullMessageResponse_Message:
			p.messages, p.kinds = append(p.messages, c.Message), p.kinds+"m"
		case *rmqpb.PullMessageResponse_NextOffset:
			p.next, p.kinds = c.NextOffset, p.kinds+"n"
		}
	}
}

// sendIn sends n messages to a topic of one queue.
func (s *testServer) sendIn(t testing.TB, topic string, n int, tag ...string) {
	t.Helper()
	for range n {
		s.sent++
		m := message(topic, fmt.Sprint("m", s.sent), "body")
		for i := range tag {
			m.SystemProperties.Tag = &tag[i]
		}
		s.send(t, m)
	}
}

func TestAPullStreamsStatusMessagesAndWhereItGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		conn := s.dial(t)
		s.topic(t, "a", router.TopicSpec{Queues: 1})
		s.sendIn(t, "a", 40)
		records := s.nodes.Stats()[testShard].Records

		p := pullOver(t, conn, pullRequest("a", 5, time.Minute))
		require.Equal(t, rmqpb.Code_OK, p.code)
		require.Equal(t, "s"+strings.Repeat("m", 32)+"n", p.kinds)
		require.EqualValues(t, 37, p.next)
		require.Equal(t, "m6", p.ids()[0])
		first := p.messages[0].GetSystemProperties()
		require.EqualValues(t, 5, first.GetQueueOffset())
		require.EqualValues(t, 1, first.GetDeliveryAttempt())
		require.Nil(t, first.ReceiptHandle, "there is nothing to settle")
		require.Nil(t, first.InvisibleDuration)

		few := pullRequest("a", 37, 0)
		few.BatchSize = 0
		p = pullOver(t, conn, few)
		require.Equal(t, []string{"m38"}, p.ids(), "less than one is one")
		few.Offset = 0
		few.BatchSize = 1000
		require.Len(t, pullOver(t, conn, few).messages, 32)

		require.Equal(t, records, s.nodes.Stats()[testShard].Records, "nothing was written")
		_, err := s.meta.Group(t.Context(), mq.Resource{Name: "g"})
		require.ErrorIs(t, err, mq.ErrGroupNotFound, "no group was made")
		c := s.consumer("a", "g")
		require.Len(t, c.receive(t, c.simple(32, time.Minute, 0)).messages, 32, "a group gets what was pulled as well")
	})
}

func TestEveryCodeOfAPull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		conn := s.dial(t)
		s.topic(t, "a", router.TopicSpec{Queues: 2})
		s.topic(t, "closed", router.TopicSpec{Queues: 1, Permission: mq.PermWrite})
		s.send(t, message("a", "1", "body"), message("a", "2", "body"))
		queue := int32(0)
		if _, err := s.nodes.Pull(t.Context(), testShard, mq.Pull{Topic: s.topicNamed(t, "a"), Offset: 2, Max: 1}); err != nil {
			queue = 1
		}
		for _, c := range []struct {
			what   string
			change func(*rmqpb.PullMessageRequest)
			code   rmqpb.Code
			text   string
			kinds  string
			next   int64
		}{
			{"at the end", func(r *rmqpb.PullMessageRequest) { r.Offset = 2 }, rmqpb.Code_MESSAGE_NOT_FOUND, "no message", "sn", 2},
			{"in an empty queue", func(r *rmqpb.PullMessageRequest) { r.MessageQueue.Id = 1 - queue }, rmqpb.Code_MESSAGE_NOT_FOUND, "no message", "sn", 0},
			{"without a broker", func(r *rmqpb.PullMessageRequest) { r.MessageQueue.Broker = nil }, rmqpb.Code_OK, "OK", "smmn", 2},
			{"with a wanted tag", func(r *rmqpb.PullMessageRequest) { r.FilterExpression = &rmqpb.FilterExpression{Expression: "x"} }, rmqpb.Code_MESSAGE_NOT_FOUND, "no message", "sn", 2},
			{"before the queue", func(r *rmqpb.PullMessageRequest) { r.Offset = -1 }, rmqpb.Code_ILLEGAL_OFFSET, "offset -1: of queue ", "sn", 0},
			{"beyond the queue", func(r *rmqpb.PullMessageRequest) { r.Offset = 3 }, rmqpb.Code_ILLEGAL_OFFSET, "it must lie between 0, the oldest message, and 2, behind the newest", "sn", 2},
			{"of no topic", func(r *rmqpb.PullMessageRequest) { r.MessageQueue.Topic = named("none") }, rmqpb.Code_TOPIC_NOT_FOUND, "none", "s", 0},
			{"of an illegal topic", func(r *rmqpb.PullMessageRequest) { r.MessageQueue.Topic = named("a.b") }, rmqpb.Code_ILLEGAL_TOPIC, "a.b", "s", 0},
			{"of no queue", func(r *rmqpb.PullMessageRequest) { r.MessageQueue.Id = 2 }, rmqpb.Code_TOPIC_NOT_FOUND, `message_queue.id 2: there is no such queue of topic "a" on "perigee-0"`, "s", 0},
			{"of no broker", func(r *rmqpb.PullMessageRequest) { r.MessageQueue.Broker.Name = "b" }, rmqpb.Code_TOPIC_NOT_FOUND, `message_queue.broker.name "b"`, "s", 0},
			{"by an illegal group", func(r *rmqpb.PullMessageRequest) { r.Group = named("a.b") }, rmqpb.Code_ILLEGAL_CONSUMER_GROUP, "a.b", "s", 0},
			{"by nobody", func(r *rmqpb.PullMessageRequest) { r.Group = nil }, rmqpb.Code_ILLEGAL_CONSUMER_GROUP, "group", "s", 0},
			{"with an illegal filter", func(r *rmqpb.PullMessageRequest) { r.FilterExpression = &rmqpb.FilterExpression{Expression: "||"} }, rmqpb.Code_ILLEGAL_FILTER_EXPRESSION, "||", "s", 0},
			{"with SQL that is none", func(r *rmqpb.PullMessageRequest) {
				r.FilterExpression = &rmqpb.FilterExpression{Type: rmqpb.FilterType_SQL, Expression: "a ="}
			}, rmqpb.Code_ILLEGAL_FILTER_EXPRESSION, "filter_expression.expression", "s", 0},
			{"with a wait that is none", func(r *rmqpb.PullMessageRequest) {
				r.LongPollingTimeout = &durationpb.Duration{Seconds: 1, Nanos: -1}
			}, rmqpb.Code_BAD_REQUEST, "long_polling_timeout", "s", 0},
			{"without permission", func(r *rmqpb.PullMessageRequest) { r.MessageQueue = queueNumber("closed", 0) }, rmqpb.Code_FORBIDDEN, "closed", "s", 0},
		} {
			req := pullRequest("a", 0, 0)
			req.MessageQueue.Id = queue
			c.change(req)
			if c.what == "without a broker" {
				req.MessageQueue.Id = queue
			}
			p := pullOver(t, conn, req)
			require.Equal(t, c.code, p.code, "%s: %s", c.what, p.text)
			require.Contains(t, p.text, c.text, c.what)
			require.Equal(t, c.kinds, p.kinds, c.what)
			require.Equal(t, c.next, p.next, c.what)
		}
	})
}

// topicNamed returns the topic as it is.
func (s *testServer) topicNamed(t testing.TB, name string) *mq.Topic {
	t.Helper()
	topic, err := s.meta.Topic(t.Context(), mq.Resource{Name: name})
	require.NoError(t, err)
	return topic
}

// TestAQueueIsNamedWithItsShardWhereThereAreSeveral: an id alone stands for a queue on each.
func TestAQueueIsNamedWithItsShardWhereThereAreSeveral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t, func(o *testOptions) { o.router.Shards = []string{"s0", "s1"} })
		s.topic(t, "a", router.TopicSpec{Queues: 1})
		for range 4 {
			s.sendIn(t, "a", 1)
		}
		for _, broker := range []string{"s0", "s1"} {
			q := queueNumber("a", 0)
			q.Broker.Name = broker
			res, err := s.QueryOffset(as(t, "c"), &rmqpb.QueryOffsetRequest{MessageQueue: q, QueryOffsetPolicy: rmqpb.QueryOffsetPolicy_END})
			require.NoError(t, err)
			require.EqualValues(t, 2, res.GetOffset())
		}
		q := queueNumber("a", 0)
		q.Broker = nil
		res, err := s.QueryOffset(as(t, "c"), &rmqpb.QueryOffsetRequest{MessageQueue: q})
		require.NoError(t, err)
		require.Equal(t, rmqpb.Code_BAD_REQUEST, res.GetStatus().GetCode())
		require.Contains(t, res.GetStatus().GetMessage(), "message_queue.broker.name")
	})
}

func TestFiveReadersEachGetEverythingAndAGroupIsNotAffected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		conn := s.dial(t)
		s.topic(t, "a", router.TopicSpec{Queues: 1})
		s.sendIn(t, "a", 3) // before they begin
		got := make(chan []string)
		for range 5 {
			go func() {
				end, err := s.QueryOffset(as(t, "c"), &rmqpb.QueryOffsetRequest{
					MessageQueue: queueNumber("a", 0), QueryOffsetPolicy: rmqpb.QueryOffsetPolicy_END,
				})
				require.NoError(t, err)
				var ids []string
				for next := end.GetOffset(); len(ids) < 100; {
					p := pullOver(t, conn, pullRequest("a", next, 20*time.Second))
					ids, next = append(ids, p.ids()...), p.next
				}
				got <- ids
			}()
		}
		synctest.Wait()
		s.sendIn(t, "a", 100)
		for range 5 {
			ids := <-got
			require.Len(t, ids, 100)
			require.Equal(t, []string{"m4", "m103"}, []string{ids[0], ids[99]})
		}
		require.EqualValues(t, 500, s.nodes.Stats()[testShard].Pulled)
		c := s.consumer("a", "g")
		for range 4 {
			require.NotEmpty(t, c.receive(t, c.simple(32, time.Minute, 0)).messages)
		}
		require.Empty(t, c.receive(t, c.simple(32, time.Minute, 0)).messages)
	})
}

func TestAPullWaitsAsLongAsItIsToldAndIsWokenAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		conn := s.dial(t)
		s.topic(t, "a", router.TopicSpec{Queues: 1})
		start := time.Now()
		p := pullOver(t, conn, pullRequest("a", 0, 7*time.Second))
		require.Equal(t, rmqpb.Code_MESSAGE_NOT_FOUND, p.code)
		require.Equal(t, 7*time.Second, time.Since(start))
		start = time.Now()
		require.Equal(t, "sn", pullOver(t, conn, pullRequest("a", 0, time.Hour)).kinds)
		require.Equal(t, s.opts.MaxPolling, time.Since(start), "the server's limit")

		start = time.Now()
		done := make(chan *pulled)
		go func() { done <- pullOver(t, conn, pullRequest("a", 0, 10*time.Second)) }()
		synctest.Wait()
		time.Sleep(3 * time.Second)
		s.sendIn(t, "a", 1)
		require.Equal(t, []string{"m1"}, (<-done).ids())
		require.Equal(t, 3*time.Second, time.Since(start))

		// A client that waits when the permission goes, or the topic, gets nothing of it.
		for code, gone := range map[rmqpb.Code]func(){
			rmqpb.Code_FORBIDDEN: func() {
				_, err := s.meta.UpdateTopic(t.Context(), mq.Resource{Name: "a"}, router.TopicUpdate{Permission: new(mq.PermWrite)})
				require.NoError(t, err)
				s.sendIn(t, "a", 1)
			},
			rmqpb.Code_TOPIC_NOT_FOUND: func() { require.NoError(t, s.nodes.DeleteTopic(t.Context(), s.topicNamed(t, "b").ID)) },
		} {
			topic, offset := "a", int64(1)
			if code == rmqpb.Code_TOPIC_NOT_FOUND {
				s.topic(t, "b", router.TopicSpec{Queues: 1})
				topic, offset = "b", 0
			}
			go func() { done <- pullOver(t, conn, pullRequest(topic, offset, 10*time.Second)) }()
			synctest.Wait()
			gone()
			p := <-done
			require.Equal(t, code, p.code, p.text)
			require.Equal(t, "s", p.kinds)
		}
	})
}

func TestAPullEndsEmptyWhenTheServerDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		conn := s.dial(t)
		s.topic(t, "a", router.TopicSpec{Queues: 1})
		done := make(chan *pulled)
		go func() { done <- pullOver(t, conn, pullRequest("a", 0, 10*time.Second)) }()
		synctest.Wait()
		s.Drain()
		p := <-done
		require.Equal(t, rmqpb.Code_MESSAGE_NOT_FOUND, p.code)
		require.Zero(t, p.next)
	})
}

// TestAPulledMessageIsExactlyWhatWasSent: body, encoding, properties and trace as they
// came, the digest of the bytes, and nothing of the server's own.
func TestAPulledMessageIsExactlyWhatWasSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		conn := s.dial(t)
		s.topic(t, "a", router.TopicSpec{Queues: 1})
		var zipped bytes.Buffer
		w := zlib.NewWriter(&zipped)
		_, err := w.Write(bytes.Repeat([]byte("perigee "), 10_000))
		require.NoError(t, err)
		require.NoError(t, w.Close())
		for i, body := range [][]byte{zipped.Bytes(), {0}, []byte("text"), bytes.Repeat([]byte{0xff}, 300<<10)} {
			m := message("a", fmt.Sprint(i), "")
			m.Body = body
			m.UserProperties = map[string]string{"k": "v", "empty": "", "ключ": "значение", "Keys": "not reserved"}
			sys := m.SystemProperties
			sys.Tag, sys.Keys, sys.TraceContext = new("t"), []string{"k1", "k2"}, new("trace \x01 context")
			sys.BornTimestamp, sys.BornHost = timestamppb.New(time.Unix(1, 2)), "born"
			sys.BodyEncoding = rmqpb.Encoding_IDENTITY
			if i == 0 {
				sys.BodyEncoding = rmqpb.Encoding_GZIP
			}
			// What only the server may say has no effect.
			sys.StoreHost, sys.ReceiptHandle, sys.QueueOffset = "mine", new("mine"), new(int64(77))
			s.send(t, m)
			p := pullOver(t, conn, pullRequest("a", int64(i), 0))
			require.Len(t, p.messages, 1)
			got := p.messages[0]
			require.Equal(t, body, got.GetBody())
			require.Equal(t, m.GetUserProperties(), got.GetUserProperties())
			require.Equal(t, "a", got.GetTopic().GetName())
			have := got.GetSystemProperties()
			require.Equal(t, fmt.Sprintf("%X", sha1.Sum(body)), have.GetBodyDigest().GetChecksum())
			require.Equal(t, rmqpb.DigestType_SHA1, have.GetBodyDigest().GetType())
			require.Equal(t, sys.GetBodyEncoding(), have.GetBodyEncoding())
			require.Equal(t, sys.GetTraceContext(), have.GetTraceContext())
			require.Equal(t, "t", have.GetTag())
			require.Equal(t, sys.GetKeys(), have.GetKeys())
			require.Equal(t, fmt.Sprint(i), have.GetMessageId())
			require.True(t, time.Unix(1, 2).Equal(have.GetBornTimestamp().AsTime()))
			require.Equal(t, "born", have.GetBornHost())
			require.EqualValues(t, i, have.GetQueueOffset())
			require.NotEqual(t, "mine", have.GetStoreHost())
			require.Nil(t, have.ReceiptHandle)
			require.WithinDuration(t, time.Now(), have.GetStoreTimestamp().AsTime(), time.Second)
		}
	})
}

// TestAClientThatDoesNotReadItsPullLosesItsConnection: what it was sent is in memory.
func TestAClientThatDoesNotReadItsPullLosesItsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		pipe := bufconn.Listen(1 << 20)
		s.serveOn(t, pipe)
		s.topic(t, "a", router.TopicSpec{Queues: 1})
		s.sendLarge(t, "a", 8)
		ctx, cancel := context.WithCancel(from(t, "c"))
		defer cancel()
		stream, err := rmqpb.NewMessagingServiceClient(dialOn(t, pipe, asIs)).PullMessage(ctx, pullRequest("a", 0, 0))
		require.NoError(t, err)
		synctest.Wait()
		require.Positive(t, s.deliveries.held.Load())
		time.Sleep(deliveryStall + time.Second)
		synctest.Wait()
		require.Zero(t, s.deliveries.held.Load())
		for err == nil {
			_, err = stream.Recv()
		}
		require.NotErrorIs(t, err, io.EOF)
	})
}

package proxy

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/proxy/wire"
	"github.com/perigee-mq/perigee/router"
)

// try sends messages and returns the answer, whatever it is.
func (s *testServer) try(t testing.TB, msgs ...*rmqpb.Message) *rmqpb.SendMessageResponse {
	t.Helper()
	res, err := s.SendMessage(as(t, "sender"), &rmqpb.SendMessageRequest{Messages: msgs})
	require.NoError(t, err)
	return res
}

// requireNothingStored checks that no queue of the topic holds a message.
func (s *testServer) requireNothingStored(t testing.TB, topic string) {
	t.Helper()
	require.Empty(t, s.leased(t, topic, "check", 32, 0))
}

func TestSentMessageComesBackAsItWasSent(t *testing.T) {
	s := newTestServer(t)
	topic := s.topic(t, "orders")
	m := message("orders", "0102030405", "hello")
	m.UserProperties = map[string]string{"b": "2", "a": "1"}
	m.SystemProperties.Tag, m.SystemProperties.Keys = new("red"), []string{"k1", "k 2"}
	m.SystemProperties.BornTimestamp = &timestamppb.Timestamp{Seconds: 1700000000, Nanos: 5}

	entries := s.send(t, m)
	require.Len(t, entries, 1)
	require.Equal(t, rmqpb.Code_OK, entries[0].GetStatus().GetCode())
	require.Equal(t, "0102030405", entries[0].GetMessageId())
	require.Equal(t, "0102030405", entries[0].GetTransactionId())
	require.Empty(t, entries[0].GetRecallHandle())

	got := s.leased(t, "orders", "g", 32, 0)
	require.Len(t, got, 1)
	out, err := wire.DecodeMessage(topic.Resource, &got[0].Message)
	require.NoError(t, err)
	require.Equal(t, m.GetUserProperties(), out.GetUserProperties())
	require.Equal(t, m.GetBody(), out.GetBody())
	sys := out.GetSystemProperties()
	require.Equal(t, "red", sys.GetTag())
	require.Equal(t, []string{"k1", "k 2"}, sys.GetKeys())
	require.EqualValues(t, 5, sys.GetBornTimestamp().GetNanos())
	require.Equal(t, rmqpb.Encoding_IDENTITY, sys.GetBodyEncoding())
	require.Equal(t, rmqpb.DigestType_SHA1, sys.GetBodyDigest().GetType())
	require.Equal(t, "AAF4C61DDCC5E8A2DABEDE0F3B482CD9AEA9434D", sys.GetBodyDigest().GetChecksum())
}

func TestBatchIsContiguousAndEveryMessageKeepsItsID(t *testing.T) {
	s := newTestServer(t)
	s.topic(t, "orders", router.TopicSpec{Queues: 4})
	var batch []*rmqpb.Message
	for i := range 10 {
		batch = append(batch, message("orders", fmt.Sprintf("id-%d", i), "body"))
	}
	entries := s.send(t, batch...)
	require.Len(t, entries, 10)
	for i, e := range entries {
		require.Equal(t, fmt.Sprintf("id-%d", i), e.GetMessageId())
		require.Equal(t, e.GetMessageId(), e.GetTransactionId())
		require.Equal(t, entries[0].GetOffset()+int64(i), e.GetOffset())
		require.Equal(t, rmqpb.Code_OK, e.GetStatus().GetCode())
	}
	got := s.leased(t, "orders", "g", 32, 0)
	require.Len(t, got, 10)
	for i, d := range got {
		require.Equal(t, fmt.Sprintf("id-%d", i), d.ID)
		require.EqualValues(t, i, d.Lease.Offset)
		require.Equal(t, got[0].Lease.Queue, d.Lease.Queue)
	}
}

func TestBatchesOfAnySizeAreStoredWhole(t *testing.T) {
	s := newTestServer(t)
	body := string(make([]byte, 1024))
	for _, size := range []int{1, 32, 256, 1000} {
		topic := fmt.Sprint("batches-of-", size)
		s.topic(t, topic)
		for sent := 0; sent < 1000; {
			var batch []*rmqpb.Message
			for range min(size, 1000-sent) {
				batch = append(batch, message(topic, fmt.Sprint("id-", sent), body))
				sent++
			}
			require.Len(t, s.send(t, batch...), len(batch))
		}
		stored := map[string]bool{}
		for {
			got := s.leased(t, topic, "g", 32, 0)
			if len(got) == 0 {
				break
			}
			for _, d := range got {
				stored[d.ID] = true
			}
		}
		require.Len(t, stored, 1000, topic)
	}
}

func TestRequestsTakeTurnsOverTheWritableQueues(t *testing.T) {
	s := newTestServer(t)
	s.topic(t, "orders", router.TopicSpec{Queues: 3})
	_, err := s.meta.UpdateTopic(t.Context(), mq.Resource{Name: "orders"}, router.TopicUpdate{WriteQueues: new(int32(2))})
	require.NoError(t, err)
	for i := range 6 {
		s.send(t, message("orders", fmt.Sprint(i), "body"))
	}
	count := map[mq.QueueID]int{}
	for _, d := range s.leased(t, "orders", "g", 32, 0) {
		count[d.Lease.Queue]++
	}
	require.Equal(t, map[mq.QueueID]int{0: 3, 1: 3}, count)
}

func TestEveryWritableQueueOfEveryShardGetsItsTurn(t *testing.T) {
	topic := &mq.Topic{ID: 7, Permission: mq.PermReadWrite, Shards: []mq.ShardQueues{
		{Shard: "a", Read: 1, Write: 2}, {Shard: "b", Read: 9, Write: 0}, {Shard: "c", Read: 1, Write: 1},
	}}
	var r rotation
	var seen []string
	for range 3 {
		shard, queue, err := r.next(topic)
		require.NoError(t, err)
		seen = append(seen, fmt.Sprint(shard, queue))
	}
	require.ElementsMatch(t, []string{"a0", "a1", "c0"}, seen)
	_, _, err := r.next(&mq.Topic{ID: 8, Permission: mq.PermRead, Shards: topic.Shards})
	require.ErrorIs(t, err, mq.ErrForbidden)
}

func TestARotationOverTopicsThatComeAndGoDoesNotGrow(t *testing.T) {
	var r rotation
	for id := range mq.TopicID(3 * maxTurns) {
		_, _, err := r.next(&mq.Topic{ID: id, Permission: mq.PermReadWrite, Shards: []mq.ShardQueues{{Shard: "a", Read: 2, Write: 2}}})
		require.NoError(t, err)
	}
	entries := 0
	r.turns.Range(func(any, any) bool { entries++; return true })
	require.LessOrEqual(t, entries, maxTurns)
	require.Positive(t, entries)
}

func TestRefusalHasAStatusAndNoEntry(t *testing.T) {
	s := newTestServer(t)
	s.topic(t, "orders")
	bad := message("orders", "2", "")
	res := s.try(t, message("orders", "1", "a"), bad, message("orders", "3", "c"))
	require.Equal(t, rmqpb.Code_MESSAGE_BODY_EMPTY, res.GetStatus().GetCode())
	require.Contains(t, res.GetStatus().GetMessage(), "message 2 of 3: body")
	require.Empty(t, res.GetEntries())
	s.requireNothingStored(t, "orders")
}

// The SDK for Rust was made before the code and panics at what it does not know.
func TestRustIsToldOfAnEmptyBodyWithACodeThatItKnows(t *testing.T) {
	s := newTestServer(t)
	s.topic(t, "orders")
	client := rmqpb.NewMessagingServiceClient(s.dial(t))
	for version, want := range map[string]rmqpb.Code{"5.0.0": rmqpb.Code_BAD_REQUEST, "5.0.1": rmqpb.Code_MESSAGE_BODY_EMPTY} {
		ctx := from(t, "c", headerLanguage, "RUST", headerVersion, version)
		res, err := client.SendMessage(ctx, &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{message("orders", "1", "")}})
		require.NoError(t, err)
		require.Equal(t, want.String(), res.GetStatus().GetCode().String(), version)
		require.Contains(t, res.GetStatus().GetMessage(), "body: must not be empty")
	}
}

func TestBodyLimitIsAnsweredInTheResponseAndEqualsTheSettings(t *testing.T) {
	s := newTestServer(t)
	s.topic(t, "orders")
	client := rmqpb.NewMessagingServiceClient(s.dial(t))
	limit := int(s.mergeSettings(t.Context(), anyClient, publisher()).GetPublishing().GetMaxBodySize())
	require.Equal(t, 4<<20, limit)
	for size, want := range map[int]rmqpb.Code{limit: rmqpb.Code_OK, limit + 1: rmqpb.Code_MESSAGE_BODY_TOO_LARGE} {
		m := message("orders", "m", "")
		m.Body = bytes.Repeat([]byte{1}, size)
		res, err := client.SendMessage(from(t, "c"), &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{m}})
		require.NoError(t, err)
		require.Equal(t, want, res.GetStatus().GetCode(), size)
	}
}

func TestBatchLimitsRefuseTheWholeRequest(t *testing.T) {
	s := newTestServer(t, func(o *testOptions) { o.MaxBodySize, o.MaxBatchSize = 100, 250 })
	s.topic(t, "orders")
	body := string(make([]byte, 100))
	res := s.try(t, message("orders", "1", body), message("orders", "2", body), message("orders", "3", body[:51]))
	require.Equal(t, rmqpb.Code_PAYLOAD_TOO_LARGE, res.GetStatus().GetCode())
	require.Contains(t, res.GetStatus().GetMessage(), "251")
	require.Contains(t, res.GetStatus().GetMessage(), "250")
	many := slices.Repeat([]*rmqpb.Message{message("orders", "1", "b")}, maxBatchMessages+1)
	require.Equal(t, rmqpb.Code_PAYLOAD_TOO_LARGE, s.try(t, many...).GetStatus().GetCode())
	s.requireNothingStored(t, "orders")
	s.send(t, message("orders", "1", body), message("orders", "2", body), message("orders", "3", body[:50]))

	_, err := New(Options{MaxBodySize: 2, MaxBatchSize: 1})
	require.ErrorIs(t, err, mq.ErrInvalid)
}

func TestALargerBodyLimitRaisesTheDefaultOfTheBatchLimit(t *testing.T) {
	s := newTestServer(t, func(o *testOptions) { o.MaxBodySize = 33 << 20 })
	require.Equal(t, 33<<20, s.opts.MaxBatchSize)
	require.Equal(t, 32<<20, newTestServer(t).opts.MaxBatchSize)
}

func TestSendsToMissingAndClosedTopicsAreRefused(t *testing.T) {
	s := newTestServer(t)
	s.topic(t, "closed", router.TopicSpec{Permission: mq.PermRead})
	s.topic(t, "none", router.TopicSpec{Permission: mq.PermNone})
	s.group(t, "g")
	for topic, want := range map[string]rmqpb.Code{
		"missing": rmqpb.Code_TOPIC_NOT_FOUND, "%RETRY%g": rmqpb.Code_TOPIC_NOT_FOUND, "%DLQ%nobody": rmqpb.Code_TOPIC_NOT_FOUND,
		"closed": rmqpb.Code_FORBIDDEN, "none": rmqpb.Code_FORBIDDEN, "%DLQ%g": rmqpb.Code_OK,
		"TBW102": rmqpb.Code_ILLEGAL_TOPIC,
	} {
		res := s.try(t, message(topic, "m", "body"))
		require.Equal(t, want, res.GetStatus().GetCode(), topic)
		require.NotEmpty(t, res.GetStatus().GetMessage())
	}
	require.Contains(t, s.try(t, message("missing", "m", "body")).GetStatus().GetMessage(), "perigee topic create missing")
}

func TestTypeOfEveryMessageMustFitTheTopic(t *testing.T) {
	s := newTestServer(t)
	s.topic(t, "normal")
	s.topic(t, "fifo", router.TopicSpec{Type: mq.TopicFIFO})
	s.topic(t, "mixed", router.TopicSpec{Type: mq.TopicMixed})
	const ok, conflict = rmqpb.Code_OK, rmqpb.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
	with := func(t rmqpb.MessageType, change func(*rmqpb.SystemProperties)) func(*rmqpb.SystemProperties) {
		return func(p *rmqpb.SystemProperties) {
			p.MessageType = t
			if change != nil {
				change(p)
			}
		}
	}
	group := func(p *rmqpb.SystemProperties) { p.MessageGroup = new("g") }
	for _, c := range []struct {
		topic  string
		change func(*rmqpb.SystemProperties)
		want   rmqpb.Code
	}{
		{"normal", with(rmqpb.MessageType_NORMAL, nil), ok},
		{"normal", with(0, nil), ok},
		{"normal", with(0, func(p *rmqpb.SystemProperties) { p.MessageGroup = new("") }), ok},
		{"normal", with(rmqpb.MessageType_NORMAL, group), conflict},
		{"normal", with(rmqpb.MessageType_NORMAL, func(p *rmqpb.SystemProperties) { p.DeliveryTimestamp = timestamppb.Now() }), conflict},
		{"normal", with(rmqpb.MessageType_NORMAL, func(p *rmqpb.SystemProperties) { p.Priority = new(int32(1)) }), conflict},
		{"normal", with(rmqpb.MessageType_NORMAL, func(p *rmqpb.SystemProperties) { p.LiteTopic = new("l") }), conflict},
		{"normal", with(0, group), conflict},
		{"normal", with(rmqpb.MessageType_FIFO, group), conflict},
		{"normal", with(99, nil), conflict},
		{"fifo", with(rmqpb.MessageType_NORMAL, nil), conflict},
		{"fifo", with(rmqpb.MessageType_FIFO, group), ok},
		{"mixed", with(rmqpb.MessageType_NORMAL, nil), ok},
		{"mixed", with(0, group), ok},
		{"mixed", with(0, func(p *rmqpb.SystemProperties) { p.DeliveryTimestamp = timestamppb.Now() }), ok},
		{"mixed", with(rmqpb.MessageType_TRANSACTION, nil), ok},
		{"mixed", with(0, func(p *rmqpb.SystemProperties) { p.Priority = new(int32(1)) }), conflict},
	} {
		m := message(c.topic, "m", "body")
		c.change(m.SystemProperties)
		res := s.try(t, m)
		require.Equal(t, c.want, res.GetStatus().GetCode(), "%s %v: %s", c.topic, m.GetSystemProperties(), res.GetStatus().GetMessage())
	}
}

func TestOneMessageOfAWrongTypeRefusesTheBatch(t *testing.T) {
	s := newTestServer(t)
	s.topic(t, "normal")
	half := message("normal", "2", "body")
	half.SystemProperties.MessageType = rmqpb.MessageType_TRANSACTION
	res := s.try(t, message("normal", "1", "body"), half)
	require.Equal(t, rmqpb.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, res.GetStatus().GetCode())
	require.Contains(t, res.GetStatus().GetMessage(), "message 2 of 2")
	s.requireNothingStored(t, "normal")
}

func TestCompressedBodyIsStoredUntouched(t *testing.T) {
	s := newTestServer(t)
	topic := s.topic(t, "orders", router.TopicSpec{Queues: 1})
	plain := bytes.Repeat([]byte("perigee "), 1000)
	for name, open := range map[string]func(io.Writer) io.WriteCloser{
		"zlib": func(w io.Writer) io.WriteCloser { return zlib.NewWriter(w) },
		"gzip": func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) },
	} {
		var packed bytes.Buffer
		w := open(&packed)
		_, err := w.Write(plain)
		require.NoError(t, err)
		require.NoError(t, w.Close())
		m := message("orders", name, packed.String())
		m.SystemProperties.BodyEncoding = rmqpb.Encoding_GZIP
		s.send(t, m)
		got := s.leased(t, "orders", "g", 1, 0)
		require.Len(t, got, 1)
		out, err := wire.DecodeMessage(topic.Resource, &got[0].Message)
		require.NoError(t, err)
		require.Equal(t, packed.Bytes(), out.GetBody())
		require.Equal(t, rmqpb.Encoding_GZIP, out.GetSystemProperties().GetBodyEncoding())
		require.Nil(t, verifyDigest(out.GetSystemProperties().GetBodyDigest(), packed.Bytes()))
	}
}

func TestARefusedCallCreatesNoTopic(t *testing.T) {
	s := newTestServer(t, func(o *testOptions) { o.router.AutoCreateTopics = true })
	delayed := message("late", "1", "x")
	delayed.SystemProperties.MessageType = rmqpb.MessageType_DELAY
	delayed.SystemProperties.DeliveryTimestamp = timestamppb.New(time.Now().Add(time.Minute))
	res, err := s.SendMessage(as(t, "c"), &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{delayed}})
	require.NoError(t, err)
	require.Equal(t, rmqpb.Code_TOPIC_NOT_FOUND, res.GetStatus().GetCode())
	_, err = s.meta.Topic(t.Context(), mq.Resource{Name: "late"})
	require.ErrorIs(t, err, mq.ErrTopicNotFound)

	s.send(t, message("new", "1", "x"))
	_, err = s.meta.Topic(t.Context(), mq.Resource{Name: "new"})
	require.NoError(t, err)
}

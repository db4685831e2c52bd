package proxy

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/receipt"
	"github.com/perigee-mq/perigee/router"
)

// delayedMessage returns a message as an SDK sends it that is to be delivered later.
func delayedMessage(topic, id string, in time.Duration) *rmqpb.Message {
	m := message(topic, id, "body of "+id)
	m.SystemProperties.MessageType = rmqpb.MessageType_DELAY
	m.SystemProperties.DeliveryTimestamp = timestamppb.New(time.Now().Add(in))
	return m
}

func (s *testServer) recallIt(t testing.TB, topic, handle string) *rmqpb.RecallMessageResponse {
	t.Helper()
	res, err := s.RecallMessage(as(t, "sender"), &rmqpb.RecallMessageRequest{Topic: named(topic), RecallHandle: handle})
	require.NoError(t, err)
	return res
}

func (s *testServer) delayTopic(t testing.TB, name string) *mq.Topic {
	return s.topic(t, name, router.TopicSpec{Type: mq.TopicDelay, Queues: 2})
}

func idsOf(got []mq.Delivery) (ids []string) {
	for _, d := range got {
		ids = append(ids, d.ID)
	}
	return ids
}

func TestADelayedMessageComesAtItsTimeWithTheFieldsOfItsKind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.delayTopic(t, "later")
		sent := s.send(t, delayedMessage("later", "m1", 5*time.Second))
		require.NotEmpty(t, sent[0].GetRecallHandle())
		require.Zero(t, sent[0].GetOffset())
		require.Equal(t, "m1", sent[0].GetMessageId())
		past := s.send(t, delayedMessage("later", "m0", -time.Hour))
		require.Empty(t, past[0].GetRecallHandle(), "it has been delivered")
		due := time.Now().Add(5 * time.Second)
		c := s.consumer("later", "g")
		require.Equal(t, []string{"m0"}, idsOf(s.leased(t, "later", "g", 10, 0)))
		got := c.receive(t, c.simple(1, time.Minute, 10*time.Second)).messages
		require.Len(t, got, 1)
		require.Equal(t, due, time.Now())
		sys := got[0].GetSystemProperties()
		require.Equal(t, rmqpb.MessageType_DELAY, sys.GetMessageType())
		require.Equal(t, due, sys.GetDeliveryTimestamp().AsTime().Local())
		require.Equal(t, due, sys.GetStoreTimestamp().AsTime().Local(), "it came into its queue just now")
		require.EqualValues(t, 1, sys.GetDeliveryAttempt())
		require.Equal(t, "m1", sys.GetMessageId())
		require.Equal(t, "body of m1", string(got[0].GetBody()))
	})
}

func TestEachMessageOfABatchHasItsOwnTimeAndHandle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "mixed", router.TopicSpec{Type: mq.TopicMixed, Queues: 1})
		entries := s.send(t, delayedMessage("mixed", "a", 2*time.Second), message("mixed", "b", "x"), delayedMessage("mixed", "c", time.Second))
		for i, handle := range []bool{true, false, true} {
			require.Equal(t, handle, entries[i].GetRecallHandle() != "", "message %d", i)
		}
		require.NotEqual(t, entries[0].GetRecallHandle(), entries[2].GetRecallHandle())
		require.Equal(t, []string{"b"}, idsOf(s.leased(t, "mixed", "g", 10, 0)))
		require.Equal(t, "c", s.recallIt(t, "mixed", entries[2].GetRecallHandle()).GetMessageId())
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, []string{"a"}, idsOf(s.leased(t, "mixed", "g", 10, 0)))
		// One that may not be refuses all of them.
		far := delayedMessage("mixed", "far", 41*24*time.Hour)
		res := s.try(t, delayedMessage("mixed", "d", time.Second), far)
		require.Equal(t, rmqpb.Code_ILLEGAL_DELIVERY_TIME, res.GetStatus().GetCode())
		require.Contains(t, res.GetStatus().GetMessage(), "message 2 of 2")
		require.Zero(t, s.nodes.Stats()[testShard].Timed, "none of them waits")
	})
}

func TestADelayBeyondTheLimitIsRefusedWithTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for limit, o := range map[time.Duration]Options{40 * 24 * time.Hour: {}, time.Hour: {MaxDelay: time.Hour}} {
			s := newTestServer(t, func(to *testOptions) { to.Options = o })
			s.delayTopic(t, "later")
			s.send(t, delayedMessage("later", "m", limit))
			m := delayedMessage("later", "n", limit+time.Millisecond)
			res := s.try(t, m)
			require.Equal(t, rmqpb.Code_ILLEGAL_DELIVERY_TIME, res.GetStatus().GetCode())
			text := res.GetStatus().GetMessage()
			for _, want := range []string{
				"delivery_timestamp", m.SystemProperties.DeliveryTimestamp.AsTime().Format(time.RFC3339Nano), fmt.Sprint("the limit is ", limit), "max_delay",
			} {
				require.Contains(t, text, want)
			}
			for _, seconds := range []int64{253402300799, -62135596800, -1} { // the years 9999 and 1, and 1969
				m.SystemProperties.DeliveryTimestamp = &timestamppb.Timestamp{Seconds: seconds}
				m.SystemProperties.MessageId = fmt.Sprint("at", seconds)
				res := s.try(t, m)
				if seconds < 0 {
					require.Equal(t, rmqpb.Code_OK, res.GetStatus().GetCode(), "what is past comes at once")
					require.Empty(t, res.GetEntries()[0].GetRecallHandle())
					continue
				}
				require.Equal(t, rmqpb.Code_ILLEGAL_DELIVERY_TIME, res.GetStatus().GetCode())
				require.Contains(t, res.GetStatus().GetMessage(), "years ahead")
			}
			require.Len(t, s.leased(t, "later", "g", 10, 0), 2)
		}
	})
}

func TestARecalledMessageNeverComesAndToRecallItAgainIsNoError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.delayTopic(t, "a")
		s.delayTopic(t, "b")
		a := s.send(t, delayedMessage("a", "same", time.Minute))[0].GetRecallHandle()
		s.send(t, delayedMessage("b", "same", time.Minute))
		for range 3 {
			res := s.recallIt(t, "a", a)
			require.Equal(t, rmqpb.Code_OK, res.GetStatus().GetCode(), res.GetStatus().GetMessage())
			require.Equal(t, "same", res.GetMessageId())
			time.Sleep(21 * time.Second) // beyond its time
		}
		synctest.Wait()
		require.Empty(t, s.leased(t, "a", "g", 10, 0))
		require.Equal(t, []string{"same"}, idsOf(s.leased(t, "b", "g", 10, 0)), "the one with the same id in another topic")
	})
}

func TestARecallThatCannotBeSaysWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.delayTopic(t, "a")
		s.delayTopic(t, "b")
		late := s.send(t, delayedMessage("a", "late", time.Second))[0].GetRecallHandle()
		good := s.send(t, delayedMessage("a", "good", time.Hour))[0].GetRecallHandle()
		time.Sleep(time.Second)
		synctest.Wait()
		h, err := receipt.DecodePending(good)
		require.NoError(t, err)
		edited := func(change func(*mq.PendingHandle)) string {
			c := h
			change(&c)
			return receipt.EncodePending(c)
		}
		texts := map[string]bool{}
		for name, c := range map[string]struct {
			topic, handle string
			code          rmqpb.Code
			text          string
		}{
			"too late":             {"a", late, rmqpb.Code_BAD_REQUEST, "delivered"},
			"of another topic":     {"b", good, rmqpb.Code_BAD_REQUEST, "another topic"},
			"of a missing topic":   {"c", good, rmqpb.Code_TOPIC_NOT_FOUND, "c"},
			"without a topic":      {"", good, rmqpb.Code_ILLEGAL_TOPIC, "topic"},
			"empty":                {"a", "", rmqpb.Code_BAD_REQUEST, "wrong length"},
			"garbage":              {"a", "garbage!", rmqpb.Code_BAD_REQUEST, "base64"},
			"endless":              {"a", strings.Repeat("x", 1<<20), rmqpb.Code_BAD_REQUEST, "limit"},
			"cut":                  {"a", good[:len(good)-4], rmqpb.Code_BAD_REQUEST, "checksum"},
			"a receipt":            {"a", s.receiptOf(t, "a"), rmqpb.Code_BAD_REQUEST, "no handle of a pending message"},
			"of another shard":     {"a", edited(func(h *mq.PendingHandle) { h.Shard = "elsewhere-0" }), rmqpb.Code_BAD_REQUEST, "elsewhere-0"},
			"of another message":   {"a", edited(func(h *mq.PendingHandle) { h.MessageID = "other" }), rmqpb.Code_BAD_REQUEST, "another one"},
			"of a message to come": {"a", edited(func(h *mq.PendingHandle) { h.ID += 1 << 20 }), rmqpb.Code_BAD_REQUEST, "recall_handle"},
		} {
			res := s.recallIt(t, c.topic, c.handle)
			require.Equal(t, c.code, res.GetStatus().GetCode(), "%s: %s", name, res.GetStatus().GetMessage())
			require.Contains(t, res.GetStatus().GetMessage(), c.text, name)
			require.Less(t, len(res.GetStatus().GetMessage()), 400, name)
			require.Empty(t, res.GetMessageId(), name)
			texts[res.GetStatus().GetMessage()] = true
		}
		require.Len(t, texts, 12, "each has its own text")
		s.deleteTopic(t, "b")
		s.delayTopic(t, "b")
		require.Equal(t, rmqpb.Code_OK, s.recallIt(t, "a", good).GetStatus().GetCode(), "nothing of it had an effect")
	})
}

// receiptOf receives a message and returns its receipt handle.
func (s *testServer) receiptOf(t *testing.T, topic string) string {
	got := s.leased(t, topic, "receipts", 1, time.Second)
	require.NotEmpty(t, got)
	return receipt.Encode(got[0].Lease)
}

func TestAMessageAtTheSizeLimitIsDelayedRetriedAndDeadLettered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.delayTopic(t, "later")
		s.limitOf(t, "g", 3)
		c := s.consumer("later", "g")
		m := delayedMessage("later", "big", 2*time.Second)
		m.Body = make([]byte, 4<<20)
		m.UserProperties = map[string]string{}
		for i := range 64 {
			m.UserProperties[fmt.Sprintf("key-%02d", i)] = strings.Repeat("v", 249)
		}
		s.send(t, m, delayedMessage("later", "small", 2*time.Second))
		for attempt := range int32(3) {
			due := time.Now().Add(2 * time.Second)
			for _, id := range []string{"big", "small"} {
				got := c.receive(t, c.push(1, 5*time.Second))
				require.Equal(t, []string{id}, got.ids())
				require.Equal(t, []int32{attempt + 1}, got.attempts())
				require.WithinDuration(t, due, time.Now(), 100*time.Millisecond, "the large one holds up nobody")
				require.Equal(t, rmqpb.Code_OK, c.change(t, got.handle(0), 2*time.Second).GetStatus().GetCode())
			}
		}
		time.Sleep(time.Second)
		require.Equal(t, []string{"big", "small"}, append(c.deadLetters(t), c.deadLetters(t)...)) // two answers
	})
}

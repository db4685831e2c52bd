package node

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

// typed creates a topic of a type.
func (s *scene) typed(name string, typ mq.TopicType) {
	_, _, err := s.router.CreateTopic(s.t.Context(), router.TopicSpec{Resource: mq.Resource{Name: name}, Queues: 1, Type: typ})
	require.NoError(s.t, err)
}

// sendPending sends a message with the system properties given, and returns its entry.
func (s *scene) sendPending(topic, id string, sys *rmqpb.SystemProperties) *rmqpb.SendResultEntry {
	sys.MessageId = id
	res, err := s.rmq.SendMessage(s.as(), &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{
		{Topic: &rmqpb.Resource{Name: topic}, Body: []byte("12345"), SystemProperties: sys},
	}})
	require.NoError(s.t, err)
	require.Equal(s.t, rmqpb.Code_OK, res.GetStatus().GetCode(), res.GetStatus().GetMessage())
	return res.GetEntries()[0]
}

// TestPendingMessagesOfEachTopicAreCounted: the figures fall with delivery, recall and end,
// and are right after a restart.
func TestPendingMessagesOfEachTopicAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, 1000)
		s.notUp = nil
		s.serving()
		s.typed("later", mq.TopicDelay)
		s.typed("other", mq.TopicDelay)
		s.typed("payments", mq.TopicTransaction)
		l := ledger{}
		later, other, half := "perigee_topic_delayed_messages{topic=later}", "perigee_topic_delayed_messages{topic=other}", "perigee_topic_half_messages{topic=payments}"
		start := time.Now()
		var handles []string
		for i := range 100 {
			e := s.sendPending("later", fmt.Sprint("m", i), &rmqpb.SystemProperties{
				DeliveryTimestamp: timestamppb.New(start.Add(time.Duration(i+1) * time.Minute)), Keys: []string{fmt.Sprint("key", i)},
			})
			handles = append(handles, e.GetRecallHandle())
		}
		s.sendPending("other", "m", &rmqpb.SystemProperties{DeliveryTimestamp: timestamppb.New(start.Add(24 * time.Hour))})
		var halves []*rmqpb.SendResultEntry
		for i := range 3 {
			halves = append(halves, s.sendPending("payments", fmt.Sprint("h", i), &rmqpb.SystemProperties{MessageType: rmqpb.MessageType_TRANSACTION}))
		}
		l.check(s, "100 wait, 1 and 3", ledger{
			later: 100, other: 1, half: 3, "perigee_delayed_pending_messages": 101, "perigee_transactions_pending_messages": 3,
			"perigee_topic_stored_messages{topic=later}": 0, "perigee_delayed_delivered_messages_total": 0,
		})

		time.Sleep(30 * time.Minute)
		l.check(s, "30 are delivered", ledger{
			later: -30, "perigee_delayed_pending_messages": -30, "perigee_topic_stored_messages{topic=later}": 30,
			"perigee_delayed_delivered_messages_total": 30,
		})
		for _, h := range handles[90:] {
			for range 2 { // the second time it changes nothing
				res, err := s.rmq.RecallMessage(s.as(), &rmqpb.RecallMessageRequest{Topic: &rmqpb.Resource{Name: "later"}, RecallHandle: h})
				require.NoError(t, err)
				require.Equal(t, rmqpb.Code_OK, res.GetStatus().GetCode())
			}
		}
		for i, how := range []rmqpb.TransactionResolution{rmqpb.TransactionResolution_COMMIT, rmqpb.TransactionResolution_ROLLBACK} {
			res, err := s.rmq.EndTransaction(s.as(), &rmqpb.EndTransactionRequest{
				Topic: &rmqpb.Resource{Name: "payments"}, MessageId: halves[i].GetMessageId(), TransactionId: halves[i].GetTransactionId(), Resolution: how,
			})
			require.NoError(t, err)
			require.Equal(t, rmqpb.Code_OK, res.GetStatus().GetCode())
		}
		l.check(s, "10 are recalled, 2 ended", ledger{
			later: -10, half: -2, "perigee_delayed_pending_messages": -10, "perigee_transactions_pending_messages": -2,
			"perigee_topic_stored_messages{topic=payments}": 1,
		})

		// One is found by its id, with its time and keys.
		topic, err := s.router.Topic(t.Context(), mq.Resource{Name: "later"})
		require.NoError(t, err)
		found, _, err := s.store.Timers(t.Context(), sceneShard, mq.PendingQuery{Topic: topic.ID, Max: 10, MessageID: "m70"})
		require.NoError(t, err)
		require.Len(t, found, 1)
		require.Equal(t, start.Add(71*time.Minute), found[0].At)
		require.Equal(t, []string{"key70"}, found[0].Keys)

		s.restartStore()
		delete(l, "perigee_delayed_delivered_messages_total") // since the start
		l.check(s, "after a restart", nil)
		time.Sleep(10 * time.Minute)
		l.check(s, "10 more are delivered", ledger{
			later: -10, "perigee_delayed_pending_messages": -10, "perigee_topic_stored_messages{topic=later}": 10,
		})
		require.NoError(t, s.store.PurgeTopic(t.Context(), topic.ID))
		l.check(s, "purged", ledger{
			later: -50, "perigee_delayed_pending_messages": -50, "perigee_topic_stored_messages{topic=later}": -40,
		})
	})
}

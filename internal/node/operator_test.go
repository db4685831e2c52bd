package node

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
)

func TestAPurgedTopicIsEmptyForEveryGroupAndGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		b := startInBubble(t, dir)
		b.createTopic(t, "t", 0)
		b.createTopic(t, "other", 0)
		b.send(t, "other", "kept")
		b.send(t, "t", "1", "2", "3")
		inFlight := b.receive(t, "t", "a")
		require.Len(t, inFlight, 3)
		require.Len(t, b.receive(t, "t", "b"), 3)
		b.send(t, "t", "4", "5")

		resp, err := b.admin.PurgeTopic(t.Context(), &adminpb.PurgeTopicRequest{Name: "t"})
		require.NoError(t, err)
		require.EqualValues(t, 5, resp.GetPurged())
		require.Len(t, resp.GetQueues(), 8)
		for _, q := range resp.GetQueues() {
			require.Equal(t, q.GetMaxOffset(), q.GetMinOffset())
		}
		require.Equal(t, rmqpb.Code_OK, b.ack(t, "t", "a", inFlight[:1]))
		empty := func() {
			for _, group := range []string{"a", "b"} {
				require.Equal(t, [3]int64{}, b.lag(t, "t", group), group)
				require.Empty(t, b.receive(t, "t", group), group)
			}
			require.Empty(t, b.receive(t, "t", "new"))
		}
		empty()
		time.Sleep(2 * time.Hour) // the leases of what was in flight have ended
		empty()
		b.close(t)

		b = startInBubble(t, dir)
		empty()
		b.send(t, "t", "6", "7")
		for _, group := range []string{"a", "b", "new"} {
			require.ElementsMatch(t, []string{"6", "7"}, bodies(b.receive(t, "t", group)), group)
		}
		require.Equal(t, []string{"kept"}, bodies(b.receive(t, "other", "a")))
		resp, err = b.admin.PurgeTopic(t.Context(), &adminpb.PurgeTopicRequest{Name: "t"})
		require.NoError(t, err)
		require.EqualValues(t, 2, resp.GetPurged())
	})
}

func TestDeadLettersOfAWorkingNodeGoBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startInBubble(t, t.TempDir())
		b.createTopic(t, "t", 0)
		_, err := b.admin.CreateGroup(t.Context(), &adminpb.CreateGroupRequest{Name: "g", Retry: &adminpb.RetryPolicy{MaxAttempts: 1}})
		require.NoError(t, err)
		b.send(t, "t", "1")
		first := b.receive(t, "t", "g")
		require.Len(t, first, 1)
		time.Sleep(time.Hour + time.Minute)
		list, err := b.admin.ListDeadLetters(t.Context(), &adminpb.ListDeadLettersRequest{})
		require.NoError(t, err)
		require.Len(t, list.GetDeadLetters(), 1)
		require.EqualValues(t, 1, list.GetDeadLetters()[0].GetWaiting())

		resp, err := b.admin.RedriveDeadLetters(t.Context(), &adminpb.RedriveDeadLettersRequest{Group: "g"})
		require.NoError(t, err)
		require.EqualValues(t, 1, resp.GetRedriven())
		back := b.receive(t, "t", "g")
		require.Equal(t, []string{"1"}, bodies(back))
		require.EqualValues(t, 1, back[0].GetSystemProperties().GetDeliveryAttempt())
		require.Equal(t, "1", back[0].GetSystemProperties().GetMessageId())
		require.Nil(t, back[0].GetSystemProperties().GetDeadLetterQueue())
		require.Equal(t, "g", back[0].GetUserProperties()["perigee.dead-letter.group"])
		require.Equal(t, rmqpb.Code_OK, b.ack(t, "t", "g", back))
	})
}

func TestTheGroupOfRedrivesIsNotForClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startInBubble(t, t.TempDir())
		b.createTopic(t, "t", 0)
		stream, err := b.rmq.ReceiveMessage(asTester(t.Context()), &rmqpb.ReceiveMessageRequest{
			Group: &rmqpb.Resource{Name: "%SYS%redrive"}, MessageQueue: &rmqpb.MessageQueue{Topic: &rmqpb.Resource{Name: "t"}},
			BatchSize: 1, InvisibleDuration: durationpb.New(time.Hour),
		})
		require.NoError(t, err)
		resp, err := stream.Recv()
		require.NoError(t, err)
		require.Equal(t, rmqpb.Code_ILLEGAL_CONSUMER_GROUP, resp.GetStatus().GetCode())
	})
}

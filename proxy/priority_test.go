package proxy

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/proxy/wire"
	"github.com/perigee-mq/perigee/router"
)

// urgent returns a message of a priority as an SDK sends it.
func urgent(topic string, priority int32, id string) *rmqpb.Message {
	m := message(topic, id, "body")
	m.SystemProperties.MessageType, m.SystemProperties.Priority = rmqpb.MessageType_PRIORITY, &priority
	return m
}

// order lists what was delivered, as queue and id.
func order(got []mq.Delivery) (list []string) {
	for _, d := range got {
		list = append(list, fmt.Sprintf("%d %s", d.Lease.Queue, d.ID))
	}
	return list
}

func TestHigherPrioritiesAreDeliveredFirstAndThoseAboveTheTopAreTheTop(t *testing.T) {
	s := newTestServer(t)
	topic := s.topic(t, "urgent", router.TopicSpec{Type: mq.TopicPriority, Queues: 4})
	for i, p := range []int32{0, 2, 1, 3, 7, 2147483647, 0} {
		s.send(t, urgent("urgent", p, fmt.Sprint(i)))
	}
	got := s.leased(t, "urgent", "g", 32, 0)
	require.Equal(t, []string{"3 3", "3 4", "3 5", "2 1", "1 2", "0 0", "0 6"}, order(got))
	out, err := wire.DecodeMessage(topic.Resource, &got[1].Message)
	require.NoError(t, err)
	require.EqualValues(t, 7, out.GetSystemProperties().GetPriority(), "the priority is as it was sent")
	require.Equal(t, rmqpb.MessageType_PRIORITY, out.GetSystemProperties().GetMessageType())

	// Each comes back to its place.
	for _, i := range []int{5, 3, 2} {
		require.NoError(t, s.nodes.ChangeInvisible(t.Context(), []mq.LeaseChange{{Lease: got[i].Lease, Reason: mq.Nack}})[0])
	}
	s.send(t, urgent("urgent", 2, "new"))
	again := s.leased(t, "urgent", "g", 32, 0)
	require.Equal(t, []string{"3 5", "2 1", "2 new", "0 0"}, order(again))
	require.EqualValues(t, 2, again[0].Lease.Attempt)
}

func TestFewerWritableQueuesLowerTheTop(t *testing.T) {
	s := newTestServer(t)
	s.topic(t, "urgent", router.TopicSpec{Type: mq.TopicPriority, Queues: 4})
	s.send(t, urgent("urgent", 3, "before"))
	_, err := s.meta.UpdateTopic(t.Context(), mq.Resource{Name: "urgent"}, router.TopicUpdate{WriteQueues: new(int32(2))})
	require.NoError(t, err)
	s.send(t, urgent("urgent", 3, "after"))
	require.Equal(t, []string{"3 before", "1 after"}, order(s.leased(t, "urgent", "g", 32, 0)))
}

func TestMessagesOfARequestBelongInOneQueue(t *testing.T) {
	s := newTestServer(t)
	s.topic(t, "urgent", router.TopicSpec{Type: mq.TopicPriority, Queues: 4})
	res := s.try(t, urgent("urgent", 3, "a"), urgent("urgent", 9, "b"), urgent("urgent", 1, "c"))
	require.Equal(t, rmqpb.Code_BAD_REQUEST, res.GetStatus().GetCode())
	require.Contains(t, res.GetStatus().GetMessage(), "message 3 of 3: priority 1: belongs in queue 1, and priority 3 of the first message in queue 3")
	require.Empty(t, res.GetEntries())
	s.requireNothingStored(t, "urgent")
	require.Len(t, s.send(t, urgent("urgent", 3, "a"), urgent("urgent", 9, "b")), 2)

	res = s.try(t, urgent("urgent", 3, "a"), message("urgent", "n", "body"))
	require.Equal(t, rmqpb.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, res.GetStatus().GetCode())
	require.Contains(t, res.GetStatus().GetMessage(), "message 2 of 2")

	_, err := s.meta.UpdateTopic(t.Context(), mq.Resource{Name: "urgent"}, router.TopicUpdate{Permission: new(mq.PermRead)})
	require.NoError(t, err)
	require.Equal(t, rmqpb.Code_FORBIDDEN, s.try(t, urgent("urgent", 3, "d")).GetStatus().GetCode())
}

func TestMessageOfAPriorityTopicMustSayItsPriority(t *testing.T) {
	s := newTestServer(t)
	s.topic(t, "urgent", router.TopicSpec{Type: mq.TopicPriority})
	m := urgent("urgent", 0, "a")
	m.SystemProperties.Priority = nil
	res := s.try(t, m)
	require.Equal(t, rmqpb.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, res.GetStatus().GetCode())
	require.Contains(t, res.GetStatus().GetMessage(), "priority")
	s.requireNothingStored(t, "urgent")
}

func TestPrioritiesAreSpreadOverTheShardsThatHaveTheirQueue(t *testing.T) {
	topic := &mq.Topic{ID: 1, Type: mq.TopicPriority, Permission: mq.PermReadWrite, Shards: []mq.ShardQueues{
		{Shard: "a", Read: 4, Write: 4}, {Shard: "b", Read: 4, Write: 2}, {Shard: "c", Read: 4, Write: 4},
	}}
	var s Server
	count := map[string]int{}
	for i := range 100 {
		for _, p := range []int32{1, 3, 4} {
			shard, queue, err := s.place(topic, []*rmqpb.Message{urgent("urgent", p, fmt.Sprint("m", i))})
			require.NoError(t, err)
			require.Equal(t, mq.QueueID(min(p, 3)), queue)
			count[fmt.Sprint(shard, " ", queue)]++
		}
	}
	for place, n := range count {
		require.NotEqual(t, "b 3", place)
		require.Positive(t, n)
	}
	require.Len(t, count, 5)
}

func TestGroupThatIsFIFOReceivesAPriorityTopicWhole(t *testing.T) {
	s := newTestServer(t)
	topic := s.topic(t, "urgent", router.TopicSpec{Type: mq.TopicPriority, Queues: 2})
	g := s.group(t, "g", router.GroupSpec{FIFO: true})
	for i := range 4 {
		s.send(t, urgent("urgent", int32(i%2), fmt.Sprint(i)))
	}
	got, err := s.nodes.Receive(t.Context(), topic.Shards[0].Shard, mq.Receive{Topic: topic, Group: g, Max: 10, Invisible: time.Minute})
	require.NoError(t, err)
	require.Len(t, got, 4)
}

func TestASendWithAPriorityThatComesAgainComesToTheShardThatKnowsIt(t *testing.T) {
	s := newTestServer(t, onShards)
	s.topic(t, "urgent", router.TopicSpec{Type: mq.TopicPriority, Queues: 2})
	for i := range 60 {
		for range 3 {
			s.send(t, urgent("urgent", int32(i%2), fmt.Sprint(i)))
		}
	}
	topic, err := s.meta.Topic(t.Context(), mq.Resource{Name: "urgent"})
	require.NoError(t, err)
	stored := 0
	for _, sh := range topic.Shards {
		for queue := range sh.Write {
			r, err := s.nodes.Range(t.Context(), sh.Shard, topic, mq.QueueID(queue))
			require.NoError(t, err)
			require.Positive(t, r.Next, "queue %d of shard %s", queue, sh.Shard)
			stored += int(r.Next)
		}
	}
	require.Equal(t, 60, stored)
}

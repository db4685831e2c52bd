package proxy

import (
	"testing"

	"github.com/stretchr/testify/require"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

func (s *testServer) assignmentsOf(t testing.TB, topic, group string) *rmqpb.QueryAssignmentResponse {
	t.Helper()
	res, err := s.QueryAssignment(as(t, "c"), &rmqpb.QueryAssignmentRequest{
		Topic: named(topic), Group: named(group), Endpoints: endpoints(0, "mq.test", 8081),
	})
	require.NoError(t, err)
	return res
}

func TestEachShardIsAssignedOnceWithQueueZero(t *testing.T) {
	s := newTestServer(t, func(o *testOptions) { o.router.Shards = []string{"b", "a"} })
	s.topic(t, "orders", router.TopicSpec{Queues: 3})
	res := s.assignmentsOf(t, "orders", "g")
	require.Equal(t, rmqpb.Code_OK, res.GetStatus().GetCode())
	require.Len(t, res.GetAssignments(), 2)
	for i, shard := range []string{"a", "b"} {
		q := res.GetAssignments()[i].GetMessageQueue()
		require.Equal(t, shard, q.GetBroker().GetName())
		require.Zero(t, q.GetId())
		require.Equal(t, rmqpb.Permission_READ_WRITE, q.GetPermission())
		require.Equal(t, "mq.test", q.GetBroker().GetEndpoints().GetAddresses()[0].GetHost())
	}
	_, err := s.meta.Group(t.Context(), mq.Resource{Name: "g"})
	require.NoError(t, err, "the group is made")
}

func TestEveryReadableQueueIsAssignedToAFIFOGroup(t *testing.T) {
	s := newTestServer(t)
	s.topic(t, "orders", router.TopicSpec{Queues: 3})
	s.group(t, "fifo", router.GroupSpec{FIFO: true})
	require.Len(t, s.assignmentsOf(t, "orders", "fifo").GetAssignments(), 3)
}

func TestNothingReadableIsForbidden(t *testing.T) {
	s := newTestServer(t)
	s.topic(t, "sink", router.TopicSpec{Permission: mq.PermWrite})
	s.topic(t, "source", router.TopicSpec{Permission: mq.PermRead})
	res := s.assignmentsOf(t, "sink", "g")
	require.Equal(t, rmqpb.Code_FORBIDDEN, res.GetStatus().GetCode())
	require.Contains(t, res.GetStatus().GetMessage(), "sink")
	require.Equal(t, rmqpb.Permission_READ, s.assignmentsOf(t, "source", "g").GetAssignments()[0].GetMessageQueue().GetPermission())
}

func TestAssignmentsOfWhatDoesNotExistAreRefused(t *testing.T) {
	s := newTestServer(t, func(o *testOptions) { o.router.AutoCreateGroups = false })
	s.topic(t, "orders")
	for _, c := range []struct {
		topic, group string
		want         rmqpb.Code
	}{
		{"orders", "g", rmqpb.Code_CONSUMER_GROUP_NOT_FOUND},
		{"other", "g", rmqpb.Code_TOPIC_NOT_FOUND},
		{"", "g", rmqpb.Code_ILLEGAL_TOPIC},
		{"orders", "a.b", rmqpb.Code_ILLEGAL_CONSUMER_GROUP},
	} {
		res := s.assignmentsOf(t, c.topic, c.group)
		require.Equal(t, c.want, res.GetStatus().GetCode(), "%+v", c)
		require.Empty(t, res.GetAssignments())
	}
}

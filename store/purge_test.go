package store_test

import (
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store"
)

func TestPurgeReachesEveryShardAndIsNoErrorWhereTheTopicIsUnknown(t *testing.T) {
	st, err := store.Open(store.Options{FS: vfs.NewMem(), Dir: "data", Shards: []string{"a", "b", "c"}, SegmentSize: 1 << 20, ZeroFill: -1})
	require.NoError(t, err)
	defer func() { require.NoError(t, st.Close()) }()
	queues := []mq.ShardQueues{{Shard: "a", Read: 1, Write: 1}, {Shard: "b", Read: 1, Write: 1}}
	topic := &mq.Topic{
		ID: 1, Resource: mq.Resource{Name: "orders"}, Type: mq.TopicNormal, Permission: mq.PermReadWrite, Shards: queues, Version: 1,
	}
	group := &mq.Group{ID: 1, Resource: mq.Resource{Name: "g"}, Retry: mq.DefaultRetryPolicy(), DeadLetter: 100, Version: 1}
	send := func(shard, id string) {
		_, err := st.Append(t.Context(), shard, topic, 0, []*mq.Message{{ID: id, Type: mq.Normal, Body: []byte(id)}})
		require.NoError(t, err)
	}
	receive := func(shard string) []mq.Delivery {
		d, err := st.Receive(t.Context(), shard, mq.Receive{Topic: topic, Group: group, Max: 10, Invisible: time.Minute})
		require.NoError(t, err)
		return d
	}
	var held []mq.Lease
	for _, shard := range []string{"a", "b"} {
		send(shard, "old")
		held = append(held, receive(shard)[0].Lease)
		send(shard, "old too")
	}
	require.NoError(t, st.PurgeTopic(t.Context(), topic.ID))
	require.NoError(t, st.PurgeTopic(t.Context(), 77))
	for _, err := range st.Ack(t.Context(), held) {
		require.ErrorIs(t, err, mq.ErrLeaseEnded)
	}
	for _, shard := range []string{"a", "b"} {
		require.Empty(t, receive(shard))
		send(shard, "new "+shard)
		got := receive(shard)
		require.Len(t, got, 1)
		require.Equal(t, "new "+shard, got[0].ID)
		require.Equal(t, mq.QueueOffset(2), got[0].Lease.Offset)
	}
}

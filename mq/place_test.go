package mq_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
)

// Where a message group lies is for ever: what was sent before an update lies there.
func TestThePlaceOfAMessageGroupNeverChanges(t *testing.T) {
	topic := &mq.Topic{Shards: []mq.ShardQueues{{Shard: "s1", Read: 8, Write: 3}, {Shard: "s2", Read: 1, Write: 5}}}
	got := ""
	for _, group := range []string{"a", "b", "order-1", "order-2", "customer-17", "Zürich"} {
		shard, queue, ok := topic.QueueOf(group)
		require.True(t, ok)
		got += fmt.Sprintf("%s %s/%d\n", group, shard, queue)
	}
	require.Equal(t, wantPlaces, got)

	_, _, ok := (&mq.Topic{Shards: []mq.ShardQueues{{Shard: "s1", Read: 2}}}).QueueOf("a")
	require.False(t, ok)
}

func TestMessageGroupsSpreadOverTheQueues(t *testing.T) {
	for _, queues := range []int32{2, 3, 8, 64} {
		topic := &mq.Topic{Shards: []mq.ShardQueues{{Shard: "s", Write: queues}}}
		counts := make([]int, queues)
		const each = 1000
		for i := range each * int(queues) {
			_, queue, _ := topic.QueueOf(fmt.Sprint("customer-", i))
			counts[queue]++
		}
		for _, n := range counts {
			require.InDelta(t, each, n, each/5, "%d queues: %v", queues, counts)
		}
	}
}

const wantPlaces = `a s1/0
b s2/2
order-1 s2/0
order-2 s2/0
customer-17 s1/0
Zürich s2/2
`

package shard_test

import (
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/shard"
)

// TestHigherPriorityPassesWhatAFilterHasJudgedAhead: the first receive has judged more of
// the low queue than it took.
func TestHigherPriorityPassesWhatAFilterHasJudgedAhead(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s := open(t, vfs.NewMem(), mode)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(3), groupOf(9)
		topic.Type = mq.TopicPriority
		sendNumbers(t, s, topic, 0, 2000)
		f := sql(t, "n >= 0")
		one := func() mq.Delivery {
			d := receive(t, s, mq.Receive{Topic: topic, Group: group, Filter: f, Max: 1, Invisible: time.Hour})
			require.Len(t, d, 1)
			return d[0]
		}
		require.Equal(t, "0-0", one().ID)
		send(t, s, topic, 2, with("high", "n", "1"), with("other", "x", "1"))
		high := one()
		require.Equal(t, "high", high.ID)
		require.Equal(t, "0-1", one().ID)
		require.NoError(t, change(t, s, high.Lease, 0, mq.Nack))
		send(t, s, topic, 1, with("middle", "n", "1"))
		require.Equal(t, "high", one().ID, "it keeps its priority")
		require.Equal(t, "middle", one().ID)
		require.Equal(t, "0-2", one().ID)
		for _, id := range []string{"a", "b", "c", "d", "e", "f"} { // one more, and it were the turn of the low queue
			send(t, s, topic, 2, with(id, "n", "1"))
			require.Equal(t, id, one().ID)
		}
	})
}

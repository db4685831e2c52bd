package remote_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/remote"
)

func TestALiteTopicIsAddedAndTakenOutAlthoughAnotherNodeIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked []mq.LiteAction
		here := &hooked{lite: func(r mq.LiteSync, names map[string][]string) {
			require.Equal(t, map[string][]string{"s": {"mine"}}, names)
			require.Len(t, r.Topic.Shards, 1)
			asked = append(asked, r.Action)
		}}
		one(t, here, func(cl *cluster, _ *testNode, c *remote.Client) {
			cl.start(nodeB, here, "r").stop()
			r := mq.LiteSync{Topic: topic(), Group: group(), Client: "c"}
			r.Topic.Shards = append(r.Topic.Shards, mq.ShardQueues{Shard: "r", Read: 8, Write: 8})
			for _, r.Action = range []mq.LiteAction{mq.LiteAdd, mq.LiteRemove} {
				_, err := c.SyncLite(t.Context(), r, map[string][]string{"s": {"mine"}})
				require.NoError(t, err)
			}
			require.Equal(t, []mq.LiteAction{mq.LiteAdd, mq.LiteRemove}, asked)
			r.Action = mq.LiteReplace
			_, err := c.SyncLite(t.Context(), r, map[string][]string{"s": {"mine"}})
			require.NoError(t, err, "what is elsewhere goes from there with the next one, which clients send again and again")
		})
	})
}

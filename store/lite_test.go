package store_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store"
)

// What one shard refuses, no shard does; and the quotas are of what a client has, on
// whichever shards.
func TestALiteSyncIsOfAllShardsOrOfNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names := []string{"a", "b"}
		s, err := store.Open(store.Options{FS: vfs.NewMem(), Dir: "data", Shards: names, SegmentSize: 1 << 20, ZeroFill: -1, LiteTopics: 2})
		require.NoError(t, err)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(1, 1), groupOf(1, 5)
		topic.Type, topic.Shards = mq.TopicLite, nil
		for _, name := range names {
			topic.Shards = append(topic.Shards, mq.ShardQueues{Shard: name, Read: 1, Write: 1})
		}
		sync := func(client string, action mq.LiteAction, of map[string][]string) error {
			_, err := s.SyncLite(t.Context(), mq.LiteSync{Topic: topic, Group: group, Client: client, Action: action, ClientQuota: 3, TotalQuota: 4}, of)
			return err
		}
		counts := func() (counts []int) {
			for _, name := range names {
				stock, err := s.LiteStock(t.Context(), name, topic.ID)
				require.NoError(t, err)
				counts = append(counts, int(stock.Topics))
			}
			return counts
		}
		received := func(client string) (got []string) {
			for _, name := range names {
				list, err := s.Receive(t.Context(), name, mq.Receive{Topic: topic, Group: group, Lite: client, Max: 32, Invisible: time.Second})
				require.NoError(t, err)
				for _, d := range list {
					got = append(got, d.ID)
				}
			}
			time.Sleep(2 * time.Second)
			return got
		}
		require.NoError(t, sync("c", mq.LiteReplace, map[string][]string{"a": {"one"}, "b": {"two"}}))
		for _, lite := range []struct{ shard, name string }{{"a", "one"}, {"b", "two"}} {
			_, err := s.Append(t.Context(), lite.shard, topic, 0, []*mq.Message{{ID: lite.name, Type: mq.Lite, Lite: lite.name, Body: []byte("x")}})
			require.NoError(t, err)
		}
		require.Equal(t, []string{"one", "two"}, received("c"))

		require.ErrorIs(t, sync("c", mq.LiteReplace, map[string][]string{"a": {"new"}, "b": {"more", "than", "may"}}), mq.ErrLiteSubscriptionQuota)
		require.ErrorIs(t, sync("c", mq.LiteAdd, map[string][]string{"a": {"new"}, "b": {"more"}}), mq.ErrLiteSubscriptionQuota, "four in all")
		require.ErrorIs(t, sync("d", mq.LiteAdd, map[string][]string{"a": {"new"}, "b": {"two", "more"}}), mq.ErrLiteSubscriptionQuota, "five of all")
		require.ErrorIs(t, sync("d", mq.LiteAdd, map[string][]string{"b": {"more", "than"}}), mq.ErrLiteTopicQuota)
		require.NoError(t, sync("c", mq.LiteAdd, map[string][]string{"b": {"more"}}))
		require.ErrorIs(t, sync("d", mq.LiteReplace, map[string][]string{"a": {"new"}, "b": {"than"}}), mq.ErrLiteSubscriptionQuota)
		require.NoError(t, sync("c", mq.LiteRemove, map[string][]string{"b": {"more"}}))
		require.ErrorIs(t, sync("d", mq.LiteReplace, map[string][]string{"a": {"new"}, "b": {"than"}}), mq.ErrLiteTopicQuota)
		require.Equal(t, []int{1, 2}, counts(), "nothing was made for what was refused")
		require.Equal(t, []string{"one", "two"}, received("c"))
		require.NoError(t, sync("d", mq.LiteReplace, map[string][]string{"a": {"new"}}), "nobody keeps room for it")
	})
}

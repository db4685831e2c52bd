package admin

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
)

// TestDeadLettersOfAllShardsAreCountedAndSentBack: each shard has those that died there,
// and a redrive that ends early has not looked at all shards.
func TestDeadLettersOfAllShardsAreCountedAndSentBack(t *testing.T) {
	f := newFixture(t)
	f.deploy(t)
	orders, g := f.topic(t, "orders"), f.group(t, "g")
	f.dieOn(t, "s1", orders, g, "1", "2", "3")
	f.dieOn(t, "s2", orders, g, "4", "5")
	require.Equal(t, map[string]string{"g": "5 5"}, f.counted(t))
	topic, err := f.GetTopic(t.Context(), &adminpb.GetTopicRequest{Name: "%DLQ%g"})
	require.NoError(t, err)
	held := map[string]int64{}
	for _, q := range topic.GetQueues() {
		held[q.GetShard()] += q.GetMaxOffset() - q.GetMinOffset()
	}
	require.Equal(t, map[string]int64{"s1": 3, "s2": 2}, held)
	require.Equal(t, []string{"spare"}, topic.GetUnreachableShards())

	resp := f.redrive(t, "g", 2)
	require.EqualValues(t, 2, resp.GetRedriven())
	require.EqualValues(t, 3, resp.GetWaiting(), "nobody has looked at the other shard yet")
	require.Equal(t, map[string]string{"g": "5 3"}, f.counted(t))
	resp = f.redrive(t, "g", 0)
	require.EqualValues(t, 3, resp.GetRedriven())
	require.Zero(t, resp.GetWaiting())
	require.Equal(t, map[string]string{"g": "5 0"}, f.counted(t))
	var back []string
	for _, shard := range shards {
		back = append(back, ids(f.takeFrom(t, shard, orders, g))...)
	}
	require.ElementsMatch(t, []string{"1", "2", "3", "4", "5"}, back)

	f.dieOn(t, "s2", orders, g, "6")
	require.Equal(t, map[string]string{"g": "6 1"}, f.counted(t))
}

// TestAShardThatIsAwayIsNamedAndHidesNoOther: what the others hold is counted and sent back.
func TestAShardThatIsAwayIsNamedAndHidesNoOther(t *testing.T) {
	f, ctx := newFixture(t), t.Context()
	orders, g := f.topic(t, "orders"), f.group(t, "g")
	f.deploy(t)
	f.dieOn(t, "s1", orders, g, "1")
	f.dieOn(t, "s2", orders, g, "2", "3")
	all := f.Server.store
	f.Server.store = absentStore{all, "s1"}

	list, err := f.ListDeadLetters(ctx, &adminpb.ListDeadLettersRequest{})
	require.NoError(t, err)
	require.EqualValues(t, 2, list.GetDeadLetters()[0].GetMessages())
	require.Equal(t, []string{"s1", "spare"}, list.GetUnreachableShards())
	topic, err := f.GetTopic(ctx, &adminpb.GetTopicRequest{Name: "orders"})
	require.NoError(t, err)
	require.Equal(t, []string{"s1"}, topic.GetUnreachableShards())
	require.Len(t, topic.GetQueues(), 2)
	for _, q := range topic.GetQueues() {
		require.Equal(t, "s2", q.GetShard())
	}
	group, err := f.GetGroup(ctx, &adminpb.GetGroupRequest{Name: "g"})
	require.NoError(t, err)
	require.Equal(t, []string{"s1"}, group.GetUnreachableShards())
	require.Equal(t, "orders", group.GetTopics()[0].GetName())
	for _, topic := range []string{"", "orders"} {
		places, err := f.ListPositions(ctx, &adminpb.ListPositionsRequest{Group: "g", Topic: topic})
		require.NoError(t, err)
		require.Equal(t, []string{"s1"}, places.GetUnreachableShards())
		require.Len(t, places.GetTopics(), 1)
		for _, q := range places.GetTopics()[0].GetQueues() {
			require.Equal(t, "s2", q.GetShard())
		}
	}
	timers, err := f.ListTimers(ctx, &adminpb.ListTimersRequest{Topic: "orders"})
	require.NoError(t, err)
	require.Equal(t, []string{"s1"}, timers.GetUnreachableShards())
	require.Empty(t, timers.GetNextPageToken())
	halves, err := f.ListTransactions(ctx, &adminpb.ListTransactionsRequest{Topic: "orders"})
	require.NoError(t, err)
	require.Equal(t, []string{"s1"}, halves.GetUnreachableShards())
	require.Empty(t, halves.GetNextPageToken())
	// What changes positions does so wholly or not at all.
	_, err = f.ResetOffset(ctx, &adminpb.ResetOffsetRequest{Group: "g", Topic: "orders", Target: &adminpb.ResetOffsetRequest_End_{End: adminpb.ResetOffsetRequest_END_EARLIEST}})
	requireCode(t, codes.Unavailable, err, "nobody serves shard s1")

	// Some of them had their turn for a queue on the shard that is away: they stay.
	sent := int64(0)
	for range 4 {
		resp := f.redrive(t, "g", 0)
		require.Equal(t, []string{"s1", "spare"}, resp.GetUnreachableShards())
		for _, u := range resp.GetUnmoved() {
			require.Contains(t, u.GetReason(), "nobody serves shard s1")
		}
		sent += resp.GetRedriven()
		require.EqualValues(t, 2-sent, resp.GetWaiting())
	}
	require.EqualValues(t, 2, sent)
	f.Server.store = all
	resp := f.redrive(t, "g", 0)
	require.EqualValues(t, 1, resp.GetRedriven())
	require.Equal(t, []string{"spare"}, resp.GetUnreachableShards())
}

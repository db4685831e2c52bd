package remote

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/perigee-mq/perigee/internal/allfields"
	"github.com/perigee-mq/perigee/internal/tierwire"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

// over returns what is left of p on the other side.
func over[P proto.Message](t *testing.T, p P) P {
	t.Helper()
	wire, err := proto.Marshal(p)
	require.NoError(t, err)
	arrived := p.ProtoReflect().New().Interface().(P)
	require.NoError(t, proto.Unmarshal(wire, arrived))
	return arrived
}

func TestEveryFieldOfWhatIsAskedForArrives(t *testing.T) {
	var topic router.TopicSpec
	allfields.Fill(&topic)
	gotTopic, err := topicSpec(over(t, fromTopicSpec(topic)))
	require.NoError(t, err)
	require.Equal(t, topic, gotTopic)
	gotTopic, err = topicSpec(over(t, fromTopicSpec(router.TopicSpec{})))
	require.NoError(t, err)
	require.Equal(t, router.TopicSpec{}, gotTopic)

	var topicChange router.TopicUpdate
	allfields.Fill(&topicChange)
	update := over(t, fromTopicUpdate(mq.Resource{Namespace: "n", Name: "a"}, topicChange))
	require.Equal(t, mq.Resource{Namespace: "n", Name: "a"}, tierwire.Resource(update.GetName()))
	gotChange, err := topicUpdate(update)
	require.NoError(t, err)
	require.Equal(t, topicChange, gotChange)
	gotChange, err = topicUpdate(over(t, fromTopicUpdate(mq.Resource{}, router.TopicUpdate{})))
	require.NoError(t, err)
	require.Equal(t, router.TopicUpdate{}, gotChange)

	var group router.GroupSpec
	allfields.Fill(&group)
	gotGroup, err := groupSpec(over(t, fromGroupSpec(group)))
	require.NoError(t, err)
	require.Equal(t, group, gotGroup)
	gotGroup, err = groupSpec(over(t, fromGroupSpec(router.GroupSpec{})))
	require.NoError(t, err)
	require.Equal(t, router.GroupSpec{}, gotGroup)

	var groupChange router.GroupUpdate
	allfields.Fill(&groupChange)
	gotGroupChange, err := groupUpdate(over(t, fromGroupUpdate(mq.Resource{Name: "g"}, groupChange)))
	require.NoError(t, err)
	require.Equal(t, groupChange, gotGroupChange)
	gotGroupChange, err = groupUpdate(over(t, fromGroupUpdate(mq.Resource{}, router.GroupUpdate{})))
	require.NoError(t, err)
	require.Equal(t, router.GroupUpdate{}, gotGroupChange)
	// The zero policy is set, and means the default.
	gotGroupChange, err = groupUpdate(over(t, fromGroupUpdate(mq.Resource{}, router.GroupUpdate{Retry: &mq.RetryPolicy{}, Start: &mq.StartPosition{}})))
	require.NoError(t, err)
	require.Equal(t, router.GroupUpdate{Retry: &mq.RetryPolicy{}, Start: &mq.StartPosition{}}, gotGroupChange)

	var n router.Node
	allfields.Fill(&n)
	gotNode, err := node(over(t, fromNode(n)))
	require.NoError(t, err)
	require.Equal(t, n, gotNode)
	var s router.Shard
	allfields.Fill(&s)
	gotShard, err := shard(over(t, fromShard(s)))
	require.NoError(t, err)
	require.Equal(t, s, gotShard)
}

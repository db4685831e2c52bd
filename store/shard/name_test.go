package shard_test

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/shard"
)

// TestAnIDThatWasGivenOutAgainIsRefused: whoever goes by metadata that were brought back from an
// older copy must not put messages of one topic among those of another.
func TestAnIDThatWasGivenOutAgainIsRefused(t *testing.T) {
	s := open(t, vfs.NewMem(), shard.FlushSync)
	topic, group := topicOf(1), groupOf(3)
	send(t, s, topic, 0, message("m1", ""))
	require.Len(t, receive(t, s, mq.Receive{Topic: topic, Group: group}), 1)

	other, others := *topic, *group
	other.Resource.Name, other.Version = "made-since", 9
	others.Resource.Name, others.Version = "made-since", 9
	_, err := s.Append(t.Context(), &other, 0, []*mq.Message{message("m2", "")})
	require.ErrorIs(t, err, mq.ErrUnavailable)
	require.ErrorContains(t, err, "orders")
	_, err = s.Receive(t.Context(), mq.Receive{Topic: topic, Group: &others, Max: 1, Invisible: 1e9})
	require.ErrorIs(t, err, mq.ErrUnavailable)
	require.NoError(t, s.UpdateGroup(t.Context(), group))

	send(t, s, topic, 0, message("m3", ""))
	got := receive(t, s, mq.Receive{Topic: topic, Group: group})
	require.Len(t, got, 1)
	require.Equal(t, "m3", got[0].ID)
	topics, groups, err := s.Named(t.Context())
	require.NoError(t, err)
	require.Equal(t, map[mq.TopicID]mq.Resource{1: topic.Resource}, topics)
	require.Equal(t, map[mq.GroupID]mq.Resource{1: group.Resource}, groups)
	require.NoError(t, s.Close())
}

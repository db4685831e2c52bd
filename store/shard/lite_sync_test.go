package shard_test

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/shard"
)

// Whoever takes a lite topic, and cannot have all of what it asks for, has taken nothing.
func TestASyncThatFailsChangesNoSet(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s, err := shard.Open(shard.Options{Name: "s0", FS: vfs.NewMem(), Dir: "shard", Flush: mode, ZeroFill: -1, LiteTopics: 200})
		require.NoError(t, err)
		defer func() { require.NoError(t, s.Close()) }()
		subscribe(t, s, "one", mq.LiteReplace, "a", "b")
		r := mq.LiteSync{Topic: liteTopic(), Group: groupOf(17), Client: "two", Names: []string{"a"}, Exclusive: true}
		for i := range 199 {
			r.Names = append(r.Names, fmt.Sprint("new-", i))
		}
		_, err = s.SyncLite(t.Context(), r)
		require.ErrorIs(t, err, mq.ErrLiteTopicQuota)
		require.ErrorContains(t, err, "199 more would be made, the limit is 200")
		r.Action, r.Client = mq.LiteReplace, "one"
		_, err = s.SyncLite(t.Context(), r)
		require.ErrorIs(t, err, mq.ErrLiteTopicQuota)
		n, err := s.LiteTopics(t.Context(), 1)
		require.NoError(t, err)
		require.Equal(t, 2, n, "none was made")
		send(t, s, liteTopic(), 0, toLite("a1", "a"))
		send(t, s, liteTopic(), 0, toLite("b1", "b"))
		require.ElementsMatch(t, []string{"a1", "b1"}, ids(receive(t, s, liteReceive("one", 0))))

		r.Client, r.Action, r.Names = "two", mq.LiteAdd, r.Names[:199]
		lost, err := s.SyncLite(t.Context(), r)
		require.NoError(t, err)
		require.Equal(t, []mq.LiteLoss{{Client: "one", Topic: 1, Group: 1, Name: "a"}}, lost)
	})
}

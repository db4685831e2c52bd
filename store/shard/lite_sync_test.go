package shard_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

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

// However many lite topics a client subscribes to, and however many end or have old messages
// at a time: the loop does a few, and then what else waits for it.
func TestLiteTopicsAreMadeTrimmedAndEndedInSlices(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		const lites = 1000
		var ttl, age atomic.Int64
		s, err := shard.Open(shard.Options{
			Name: "s0", FS: vfs.NewMem(), Dir: "shard", Flush: mode, ZeroFill: -1,
			LiteTTL:   func(mq.TopicID) time.Duration { return time.Duration(ttl.Load()) },
			Retention: shard.Retention{Of: func(mq.TopicID) (time.Duration, bool) { return time.Duration(age.Load()), true }},
		})
		require.NoError(t, err)
		defer func() { require.NoError(t, s.Close()) }()
		commands := func(what func()) int {
			before := s.Stats().Records
			what()
			return int(s.Stats().Records - before)
		}
		var names []string
		for i := range lites {
			names = append(names, fmt.Sprint("l-", i))
		}
		subscribe(t, s, "c", mq.LiteAdd, "first")
		require.Equal(t, (lites+63)/64, commands(func() { subscribe(t, s, "c", mq.LiteReplace, names...) }))
		require.Zero(t, commands(func() { subscribe(t, s, "c", mq.LiteReplace, names...) }))
		for _, name := range names {
			send(t, s, liteTopic(), 0, toLite(name, name))
		}
		time.Sleep(time.Hour)
		age.Store(int64(time.Minute))
		require.GreaterOrEqual(t, commands(func() { time.Sleep(3 * time.Hour) }), lites/128)
		require.EqualValues(t, lites, s.Stats().Trimmed)
		ttl.Store(int64(time.Minute))
		require.GreaterOrEqual(t, commands(func() { time.Sleep(time.Minute) }), lites/64)
		n, err := s.LiteTopics(t.Context(), 1)
		require.NoError(t, err)
		require.Zero(t, n)
	})
}

package store_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/keyspace"
)

// liteStore returns a store that has lite topics in every state: with messages that are new,
// leased, parked, settled, and without any.
func liteStore(t *testing.T) *vfs.MemFS {
	mem := vfs.NewMem()
	synctest.Test(t, func(t *testing.T) {
		s := openStore(t, mem)
		topic, group := topicOf(1, 2), groupOf(1, 17)
		topic.Type = mq.TopicLite
		topic.Dedup = time.Hour
		sync := mq.LiteSync{Topic: topic, Group: group, Client: "c", Names: []string{"a", "b", "empty"}}
		_, err := s.SyncLite(t.Context(), sync, map[string][]string{shardName: sync.Names})
		require.NoError(t, err)
		for _, name := range []string{"a", "b", "a", "unread"} {
			var msgs []*mq.Message
			for i := range 3 {
				msgs = append(msgs, &mq.Message{ID: fmt.Sprint(name, i), Type: mq.Lite, Lite: name, Body: []byte("body of " + name), Tag: "t"})
			}
			// The second time a is a repeat.
			_, err := s.Append(t.Context(), shardName, topic, 0, msgs)
			require.NoError(t, err)
		}
		got, err := s.Receive(t.Context(), shardName, mq.Receive{Topic: topic, Group: group, Lite: "c", Max: 32, Invisible: time.Hour})
		require.NoError(t, err)
		require.Len(t, got, 6)
		require.NoError(t, s.Ack(t.Context(), []mq.Lease{got[0].Lease})[0])
		require.NoError(t, s.ChangeInvisible(t.Context(), []mq.LeaseChange{{Lease: got[2].Lease}})[0])
		require.NoError(t, s.Close())
	})
	return mem
}

func TestCheckKnowsLiteTopics(t *testing.T) {
	mem := liteStore(t)
	found, _ := check(t, mem, true)
	require.Empty(t, found)
	files := tree(t, mem, "node")
	for what, c := range map[string]struct {
		change func(b *pebble.Batch, key, val []byte) error
		kind   keyspace.Kind
	}{
		"lost":    {func(b *pebble.Batch, key, _ []byte) error { return b.Delete(key, nil) }, 0},
		"damaged": {func(b *pebble.Batch, key, _ []byte) error { return b.Set(key, []byte{1}, nil) }, 0},
		"another end": {func(b *pebble.Batch, key, val []byte) error {
			l, err := keyspace.DecodeLite(val)
			if err != nil {
				return err
			}
			l.Next++
			if l.Oldest == 0 {
				l.Oldest = 1
			}
			return b.Set(key, keyspace.AppendLite(nil, &l), nil)
		}, keyspace.KindLite},
	} {
		eachKey(t, mem, func(key, val []byte) {
			kind := keyspace.KindOf(key)
			if kind != keyspace.KindLite && kind != keyspace.KindLiteName && kind != keyspace.KindLiteOrder || c.kind != 0 && kind != c.kind {
				return
			}
			changed := edited(t, files, func(b *pebble.Batch) { require.NoError(t, c.change(b, key, val)) })
			found, _ := check(t, changed, false)
			require.NotEmpty(t, found, "%s %x", what, key)
		})
	}
}

func TestDumpDescribesLiteTopics(t *testing.T) {
	kinds := map[string]bool{}
	eachKey(t, liteStore(t), func(key, val []byte) {
		what, attrs, err := keyspace.Describe(key, val)
		require.NoError(t, err)
		require.NotEmpty(t, fmt.Sprint(attrs))
		kinds[what] = true
	})
	for _, what := range []string{"lite", "lite-name", "lite-counts", "lite-by-time", "lite-by-position"} {
		require.True(t, kinds[what], what)
	}
}

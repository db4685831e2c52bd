package store_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store"
	"github.com/perigee-mq/perigee/store/shard"
)

func TestDumpShowsALogThatWasTrimmedAndNamesOneThatLostItsBeginning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		st, err := store.Open(store.Options{
			FS: fs, Dir: "data", Shards: []string{"a"}, SegmentSize: 16 << 10, ZeroFill: -1, Retention: shard.Retention{Age: time.Hour},
		})
		require.NoError(t, err)
		topic := &mq.Topic{
			ID: 1, Resource: mq.Resource{Name: "orders"}, Type: mq.TopicNormal, Permission: mq.PermReadWrite,
			Shards: []mq.ShardQueues{{Shard: "a", Read: 1, Write: 1}}, Version: 1,
		}
		for _, pause := range []time.Duration{2 * time.Hour, 0} {
			for i := range 20 {
				m := &mq.Message{ID: fmt.Sprint(i), Type: mq.Normal, Body: make([]byte, 4000)}
				_, err = st.Append(t.Context(), "a", topic, 0, []*mq.Message{m})
				require.NoError(t, err)
			}
			time.Sleep(pause)
		}
		require.NoError(t, st.Close())

		seen := map[string]int{}
		count := func(l store.Line) error {
			seen[l.What]++
			return nil
		}
		require.NoError(t, store.DumpLog(fs, "data", count))
		require.Positive(t, seen["trim"])
		require.Positive(t, seen["drop"])
		require.Less(t, seen["append"], 40)
		require.NoError(t, store.DumpKeys(fs, "data", count))
		require.Equal(t, 1, seen["ends"])
		require.Equal(t, 1, seen["log-begin"])

		dir := fs.PathJoin("data", "shards", "a", "log")
		names, err := fs.List(dir)
		require.NoError(t, err)
		require.Greater(t, len(names), 1)
		first := names[0]
		for _, name := range names {
			first = min(first, name)
		}
		require.NoError(t, fs.Remove(fs.PathJoin(dir, first)))
		require.ErrorContains(t, store.DumpLog(fs, "data", count), "missing")
	})
}

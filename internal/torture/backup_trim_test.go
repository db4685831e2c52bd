package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/internal/config"
	"github.com/perigee-mq/perigee/internal/node"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store"
	"github.com/perigee-mq/perigee/store/shard"
)

// TestRetentionGoesOnDuringABackup copies, slowly, the log of a store whose oldest segments go
// all the time. Each copy is sound and has what was acknowledged when it began and is not
// past its age, and nothing is kept for it.
func TestRetentionGoesOnDuringABackup(t *testing.T) {
	bubble(t, t.Name(), func(t *testing.T) {
		mem := vfs.NewMem()
		rng := rand.New(rand.NewPCG(1, 1))
		disk := slowly{mem, rng}
		topic := &mq.Topic{
			ID: 1, Resource: mq.Resource{Name: "t"}, Type: mq.TopicNormal, Permission: mq.PermReadWrite, Version: 1,
			Shards: []mq.ShardQueues{{Shard: shardName, Read: 1, Write: 1}},
		}
		s, err := store.Open(store.Options{
			FS: disk, Dir: storeDir, Shards: []string{shardName}, SegmentSize: 8 << 10, ZeroFill: -1, CacheSize: 1 << 20,
			Retention: shard.Retention{Age: time.Minute, Interval: time.Second},
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var sender sync.WaitGroup
		var mu sync.Mutex
		last := mq.QueueOffset(-1)
		sender.Go(func() {
			for n := 0; ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
				m := message(fmt.Sprint("m", n), "")
				m.Properties = make([]byte, 900)
				at, err := s.Append(ctx, shardName, topic, 0, []*mq.Message{m})
				if err != nil {
					continue // the end
				}
				n++
				mu.Lock()
				last = at[0].Offset
				mu.Unlock()
			}
		})
		time.Sleep(3 * time.Minute)
		moved := 0
		for i := range 30 {
			mu.Lock()
			acked := last
			mu.Unlock()
			first, dir := s.Stats()[shardName].LogFirst, fmt.Sprint("backups/", i)
			var target vfs.FS = disk
			if i%3 > 0 {
				target = elsewhere{disk}
			}
			m, _, _, err := node.Backup(t.Context(), target, dir, node.Parts{Store: s}, config.Store, "test")
			require.NoError(t, err)
			if s.Stats()[shardName].LogFirst > first {
				moved++
			}
			_, err = node.Check(mem, dir, node.CheckOptions{DeriveLimit: 1 << 30, Found: func(f node.Finding) { t.Errorf("%s: %s", dir, f) }})
			require.NoError(t, err)
			_, err = node.Restore(t.Context(), mem, dir, "restored/"+dir, false)
			require.NoError(t, err)
			restored, err := openStoreIn(mem, "restored/"+dir+"/store", settings{segment: 8 << 10, fill: -1})
			require.NoError(t, err)
			ranges, err := restored.Queues(t.Context(), shardName, topic.ID)
			require.NoError(t, err)
			require.Greater(t, ranges[0].Next, acked)
			require.Positive(t, ranges[0].Min)
			require.NoError(t, restored.Close())
			require.NotZero(t, m.Shards[0].First)
		}
		require.Positive(t, moved, "nothing was dropped during any backup")
		cancel()
		sender.Wait()
		require.NoError(t, s.Close())
	})
}

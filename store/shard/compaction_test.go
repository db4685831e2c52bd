package shard_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/internal/faultfs"
	"github.com/perigee-mq/perigee/store/shard"
)

// killedBeforeItsCompaction returns what is left of a shard that was killed when its
// second flush was done and the compaction of both tables had just begun.
func killedBeforeItsCompaction(t *testing.T) *vfs.MemFS {
	mem := vfs.NewCrashableMem()
	var left *vfs.MemFS
	tables := 0
	fs := faultfs.New(mem)
	fs.Trace(func(op faultfs.Op) {
		if op.Kind == faultfs.Create && strings.HasSuffix(op.Path, ".sst") {
			tables++
		}
		if tables == 3 && left == nil {
			left = mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
		}
	})
	for i := range 2 {
		s := open(t, fs, shard.FlushAsync)
		send(t, s, topicOf(1), 0, message(fmt.Sprint(i), ""))
		require.NoError(t, s.Close())
	}
	if left == nil { // the second shard was closed before it came to it
		s := open(t, fs, shard.FlushAsync)
		time.Sleep(time.Minute)
		require.NoError(t, s.Close())
	}
	require.NotNil(t, left)
	return left
}

// A compaction that is due when the views are opened must run afterwards: where one
// waits, Pebble asks for no other, so the tables would pile up until the loop waits
// for ever for room.
func TestACompactionThatIsDueWhenTheViewsAreOpenedRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := killedBeforeItsCompaction(t)
		tables := func() (n int) {
			names, err := mem.List("shard/views")
			require.NoError(t, err)
			for _, name := range names {
				if strings.HasSuffix(name, ".sst") {
					n++
				}
			}
			return n
		}
		require.Greater(t, tables(), 1)
		s := open(t, mem, shard.FlushAsync)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, 1, tables())
		require.NoError(t, s.Close())
	})
}

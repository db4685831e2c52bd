package scaletest

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/shard"
)

// full says that the numbers are large. Set it with PERIGEE_SCALE=full.
var full = os.Getenv("PERIGEE_SCALE") == "full"

// number returns the large number, or the small one of a usual test run.
func number(large, small int) int {
	if full {
		return large
	}
	return small
}

// onlyFull skips a test that says nothing with small numbers.
func onlyFull(t *testing.T) {
	t.Helper()
	if !full {
		t.Skip("needs PERIGEE_SCALE=full")
	}
}

const shardName = "s0"

func openShard(t testing.TB, dir string, mode shard.FlushMode) *shard.Shard {
	t.Helper()
	s, err := shard.Open(shard.Options{Name: shardName, Dir: dir, Flush: mode})
	require.NoError(t, err)
	return s
}

func topicOf(id mq.TopicID, queues int32) *mq.Topic {
	return &mq.Topic{
		ID: id, Resource: mq.Resource{Name: fmt.Sprint("topic-", id)}, Type: mq.TopicNormal, Permission: mq.PermReadWrite,
		Shards: []mq.ShardQueues{{Shard: shardName, Read: queues, Write: queues}}, Version: 1,
	}
}

func groupOf(id mq.GroupID) *mq.Group {
	return &mq.Group{
		ID: id, Resource: mq.Resource{Name: fmt.Sprint("group-", id)}, Retry: mq.DefaultRetryPolicy(),
		DeadLetter: mq.TopicID(1<<30 + id), Version: 1,
	}
}

// messages returns n messages with bodies of the size. They can be sent again and again.
func messages(n, size int, tag string) []*mq.Message {
	msgs := make([]*mq.Message, n)
	for i := range msgs {
		msgs[i] = &mq.Message{ID: fmt.Sprintf("%034d", i), Tag: tag, Type: mq.Normal, System: make([]byte, 60), Body: make([]byte, size)}
	}
	return msgs
}

// fill sends n messages to the topic, in batches that take the queues in turn.
func fill(t testing.TB, s *shard.Shard, topic *mq.Topic, n, size int, tag string) {
	t.Helper()
	msgs := messages(min(n, 1000), size, tag)
	queues := int(topic.Shards[0].Queues())
	for queue := 0; n > 0; queue++ {
		batch := msgs[:min(n, len(msgs))]
		_, err := s.Append(t.Context(), topic, mq.QueueID(queue%queues), batch)
		require.NoError(t, err)
		n -= len(batch)
	}
}

// memory is what a process uses, in bytes.
type memory struct {
	rss  int64 // resident; 0 where the system does not tell
	heap int64 // live after a collection; of this process only
}

// measure collects garbage and returns what is left.
func measure() memory {
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return memory{rss: residentOf(os.Getpid()), heap: int64(m.HeapAlloc)}
}

func (m memory) String() string {
	return fmt.Sprintf("rss %s, heap %s", size(m.rss), size(m.heap))
}

// size is a number of bytes as people write it.
func size(n int64) string {
	switch {
	case n >= 10<<20 || n <= -10<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	default:
		return fmt.Sprintf("%d KiB", n>>10)
	}
}

// wait waits in real time: only for what is measured, never for what is asserted.
func wait(d time.Duration) { <-time.NewTimer(d).C }

// latencies are how long calls took.
type latencies []time.Duration

func (l latencies) at(q float64) time.Duration {
	if len(l) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(l))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

func (l latencies) String() string {
	r := func(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }
	return fmt.Sprintf("%d calls, p50 %v, p99 %v, max %v", len(l), r(l.at(0.5)), r(l.at(0.99)), r(l.at(1)))
}

// dirSize returns the bytes of the files in a directory.
func dirSize(t testing.TB, dir string) (total int64) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if os.IsNotExist(err) {
			return nil // removed meanwhile
		}
		total += info.Size()
		return err
	}))
	return total
}

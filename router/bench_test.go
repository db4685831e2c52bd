package router

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/perigee-mq/perigee/mq"
	"github.com/stretchr/testify/require"
)

const manyTopics = 100_000

func manyRouter(b *testing.B, fs vfs.FS, topics int) *Router {
	r := mustOpen(b, fs)
	for i := range topics {
		_, _, err := r.CreateTopic(b.Context(), TopicSpec{Resource: name(fmt.Sprint("topic-", i))})
		require.NoError(b, err)
	}
	return r
}

// BenchmarkCreateTopic creates topics one after the other beside those that
// exist; the time must not grow with them in proportion.
func BenchmarkCreateTopic(b *testing.B) {
	for _, existing := range []int{0, manyTopics} {
		b.Run(fmt.Sprint("existing=", existing), func(b *testing.B) {
			r := manyRouter(b, vfs.NewMem(), existing)
			i := 0
			for b.Loop() {
				_, _, err := r.CreateTopic(b.Context(), TopicSpec{Resource: name(fmt.Sprint("more-", i))})
				require.NoError(b, err)
				i++
			}
		})
	}
}

func BenchmarkCreateTopicOnDisk(b *testing.B) {
	dir := b.TempDir()
	r := mustOpen(b, nil, func(o *Options) { o.Dir = dir })
	i := 0
	for b.Loop() {
		_, _, err := r.CreateTopic(b.Context(), TopicSpec{Resource: name(fmt.Sprint("topic-", i))})
		require.NoError(b, err)
		i++
	}
}

func BenchmarkManyTopics(b *testing.B) {
	fs := vfs.NewMem()
	r := manyRouter(b, fs, manyTopics)
	names := make([]mq.Resource, manyTopics)
	for i := range names {
		names[i] = name(fmt.Sprint("topic-", i))
	}
	b.Run("lookup", func(b *testing.B) {
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			if _, err := r.Topic(b.Context(), names[i%manyTopics]); err != nil {
				b.Fatal(err)
			}
			i += 7919
		}
	})
	b.Run("lookup by id", func(b *testing.B) {
		i := 0
		for b.Loop() {
			if _, err := r.TopicByID(mq.TopicID(1 + i%manyTopics)); err != nil {
				b.Fatal(err)
			}
			i += 7919
		}
	})
	b.Run("list", func(b *testing.B) {
		for b.Loop() {
			require.Len(b, r.ListTopics(b.Context(), Selection{}), manyTopics)
		}
	})
	b.Run("watch one change", func(b *testing.B) {
		w := r.Watch()
		_, err := w.Next(b.Context())
		require.NoError(b, err)
		old := w.seen
		_, err = r.UpdateTopic(b.Context(), names[0], TopicUpdate{Permission: new(mq.PermRead)})
		require.NoError(b, err)
		for b.Loop() {
			w.seen = old
			changes, err := w.Next(b.Context())
			require.NoError(b, err)
			require.Len(b, changes, 1)
		}
	})
	require.NoError(b, r.Close())
	b.Run("open", func(b *testing.B) {
		for b.Loop() {
			require.NoError(b, mustOpen(b, fs).Close())
		}
	})
}

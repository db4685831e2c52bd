package remote

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/perigee-mq/perigee/router"
)

// BenchmarkManyTopics is what a process that knows nothing waits for, and what one change
// costs from the call to the mirror.
func BenchmarkManyTopics(b *testing.B) {
	const topics = 20_000
	n := newNetwork()
	h := &host{t: b, name: "r1", fs: vfs.NewMem()}
	h.start(n)
	defer h.stop(n)
	for i := range topics {
		_, _, err := h.router.CreateTopic(b.Context(), router.TopicSpec{Resource: named(fmt.Sprint("topic-", i))})
		require.NoError(b, err)
	}
	fs := vfs.NewMem()
	open := func(b *testing.B) *Client {
		c, err := Open(ClientOptions{Addresses: []string{"passthrough:///r1"}, Dial: append([]grpc.DialOption{}, dialing(n.dial)...), FS: fs, Dir: "data"})
		require.NoError(b, err)
		require.NoError(b, c.Ready(b.Context()))
		return c
	}
	b.Run("first state", func(b *testing.B) {
		for b.Loop() {
			fs = vfs.NewMem()
			require.NoError(b, open(b).Close())
		}
	})
	b.Run("from the cache", func(b *testing.B) {
		for b.Loop() {
			require.NoError(b, open(b).Close())
		}
	})
	b.Run("change", func(b *testing.B) {
		c := open(b)
		defer func() { require.NoError(b, c.Close()) }()
		read := int32(1)
		for b.Loop() {
			read = 3 - read
			_, err := c.UpdateTopic(b.Context(), named("topic-7"), router.TopicUpdate{ReadQueues: &read})
			require.NoError(b, err)
		}
	})
	b.Run("lookup", func(b *testing.B) {
		c := open(b)
		defer func() { require.NoError(b, c.Close()) }()
		for b.Loop() {
			if _, err := c.Topic(b.Context(), named("topic-7")); err != nil {
				b.Fatal(err)
			}
		}
	})
}

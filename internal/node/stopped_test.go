package node_test

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/internal/config"
	"github.com/perigee-mq/perigee/internal/node"
)

// TestAStoreNodeWhoseDiskHasFailedIsAwayUntilItIsRestarted: what is sent goes to the other
// shard, and nothing that was acknowledged is missing in the end.
func TestAStoreNodeWhoseDiskHasFailedIsAwayUntilItIsRestarted(t *testing.T) {
	d, router := deploy(t)
	small := func(c *config.Config) { c.SegmentSize = 128 << 10 }
	a, b, p := d.start(config.Store, "a", small), d.start(config.Store, "b"), d.start(config.Proxy, "p")
	p.createOn(t, "t", 2, 2, adminpb.TopicType_TOPIC_TYPE_NORMAL)
	var sent []string
	send := func() bool {
		id := rand.Text()
		st, _ := p.try(t, "t", func(m *rmqpb.Message) {
			m.Body, m.SystemProperties.MessageId = fmt.Appendf(nil, "%s%08000d", id, 0), id
		})
		if st.GetCode() == rmqpb.Code_OK {
			sent = append(sent, id)
		}
		return st.GetCode() == rmqpb.Code_OK
	}
	require.True(t, send())
	// Without its folder the log cannot begin another segment.
	log := filepath.Join(d.dir, "store-a", node.StoreDir, "shards", "a", "log")
	require.NoError(t, os.Rename(log, log+".away"))
	failed := 0
	for i := 0; failed == 0; i++ {
		require.Less(t, i, 1000, "the log goes on without its folder")
		if !send() {
			failed++
		}
	}
	for range 50 {
		require.True(t, send(), "at once, before the routers have heard of it too")
	}
	p.until(t, func(c *adminpb.GetClusterResponse) bool { by, _ := servedBy(c, "a"); return by == "" })
	for range 10 {
		require.True(t, send())
	}
	a.cancel()
	require.Error(t, <-a.done)

	require.NoError(t, os.Rename(log+".away", log))
	a = d.start(config.Store, "a", small)
	p.until(t, func(c *adminpb.GetClusterResponse) bool {
		by, reason := servedBy(c, "a")
		return by == "a" && reason != 0
	})
	require.Eventually(t, send, 20*time.Second, 50*time.Millisecond)
	got := map[string]bool{}
	require.Eventually(t, func() bool {
		for _, body := range p.drain(t, "t", "g", []string{"a", "b"}, p) {
			got[body[:26]] = true
		}
		return !slices.ContainsFunc(sent, func(id string) bool { return !got[id] })
	}, 20*time.Second, 50*time.Millisecond)
	for _, r := range []*running{p, a, b, router} {
		r.stop(t)
	}
}

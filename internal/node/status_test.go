package node_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/internal/config"
	"github.com/perigee-mq/perigee/internal/node"
)

// until waits until the deployment is, as the proxy sees it, as the test says.
func (r *running) until(t *testing.T, is func(c *adminpb.GetClusterResponse) bool) *adminpb.GetClusterResponse {
	t.Helper()
	var c *adminpb.GetClusterResponse
	require.Eventually(t, func() bool {
		var err error
		c, err = adminpb.NewClusterServiceClient(r.conn).GetCluster(t.Context(), &adminpb.GetClusterRequest{})
		return err == nil && is(c)
	}, 30*time.Second, 50*time.Millisecond)
	return c
}

// servedBy returns the node of a shard, and its state.
func servedBy(c *adminpb.GetClusterResponse, shard string) (string, adminpb.ShardState) {
	for _, s := range c.GetShards() {
		if s.GetName() == shard {
			return s.GetNode(), s.GetState()
		}
	}
	return "", 0
}

// figure returns what /metrics says, by the line that begins so.
func (r *running) figure(t *testing.T, line string) string {
	t.Helper()
	resp, err := http.Get("http://" + r.info.HTTPAddr + "/metrics")
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	for l := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(l, line+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return "not served"
}

func TestADeploymentIsSeenFromEveryProxy(t *testing.T) {
	d, router := deploy(t)
	a, b := d.start(config.Store, "a"), d.start(config.Store, "b")
	p, q := d.start(config.Proxy, "p"), d.start(config.Proxy, "q")
	for _, proxy := range []*running{p, q} {
		c := proxy.until(t, func(c *adminpb.GetClusterResponse) bool { return len(c.GetNodes()) == 4 })
		require.Len(t, c.GetRouters(), 1)
		require.True(t, c.GetRouters()[0].GetFollowed())
		require.Equal(t, d.router, c.GetRouters()[0].GetAddress())
		require.Equal(t, c.GetRevision(), c.GetRouters()[0].GetRevision())
		for i, name := range []string{"a", "b", "p", "q"} {
			n := c.GetNodes()[i]
			require.Equal(t, name, n.GetName())
			require.Empty(t, n.GetUnreachable())
			require.WithinDuration(t, time.Now(), n.GetStarted().AsTime(), time.Minute)
		}
		require.Equal(t, a.info.TierAddr, c.GetNodes()[0].GetAddress())
		for _, shard := range []string{"a", "b"} {
			by, state := servedBy(c, shard)
			require.Equal(t, shard, by)
			require.Equal(t, adminpb.ShardState_SHARD_STATE_ACTIVE, state)
		}
	}
	p.createOn(t, "t", 1, 2, adminpb.TopicType_TOPIC_TYPE_NORMAL)
	require.Equal(t, rmqpb.Code_OK, p.send(t, "t").GetCode())
	require.Equal(t, "1", p.figure(t, "perigee_router_followed"))
	require.Equal(t, "2", p.figure(t, `perigee_nodes{tier="store"}`))
	require.Equal(t, "2", p.figure(t, `perigee_stores_connected`))
	require.Equal(t, "1", p.figure(t, `perigee_store_calls_total{result="answered"}`))
	require.Equal(t, "0", p.figure(t, "perigee_shards_unserved"))
	require.Equal(t, "1", a.figure(t, "perigee_router_followed"))
	require.Equal(t, p.figure(t, "perigee_metadata_revision"), router.figure(t, "perigee_metadata_revision"))
	require.Equal(t, "4", router.figure(t, `perigee_tier_streams{method="/perigee.router.v1.RouterService/Register"}`))
	require.Equal(t, "not served", router.figure(t, "perigee_router_followed"))

	b.stop(t)
	p.until(t, func(c *adminpb.GetClusterResponse) bool { by, _ := servedBy(c, "b"); return by == "" })
	require.Equal(t, "1", p.figure(t, "perigee_shards_unserved"))
	topic, err := p.admin.GetTopic(t.Context(), &adminpb.GetTopicRequest{Name: "t"})
	require.NoError(t, err)
	require.Equal(t, []string{"b"}, topic.GetUnreachableShards())

	router.stop(t)
	c := p.until(t, func(c *adminpb.GetClusterResponse) bool {
		return !c.GetRouters()[0].GetFollowed() && c.GetRouters()[0].GetError() != ""
	})
	by, _ := servedBy(c, "a")
	require.Equal(t, "a", by, "what was known is shown")
	require.Equal(t, "0", p.figure(t, "perigee_router_followed"))
	_, err = adminpb.NewClusterServiceClient(p.conn).SetShard(t.Context(), &adminpb.SetShardRequest{Name: "a", State: adminpb.ShardState_SHARD_STATE_DRAINING})
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	for _, r := range []*running{p, q, a} {
		r.stop(t)
	}
}

// TestANodeTakesThePlaceOfAnother: a topic with message groups leaves the only shard that
// it is on, in order and without a break, and the shard is removed when it holds nothing.
func TestANodeTakesThePlaceOfAnother(t *testing.T) {
	d, router := deploy(t)
	a, p := d.start(config.Store, "a"), d.start(config.Proxy, "p")
	p.createOn(t, "t", 2, 1, adminpb.TopicType_TOPIC_TYPE_FIFO)
	_, err := p.admin.CreateGroup(t.Context(), &adminpb.CreateGroupRequest{Name: "g", Fifo: true})
	require.NoError(t, err)
	lanes, sent := []string{"x", "y", "z"}, map[string][]string{}
	send := func(n int) {
		for range n {
			for _, lane := range lanes {
				id := fmt.Sprint(lane, len(sent[lane]))
				st, _ := p.try(t, "t", func(m *rmqpb.Message) {
					m.Body, m.SystemProperties.MessageId = []byte(id), id
					m.SystemProperties.MessageType, m.SystemProperties.MessageGroup = rmqpb.MessageType_FIFO, new(lane)
				})
				require.Equal(t, rmqpb.Code_OK, st.GetCode(), st.GetMessage())
				sent[lane] = append(sent[lane], id)
			}
		}
	}
	shards := adminpb.NewClusterServiceClient(p.conn)
	drain := func() error {
		_, err := shards.SetShard(t.Context(), &adminpb.SetShardRequest{Name: "a", State: adminpb.ShardState_SHARD_STATE_DRAINING})
		return err
	}
	remove := func(settled bool) error {
		_, err := shards.RemoveShard(t.Context(), &adminpb.RemoveShardRequest{Name: "a", LoseSettled: settled})
		return err
	}
	left := func() *adminpb.Leaving {
		resp, err := shards.ListShards(t.Context(), &adminpb.ListShardsRequest{})
		require.NoError(t, err)
		return resp.GetShards()[0].GetLeaving()
	}
	send(3)
	require.ErrorContains(t, drain(), "no other shard is active that could take t")
	b := d.start(config.Store, "b")
	require.Eventually(t, func() bool { return drain() == nil }, 20*time.Second, 50*time.Millisecond)
	send(3) // while it is about to close, or has closed
	require.Eventually(t, func() bool { return left().GetClosed() == 1 }, 20*time.Second, 50*time.Millisecond)
	require.Equal(t, []string{"a", "b"}, p.brokers(t, "t"))
	require.EqualValues(t, 9, left().GetMessages())

	got := map[string][]string{}
	for range 2 * 18 {
		messages, _ := p.receiveFrom(t, "t", "g", "b") // that is where its consumers are told to go
		for _, m := range messages {
			lane := m.GetSystemProperties().GetMessageGroup()
			got[lane] = append(got[lane], string(m.GetBody()))
			require.ErrorContains(t, remove(true), "left to settle")
			require.Equal(t, rmqpb.Code_OK, p.ack(t, "t", "g", m).GetCode())
			if len(got["x"])+len(got["y"])+len(got["z"]) == 9 {
				break
			}
		}
		if len(got["x"])+len(got["y"])+len(got["z"]) == 9 {
			break
		}
	}
	require.Zero(t, left().GetOwing(), "what lay on the shard that it leaves came first")
	require.ErrorContains(t, remove(false), "9 messages are in")
	require.NoError(t, remove(true))
	a.stop(t)
	send(1)
	for range 40 {
		messages, _ := p.receiveFrom(t, "t", "g", "b")
		for _, m := range messages {
			lane := m.GetSystemProperties().GetMessageGroup()
			got[lane] = append(got[lane], string(m.GetBody()))
			require.Equal(t, rmqpb.Code_OK, p.ack(t, "t", "g", m).GetCode())
		}
	}
	require.Equal(t, sent, got)
	c := p.until(t, func(c *adminpb.GetClusterResponse) bool { by, _ := servedBy(c, "a"); return by == "" })
	_, state := servedBy(c, "a")
	require.Equal(t, adminpb.ShardState_SHARD_STATE_REMOVED, state)
	require.Equal(t, "0", p.figure(t, "perigee_shards_unserved"), "a removed one is not missed")
	for _, r := range []*running{p, b, router} {
		r.stop(t)
	}
}

// TestTheFilesOfEachTierAreCheckedForWhatTheyAre: a router has no messages, a store node no
// metadata of its own, and a proxy nothing that cannot be had again.
func TestTheFilesOfEachTierAreCheckedForWhatTheyAre(t *testing.T) {
	d, router := deploy(t)
	a, p := d.start(config.Store, "a"), d.start(config.Proxy, "p")
	p.createOn(t, "t", 2, 1, adminpb.TopicType_TOPIC_TYPE_NORMAL)
	require.Equal(t, rmqpb.Code_OK, p.send(t, "t").GetCode())
	for _, r := range []*running{p, a, router} {
		r.stop(t)
	}
	check := func(name string) (node.Checked, error) {
		return node.Check(vfs.Default, d.dir+"/"+name, node.CheckOptions{Found: func(f node.Finding) { t.Error(name, f) }})
	}
	sum, err := check("router-r")
	require.NoError(t, err)
	require.Len(t, sum.Metadata.Topics, 1)
	require.Equal(t, []string{"a"}, sum.Metadata.Registered)
	require.Equal(t, node.FolderRouter, sum.Folder)
	sum, err = check("store-a")
	require.NoError(t, err)
	require.True(t, sum.MetadataElsewhere)
	require.EqualValues(t, 1, sum.Shards[0].Messages)
	require.Equal(t, node.FolderStore, sum.Folder)
	sum, err = check("proxy-p")
	require.NoError(t, err)
	require.Equal(t, node.FolderProxy, sum.Folder)
	require.True(t, sum.MetadataElsewhere)
	require.Equal(t, 1, sum.Known.Topics)
	require.NotEmpty(t, sum.Known.Life)

	cache := filepath.Join(d.dir, "proxy-p", "router", "router-cache")
	data, err := os.ReadFile(cache)
	require.NoError(t, err)
	data[len(data)-1]++
	require.NoError(t, os.WriteFile(cache, data, 0o600))
	var found []string
	sum, err = node.Check(vfs.Default, filepath.Join(d.dir, "proxy-p"), node.CheckOptions{Found: func(f node.Finding) { found = append(found, f.String()) }})
	require.NoError(t, err)
	require.EqualValues(t, 1, sum.Findings)
	require.Equal(t, []string{cache + ": its checksum is another"}, found)
}

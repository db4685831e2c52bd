package remote

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	routerpb "github.com/perigee-mq/perigee/gen/perigee/router/v1"
	"github.com/perigee-mq/perigee/internal/tiercreds"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

func aStore(name string, shards ...string) func(*ClientOptions) {
	return func(o *ClientOptions) {
		o.Node = router.Node{Name: name, Tier: router.TierStore, Address: name + ":8083", Shards: shards, Version: "v1", Started: time.Now().UTC()}
	}
}

func nodeNames(c *Client) []string {
	list, _ := c.Nodes()
	names := []string{}
	for _, n := range list {
		names = append(names, n.Name)
	}
	return names
}

func TestAStoreRegistersWithEveryRouterAndItsShardIsWrittenDown(t *testing.T) {
	inWorld(t, "r1 r2", func(w *world) {
		w.client("r1 r2", aStore("n1", "s7"))
		w.settle(time.Second)
		for _, h := range w.hosts {
			require.Len(w, h.nodes.Nodes().List, 1)
			require.Contains(w, h.router.Shards(), router.Shard{Name: "s7", State: router.ShardActive})
		}
		proxy := w.client("r1", func(o *ClientOptions) { o.Node = router.Node{Name: "p1", Tier: router.TierProxy} })
		w.settle(time.Second)
		require.Equal(w, []string{"n1", "p1"}, nodeNames(proxy))
		n, err := proxy.StoreOf("s7")
		require.NoError(w, err)
		require.Equal(w, "n1:8083", n.Address)
		require.Empty(w, n.Identity, "that is for routers alone")
		_, err = proxy.StoreOf("s8")
		require.ErrorIs(w, err, mq.ErrShardNotFound)
		require.Equal(w, []string{"s7"}, proxy.ServedShards())
		listed, err := proxy.routers[0].rpc.ListNodes(w.Context(), &routerpb.ListNodesRequest{})
		require.NoError(w, err)
		require.Len(w, listed.GetNodes(), 2)
		require.False(w, listed.GetSettled())
		w.topic(w.hosts["r1"], "a")
		shards, err := proxy.routers[0].rpc.ListShards(w.Context(), &routerpb.ListShardsRequest{})
		require.NoError(w, err)
		require.Len(w, shards.GetShards(), 2)
		require.EqualValues(w, 1, shards.GetShards()[1].GetTopics())
		w.settle(0)
		require.Equal(w, 1, proxy.TopicsOn("s7"))
		w.settle(time.Hour)
		require.Equal(w, []string{"n1", "p1"}, nodeNames(proxy), "heartbeats keep them alive")
	})
}

func TestANodeThatClosesIsGoneAtOnceAndOneThatDiesAfterItsLease(t *testing.T) {
	inWorld(t, "r1", func(w *world) {
		proxy := w.client("r1")
		opts := w.options("r1")
		aStore("n1", "s1")(&opts)
		polite, err := Open(opts)
		require.NoError(w, err)
		w.settle(time.Second)
		_, changed := proxy.Nodes()
		require.NoError(w, polite.Close())
		<-changed
		require.Empty(w, nodeNames(proxy))

		rude := &cable{network: w.network}
		w.client("r1", aStore("n2", "s2"), rude.on)
		w.settle(15 * time.Second)
		require.Equal(w, []string{"n2"}, nodeNames(proxy))
		rude.pull()
		w.settle(router.DefaultLease - 4*time.Second)
		require.Equal(w, []string{"n2"}, nodeNames(proxy))
		w.settle(4 * time.Second)
		require.Empty(w, nodeNames(proxy))
	})
}

func TestASecondNodeOfAShardIsRefusedInWordsUntilTheFirstIsGone(t *testing.T) {
	inWorld(t, "r1", func(w *world) {
		h := w.hosts["r1"]
		opts := w.options("r1")
		aStore("n1", "s1")(&opts)
		first, err := Open(opts)
		require.NoError(w, err)
		w.settle(time.Second)
		var log logBuffer
		second := w.client("r1", aStore("n2", "s1"), func(o *ClientOptions) { o.Logger = log.logger() })
		w.settle(time.Minute)
		require.Equal(w, []string{"n1"}, nodeNames(second))
		require.Contains(w, log.String(), `is that of another node, store n1 at n1:8083, which is alive`)
		require.Equal(w, 1, strings.Count(log.String(), "node not registered"), "said once")
		require.NoError(w, first.Close())
		w.settle(10 * time.Second)
		require.Equal(w, []string{"n2"}, nodeNames(second))
		require.Len(w, h.nodes.Nodes().List, 1)
	})
}

func TestARestartedNodeTakesItsPlaceAtOnce(t *testing.T) {
	inWorld(t, "r1", func(w *world) {
		h, fs := w.hosts["r1"], vfs.NewMem()
		killed := &cable{network: w.network}
		w.client("r1", aStore("n1", "s1"), killed.on, withCache(fs))
		w.settle(time.Second)
		killed.pull()
		w.client("r1", aStore("n1", "s1"), withCache(fs), func(o *ClientOptions) { o.Node.Address = "elsewhere:1" })
		w.settle(time.Second)
		require.Equal(w, "elsewhere:1", h.nodes.Nodes().List[0].Address)
	})
}

func TestAStoreOfARemovedShardIsRefused(t *testing.T) {
	inWorld(t, "r1", func(w *world) {
		h := w.hosts["r1"]
		_, err := h.router.RemoveShard(w.Context(), "s1", false)
		require.NoError(w, err)
		var log logBuffer
		w.client("r1", aStore("n1", "s1"), func(o *ClientOptions) { o.Logger = log.logger() })
		w.settle(time.Second)
		require.Empty(w, h.nodes.Nodes().List)
		require.Contains(w, log.String(), "was removed")
		_, err = h.router.SetShard(w.Context(), "s1", router.ShardActive)
		require.NoError(w, err)
		w.settle(10 * time.Second)
		require.Len(w, h.nodes.Nodes().List, 1)
	})
}

func TestARestartedRouterTakesNoNodeAway(t *testing.T) {
	inWorld(t, "r1", func(w *world) {
		h, proxy := w.hosts["r1"], w.client("r1")
		opts := w.options("r1")
		aStore("n1", "s1")(&opts)
		stays, err := Open(opts)
		require.NoError(w, err)
		opts = w.options("r1")
		aStore("n2", "s2")(&opts)
		leaves, err := Open(opts)
		require.NoError(w, err)
		defer func() { require.NoError(w, stays.Close()) }()
		w.settle(15 * time.Second)
		require.Equal(w, []string{"n1", "n2"}, nodeNames(proxy))
		h.stop(w.network)
		require.NoError(w, leaves.Close()) // nobody hears it
		w.settle(time.Minute)
		require.Equal(w, []string{"n1", "n2"}, nodeNames(proxy), "without a router the nodes are where they were")
		h.start(w.network)
		for range 50 { // while they register
			w.settle(100 * time.Millisecond)
			require.Contains(w, nodeNames(proxy), "n1")
		}
		w.settle(10 * time.Second)
		require.Equal(w, []string{"n1"}, nodeNames(proxy), "who has not come back in the time of a lease is gone")
	})
}

func TestARouterWithoutTheTokenIsSaidOnce(t *testing.T) {
	inWorld(t, "", func(w *world) {
		token := func(text string) tiercreds.Options {
			path := filepath.Join(w.TempDir(), "token")
			require.NoError(w, os.WriteFile(path, []byte(text), 0o600))
			return tiercreds.Options{TokenFile: path}
		}
		server, err := tiercreds.Server(token("right"))
		require.NoError(w, err)
		h := &host{t: w, name: "r1", fs: vfs.NewMem(), opts: server}
		w.hosts["r1"] = h
		h.start(w.network)
		withToken := func(text string) func(*ClientOptions) {
			dial, err := tiercreds.Client(token(text))
			require.NoError(w, err)
			return func(o *ClientOptions) {
				o.Dial = append([]grpc.DialOption{grpc.WithContextDialer(w.network.dial)}, dial...)
			}
		}
		c := w.client("r1", withToken("right"), aStore("n1", "s1"))
		requireSame(w, h.router, c)

		var log logBuffer
		opts := w.options("r1")
		withToken("wrong")(&opts)
		aStore("n2", "s2")(&opts)
		opts.Logger = log.logger()
		stranger := w.open(opts)
		w.settle(time.Minute)
		require.ErrorContains(w, stranger.Err(), "wrong token")
		require.Zero(w, stranger.Revision())
		require.Equal(w, 1, strings.Count(log.String(), "router not followed"), "said once")
		require.Equal(w, 1, strings.Count(log.String(), "node not registered"), "said once")
		_, err = stranger.DeleteTopic(w.Context(), named("a"))
		require.True(w, errors.Is(err, mq.ErrUnavailable))
		require.ErrorContains(w, err, "wrong token")
		require.NotContains(w, err.Error(), "not known")
	})
}

// TestANodeThatHasSaidGoodbyeIsNotRegisteredAnyMore: whether it says so before or after it
// makes itself known, and until its process is another one.
func TestANodeThatHasSaidGoodbyeIsNotRegisteredAnyMore(t *testing.T) {
	inWorld(t, "r1", func(w *world) {
		var opts ClientOptions
		aStore("n1", "s7")(&opts)
		node := opts.Node
		nodes := w.hosts["r1"].nodes
		first := w.client("r1")
		first.Register(node)
		w.settle(time.Second)
		require.Len(w, nodes.Nodes().List, 1)
		first.Goodbye()
		w.settle(time.Second)
		require.Empty(w, nodes.Nodes().List)
		w.settle(time.Minute)
		require.Empty(w, nodes.Nodes().List)

		second := w.client("r1")
		second.Goodbye()
		second.Register(node)
		w.settle(time.Minute)
		require.Empty(w, nodes.Nodes().List)
		second.Leave()

		w.client("r1").Register(node)
		w.settle(time.Second)
		require.Len(w, nodes.Nodes().List, 1)
	})
}

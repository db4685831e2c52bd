package node_test

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/internal/config"
)

// address is where the clients of a running node connect to.
func (r *running) address(t *testing.T) *rmqpb.Endpoints {
	t.Helper()
	host, port, err := net.SplitHostPort(r.info.GRPCAddr)
	require.NoError(t, err)
	n, err := strconv.Atoi(port)
	require.NoError(t, err)
	return endpoints(rmqpb.AddressScheme_IPv4, host, int32(n))
}

// route asks for a topic as a client that has dialled the node.
func (r *running) routeOf(t *testing.T, topic string) *rmqpb.QueryRouteResponse {
	t.Helper()
	ctx, cancel := context.WithTimeout(as(t.Context()), 20*time.Second)
	defer cancel()
	resp, err := r.rmq.QueryRoute(ctx, &rmqpb.QueryRouteRequest{Topic: named(topic), Endpoints: r.address(t)})
	require.NoError(t, err)
	return resp
}

// TestARouteLeadsToTheProxyThatWasAskedWhereverTheQueuesAre: proxies at different ports, and store
// nodes that no client reaches. A client never goes to a proxy that it has not named itself, so
// that one which is gone is in no route.
func TestARouteLeadsToTheProxyThatWasAskedWhereverTheQueuesAre(t *testing.T) {
	d, router := deploy(t)
	a, b := d.start(config.Store, "a"), d.start(config.Store, "b")
	p, q := d.start(config.Proxy, "p"), d.start(config.Proxy, "q")
	p.createOn(t, "both", 3, 2, adminpb.TopicType_TOPIC_TYPE_NORMAL)
	shards := adminpb.NewClusterServiceClient(p.conn)
	_, err := shards.SetShard(t.Context(), &adminpb.SetShardRequest{Name: "a", State: adminpb.ShardState_SHARD_STATE_DRAINING})
	require.NoError(t, err)
	p.createOn(t, "one", 3, 1, adminpb.TopicType_TOPIC_TYPE_NORMAL)
	for _, proxy := range []*running{p, q} {
		for topic, queues := range map[string]int{"both": 6, "one": 3} {
			route := proxy.routeOf(t, topic)
			require.Equal(t, rmqpb.Code_OK, route.GetStatus().GetCode())
			require.Len(t, route.GetMessageQueues(), queues)
			for _, queue := range route.GetMessageQueues() {
				require.Equal(t, proxy.address(t).String(), queue.GetBroker().GetEndpoints().String())
			}
			for range 4 * queues {
				require.Equal(t, rmqpb.Code_OK, proxy.send(t, topic).GetCode())
			}
		}
	}
	require.Len(t, q.drain(t, "one", "g", []string{"b"}, p), 24)
	q.stop(t)
	require.Len(t, p.drain(t, "both", "g", []string{"a", "b"}, p), 48)
	for _, r := range []*running{p, a, b, router} {
		r.stop(t)
	}
}

// TestATopicOfAnotherProxyIsKnownAtOnce asks in vain, creates through one proxy, and asks the
// other: what was missing a moment ago is not remembered as missing.
func TestATopicOfAnotherProxyIsKnownAtOnce(t *testing.T) {
	d, router := deploy(t)
	a, p, q := d.start(config.Store, "a"), d.start(config.Proxy, "p"), d.start(config.Proxy, "q")
	p.createOn(t, "first", 1, 1, adminpb.TopicType_TOPIC_TYPE_NORMAL)
	for i := range 10 {
		topic := fmt.Sprint("t", i)
		for _, proxy := range []*running{p, q} {
			missing := proxy.routeOf(t, topic).GetStatus()
			require.Equal(t, rmqpb.Code_TOPIC_NOT_FOUND, missing.GetCode())
			require.Contains(t, missing.GetMessage(), topic)
			require.Contains(t, missing.GetMessage(), "topic create", "it says how to make one")
		}
		p.createOn(t, topic, 2, 1, adminpb.TopicType_TOPIC_TYPE_NORMAL)
		require.Equal(t, rmqpb.Code_OK, q.routeOf(t, topic).GetStatus().GetCode())
		require.Equal(t, rmqpb.Code_OK, q.send(t, topic).GetCode())
	}
	for _, r := range []*running{p, q, a, router} {
		r.stop(t)
	}
}

// TestTheFirstSendCreatesATopicOnAllShardsOfADeployment: when it is answered, every proxy knows the
// topic with its queues on each.
func TestTheFirstSendCreatesATopicOnAllShardsOfADeployment(t *testing.T) {
	d := &deployment{t: t, dir: t.TempDir()}
	router := d.start(config.Router, "r", func(c *config.Config) { c.AutoCreateTopics, c.DefaultQueues = true, 5 })
	d.router = router.info.TierAddr
	a, b := d.start(config.Store, "a"), d.start(config.Store, "b")
	p, q := d.start(config.Proxy, "p"), d.start(config.Proxy, "q")
	p.createOn(t, "wait", 1, 2, adminpb.TopicType_TOPIC_TYPE_NORMAL) // until both store nodes are there
	require.Equal(t, rmqpb.Code_OK, p.send(t, "made").GetCode())
	for _, proxy := range []*running{p, q} {
		require.Len(t, proxy.routeOf(t, "made").GetMessageQueues(), 10)
		require.Equal(t, []string{"a", "b"}, proxy.brokers(t, "made"))
	}
	require.Len(t, q.drain(t, "made", "g", []string{"a", "b"}, q), 1)
	for _, r := range []*running{p, q, a, b, router} {
		r.stop(t)
	}
}

// TestEveryNodeMayBeStoppedInTurnAndOneThatIsAddedServesEverything: no node is special. What is
// known of topics and groups is served whichever node is away, and messages go where they can.
func TestEveryNodeMayBeStoppedInTurnAndOneThatIsAddedServesEverything(t *testing.T) {
	d, router := deploy(t)
	a, b := d.start(config.Store, "a"), d.start(config.Store, "b")
	p, q := d.start(config.Proxy, "p"), d.start(config.Proxy, "q")
	p.createOn(t, "t", 4, 2, adminpb.TopicType_TOPIC_TYPE_NORMAL)
	_, err := p.admin.CreateGroup(t.Context(), &adminpb.CreateGroupRequest{Name: "g"})
	require.NoError(t, err)
	served := func(what string, by *running, brokers ...string) {
		t.Helper()
		route := by.routeOf(t, "t")
		require.Equal(t, rmqpb.Code_OK, route.GetStatus().GetCode(), what)
		require.Len(t, route.GetMessageQueues(), 8, what)
		require.Equal(t, []rmqpb.MessageType{rmqpb.MessageType_NORMAL}, route.GetMessageQueues()[0].GetAcceptMessageTypes(), what)
		assigned, err := by.rmq.QueryAssignment(as(t.Context()), &rmqpb.QueryAssignmentRequest{Topic: named("t"), Group: named("g"), Endpoints: by.address(t)})
		require.NoError(t, err, what)
		require.Equal(t, rmqpb.Code_OK, assigned.GetStatus().GetCode(), what)
		require.NotEmpty(t, assigned.GetAssignments(), what)
		groups, err := by.admin.ListGroups(t.Context(), &adminpb.ListGroupsRequest{})
		require.NoError(t, err, what)
		require.Equal(t, "g", groups.GetGroups()[0].GetName(), what)
		// A proxy finds a node that has just come a moment later; senders try again meanwhile.
		require.Eventually(t, func() bool { return by.send(t, "t").GetCode() == rmqpb.Code_OK }, 20*time.Second, 50*time.Millisecond, what)
		by.drain(t, "t", "g", brokers, by)
	}
	served("all are there", p, "a", "b")
	router.stop(t)
	served("without the router", p, "a", "b")
	router = d.startRouterAgain()
	for i, name := range []string{"a", "b"} {
		node, other := []*running{a, b}[i], []string{"b", "a"}[i]
		node.stop(t)
		served("without store node "+name, q, other)
		again := d.start(config.Store, name)
		if i == 0 {
			a = again
		} else {
			b = again
		}
		p.createOn(t, "wait-"+name, 1, 2, adminpb.TopicType_TOPIC_TYPE_NORMAL)
	}
	p.stop(t)
	served("without a proxy", q, "a", "b")

	c, s := d.start(config.Store, "c"), d.start(config.Proxy, "s")
	served("by a new proxy", s, "a", "b")
	s.createOn(t, "new", 4, 3, adminpb.TopicType_TOPIC_TYPE_NORMAL)
	for range 24 {
		require.Eventually(t, func() bool { return q.send(t, "new").GetCode() == rmqpb.Code_OK }, 20*time.Second, 50*time.Millisecond)
	}
	require.Len(t, s.drain(t, "new", "g", []string{"a", "b", "c"}, s), 24)
	for _, r := range []*running{q, s, a, b, c, router} {
		r.stop(t)
	}
}

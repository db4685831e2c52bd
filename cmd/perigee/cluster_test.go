package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/internal/client/fake"
)

// deployed is a deployment with a router that does not answer, and a shard without a node.
func deployed() *adminpb.GetClusterResponse {
	since := timestamppb.New(time.Date(2026, 1, 31, 8, 0, 0, 0, time.Local))
	return &adminpb.GetClusterResponse{
		Node: "p1", Revision: 7,
		Routers: []*adminpb.Router{
			{Address: "r1:8082", Followed: true, Revision: 7, Life: "l"},
			{Address: "r2:8082", Error: "cannot be reached"},
			{Address: "r3:8082", Revision: 3, Life: "l", Error: "metadata older than what is known"},
			{Address: "r4:8082", Revision: 7, Life: "l"},
		},
		Nodes: []*adminpb.Node{
			{Name: "a", Tier: adminpb.Tier_TIER_STORE, Address: "a:8083", Shards: []string{"a"}, Version: "v1", Started: since},
			{Name: "p1", Tier: adminpb.Tier_TIER_PROXY, Version: "v1", Started: since},
			{Name: "z", Tier: adminpb.Tier_TIER_STORE, Address: "z:8083", Shards: []string{"z"}, Version: "v1", Started: since, Unreachable: "connection refused"},
		},
		Shards: []*adminpb.Shard{
			{Name: "a", State: adminpb.ShardState_SHARD_STATE_ACTIVE, Node: "a", Topics: 3},
			{Name: "b", State: adminpb.ShardState_SHARD_STATE_DRAINING, Leaving: &adminpb.Leaving{
				Closing: 1, Closed: 2, Queues: 3, Messages: 9, Pending: 4, DeadLetters: 5, Owing: 1, OwingGroup: "g", OwingTopic: "t",
			}},
			{Name: "c", State: adminpb.ShardState_SHARD_STATE_REMOVED},
			{Name: "z", State: adminpb.ShardState_SHARD_STATE_ACTIVE, Node: "z"},
		},
	}
}

func TestTheStateOfADeploymentIsShownAndAShardWithoutANodeIsAFailure(t *testing.T) {
	server := fake.Start(t)
	server.SetCluster(deployed())
	o := against(t, server, "cluster", "status")
	require.Equal(t, exitFailed, o.code)
	require.Equal(t, "perigee: shard b has no store node that is alive\nshard z has a store node that this proxy cannot reach\n", o.stderr)
	require.Equal(t, `answered by p1, metadata at revision 7

routers
ADDRESS  STATE     REVISION  REASON
r1:8082  followed  7         -
r2:8082  silent    -         cannot be reached
r3:8082  refused   3         metadata older than what is known
r4:8082  answers   7         -

store nodes
NAME  ADDRESS  SHARDS  VERSION  SINCE                REACHED  REASON
a     a:8083   a       v1       2026-01-31 08:00:00  yes      -
z     z:8083   z       v1       2026-01-31 08:00:00  no       connection refused

shards
NAME  STATE     NODE  TOPICS  LEFT
a     active    a     3       -
b     draining  -     0       1 topics closing, 9 messages in 3 queues, 4 pending, 5 dead letters, 1 groups not done, as g with t
c     removed   -     0       -
z     active    z     0       -

proxies
NAME  VERSION  SINCE
p1    v1       2026-01-31 08:00:00
`, o.stdout)

	is := deployed()
	is.Shards = is.Shards[:1]
	server.SetCluster(is)
	status := against(t, server, "cluster", "status", "--json").lines(t)[0]
	require.Equal(t, "p1", status["answered_by"])
	require.Equal(t, map[string]any{"address": "r2:8082", "followed": false, "error": "cannot be reached"}, status["routers"].([]any)[1])
	require.Equal(t, []any{map[string]any{"name": "a", "state": "active", "node": "a", "topics": 3.0}}, status["shards"])
	require.Equal(t, "connection refused", status["stores"].([]any)[1].(map[string]any)["unreachable"])
	require.Len(t, status["proxies"], 1)
}

func TestShardsAreListedAndChanged(t *testing.T) {
	server := fake.Start(t)
	server.SetCluster(deployed())
	require.Equal(t, "a", against(t, server, "shard", "list", "--json").lines(t)[0]["name"])
	require.Contains(t, against(t, server, "shard", "list").stdout, "NAME  STATE     NODE  TOPICS  LEFT\na     active    a     3       -\n")
	require.Equal(t, "shard a is draining, 3 topics are on it\n", against(t, server, "shard", "drain", "a").stdout)
	require.Equal(t, "active", against(t, server, "shard", "activate", "a", "--json").lines(t)[0]["state"])
	require.Contains(t, against(t, server, "shard", "drain", "x").stderr, "NOT_FOUND: no such shard")

	require.Contains(t, against(t, server, "shard", "remove", "a").stderr, "must have no topics")
	o := against(t, server, "shard", "remove", "b")
	require.Equal(t, exitFailed, o.code)
	require.Equal(t, "perigee: UNAVAILABLE: unavailable: whether dead letters are on it cannot be asked\n", o.stderr,
		"the server has answered: it is not called unreachable")
	require.Equal(t, "shard b is removed, 0 topics are on it\n", against(t, server, "shard", "remove", "b", "--lose-dead-letters").stdout)
	require.Equal(t, "shard z is removed, 0 topics are on it\n", against(t, server, "shard", "remove", "z").stdout)
}

func TestAServerInOneProcessHasOneShardThatCannotBeDrained(t *testing.T) {
	server := startServer(t, t.TempDir(), "--flush", "async")
	require.Zero(t, server.perigee(t, "topic", "create", "orders").code)
	status := server.perigee(t, "cluster", "status", "--json").lines(t)[0]
	require.Len(t, status["standalone"], 1)
	require.Empty(t, status["routers"])
	shards := status["shards"].([]any)
	require.Len(t, shards, 1)
	shard := shards[0].(map[string]any)
	require.Equal(t, "active", shard["state"])
	require.Equal(t, 1.0, shard["topics"])
	require.NotEmpty(t, shard["node"])
	require.Contains(t, server.perigee(t, "shard", "remove", shard["name"].(string)).stderr, "1 are on it")
	require.Zero(t, server.perigee(t, "topic", "delete", "orders").code)
	for _, verb := range []string{"drain", "activate", "remove"} {
		o := server.perigee(t, "shard", verb, shard["name"].(string))
		require.Equal(t, exitFailed, o.code)
		require.Contains(t, o.stderr, "is the only shard of a server in one process", verb)
	}
	require.Contains(t, server.perigee(t, "shard", "drain", "x").stderr, "NOT_FOUND")
}

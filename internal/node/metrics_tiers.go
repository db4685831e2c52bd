package node

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"google.golang.org/grpc"
	grpccodes "google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/perigee-mq/perigee/internal/histogram"
	"github.com/perigee-mq/perigee/router"
	storeremote "github.com/perigee-mq/perigee/store/remote"
)

// A deployment is how the process stands to the others of its deployment.
type deployment struct {
	// problem says why no router is followed, or nil; without it the router is here.
	problem func() error
	// known returns what is known of metadata and nodes.
	known func() (revision uint64, nodes []router.Node, shards []router.Shard)
	// stores returns how the calls of store nodes go; without it none are called from here.
	stores func() storeremote.Stats
}

// deploymentElsewhere is that of a process with a router elsewhere.
func (n *node) deploymentElsewhere() *deployment {
	d := &deployment{
		problem: n.routers.Err,
		known: func() (uint64, []router.Node, []router.Shard) {
			nodes, _ := n.routers.Nodes()
			return n.routers.Revision(), nodes, n.routers.Shards()
		},
	}
	if n.stores != nil {
		d.stores = n.stores.Stats
	}
	return d
}

// deploymentHere is that of a router.
func (n *node) deploymentHere() *deployment {
	return &deployment{known: func() (uint64, []router.Node, []router.Shard) {
		return n.ownRouter.Revision(), n.registry.Nodes().List, n.ownRouter.Shards()
	}}
}

// A deploymentReading is what a deployment is at.
type deploymentReading struct {
	followed bool
	revision uint64
	unserved int
}

var followMetrics = []column[*deploymentReading]{
	{
		family{"perigee.router.followed", gauge, none, nil, "Of a proxy or store node: 1 while it follows a router, 0 while it goes on with what it knows. Only processes of a deployment in several have this and what follows about tiers."},
		func(r *deploymentReading) float64 { return number(r.followed) },
	},
}

var deploymentMetrics = []column[*deploymentReading]{
	{
		family{"perigee.metadata.revision", gauge, none, nil, "Number of the newest change of metadata that the process knows. It is the same in all processes, but for moments."},
		func(r *deploymentReading) float64 { return float64(r.revision) },
	},
	{
		family{"perigee.shards.unserved", gauge, none, nil, "Shards that are not removed and that no living store node serves, as far as the process knows."},
		func(r *deploymentReading) float64 { return float64(r.unserved) },
	},
}

// A nodesReading is how many nodes of a tier are alive.
type nodesReading struct {
	tier  router.Tier
	count int
}

var nodesMetrics = []column[nodesReading]{
	{
		family{"perigee.nodes", gauge, none, []string{"tier"}, "Nodes that are alive, as far as the process knows: store or proxy."},
		func(r nodesReading) float64 { return float64(r.count) },
	},
}

var storesMetrics = []column[storeremote.Stats]{
	{
		family{"perigee.stores.connected", gauge, none, nil, "Of a proxy: store nodes that it has a connection to."},
		func(s storeremote.Stats) float64 { return float64(s.Connected) },
	},
	{
		family{"perigee.stores.unreachable", gauge, none, nil, "Of a proxy: store nodes that it has called and cannot connect to. The log says why."},
		func(s storeremote.Stats) float64 { return float64(s.Unreachable) },
	},
}

// A storeCalls is how many calls ended in one way.
type storeCalls struct {
	result string
	calls  uint64
}

var storeCallMetrics = []column[storeCalls]{
	{
		family{"perigee.store.calls", counter, none, []string{"result"}, "Of a proxy: sends, receives, acknowledgements and changes of leases that it asked store nodes for. answered also counts refusals; unsent are calls, others too, for which no node could be reached; unknown those whose connection broke before there was an answer; abandoned those whose caller did not wait."},
		func(r storeCalls) float64 { return float64(r.calls) },
	},
}

// A streamsReading is how many streams of a method are open.
type streamsReading struct {
	method string
	open   int
}

var tierStreamMetrics = []column[streamsReading]{
	{
		family{"perigee.tier.streams", gauge, none, []string{"method"}, "Of a router or store node: open streams of other processes. Register is a node that is alive, Watch one that follows, Calls a connection of a proxy for frequent calls."},
		func(r streamsReading) float64 { return float64(r.open) },
	},
}

var tierDuration = family{
	"perigee.tier.duration", durations, seconds,
	[]string{"side", "method", "grpc_code"},
	"Time of single calls between processes, by the full name of the RPC and the code of gRPC: side is client where the call is made, server where it is answered.",
}

// emitDeployment adds how the process stands to the others.
func (m *metrics) emitDeployment(e *emission) {
	if d := m.deployment.Load(); d != nil {
		r := &deploymentReading{}
		var nodes []router.Node
		var shards []router.Shard
		r.revision, nodes, shards = d.known()
		r.unserved = unserved(nodes, shards)
		if d.problem != nil {
			r.followed = d.problem() == nil
			emit(e, followMetrics, []*deploymentReading{r}, noLabels)
		}
		emit(e, deploymentMetrics, []*deploymentReading{r}, noLabels)
		emit(e, nodesMetrics, countNodes(nodes), func(r nodesReading) attribute.Set {
			return attribute.NewSet(attribute.String("tier", r.tier.String()))
		})
		if d.stores != nil {
			emitStores(e, d.stores())
		}
	}
	emit(e, tierStreamMetrics, m.tierCalls.streams(), func(r streamsReading) attribute.Set {
		return attribute.NewSet(attribute.String("method", r.method))
	})
	e.emitDurations(tierDuration, m.tierCalls.list())
}

func emitStores(e *emission, s storeremote.Stats) {
	emit(e, storesMetrics, []storeremote.Stats{s}, noLabels)
	calls := []storeCalls{{"answered", s.Answered}, {"unsent", s.Unsent}, {"unknown", s.Unknown}, {"abandoned", s.Abandoned}}
	emit(e, storeCallMetrics, calls, func(r storeCalls) attribute.Set {
		return attribute.NewSet(attribute.String("result", r.result))
	})
}

// unserved counts the shards that no node serves.
func unserved(nodes []router.Node, shards []router.Shard) (n int) {
	served := map[string]bool{}
	for _, node := range nodes {
		for _, shard := range node.Shards {
			served[shard] = true
		}
	}
	for _, s := range shards {
		if s.State != router.ShardRemoved && !served[s.Name] {
			n++
		}
	}
	return n
}

func countNodes(nodes []router.Node) []nodesReading {
	list := []nodesReading{{tier: router.TierStore}, {tier: router.TierProxy}}
	for i := range list {
		for _, n := range nodes {
			if n.Tier == list[i].tier {
				list[i].count++
			}
		}
	}
	return list
}

// tierCalls measures single calls between processes, and counts the streams that are open.
// The methods are the tiers' own, so there are not many of them.
type tierCalls struct {
	mu struct {
		sync.Mutex
		took map[tierCall]*histogram.Histogram
		open map[string]int
	}
}

type tierCall struct {
	side, method string
	code         grpccodes.Code
}

func (t *tierCalls) observe(side, method string, err error, took time.Duration) {
	key := tierCall{side, method, status.Code(err)}
	t.mu.Lock()
	h := t.mu.took[key]
	if h == nil {
		if t.mu.took == nil {
			t.mu.took = map[tierCall]*histogram.Histogram{}
		}
		h = new(histogram.Histogram)
		t.mu.took[key] = h
	}
	t.mu.Unlock()
	h.Observe(took)
}

// stream counts a stream that is opened, by 1, or closed, by -1.
func (t *tierCalls) stream(method string, by int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.open == nil {
		t.mu.open = map[string]int{}
	}
	t.mu.open[method] += by
}

// server returns the options of a server whose calls are measured.
func (t *tierCalls) server() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			start := time.Now()
			resp, err := handler(ctx, req)
			t.observe("server", info.FullMethod, err, time.Since(start))
			return resp, err
		}),
		grpc.ChainStreamInterceptor(func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			t.stream(info.FullMethod, 1)
			defer t.stream(info.FullMethod, -1)
			return handler(srv, stream)
		}),
	}
}

// client returns the option of a connection whose calls are measured.
func (t *tierCalls) client() grpc.DialOption {
	return grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		start := time.Now()
		err := invoke(ctx, method, req, reply, conn, opts...)
		t.observe("client", method, err, time.Since(start))
		return err
	})
}

// list returns the measurements, in the order of their labels.
func (t *tierCalls) list() []spread {
	t.mu.Lock()
	took := maps.Clone(t.mu.took)
	t.mu.Unlock()
	keys := slices.SortedFunc(maps.Keys(took), func(a, b tierCall) int {
		return cmp.Or(cmp.Compare(a.side, b.side), cmp.Compare(a.method, b.method), cmp.Compare(a.code, b.code))
	})
	list := make([]spread, len(keys))
	for i, k := range keys {
		list[i] = spread{
			labels: attribute.NewSet(attribute.String("side", k.side), attribute.String("method", k.method),
				attribute.String("grpc_code", k.code.String())),
			Snapshot: took[k].Snapshot(),
		}
	}
	return list
}

// streams returns how many streams are open, of each method that had one.
func (t *tierCalls) streams() (list []streamsReading) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, method := range slices.Sorted(maps.Keys(t.mu.open)) {
		list = append(list, streamsReading{method, t.mu.open[method]})
	}
	return list
}

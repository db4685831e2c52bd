package router

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/perigee-mq/perigee/mq"
)

// Tier says what a node does.
type Tier uint8

// The tiers that register.
const (
	TierStore Tier = iota + 1
	TierProxy
)

var tierNames = [...]string{TierStore: "store", TierProxy: "proxy"}

// String returns the name of the tier.
func (t Tier) String() string {
	if t == TierStore || t == TierProxy {
		return tierNames[t]
	}
	return fmt.Sprintf("Tier(%d)", uint8(t))
}

// A Node is one process of another tier, as it says of itself.
type Node struct {
	Name string
	Tier Tier
	// Address is the host:port at which the other tiers reach it; of a store only.
	Address string
	// Shards are those that it serves; of a store only.
	Shards []string
	// Version is that of the program.
	Version string
	// Started is when the process began.
	Started time.Time
	// Identity is that of its data directory: a node that comes back with the same one
	// takes the place of the process before it at once. One that began earlier does not:
	// two processes over copies of one directory must not take turns.
	Identity string
}

// Bounds of what a node may say, which the registry keeps in memory.
const (
	maxNodes      = 10_000
	maxNodeShards = 1024
	maxNodeText   = 255
)

func (n *Node) check() error {
	switch {
	case n.Name == "" || len(n.Name) > maxNodeText:
		return invalid("name", n.Name, fmt.Sprintf("must have 1 to %d characters", maxNodeText))
	case n.Tier != TierStore && n.Tier != TierProxy:
		return invalid("tier", n.Tier, "must be one of store, proxy")
	case n.Tier == TierStore && !dialable(n.Address) || len(n.Address) > maxNodeText:
		return invalid("address", n.Address, fmt.Sprintf("must be the host:port at which others reach the node, of at most %d characters", maxNodeText))
	case n.Tier == TierProxy && len(n.Shards) > 0:
		return invalid("shards", strings.Join(n.Shards, ","), "must be empty for a proxy")
	case n.Tier == TierStore && len(n.Shards) == 0 || len(n.Shards) > maxNodeShards:
		return invalid("shards", len(n.Shards), fmt.Sprintf("must name 1 to %d shards", maxNodeShards))
	case len(n.Version) > maxNodeText || len(n.Identity) > maxNodeText:
		return invalid("version", n.Version, fmt.Sprintf("and the identity must have at most %d characters", maxNodeText))
	}
	for _, shard := range n.Shards {
		if err := CheckShardName(shard); err != nil {
			return err
		}
	}
	if sorted := slices.Sorted(slices.Values(n.Shards)); len(slices.Compact(sorted)) != len(n.Shards) {
		return invalid("shards", strings.Join(n.Shards, ","), "must name no shard twice")
	}
	return nil
}

// dialable reports whether another machine could reach the address: one to listen at, as
// 0.0.0.0:8083, leads each to itself.
func dialable(address string) bool {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" || strings.ContainsAny(host, "/ ") {
		return false
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsUnspecified() {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}

// succeeds reports whether n is the same node as other: the same process, or a later one.
func (n *Node) succeeds(other *Node) bool {
	return n.Identity != "" && n.Identity == other.Identity && !n.Started.Before(other.Started)
}

// DefaultLease is how long a node lives without a heartbeat.
const DefaultLease = 10 * time.Second

// RegistryOptions configure a Registry.
type RegistryOptions struct {
	// Lease is how long a node lives without a heartbeat; 0: DefaultLease.
	Lease time.Duration
}

// A Registry knows which nodes of other tiers are alive, by their heartbeats. It is
// memory of one router and of nothing else: routers need not agree, and one that was
// restarted learns all of it from the next heartbeats. Its methods may be called at any
// time from any goroutine.
type Registry struct {
	lease   time.Duration
	started time.Time

	mu struct {
		sync.Mutex
		nodes  map[string]*Registration // by name
		shards map[string]*Registration // by shard
		sweep  *time.Timer              // fires at the end of the first lease
		known  *Nodes                   // what Nodes returns
		closed bool
	}
}

// Nodes is what a registry knows at one moment. It is never changed.
type Nodes struct {
	// Revision grows with every change, from 1. It means nothing beyond the registry.
	Revision uint64
	// List is in the order of the names.
	List []Node
	// Settled says that the registry has lived for as long as a lease: every node that is
	// alive has had the time to register.
	Settled bool

	superseded chan struct{}
}

// Superseded returns a channel that is closed when the registry knows better.
func (n *Nodes) Superseded() <-chan struct{} { return n.superseded }

// NewRegistry returns a registry that knows no node.
func NewRegistry(opts RegistryOptions) *Registry {
	r := &Registry{lease: cmp.Or(opts.Lease, DefaultLease), started: time.Now()}
	r.mu.nodes, r.mu.shards = map[string]*Registration{}, map[string]*Registration{}
	r.mu.known = &Nodes{Revision: 1, superseded: make(chan struct{})}
	r.mu.sweep = time.AfterFunc(r.lease, r.expire)
	return r
}

// Lease returns how long a node lives without a heartbeat.
func (r *Registry) Lease() time.Duration { return r.lease }

// Close ends the registry: nobody registers any more. What it knows stays as it is.
func (r *Registry) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.closed = true
	r.mu.sweep.Stop()
}

// Nodes returns the nodes that are alive.
func (r *Registry) Nodes() *Nodes {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.known
}

// A Registration is the place of a living node in a registry.
type Registration struct {
	registry *Registry
	node     Node
	until    time.Time // guarded by registry.mu
}

// Register adds a node, which lives for a lease from now on. A name or shard that another
// living node has is refused with an *mq.InvalidError that says who; the same node, by its
// identity, takes the place of its former self. Beyond a bound of nodes the error matches
// mq.ErrBusy.
func (r *Registry) Register(node Node) (*Registration, error) {
	if err := node.check(); err != nil {
		return nil, err
	}
	node.Shards = slices.Sorted(slices.Values(node.Shards))
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.closed {
		return nil, fmt.Errorf("register node %s: router closed: %w", node.Name, mq.ErrStopped)
	}
	now := time.Now()
	var former []*Registration
	take := func(field, value string, other *Registration) error {
		switch {
		case other == nil:
		case !now.Before(other.until), node.succeeds(&other.node):
			former = append(former, other)
		default:
			where := ""
			if other.node.Address != "" {
				where = " at " + other.node.Address
			}
			return invalid(field, value, fmt.Sprintf("is that of another node, %s %s%s, which is alive", other.node.Tier, other.node.Name, where))
		}
		return nil
	}
	err := take("name", node.Name, r.mu.nodes[node.Name])
	for _, shard := range node.Shards {
		err = cmp.Or(err, take("shard", shard, r.mu.shards[shard]))
	}
	if err != nil {
		return nil, err
	}
	if len(r.mu.nodes) >= maxNodes && len(former) == 0 {
		return nil, fmt.Errorf("%w: %d nodes are registered", mq.ErrBusy, len(r.mu.nodes))
	}
	for _, other := range former {
		r.dropLocked(other)
	}
	reg := &Registration{registry: r, node: node, until: now.Add(r.lease)}
	r.mu.nodes[node.Name] = reg
	for _, shard := range node.Shards {
		r.mu.shards[shard] = reg
	}
	r.publishLocked()
	r.scheduleLocked(now)
	return reg, nil
}

// Heartbeat says that the node lives. It is false when the registry has given it up: it
// has to register again.
func (g *Registration) Heartbeat() bool {
	r := g.registry
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.nodes[g.node.Name] != g || r.mu.closed {
		return false
	}
	g.until = time.Now().Add(r.lease)
	return true
}

// Leave says that the node goes.
func (g *Registration) Leave() {
	r := g.registry
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.nodes[g.node.Name] == g && !r.mu.closed {
		r.dropLocked(g)
		r.publishLocked()
	}
}

func (r *Registry) dropLocked(g *Registration) {
	if r.mu.nodes[g.node.Name] == g {
		delete(r.mu.nodes, g.node.Name)
	}
	for _, shard := range g.node.Shards {
		if r.mu.shards[shard] == g {
			delete(r.mu.shards, shard)
		}
	}
}

func (r *Registry) publishLocked() {
	next := &Nodes{Revision: r.mu.known.Revision + 1, Settled: time.Since(r.started) >= r.lease, superseded: make(chan struct{})}
	for _, name := range slices.Sorted(maps.Keys(r.mu.nodes)) {
		next.List = append(next.List, r.mu.nodes[name].node)
	}
	close(r.mu.known.superseded)
	r.mu.known = next
}

// expire gives up the nodes whose lease is over, and tells when the registry has settled.
func (r *Registry) expire() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.closed {
		return
	}
	now := time.Now()
	changed := !r.mu.known.Settled && now.Sub(r.started) >= r.lease
	for _, g := range r.mu.nodes {
		if !now.Before(g.until) {
			r.dropLocked(g)
			changed = true
		}
	}
	if changed {
		r.publishLocked()
	}
	r.scheduleLocked(now)
}

// scheduleLocked sets the timer to the end of the first lease.
func (r *Registry) scheduleLocked(now time.Time) {
	var next time.Time
	if !r.mu.known.Settled {
		next = r.started.Add(r.lease)
	}
	for _, g := range r.mu.nodes {
		if next.IsZero() || g.until.Before(next) {
			next = g.until
		}
	}
	if !next.IsZero() {
		r.mu.sweep.Reset(max(next.Sub(now), 0))
	}
}

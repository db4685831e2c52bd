package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"

	routerpb "github.com/perigee-mq/perigee/gen/perigee/router/v1"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

// ClientOptions configure a Client.
type ClientOptions struct {
	// Addresses are those of all routers, as host:port or as targets of gRPC; at least one.
	Addresses []string
	// Dial are options of the connections, those of tiercreds.Client among them.
	Dial []grpc.DialOption
	// Node is what the client registers as from the beginning, see Register; with an empty
	// name it does not.
	Node router.Node
	// FS and Dir say where the cache lies; nil is the disk, an empty Dir is none. A missing
	// directory is made.
	FS  vfs.FS
	Dir string
	// Logger gets what operators need to know; nil drops it.
	Logger *slog.Logger
}

// A Client is the router to a process that does not have it. All methods may be called at
// any time from any goroutine. What it returns is shared and must not be changed.
//
// What is known is answered from memory, whether or not a router answers. What is not known
// is asked for before it is said to be missing; changes go to any router that answers, and
// fail with mq.ErrUnavailable when none does.
type Client struct {
	mirror   *router.Mirror
	routers  []*peer
	logger   *slog.Logger
	identity string
	// node is what this process registers as, until registered ends.
	node       router.Node
	registered context.Context
	leave      context.CancelFunc
	registers  sync.WaitGroup
	cache      *cache // nil: none

	nodes atomic.Pointer[nodeSet]
	// connected is the router whose watch has brought all that it had; nil: none.
	connected atomic.Pointer[peer]
	askWhole  bool // of the goroutine that follows: changes did not fit

	topics flights[question, *mq.Topic]
	groups flights[question, *mq.Group]
	// Names come from clients, ids from receipts and stores: the ones must not keep the
	// others waiting.
	nameMisses, idMisses bucket

	ctx        context.Context // ends with Close
	cancel     context.CancelFunc
	background sync.WaitGroup

	mu struct {
		sync.Mutex
		problems map[*peer]string // why a router is not followed
		ready    chan struct{}    // closed when there is a state
		isReady  bool
		closed   bool
		left     bool // the node is not to be known any more
	}
}

// A peer is one router.
type peer struct {
	address string
	conn    *grpc.ClientConn
	rpc     routerpb.RouterServiceClient
}

// How long what may take.
const (
	silence     = 10 * time.Second // without anything from a router that is followed
	callTimeout = 3 * time.Second  // of one try of a call
	showTimeout = 2 * time.Second  // until the client itself shows what it has changed
)

// maxMessage bounds what a router may say at once.
const maxMessage = 64 << 20

// Open reads the cache and begins to follow a router. It does not wait for one: see Ready.
func Open(opts ClientOptions) (*Client, error) {
	if len(opts.Addresses) == 0 || slices.Contains(opts.Addresses, "") {
		return nil, invalid("router", strings.Join(opts.Addresses, ","), "must name at least one address and no empty one")
	}
	c := &Client{
		mirror: router.NewMirror(), logger: cmp.Or(opts.Logger, slog.New(slog.DiscardHandler)),
		nameMisses: bucket{rate: missRate}, idMisses: bucket{rate: missRate},
	}
	c.mu.problems, c.mu.ready = map[*peer]string{}, make(chan struct{})
	c.nodes.Store(newNodeSet(nil))
	c.ctx, c.cancel = context.WithCancel(context.Background())
	if err := c.load(opts); err != nil {
		return nil, err
	}
	for _, address := range opts.Addresses {
		dial := append([]grpc.DialOption{
			grpc.WithNoProxy(),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxDelay},
				MinConnectTimeout: callTimeout,
			}),
		}, opts.Dial...)
		conn, err := grpc.NewClient(address, dial...)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("router %s: %w", address, err), c.closeConnections())
		}
		c.routers = append(c.routers, &peer{address: address, conn: conn, rpc: routerpb.NewRouterServiceClient(conn)})
	}
	c.background.Go(c.follow)
	if opts.Node.Name != "" {
		c.Register(opts.Node)
	}
	if c.cache != nil {
		c.background.Go(c.keep)
	}
	return c, nil
}

// Close says goodbye to the routers, writes the cache and ends the watches. What is known
// can still be read.
func (c *Client) Close() error {
	c.mu.Lock()
	closed := c.mu.closed
	c.mu.closed = true
	c.mu.Unlock()
	if closed {
		return nil
	}
	c.Leave()
	c.cancel()
	c.background.Wait()
	err := c.closeConnections()
	c.mirror.Close()
	if c.cache != nil {
		err = errors.Join(err, c.save())
	}
	return err
}

func (c *Client) closeConnections() error {
	var errs []error
	for _, p := range c.routers {
		errs = append(errs, p.conn.Close())
	}
	return errors.Join(errs...)
}

// Ready waits until there is something to know: from the cache or from a router.
func (c *Client) Ready(ctx context.Context) error {
	select {
	case <-c.mu.ready:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", c.unavailable(), ctx.Err())
	case <-c.ctx.Done():
		return fmt.Errorf("router client closed: %w", mq.ErrStopped)
	}
}

func (c *Client) setReady() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.mu.isReady {
		c.mu.isReady = true
		close(c.mu.ready)
	}
}

// Err returns nil while a router is followed, and otherwise an error that matches
// mq.ErrUnavailable and says what is wrong with each. What is known is served all the same.
func (c *Client) Err() error {
	if c.connected.Load() != nil {
		return nil
	}
	return c.unavailable()
}

func (c *Client) unavailable() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var reasons []string
	for _, p := range c.routers {
		reasons = append(reasons, p.address+": "+cmp.Or(c.mu.problems[p], "no answer yet"))
	}
	return fmt.Errorf("%w: no router answers: %s", mq.ErrUnavailable, strings.Join(reasons, "; "))
}

// Connected returns the address of the router that is followed, empty when there is none.
func (c *Client) Connected() string {
	if p := c.connected.Load(); p != nil {
		return p.address
	}
	return ""
}

// problem remembers why a router is not followed, and says it once.
func (c *Client) problem(p *peer, text string) {
	c.mu.Lock()
	said := c.mu.problems[p]
	c.mu.problems[p] = text
	c.mu.Unlock()
	if text != "" && said != text {
		c.logger.Warn("router not followed", "router", p.address, "reason", text)
	}
}

// maxDelay is the longest time between two tries.
const maxDelay = 3 * time.Second

// pause waits before the n-th try in a row, from 1; it is false when ctx has ended. The
// time is drawn by chance: all that have lost a router lost it at once.
func pause(ctx context.Context, n int) bool {
	delay := min(100*time.Millisecond<<min(max(n-1, 0), 10), maxDelay)
	timer := time.NewTimer(delay/2 + rand.N(delay/2+1))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// reachable waits until there is a connection, and is false when there is none to be had
// now.
func (p *peer) reachable(ctx context.Context) bool {
	for {
		state := p.conn.GetState()
		switch state {
		case connectivity.Ready:
			return true
		case connectivity.TransientFailure, connectivity.Shutdown:
			return false
		case connectivity.Idle:
			p.conn.Connect()
		}
		if !p.conn.WaitForStateChange(ctx, state) {
			return false
		}
	}
}

// known is what this client knows of the metadata.
func (c *Client) known() *routerpb.Known {
	now := c.mirror.Snapshot()
	return &routerpb.Known{Life: now.Life(), Revision: now.Revision()}
}

// A nodeSet is what is known of the nodes at one moment.
type nodeSet struct {
	list       []router.Node // in the order of their names
	byShard    map[string]router.Node
	superseded chan struct{}
}

func newNodeSet(list []router.Node) *nodeSet {
	s := &nodeSet{list: list, byShard: map[string]router.Node{}, superseded: make(chan struct{})}
	for _, n := range list {
		for _, shard := range n.Shards {
			s.byShard[shard] = n
		}
	}
	return s
}

// setNodes shows what a router says of the nodes. One that has not run for long does not
// know all of them: those that it does not name stay.
func (c *Client) setNodes(list []router.Node, settled bool) {
	old := c.nodes.Load()
	if !settled {
		said := newNodeSet(list)
		names := map[string]bool{}
		for _, n := range list {
			names[n.Name] = true
		}
		for _, n := range old.list {
			taken := func(shard string) bool { _, ok := said.byShard[shard]; return ok }
			if !names[n.Name] && !slices.ContainsFunc(n.Shards, taken) {
				list = append(list, n)
			}
		}
		slices.SortFunc(list, func(a, b router.Node) int { return strings.Compare(a.Name, b.Name) })
	}
	if slices.EqualFunc(old.list, list, sameNode) {
		return
	}
	c.nodes.Store(newNodeSet(list))
	close(old.superseded)
}

func sameNode(a, b router.Node) bool {
	return a.Name == b.Name && a.Tier == b.Tier && a.Address == b.Address && slices.Equal(a.Shards, b.Shards) &&
		a.Version == b.Version && a.Started.Equal(b.Started)
}

// Nodes returns the nodes that are alive, as far as is known, in the order of their names,
// and a channel that is closed when others are known.
func (c *Client) Nodes() ([]router.Node, <-chan struct{}) {
	s := c.nodes.Load()
	return s.list, s.superseded
}

// StoreOf returns the node that serves a shard, or served it when it was last heard of. The
// error matches mq.ErrShardNotFound.
func (c *Client) StoreOf(shard string) (router.Node, error) {
	if n, ok := c.nodes.Load().byShard[shard]; ok {
		return n, nil
	}
	return router.Node{}, fmt.Errorf("%w: no node that is known serves shard %q", mq.ErrShardNotFound, mq.Shorten(shard))
}

// ServedShards returns the shards that some node serves, in the order of their names.
func (c *Client) ServedShards() []string {
	return slices.Sorted(maps.Keys(c.nodes.Load().byShard))
}

package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/perigee-mq/perigee/admin"
	"github.com/perigee-mq/perigee/internal/config"
	"github.com/perigee-mq/perigee/internal/tiercreds"
	"github.com/perigee-mq/perigee/internal/tierversion"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/proxy"
	"github.com/perigee-mq/perigee/router"
	routerremote "github.com/perigee-mq/perigee/router/remote"
	"github.com/perigee-mq/perigee/store"
	"github.com/perigee-mq/perigee/store/filter"
	storeremote "github.com/perigee-mq/perigee/store/remote"
)

// A node runs one tier or all. What it runs itself is opened here; what runs elsewhere is
// a client of the same methods.

// routerTier is the router, here or elsewhere.
type routerTier interface {
	admin.Router
	proxy.Router
	Watch() *router.Watch
	LastIDs() (mq.TopicID, mq.GroupID)
	Close() error
}

// storeTier is the store, here or elsewhere.
type storeTier interface {
	admin.Store
	proxy.Store
	proxy.Transactions
	proxy.Handover
}

func (n *node) runs(t config.Tier) bool { return n.cfg.Tier == t || n.cfg.Tier == config.Standalone }

// credentialsOfTiers are what the node shows to other tiers, and judges them by.
func (n *node) credentialsOfTiers() tiercreds.Options {
	c := n.cfg.Cluster
	return tiercreds.Options{CertFile: c.CertFile, KeyFile: c.KeyFile, CAFile: c.CAFile, TokenFile: c.TokenFile}
}

// dialOptions are those of connections to other tiers.
func (n *node) dialOptions(credentials []grpc.DialOption) []grpc.DialOption {
	return slices.Concat(credentials, []grpc.DialOption{n.metrics.tierCalls.client()}, tierversion.Current().Client())
}

// openRouter opens the router, or begins to follow one. It waits until the metadata are
// known, from a router or from what was known the last time.
func (n *node) openRouter(ctx context.Context) error {
	if n.runs(config.Router) {
		return n.openOwnRouter(ctx)
	}
	dial, err := tiercreds.Client(n.credentialsOfTiers())
	if err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	n.routers, err = routerremote.Open(routerremote.ClientOptions{
		Addresses: n.cfg.Routers, Dial: n.dialOptions(dial), Dir: filepath.Join(n.cfg.DataDir, routerDir), Logger: n.logger,
	})
	if err != nil {
		return err
	}
	n.router = n.routers
	n.metrics.deployment.Store(n.deploymentElsewhere())
	n.logger.Info("waiting for the metadata", "routers", n.cfg.Routers)
	ctx, cancel := n.untilInterrupt(ctx)
	defer cancel()
	return n.routers.Ready(ctx)
}

// untilInterrupt returns a context that ends with ctx, or when the recovery is to end.
func (n *node) untilInterrupt(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-n.interrupt:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

func (n *node) openOwnRouter(ctx context.Context) (err error) {
	opts := router.Options{
		Dir:              filepath.Join(n.cfg.DataDir, routerDir),
		AutoCreateTopics: n.cfg.AutoCreateTopics, AutoCreateGroups: n.cfg.AutoCreateGroups, AutoCreateLimit: n.cfg.AutoCreateLimit,
		DefaultQueues: int32(n.cfg.DefaultQueues), Logger: n.logger, OnFailure: n.notServing,
	}
	if n.cfg.Tier == config.Standalone {
		opts.Shards, opts.Admit = []string{n.cfg.Shard}, n.admitNew
	}
	if n.cfg.Tier == config.Router && len(n.cfg.Etcd.Endpoints) > 0 {
		n.ownRouter, err = n.openSharedRouter(ctx, opts)
	} else {
		n.ownRouter, err = router.Open(opts)
	}
	if errors.Is(err, router.ErrInUse) {
		return fmt.Errorf("data_dir %s: %w; stop that process, or set data_dir to another folder", n.cfg.DataDir, err)
	}
	if err != nil {
		return err
	}
	n.router = n.ownRouter
	n.metrics.router.Store(n.ownRouter)
	return nil
}

// openStore opens the store, or makes ready to call those elsewhere.
func (n *node) openStore(ctx context.Context) error {
	switch {
	case n.runs(config.Store):
		return n.openOwnStore(ctx)
	case n.runs(config.Proxy):
		dial, err := tiercreds.Client(n.credentialsOfTiers())
		if err != nil {
			return fmt.Errorf("cluster: %w", err)
		}
		n.stores = storeremote.NewClient(storeremote.Options{Directory: directory{n.routers}, Dial: n.dialOptions(dial), Logger: n.logger})
		n.messages = n.stores
		n.metrics.deployment.Store(n.deploymentElsewhere())
	}
	return nil
}

func (n *node) openOwnStore(ctx context.Context) (err error) {
	storeDir := filepath.Join(n.cfg.DataDir, StoreDir)
	// Before the store makes what it misses.
	if err := checkPlaced(vfs.Default, storeDir, n.router, n.cfg.Shard, n.cfg.Tier == config.Standalone); err != nil {
		return err
	}
	n.store, err = store.Open(n.storeOptions(storeDir))
	if err != nil {
		return err
	}
	n.messages = n.store
	n.metrics.store.Store(n.store)
	if n.cfg.Tier == config.Standalone {
		return Reconcile(ctx, n.store, n.ownRouter, filepath.Join(n.cfg.DataDir, routerDir))
	}
	return n.reconcileElsewhere(ctx)
}

// reconcileElsewhere is Reconcile with a router elsewhere. Metadata that do not come from
// a router, but from what was known the last time, may be older than the store.
func (n *node) reconcileElsewhere(ctx context.Context) error {
	current := n.routers.Connected() != ""
	err := Reconcile(ctx, n.store, n.router, n.cfg.Routers[0])
	if errors.Is(err, errOlderMetadata) && !current {
		n.logger.Warn("no router answers, and what is known of the metadata is older than the store", "reason", err)
		return nil
	}
	return err
}

// directory says where shards are by what the routers know.
type directory struct{ routers *routerremote.Client }

// NodeOf implements storeremote.Directory.
func (d directory) NodeOf(shard string) (string, error) {
	n, err := d.routers.StoreOf(shard)
	if errors.Is(err, mq.ErrShardNotFound) && slices.ContainsFunc(d.routers.Shards(), func(s router.Shard) bool { return s.Name == shard }) {
		err = fmt.Errorf("%w: no store node that is alive serves shard %s", mq.ErrUnavailable, shard)
	}
	return n.Address, err
}

// Nodes implements storeremote.Directory.
func (d directory) Nodes() []string {
	list, _ := d.routers.Nodes()
	var addrs []string
	for _, n := range list {
		if n.Tier == router.TierStore {
			addrs = append(addrs, n.Address)
		}
	}
	return addrs
}

// shards returns the shards of the deployment.
func (n *node) shards() []string {
	if n.routers == nil {
		return []string{n.cfg.Shard}
	}
	var names []string
	for _, s := range n.routers.Shards() {
		if s.State != router.ShardRemoved {
			names = append(names, s.Name)
		}
	}
	return names
}

// listenTiers opens the port for other tiers.
func (n *node) listenTiers() (err error) {
	if n.cfg.Tier != config.Router && n.cfg.Tier != config.Store {
		return nil
	}
	if n.tierListener, err = net.Listen("tcp", n.cfg.Listen); err != nil {
		return listenError("listen", err)
	}
	return nil
}

// serveTiers begins to answer other tiers, and lets them know where.
func (n *node) serveTiers(ctx context.Context) error {
	if n.tierListener != nil {
		opts, err := tiercreds.Server(n.credentialsOfTiers())
		if err != nil {
			return fmt.Errorf("cluster: %w", err)
		}
		if n.credentialsOfTiers().Open() {
			n.logger.Warn("every process that reaches this port is let in: set cluster.token_file or cluster.ca_file", "listen", n.tierListener.Addr())
		}
		opts = slices.Concat(opts, storeremote.GRPCOptions(), n.metrics.tierCalls.server(), tierversion.Current().Server())
		n.tierServer = grpc.NewServer(opts...)
		healthpb.RegisterHealthServer(n.tierServer, healthService{n.health, n.draining})
		if n.cfg.Tier == config.Router {
			n.registry = router.NewRegistry(router.RegistryOptions{})
			s, err := routerremote.NewServer(ctx, routerremote.ServerOptions{Router: n.ownRouter, Registry: n.registry, Logger: n.logger})
			if err != nil {
				return err
			}
			s.Register(n.tierServer)
			n.drainTiers = s.Drain
			n.metrics.deployment.Store(n.deploymentHere())
		} else {
			s := storeremote.NewServer(storeremote.ServerOptions{
				Store: n.store, DeliveryMemory: n.memory.deliveryMemory(int64(n.cfg.DeliveryMemory)), Logger: n.logger,
				CompileFilter: func(expression string) (mq.Filter, error) { return filter.Compile(expression) },
			})
			s.Register(n.tierServer)
			n.drainTiers = s.Drain
		}
		n.serve("tiers", func() error { return n.tierServer.Serve(n.tierListener) })
	}
	if n.routers == nil {
		return nil
	}
	self, err := n.self()
	if err != nil {
		return err
	}
	n.routers.Register(self)
	return nil
}

// self is what the node says of itself to the routers.
func (n *node) self() (router.Node, error) {
	self := router.Node{Name: n.name(), Tier: router.TierProxy, Version: n.cfg.Version, Started: n.metrics.started}
	if n.cfg.Tier == config.Store {
		address, err := n.announced()
		if err != nil {
			return self, err
		}
		self.Tier, self.Address, self.Shards = router.TierStore, address, []string{n.cfg.Shard}
	}
	return self, nil
}

// name is what the node is called: as configured, or by its host, where a proxy may not be
// alone.
func (n *node) name() string {
	if n.cfg.Name != "" {
		return n.cfg.Name
	}
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	if n.cfg.Tier == config.Proxy {
		host += "-" + portOf(n.grpcListeners[0].Addr())
	}
	return host
}

func portOf(a net.Addr) string {
	_, port, _ := net.SplitHostPort(a.String())
	return port
}

// announced returns the address at which the other tiers reach the node: what is
// configured, else the port that it listens at and the address by which this host
// reaches a router.
func (n *node) announced() (string, error) {
	if n.cfg.Announce != "" {
		return n.cfg.Announce, nil
	}
	host, port, err := net.SplitHostPort(n.tierListener.Addr().String())
	if err != nil {
		return "", err
	}
	if ip := net.ParseIP(host); ip != nil && !ip.IsUnspecified() {
		return net.JoinHostPort(host, port), nil
	}
	var errs []error
	for _, addr := range n.cfg.Routers {
		// Nothing is sent: the system only says which way it would take.
		conn, err := net.DialTimeout("udp", addr, 5*time.Second)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		defer func() { _ = conn.Close() }()
		host, _, err := net.SplitHostPort(conn.LocalAddr().String())
		return net.JoinHostPort(host, port), err
	}
	return "", fmt.Errorf("announce: no address of this host is known towards a router; set announce: %w", errors.Join(errs...))
}

// stopTiers ends what other tiers have under way.
func (n *node) stopTiers() (errs []error) {
	if n.tierServer == nil {
		return nil
	}
	n.drainTiers()
	stopped := make(chan struct{})
	go func() {
		n.tierServer.GracefulStop()
		close(stopped)
	}()
	timer := time.NewTimer(n.cfg.ShutdownTimeout)
	defer timer.Stop()
	select {
	case <-stopped:
	case <-timer.C:
		n.tierServer.Stop()
		<-stopped
	}
	return nil
}

// Package node puts the tiers of a process together and takes them apart again.
// It is the only package that sees all of them; everything it does is wiring.
package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"

	"github.com/perigee-mq/perigee/admin"
	"github.com/perigee-mq/perigee/internal/config"
	"github.com/perigee-mq/perigee/internal/loglimit"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/proxy"
	"github.com/perigee-mq/perigee/proxy/transport"
	"github.com/perigee-mq/perigee/router"
	routerremote "github.com/perigee-mq/perigee/router/remote"
	"github.com/perigee-mq/perigee/store"
	"github.com/perigee-mq/perigee/store/filter"
	storeremote "github.com/perigee-mq/perigee/store/remote"
	"github.com/perigee-mq/perigee/store/shard"
)

// Info says where a running node can be reached and where its data is.
type Info struct {
	GRPCAddr  string   // for clients; empty: none
	Listeners []string // further addresses for clients
	HTTPAddr  string
	DataDir   string
	TierAddr  string // for other tiers; empty: none
}

// Folders in the data directory.
const (
	StoreDir  = "store"
	routerDir = "router"
)

// Run runs the tiers of the configuration in this process until ctx ends, and then stops them
// in order; a recovery ends with ctx too. ready is called once, when clients can
// be served. An error says why the node did not start, or what went wrong while it
// stopped.
func Run(ctx context.Context, cfg config.Config, logger *slog.Logger, ready func(Info)) error {
	logger = slog.New(loglimit.New(logger.Handler()))
	n := newNode(cfg, logger)
	n.interrupt = ctx.Done()
	if err := n.start(); err != nil {
		if errors.Is(err, shard.ErrInterrupted) || ctx.Err() != nil && errors.Is(err, context.Canceled) {
			logger.Info("stopped before it had recovered", "reason", err)
			err = nil
		}
		return errors.Join(err, n.stop())
	}
	ready(n.info())
	var failed error
	select {
	case <-ctx.Done():
		logger.Info("stopping")
	case failed = <-n.failures:
		logger.Error("stopping", "error", failed)
	}
	return errors.Join(failed, n.stop())
}

func newNode(cfg config.Config, logger *slog.Logger) *node {
	return &node{cfg: cfg, logger: logger, draining: make(chan struct{}), recovered: make(chan struct{}), changed: make(chan struct{}, 1)}
}

type node struct {
	cfg    config.Config
	logger *slog.Logger

	grpcListeners []*transport.Listener
	connections   *transport.Limit
	keyring       *transport.Keyring // nil: no TLS
	credentials   *transport.Credentials
	httpListener  *transport.Listener
	httpServer    *http.Server
	grpcServer    *grpc.Server
	health        *health.Server
	metrics       *metrics
	tracing       tracing
	router        routerTier
	messages      storeTier            // nil in a router
	store         *store.Store         // nil: elsewhere
	ownRouter     *router.Router       // nil: elsewhere
	routers       *routerremote.Client // nil: the router is here
	stores        *storeremote.Client  // nil: the store is here, or there is none
	proxy         *proxy.Server        // nil: none here
	tierListener  net.Listener         // nil: nothing is served to other tiers
	tierServer    *grpc.Server
	drainTiers    func()
	control       *control // nil: none here
	registry      *router.Registry
	late          late
	memory        memoryPlan

	background sync.WaitGroup
	cancel     context.CancelFunc // of what runs in the background
	interrupt  <-chan struct{}    // closed when a recovery is to end
	draining   chan struct{}
	failures   chan error
	recovered  chan struct{} // closed when the tiers are open
	changed    chan struct{} // has a token when metadata have changed
}

// start opens the ports and then everything behind them from the bottom up. The
// ports answer first, so that a long recovery can be told from a hanging process; the
// socket for commands on the same host comes last.
func (n *node) start() error {
	background, cancel := context.WithCancel(context.Background())
	n.cancel = cancel
	if err := n.open(background); err != nil {
		return err
	}
	if err := n.recoverTiers(background); err != nil {
		return err
	}
	n.serveControl(background)
	return nil
}

// open opens the ports. Health says that the node does not serve yet. What it
// starts ends with background.
func (n *node) open(background context.Context) (err error) {
	n.failures = make(chan error, 2)
	n.health = health.NewServer()
	n.health.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
	if err := mustBeData(n.cfg.DataDir); err != nil {
		return err
	}
	if err := os.MkdirAll(n.cfg.DataDir, 0o755); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	if err := n.listen(); err != nil {
		return err
	}
	if n.metrics, err = newMetrics(n.cfg, n.ready, n.logger); err != nil {
		return err
	}
	if n.runs(config.Proxy) {
		// A certificate that cannot be used is told before a recovery, not after it.
		if err := n.openCredentials(); err != nil {
			return err
		}
		n.metrics.network.Store(&networkReading{n.connections, n.credentials, n.keyring})
	}
	n.planMemory()
	n.serveHTTP()
	if !n.runs(config.Proxy) {
		return nil
	}
	if n.keyring != nil {
		n.background.Go(func() { n.keyring.Watch(background) })
	}
	if err := n.buildServer(); err != nil {
		return err
	}
	n.serveGRPC()
	return nil
}

// recoverTiers opens the tiers and lets the calls in. What it starts ends with
// background; the recovery ends with n.interrupt.
func (n *node) recoverTiers(background context.Context) error {
	if err := n.openRouter(background); err != nil {
		return err
	}
	if err := n.openStore(background); err != nil {
		return err
	}
	if n.runs(config.Proxy) {
		n.late.set(n.messages, n.router)
	}
	if n.cfg.Tier != config.Router {
		// The first look comes before the first call, or a deletion in between would
		// be none to see.
		watch := n.router.Watch()
		changes, err := watch.Next(background)
		if err != nil {
			return err
		}
		n.carry(background, changes)
		n.background.Go(func() { n.follow(background, watch) })
	}
	if err := n.serveTiers(background); err != nil {
		return err
	}
	if n.cfg.Tier == config.Store {
		n.background.Go(func() { n.leave(background) })
	}
	close(n.recovered)
	n.metrics.serving()
	n.health.SetServingStatus("", healthpb.HealthCheckResponse_SERVING)
	if n.failed() != nil {
		n.notServing() // it failed before the status above, which must not stay
	}
	return nil
}

// failed says why what runs here has stopped for good, or nil.
func (n *node) failed() error {
	var errs []error
	if n.store != nil {
		errs = append(errs, n.store.Err())
	}
	if n.ownRouter != nil {
		errs = append(errs, n.ownRouter.Err())
	}
	return errors.Join(errs...)
}

// planMemory decides how much memory each part may use, and tells the runtime
// unless it was told.
func (n *node) planMemory() {
	limit := debug.SetMemoryLimit(-1) // only asks
	if limit == math.MaxInt64 {
		limit = 0
	}
	root := os.DirFS("/")
	n.memory = planMemory(int64(n.cfg.MemoryLimit), limit, containerMemory(root), machineMemory(root), n.cfg.MaxWaitingReceives)
	if n.memory.set {
		debug.SetMemoryLimit(n.memory.limit)
	}
	n.logger.Info("memory", "limit", n.memory.limit, "cache", n.memory.cache, "sends", n.memory.sends, "waiting_receives", n.memory.waiting)
}

func (n *node) serve(name string, fn func() error) {
	n.background.Go(func() {
		if err := fn(); err != nil {
			select {
			case n.failures <- fmt.Errorf("%s server: %w", name, err):
			default:
			}
		}
	})
}

func (n *node) storeOptions(dir string) store.Options {
	flush := shard.FlushSync
	if n.cfg.Flush.Mode == config.FlushAsync {
		flush = shard.FlushAsync
	}
	return store.Options{
		Dir: dir, Shards: []string{n.cfg.Shard},
		Flush: flush, FlushInterval: n.cfg.Flush.Interval, SegmentSize: int64(n.cfg.SegmentSize),
		MaxWaiting: n.memory.waiting, CacheSize: n.memory.cache, MemTableSize: n.memory.memTable,
		QueueBytes: n.memory.sends * 3 / 2, KnownBytes: n.memory.known, Retention: n.retention(), Transactions: n.transactions(), LiteTopics: n.cfg.Lite.Topics, LiteTTL: n.liteTTL,
		Interrupt: n.interrupt, Logger: n.logger, MaxSeries: n.cfg.Metrics.MaxTopics, OnFailure: n.notServing,
	}
}

// admitNew returns why no topic or group may be created: metadata shares the disk of the
// store. Nobody asks before the store is open.
func (n *node) admitNew() error {
	if s := n.metrics.store.Load(); s != nil {
		return s.AdmitNew()
	}
	return nil
}

// notServing makes the health service say that a tier has stopped for good. A store node
// leaves the lists of the routers then, until it is restarted: what is sent goes elsewhere.
func (n *node) notServing() {
	n.health.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
	if n.cfg.Tier == config.Store && n.routers != nil {
		n.routers.Goodbye()
	}
}

// otherRequests is the largest request that is not a send. The proxy reads sends by
// itself, with a bound of their sum; of the others gRPC reads each as it comes.
const otherRequests = 4 << 20

func (n *node) buildServer() (err error) {
	if n.tracing, err = openTracing(n.cfg, n.logger); err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	var handover proxy.Handover
	if n.cfg.Tier == config.Proxy {
		handover = &n.late.handover
	}
	n.proxy, err = proxy.New(proxy.Options{
		Handover: handover,
		Store:    &n.late.proxyStore, Router: &n.late.proxyRouter, Transactions: &n.late.halves, StoreHost: host,
		MaxBodySize: int(n.cfg.MaxBodySize), MaxDelay: n.cfg.MaxDelay, DeliveryMemory: n.memory.deliveryMemory(int64(n.cfg.DeliveryMemory)), MaxPolling: n.cfg.LongPollingMax,
		LiteClientQuota: n.cfg.Lite.ClientSubscriptions, LiteTotalQuota: n.cfg.Lite.Subscriptions,
		InFlight: n.cfg.InFlightLimit, MaxRequestSize: int(n.cfg.MaxRecvSize), SendBudget: n.memory.sends,
		MaxSessions: n.cfg.MaxSessions, SettingsMemory: n.memory.settings, SessionTimeout: n.cfg.SessionTimeout, RenewSlice: n.cfg.Renew.Slice, RenewLimit: n.cfg.Renew.Max,
		CompileFilter: func(expression string) (mq.Filter, error) { return filter.Compile(expression) },
		Observe:       n.metrics.calls.observe, Tracer: n.tracing.tracer(), Logger: n.logger,
	})
	if err != nil {
		return err
	}
	n.metrics.proxy.Store(n.proxy)
	opts := transport.ServerOptions(transport.ServerConfig{
		Credentials: n.credentials, MaxRecvMsgSize: min(int(n.cfg.MaxRecvSize), otherRequests),
	})
	// Calls that are cut off give back what they have leased, and then the store may close.
	opts = append(opts, grpc.WaitForHandlers(true))
	opts = append(opts, n.gate()...)
	opts = append(opts, n.proxy.Interceptors()...)
	n.grpcServer = grpc.NewServer(opts...)
	n.proxy.Register(n.grpcServer)
	admin.New(admin.Options{
		Router: &n.late.adminRouter, Store: &n.late.adminStore, Shards: n.shards, Clients: n.proxy, Node: n.name(), Cluster: cluster{n}, Logger: n.logger,
		MaxDelay: n.cfg.MaxDelay,
	}).Register(n.grpcServer)
	healthpb.RegisterHealthServer(n.grpcServer, healthService{n.health, n.draining})
	reflection.Register(n.grpcServer)
	return nil
}

// drain ends the calls of clients.
func (n *node) drain() {
	n.proxy.Drain()
	stopped := make(chan struct{})
	go func() {
		n.grpcServer.GracefulStop()
		close(stopped)
	}()
	timer := time.NewTimer(n.cfg.ShutdownTimeout)
	defer timer.Stop()
	select {
	case <-stopped:
		return
	case <-timer.C:
	}
	n.logger.Warn("calls under way are cut off", "after", n.cfg.ShutdownTimeout, "connections", n.connections.Open())
	n.grpcServer.Stop()
	<-stopped
}

// starting says what the start waits for.
func (n *node) starting() error {
	if d := n.metrics.deployment.Load(); d != nil && d.problem != nil {
		revision, _, _ := d.known()
		if err := d.problem(); err != nil && revision == 0 {
			return fmt.Errorf("starting: nothing is known of the metadata yet: %w", err)
		}
	}
	return errors.New("starting: recovering the store")
}

// ready says why the node cannot serve, or nil.
func (n *node) ready() error {
	select {
	case <-n.draining:
		return errors.New("stopping")
	default:
	}
	select {
	case <-n.recovered:
	default:
		return n.starting()
	}
	return n.failed()
}

// lacks says what a node that is ready cannot do for the time being, or nil. A router whose
// etcd does not answer is ready: it tells what it knows, and who is alive. Were all routers
// taken out because all miss the same etcd, nobody would find any.
func (n *node) lacks() error {
	select {
	case <-n.recovered:
	default:
		return nil
	}
	if n.ownRouter != nil {
		return n.ownRouter.Degraded()
	}
	return nil
}

// stop takes the node apart from the top down:
//  1. health says so, that balancers go elsewhere;
//  2. waiting receives end empty, and Telemetry and health streams end; no
//     connection is accepted, those that serve nothing yet are closed, the others
//     are told to go (GOAWAY); calls under way finish and are answered;
//  3. after ShutdownTimeout, what is left is cut off, and gives back what it has leased;
//  4. the proxy ends its background work, and the last spans are sent;
//  5. the store and the router flush and close.
//
// A node that serves other tiers first leaves their lists, and answers what they have
// under way. A backup that is being made is given up at once.
func (n *node) stop() error {
	var errs []error
	if n.health != nil {
		n.health.Shutdown()
	}
	close(n.draining)
	if n.routers != nil {
		n.routers.Leave()
	}
	errs = append(errs, n.control.stop(n.cfg.DataDir))
	if n.grpcServer != nil {
		n.drain()
	}
	n.stopTiers()
	if n.proxy != nil {
		n.proxy.Close()
	}
	n.tracing.close()
	if n.cancel != nil {
		n.cancel()
	}
	if n.httpServer != nil {
		errs = append(errs, n.httpServer.Close())
	}
	errs = append(errs, n.closeListeners())
	n.background.Wait()
	if n.stores != nil {
		errs = append(errs, n.stores.Close())
	}
	if n.store != nil {
		errs = append(errs, n.store.Close())
	}
	if n.registry != nil {
		n.registry.Close()
	}
	if n.router != nil {
		errs = append(errs, n.router.Close())
	}
	if n.metrics != nil {
		errs = append(errs, n.metrics.close())
	}
	return errors.Join(errs...)
}

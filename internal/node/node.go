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
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"

	"github.com/perigee-mq/perigee/admin"
	"github.com/perigee-mq/perigee/internal/config"
	"github.com/perigee-mq/perigee/proxy"
	"github.com/perigee-mq/perigee/proxy/transport"
	"github.com/perigee-mq/perigee/router"
	"github.com/perigee-mq/perigee/store"
	"github.com/perigee-mq/perigee/store/shard"
)

// Info says where a running node can be reached and where its data is.
type Info struct {
	GRPCAddr string
	HTTPAddr string
	DataDir  string
}

// Folders in the data directory.
const (
	StoreDir  = "store"
	routerDir = "router"
)

// drainTime bounds how long a stopping node waits for calls under way. Container
// runtimes kill ten seconds after they asked.
const drainTime = 8 * time.Second

// Run runs all three tiers in this process until ctx ends, and then stops them
// in order. ready is called once, when clients can be served. An error says why
// the node did not start, or what went wrong while it stopped.
func Run(ctx context.Context, cfg config.Config, logger *slog.Logger, ready func(Info)) error {
	n := &node{cfg: cfg, logger: logger, draining: make(chan struct{})}
	if err := n.start(); err != nil {
		return errors.Join(err, n.stop())
	}
	ready(Info{GRPCAddr: n.grpcListener.Addr().String(), HTTPAddr: n.httpListener.Addr().String(), DataDir: cfg.DataDir})
	var failed error
	select {
	case <-ctx.Done():
		logger.Info("stopping")
	case failed = <-n.failures:
		logger.Error("stopping", "error", failed)
	}
	return errors.Join(failed, n.stop())
}

type node struct {
	cfg    config.Config
	logger *slog.Logger

	grpcListener net.Listener
	httpListener net.Listener
	httpServer   *http.Server
	grpcServer   *grpc.Server
	health       *health.Server
	metrics      *metrics
	store        *store.Store
	router       *router.Router
	proxy        *proxy.Server
	memory       memoryPlan

	background sync.WaitGroup
	cancel     context.CancelFunc // of what runs in the background
	draining   chan struct{}
	failures   chan error
	recovered  readiness
}

// start opens everything from the bottom up. The HTTP port answers first, so
// that a long recovery can be told from a hanging process.
func (n *node) start() (err error) {
	n.failures = make(chan error, 2)
	n.health = health.NewServer()
	n.health.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
	if err := os.MkdirAll(n.cfg.DataDir, 0o755); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	if n.httpListener, err = net.Listen("tcp", n.cfg.HTTPListen); err != nil {
		return fmt.Errorf("http_listen: %w", err)
	}
	if n.grpcListener, err = net.Listen("tcp", n.cfg.GRPCListen); err != nil {
		return fmt.Errorf("grpc_listen: %w", err)
	}
	if n.metrics, err = newMetrics(); err != nil {
		return err
	}
	n.httpServer = &http.Server{
		Handler:           transport.NewHTTPHandler(n.ready, n.metrics.handler()),
		ReadHeaderTimeout: 10 * time.Second,
		ErrorLog:          slog.NewLogLogger(n.logger.Handler(), slog.LevelDebug),
	}
	n.serve("http", func() error {
		if err := n.httpServer.Serve(n.httpListener); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	n.planMemory()
	if err := n.openTiers(); err != nil {
		return err
	}
	if err := n.buildServer(); err != nil {
		return err
	}
	background, cancel := context.WithCancel(context.Background())
	n.cancel = cancel
	if err := n.reconcile(background); err != nil {
		return err
	}
	// The first look comes before the first call, or a deletion in between would
	// be none to see.
	watch := n.router.Watch()
	changes, err := watch.Next(background)
	if err != nil {
		return err
	}
	n.carry(background, changes)
	n.background.Go(func() { n.follow(background, watch) })
	n.serve("grpc", func() error { return n.grpcServer.Serve(n.grpcListener) })
	n.recovered.set()
	n.health.SetServingStatus("", healthpb.HealthCheckResponse_SERVING)
	if errors.Join(n.store.Err(), n.router.Err()) != nil {
		n.notServing() // it failed before the status above, which must not stay
	}
	return nil
}

// planMemory decides how much memory each part may use, and tells the runtime
// unless it was told.
func (n *node) planMemory() {
	limit := debug.SetMemoryLimit(-1) // only asks
	if limit == math.MaxInt64 {
		limit = 0
	}
	n.memory = planMemory(int64(n.cfg.MemoryLimit), limit, containerMemory(os.DirFS("/")), n.cfg.MaxWaitingReceives)
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

func (n *node) openTiers() (err error) {
	flush := shard.FlushSync
	if n.cfg.Flush.Mode == config.FlushAsync {
		flush = shard.FlushAsync
	}
	n.store, err = store.Open(store.Options{
		Dir: filepath.Join(n.cfg.DataDir, StoreDir), Shards: []string{n.cfg.Shard},
		Flush: flush, FlushInterval: n.cfg.Flush.Interval, SegmentSize: int64(n.cfg.SegmentSize), Logger: n.logger,
		MaxWaiting: n.memory.waiting, CacheSize: n.memory.cache, MemTableSize: n.memory.memTable,
		QueueBytes: n.memory.sends * 3 / 2,
		OnFailure:  n.notServing,
	})
	if err != nil {
		return err
	}
	n.metrics.observeStore(n.store)
	n.router, err = router.Open(router.Options{
		Dir: filepath.Join(n.cfg.DataDir, routerDir), Shards: []string{n.cfg.Shard},
		AutoCreateTopics: n.cfg.AutoCreateTopics, AutoCreateGroups: n.cfg.AutoCreateGroups,
		DefaultQueues: int32(n.cfg.DefaultQueues), Logger: n.logger, OnFailure: n.notServing,
	})
	return err
}

// notServing makes the health service say that a tier has stopped for good.
func (n *node) notServing() {
	n.health.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
}

func (n *node) buildServer() error {
	credentials, err := n.credentials()
	if err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	n.proxy, err = proxy.New(proxy.Options{
		Store: n.store, Router: n.router, Advertise: n.cfg.Advertise, StoreHost: host,
		MaxBodySize: int(n.cfg.MaxBodySize), MaxPolling: n.cfg.LongPollingMax,
		InFlight: n.cfg.InFlightLimit, MaxRequestSize: int(n.cfg.MaxRecvSize), SendBudget: n.memory.sends,
		SessionTimeout: n.cfg.SessionTimeout, RenewSlice: n.cfg.Renew.Slice, RenewLimit: n.cfg.Renew.Max,
		Observe: n.metrics.observeCall, Logger: n.logger,
	})
	if err != nil {
		return err
	}
	opts := transport.ServerOptions(transport.ServerConfig{
		Credentials: credentials, MaxRecvMsgSize: int(n.cfg.MaxRecvSize),
	})
	opts = append(opts, n.proxy.Interceptors()...)
	n.grpcServer = grpc.NewServer(opts...)
	n.proxy.Register(n.grpcServer)
	admin.New(admin.Options{
		Router: n.router, Store: n.store, Shards: []string{n.cfg.Shard}, Logger: n.logger,
	}).Register(n.grpcServer)
	healthpb.RegisterHealthServer(n.grpcServer, healthService{n.health, n.draining})
	reflection.Register(n.grpcServer)
	return nil
}

func (n *node) credentials() (*transport.Credentials, error) {
	mode, err := transport.ParseMode(n.cfg.TLS.Mode)
	if err != nil {
		return nil, err
	}
	opts := transport.CredentialsOptions{Mode: mode, Logger: n.logger}
	switch {
	case mode == transport.Disabled:
	case n.cfg.TLS.CertFile != "":
		opts.Certificate, err = transport.LoadCertificate(n.cfg.TLS.CertFile, n.cfg.TLS.KeyFile)
	default:
		opts.Certificate, err = transport.SelfSigned(n.cfg.DataDir, n.logger)
	}
	if err != nil {
		return nil, err
	}
	return transport.NewCredentials(opts)
}

// ready says why the node cannot serve, or nil.
func (n *node) ready() error {
	if !n.recovered.is() {
		return errors.New("starting: recovering the store")
	}
	select {
	case <-n.draining:
		return errors.New("stopping")
	default:
	}
	return errors.Join(n.store.Err(), n.router.Err())
}

// stop takes the node apart from the top down:
//  1. health says so, that balancers go elsewhere;
//  2. waiting receives and Telemetry streams end, calls under way finish, then
//     connections close;
//  3. the proxy ends its background work;
//  4. the store and the router flush and close.
func (n *node) stop() error {
	close(n.draining)
	var errs []error
	if n.grpcServer != nil {
		n.health.Shutdown()
		n.proxy.Drain()
		stopped := make(chan struct{})
		go func() {
			n.grpcServer.GracefulStop()
			close(stopped)
		}()
		select {
		case <-stopped:
		case <-time.After(drainTime):
			n.logger.Warn("calls under way were cut off", "after", drainTime)
			n.grpcServer.Stop()
			<-stopped
		}
	}
	if n.grpcListener != nil {
		// A server that has served has closed it.
		if err := n.grpcListener.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	if n.proxy != nil {
		n.proxy.Close()
	}
	if n.cancel != nil {
		n.cancel()
	}
	if n.httpServer != nil {
		errs = append(errs, n.httpServer.Close())
	} else if n.httpListener != nil {
		errs = append(errs, n.httpListener.Close())
	}
	n.background.Wait()
	if n.store != nil {
		errs = append(errs, n.store.Close())
	}
	if n.router != nil {
		errs = append(errs, n.router.Close())
	}
	if n.metrics != nil {
		errs = append(errs, n.metrics.close())
	}
	return errors.Join(errs...)
}

package node

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/perigee-mq/perigee/internal/config"
	"github.com/perigee-mq/perigee/proxy/transport"
)

const (
	// connectionShare is the part of the descriptors that clients may take when
	// nobody says how many; the store needs the rest.
	connectionShare = 0.75
	// fallbackConnections is for systems that do not say how many there are.
	fallbackConnections = 10_000
	// httpConnections bounds those for health and metrics, which would otherwise
	// be a way around the limit.
	httpConnections = 256

	// Times of the HTTP server. Its answers are short.
	httpReadTimeout = 10 * time.Second
	httpTimeout     = time.Minute
)

// listen opens every port. Nothing is accepted yet.
func (n *node) listen() error {
	inner, err := net.Listen("tcp", n.cfg.HTTPListen)
	if err != nil {
		return listenError("http_listen", err)
	}
	n.httpListener = transport.NewListener(inner, transport.ListenerOptions{Limit: transport.NewLimit(httpConnections, n.logger)})
	if err := n.listenTiers(); err != nil {
		return err
	}
	if !n.runs(config.Proxy) {
		return nil
	}
	n.connections = transport.NewLimit(maxConnections(n.cfg.MaxConnections), n.logger)
	first := config.Listener{Listen: n.cfg.GRPCListen, Advertise: n.cfg.Advertise, ProxyProtocol: n.cfg.ProxyProtocol}
	if err := n.listenGRPC("grpc_listen", first); err != nil {
		return err
	}
	for i, l := range n.cfg.Listeners {
		if err := n.listenGRPC(fmt.Sprintf("listeners[%d].listen", i), l); err != nil {
			return err
		}
	}
	return nil
}

func (n *node) listenGRPC(key string, l config.Listener) error {
	opts := transport.ListenerOptions{Advertise: l.Advertise, Limit: n.connections}
	if l.ProxyProtocol != "" {
		var err error
		if opts.Proxy, err = transport.ParseProxyMode(l.ProxyProtocol); err != nil {
			return err
		}
	}
	inner, err := net.Listen("tcp", l.Listen)
	if err != nil {
		return listenError(key, err)
	}
	n.grpcListeners = append(n.grpcListeners, transport.NewListener(inner, opts))
	return nil
}

// listenError names the key whose address cannot be listened on.
func listenError(key string, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%s: %w; stop the process that listens there, or set %s to another address", key, err, key)
	}
	return fmt.Errorf("%s: %w", key, err)
}

func maxConnections(configured int) int {
	if configured > 0 {
		return configured
	}
	if limit := transport.DescriptorLimit(); limit > 0 {
		return max(1, int(float64(limit)*connectionShare))
	}
	return fallbackConnections
}

// serveHTTP begins to answer health, readiness and metrics.
func (n *node) serveHTTP() {
	handler := transport.NewHTTPHandler(n.ready, n.lacks, n.metrics.handler())
	if n.cfg.Profiling {
		handler = transport.WithProfiles(handler)
	}
	n.httpServer = &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: httpReadTimeout,
		ReadTimeout:       httpReadTimeout,
		WriteTimeout:      httpTimeout,
		IdleTimeout:       httpTimeout,
		ErrorLog:          slog.NewLogLogger(n.logger.Handler(), slog.LevelDebug),
	}
	n.serve("http", func() error {
		if err := n.httpServer.Serve(n.httpListener); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
}

// serveGRPC begins to serve clients, on every listener.
func (n *node) serveGRPC() {
	for _, l := range n.grpcListeners {
		n.serve("grpc", func() error { return n.grpcServer.Serve(l) })
	}
}

// closeListeners closes those that no server has closed.
func (n *node) closeListeners() error {
	var errs []error
	listeners := n.grpcListeners
	if n.httpListener != nil {
		listeners = append(listeners, n.httpListener)
	}
	if n.tierListener != nil {
		if err := n.tierListener.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	for _, l := range listeners {
		if err := l.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// info says where the node serves.
func (n *node) info() Info {
	info := Info{HTTPAddr: n.httpListener.Addr().String(), DataDir: n.cfg.DataDir}
	if n.tierListener != nil {
		info.TierAddr = n.tierListener.Addr().String()
	}
	if len(n.grpcListeners) == 0 {
		return info
	}
	info.GRPCAddr = n.grpcListeners[0].Addr().String()
	for _, l := range n.grpcListeners[1:] {
		info.Listeners = append(info.Listeners, l.Addr().String())
	}
	return info
}

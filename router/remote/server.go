// Package remote lets the router be in another process than those that ask it: Server is
// the service perigee.router.v1 over a router and its registry of nodes, Client is what
// proxies and stores have instead of a router.
//
// A Client answers from memory, and goes on with what it knows when no router answers; what
// it knows it keeps in a file. It never shows anything that no router has shown, and never
// goes back. Neither end knows messages, clients or the public protocol.
package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	routerpb "github.com/perigee-mq/perigee/gen/perigee/router/v1"
	"github.com/perigee-mq/perigee/internal/tiererr"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

// ServerOptions configure a Server.
type ServerOptions struct {
	// Router and Registry are served; both are needed. The caller closes them, after Drain.
	Router   *router.Router
	Registry *router.Registry
	// Logger gets what operators need to know; nil drops it.
	Logger *slog.Logger
}

// A Server serves a router to processes of other tiers.
type Server struct {
	router   *router.Router
	registry *router.Registry
	logger   *slog.Logger
	life     string
	drained  chan struct{} // closed by Drain
	drain    func()

	// past are the newest snapshots that somebody was shown, in the order of their
	// revisions: who was shown one gets only the changes since.
	past struct {
		sync.Mutex
		list []router.Snapshot
	}
}

// NewServer returns a server of the router. Metadata from before there were lives are
// given one, which is a change like any other and can fail.
func NewServer(ctx context.Context, opts ServerOptions) (*Server, error) {
	life, err := opts.Router.EnsureLife(ctx)
	if err != nil {
		return nil, err
	}
	s := &Server{
		router: opts.Router, registry: opts.Registry, life: life,
		logger: cmp.Or(opts.Logger, slog.New(slog.DiscardHandler)), drained: make(chan struct{}),
	}
	s.drain = sync.OnceFunc(func() { close(s.drained) })
	return s, nil
}

// Register adds the service to g, which has the options of tiercreds.Server.
func (s *Server) Register(g grpc.ServiceRegistrar) {
	routerpb.RegisterRouterServiceServer(g, &service{Server: s})
}

// Drain ends the streams, so that a graceful stop of the gRPC server ends. Those who had
// them go to another router.
func (s *Server) Drain() { s.drain() }

func (s *Server) draining() error {
	return tiererr.Status(fmt.Errorf("%w: the router stops", mq.ErrUnavailable))
}

// service has the RPCs; that of Server, Register, adds them to a gRPC server.
type service struct {
	routerpb.UnimplementedRouterServiceServer
	*Server
}

// Register keeps a node registered while its heartbeats come. When the stream breaks, the
// node still lives to the end of its lease: it may come back.
func (s *service) Register(stream grpc.BidiStreamingServer[routerpb.RegisterRequest, routerpb.RegisterResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	n, err := node(first.GetNode())
	if err != nil {
		return tiererr.Status(err)
	}
	registration, err := s.admit(stream.Context(), n)
	if err != nil {
		s.logger.Warn("node refused", "node", mq.Shorten(n.Name), "address", mq.Shorten(n.Address), "reason", err)
		return tiererr.Status(err)
	}
	s.logger.Info("node registered", "node", n.Name, "tier", n.Tier.String(), "address", n.Address, "shards", n.Shards, "version", n.Version)
	answer := &routerpb.RegisterResponse{Lease: int64(s.registry.Lease())}
	if err := stream.Send(answer); err != nil {
		return err
	}
	requests, failed := make(chan *routerpb.RegisterRequest), make(chan error, 1)
	ctx := stream.Context()
	go func() { // ends with the stream, which ends with this method
		for {
			req, err := stream.Recv()
			if err != nil {
				failed <- err
				return
			}
			select {
			case requests <- req:
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		select {
		case req := <-requests:
			if req.GetGoodbye() {
				registration.Leave()
				s.logger.Info("node left", "node", n.Name)
				return nil
			}
			if !registration.Heartbeat() {
				return tiererr.Status(fmt.Errorf("%w: node %s was given up, or registered again", mq.ErrUnavailable, n.Name))
			}
			if err := stream.Send(answer); err != nil {
				return err
			}
		case err := <-failed:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		case <-s.drained:
			return s.draining()
		}
	}
}

// admit registers a node and writes down its shards.
func (s *Server) admit(ctx context.Context, n router.Node) (*router.Registration, error) {
	for _, known := range s.router.Shards() {
		if known.State == router.ShardRemoved && slices.Contains(n.Shards, known.Name) {
			return nil, invalid("shard", known.Name, "was removed; make it active again, or give the store another name")
		}
	}
	registration, err := s.registry.Register(n)
	if err != nil {
		return nil, err
	}
	for _, name := range n.Shards {
		_, err := s.router.AddShard(ctx, name)
		if errors.Is(err, mq.ErrStopped) {
			// The node lives all the same, and so do the topics that it has.
			s.logger.Error("shard not written down", "shard", name, "error", err)
			err = nil
		}
		if err != nil {
			registration.Leave()
			return nil, err
		}
	}
	return registration, nil
}

// fits refuses a call of somebody who knows more than this router, or other metadata: what
// the router would answer, or give out, is not to be relied on. A router that shares its
// metadata with others gets what it may be behind first.
func (s *Server) fits(ctx context.Context, known *routerpb.Known) error {
	if known.GetLife() == s.life && known.GetRevision() > s.router.Revision() {
		if err := s.router.CatchUp(ctx); err != nil {
			return err
		}
	}
	switch revision := s.router.Revision(); {
	case known.GetLife() != "" && known.GetLife() != s.life:
		return fmt.Errorf("%w: this router has other metadata (life %s) than those known (life %s)", mq.ErrUnavailable, s.life, mq.Shorten(known.GetLife()))
	case known.GetRevision() > revision && known.GetLife() != "":
		return fmt.Errorf("%w: the metadata of this router end at revision %d, and %d is known", mq.ErrUnavailable, revision, known.GetRevision())
	}
	return nil
}

// quiet is the longest time without a response in a Watch.
const quiet = 3 * time.Second

// Package proxy is the gRPC front: the protocol's MessagingService, one file for
// each RPC. A handler validates, converts, makes one call to another tier,
// converts back and returns.
//
// It keeps only what a connection needs: sessions with their settings, and the
// leases it renews for push consumers. It stores no message and decides no
// queue rule; any proxy serves any client.
package proxy

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/proxy/session"
	"github.com/perigee-mq/perigee/proxy/transport"
	"github.com/perigee-mq/perigee/proxy/wire"
)

// Store is what the proxy asks of the store tier. The documentation of the
// methods is in package store, which implements it in one process.
type Store interface {
	Append(ctx context.Context, shard string, topic *mq.Topic, queue mq.QueueID, msgs []*mq.Message) ([]mq.Appended, error)
	Receive(ctx context.Context, shard string, r mq.Receive) ([]mq.Delivery, error)
	Ack(ctx context.Context, leases []mq.Lease) []error
	ChangeInvisible(ctx context.Context, changes []mq.LeaseChange) []error
	DeadLetter(ctx context.Context, lease mq.Lease) error
	Recall(ctx context.Context, handles []mq.PendingHandle) []error
	Owed(ctx context.Context, shard string, topic mq.TopicID, group mq.GroupID) (bool, error)
	OffsetStore
	LiteStore
}

// LiteStore is what the proxy asks of the store tier about lite topics.
type LiteStore interface {
	SyncLite(ctx context.Context, r mq.LiteSync, names map[string][]string) ([]mq.LiteLoss, error)
	LeaveLite(client string)
}

// OffsetStore is what the proxy asks of the store tier about queues by offset.
type OffsetStore interface {
	Pull(ctx context.Context, shard string, p mq.Pull) (mq.Pulled, error)
	Range(ctx context.Context, shard string, topic *mq.Topic, queue mq.QueueID) (mq.QueueRange, error)
	OffsetAt(ctx context.Context, shard string, topic *mq.Topic, queue mq.QueueID, at time.Time) (mq.QueueOffset, error)
	Positions(ctx context.Context, shard string, topic mq.TopicID, group mq.GroupID) ([]mq.Position, error)
	SetOffset(ctx context.Context, shard string, set mq.OffsetSet) (dropped int, err error)
}

// Router is what the proxy asks of the router tier. The documentation of the
// methods is in package router, which implements it in one process.
type Router interface {
	Topic(ctx context.Context, name mq.Resource) (*mq.Topic, error)
	EnsureTopic(ctx context.Context, name mq.Resource) (*mq.Topic, error)
	Group(ctx context.Context, name mq.Resource) (*mq.Group, error)
	EnsureGroup(ctx context.Context, name mq.Resource) (*mq.Group, error)
	Instance(ctx context.Context, g *mq.Group, client string) (*mq.Group, error)
	TopicByID(id mq.TopicID) (*mq.Topic, error)
	GroupByID(id mq.GroupID) (*mq.Group, error)
}

// Options configure a Server. Zero values mean the documented defaults.
type Options struct {
	Store  Store
	Router Router
	// Transactions are those of Store.
	Transactions Transactions
	// Handover is that of Store, where other proxies use it too. Nil: none does, and there is
	// nobody who could go on with what this one renews.
	Handover Handover
	// Advertise is the host:port that routes name to clients of listeners that
	// advertise none, see transport.ListenerOptions. Empty: the endpoints that the
	// client itself dialled.
	Advertise string
	// StoreHost is what received messages name as the host that stored them.
	StoreHost string
	// MaxBodySize bounds the body of one message: 4 MiB by default.
	MaxBodySize int
	// MaxBatchSize bounds the sum of the bodies of one request: 32 MiB by
	// default, or MaxBodySize where that is more.
	MaxBatchSize int
	// MaxDelay is how far ahead a delivery time may lie: 40 days by default.
	MaxDelay time.Duration
	// DeliveryMemory bounds the stored bytes of messages that are on their way to
	// consumers: 256 MiB by default. Receives that find more wait.
	DeliveryMemory int64
	// MaxRequestSize bounds a request: transport.DefaultMaxRecvMsgSize by default.
	MaxRequestSize int
	// SendBudget bounds the bytes of the sends that are under way: 256 MiB by
	// default. Memory takes two to three times as many.
	SendBudget int64
	// MaxPolling is the longest a receive is held without a message: 20 s by default.
	MaxPolling time.Duration
	// InFlight is how many messages of one queue a group may have under lease; 0:
	// no limit.
	InFlight int
	// LiteClientQuota bounds how many lite topics one client may subscribe to: 2,000 by
	// default. LiteTotalQuota bounds those of all clients of a shard: 100,000 by default.
	LiteClientQuota, LiteTotalQuota int
	// SessionTimeout ends a session after that long without a sign of life: 90 s
	// by default. The slowest SDK sends heartbeats every 30 s.
	SessionTimeout time.Duration
	// MaxSessions bounds the clients that are known at a time; 0: no bound. More are
	// refused what makes them known: settings, heartbeats and receives.
	MaxSessions int
	// SettingsMemory bounds the settings of all clients: 64 MiB by default.
	SettingsMemory int64
	// RenewSlice is how long each automatic renewal keeps a message leased: 60 s
	// by default. RenewLimit ends the renewals: 3 h by default.
	RenewSlice time.Duration
	RenewLimit time.Duration
	// Observe is told of every call when it has ended. It must be quick. Nil:
	// nobody is.
	Observe func(Call)
	// CompileFilter compiles an SQL expression; its error for one that means nothing
	// wraps mq.ErrIllegalFilter and says where the fault is. Nil: clients that want SQL
	// are refused.
	CompileFilter func(expression string) (mq.Filter, error)
	// Tracer makes the spans of calls. Nil: there are none, at no cost.
	Tracer trace.Tracer
	// Logger receives what an operator should know; silent when nil.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&o.MaxPolling, 20*time.Second)
	def(&o.SessionTimeout, 90*time.Second)
	def(&o.RenewSlice, 60*time.Second)
	def(&o.RenewLimit, 3*time.Hour)
	def(&o.MaxDelay, 40*24*time.Hour)
	if o.LiteClientQuota == 0 {
		o.LiteClientQuota = 2000
	}
	if o.LiteTotalQuota == 0 {
		o.LiteTotalQuota = 100_000
	}
	if o.MaxBodySize == 0 {
		o.MaxBodySize = 4 << 20
	}
	if o.MaxBatchSize == 0 {
		o.MaxBatchSize = max(32<<20, o.MaxBodySize)
	}
	if o.DeliveryMemory == 0 {
		o.DeliveryMemory = 256 << 20
	}
	if o.MaxRequestSize == 0 {
		o.MaxRequestSize = transport.DefaultMaxRecvMsgSize
	}
	if o.SendBudget == 0 {
		o.SendBudget = 256 << 20
	}
	if o.SettingsMemory == 0 {
		o.SettingsMemory = 64 << 20
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Server implements the protocol's MessagingService.
type Server struct {
	rmqpb.UnimplementedMessagingServiceServer

	opts      Options
	store     Store
	router    Router
	logger    *slog.Logger
	advertise *rmqpb.Endpoints // nil: the endpoints that the client dialled
	sessions  *session.Table
	renewals  *renewals
	adopter   *adopter
	checks    *checks
	tracing   *tracing // nil: off
	rotation  rotation
	begun     begun
	unordered unordered
	streams   streams
	links     links
	frames    mem.BufferPool // of encoded deliveries
	sends     *budget        // of their bytes
	// deliveries are messages on their way to consumers.
	deliveries *budget
	filters    filters
}

// New returns a server. Close ends what it starts. The error names the option
// that is wrong.
func New(opts Options) (*Server, error) {
	opts = opts.withDefaults()
	s := &Server{opts: opts, store: opts.Store, router: opts.Router, logger: opts.Logger, frames: transport.NewBufferPool()}
	if opts.MaxBatchSize < opts.MaxBodySize {
		return nil, fmt.Errorf("proxy: %w: batch size limit %d is below the body size limit %d",
			mq.ErrInvalid, opts.MaxBatchSize, opts.MaxBodySize)
	}
	if opts.Advertise != "" {
		var err error
		if s.advertise, err = wire.EndpointsFor(opts.Advertise); err != nil {
			return nil, fmt.Errorf("proxy: advertised address: %w", err)
		}
	}
	s.unordered.logger = opts.Logger
	s.deliveries, s.sends = newDeliveryBudget(opts.DeliveryMemory), newSendBudget(opts.SendBudget)
	if opts.Tracer != nil {
		s.tracing = &tracing{tracer: opts.Tracer}
		s.store = tracedStore{s.store, s.tracing}
	}
	s.filters.compile = opts.CompileFilter
	s.streams.init()
	s.sessions = session.NewTable(opts.SessionTimeout, session.Limits{Sessions: opts.MaxSessions, Settings: opts.SettingsMemory}, s.sessionEnded)
	s.renewals = newRenewals(s)
	s.adopter = newAdopter(s)
	s.checks = newChecks(s)
	return s, nil
}

// Register adds the services to g: messaging, and the protocol's Admin.
func (s *Server) Register(g grpc.ServiceRegistrar) {
	g.RegisterService(s.messagingService(), s)
	rmqpb.RegisterAdminServer(g, admin{})
}

// Drain ends the Telemetry streams and refuses new ones, and ends receives that
// wait, empty. Clients keep their streams open for ever, so a gRPC server that is
// to stop gracefully needs it first. It does not wait, and may be called more
// than once.
func (s *Server) Drain() { s.streams.drain() }

// Close ends the background work and returns when it has ended. The gRPC server
// must have stopped. Messages that were being renewed are renewed once more, and
// come back a slice later unless they are settled elsewhere, or another proxy goes on.
func (s *Server) Close() {
	s.streams.drain()
	s.streams.wait()
	s.checks.close()
	s.sessions.Close()
	s.adopter.close()
	s.renewals.close()
}

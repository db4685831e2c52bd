// Package admin serves the administration API, perigee.admin.v1: topics and
// consumer groups are created, shown, changed and removed over gRPC, the progress of
// groups shown and set, dead letters counted and sent back, delayed messages listed and changed, clients listed and asked
// to reconnect, and the processes and shards of the deployment shown and changed.
//
// It converts and validates; the router holds the metadata, the store the
// offsets, the proxy the clients. What a removal means for stored messages is not
// decided here: the store learns of it from the router.
package admin

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

// TopicRouter is what the service asks of the router about topics. The
// documentation of the methods is in package router.
type TopicRouter interface {
	Topic(ctx context.Context, name mq.Resource) (*mq.Topic, error)
	TopicByID(id mq.TopicID) (*mq.Topic, error)
	CreateTopic(ctx context.Context, spec router.TopicSpec) (*mq.Topic, bool, error)
	UpdateTopic(ctx context.Context, name mq.Resource, update router.TopicUpdate) (*mq.Topic, error)
	DeleteTopic(ctx context.Context, name mq.Resource) (*mq.Topic, error)
	ListTopics(ctx context.Context, sel router.Selection) []*mq.Topic
}

// GroupRouter is what the service asks of the router about consumer groups. The
// documentation of the methods is in package router.
type GroupRouter interface {
	Group(ctx context.Context, name mq.Resource) (*mq.Group, error)
	CreateGroup(ctx context.Context, spec router.GroupSpec) (*mq.Group, bool, error)
	UpdateGroup(ctx context.Context, name mq.Resource, update router.GroupUpdate) (*mq.Group, error)
	DeleteGroup(ctx context.Context, name mq.Resource) (*mq.Group, error)
	EnsureSystemGroup(ctx context.Context, spec router.GroupSpec) (*mq.Group, error)
	ListGroups(ctx context.Context, sel router.Selection) []*mq.Group
}

// Router is what the service asks of the router tier.
type Router interface {
	TopicRouter
	GroupRouter
}

// Store is what the service asks of the store tier. The documentation of the
// methods is in package store.
type Store interface {
	MessageStore
	TimerStore
	TransactionStore
	Queues(ctx context.Context, shard string, id mq.TopicID) ([]mq.QueueRange, error)
	LiteStock(ctx context.Context, shard string, id mq.TopicID) (mq.LiteStock, error)
	Backlogs(ctx context.Context, shard string, group mq.GroupID) ([]mq.Backlog, error)
	PurgeTopic(ctx context.Context, id mq.TopicID) error
	Remains(ctx context.Context, shard string) (mq.Remains, error)
	OffsetStore
}

// OffsetStore is what the service asks of the store tier about the progress of groups.
// The documentation of the methods is in package store.
type OffsetStore interface {
	Range(ctx context.Context, shard string, topic *mq.Topic, queue mq.QueueID) (mq.QueueRange, error)
	OffsetAt(ctx context.Context, shard string, topic *mq.Topic, queue mq.QueueID, at time.Time) (mq.QueueOffset, error)
	Positions(ctx context.Context, shard string, topic mq.TopicID, group mq.GroupID) ([]mq.Position, error)
	SetOffset(ctx context.Context, shard string, set mq.OffsetSet) (dropped int, err error)
}

// Clients is what the service asks of the proxy tier. The documentation of the
// methods is in package proxy.
type Clients interface {
	Clients(sel mq.ClientSelection) (list []mq.Client, more bool)
	Reconnect(ids []string, percent int) (asked int, unreachable []string)
}

// Options configure a Server.
type Options struct {
	Router Router
	Store  Store
	// Shards are the shards of the deployment, in the order in which the
	// progress of a group is gathered.
	Shards func() []string
	// MaxDelay is how far ahead a delayed message may be postponed to: 40 days by default.
	MaxDelay time.Duration
	// Clients knows who is connected; nil: nobody. Node is what this node is called.
	Clients Clients
	Node    string
	// Cluster knows the processes of the deployment; nil: there is no ClusterService.
	Cluster Cluster
	// Logger receives what an operator should know; silent when nil.
	Logger *slog.Logger
}

// Server implements the services of perigee.admin.v1. Its methods may be called from any
// goroutine.
type Server struct {
	adminpb.UnimplementedAdminServiceServer
	adminpb.UnimplementedClientServiceServer
	adminpb.UnimplementedOffsetServiceServer
	adminpb.UnimplementedTimerServiceServer
	adminpb.UnimplementedTransactionServiceServer
	adminpb.UnimplementedClusterServiceServer

	router  Router
	store   Store
	shards  func() []string
	clients Clients
	node    string
	cluster Cluster
	logger  *slog.Logger

	maxDelay time.Duration

	turn atomic.Uint64 // of the queues that dead letters go back to
}

// New returns a server.
func New(opts Options) *Server {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.MaxDelay == 0 {
		opts.MaxDelay = 40 * 24 * time.Hour
	}
	if opts.Clients == nil {
		opts.Clients = nobody{}
	}
	return &Server{
		router: opts.Router, store: opts.Store, shards: opts.Shards,
		clients: opts.Clients, node: opts.Node, cluster: opts.Cluster, logger: opts.Logger, maxDelay: opts.MaxDelay,
	}
}

// Register adds the services to g.
func (s *Server) Register(g grpc.ServiceRegistrar) {
	adminpb.RegisterAdminServiceServer(g, s)
	adminpb.RegisterClientServiceServer(g, s)
	adminpb.RegisterOffsetServiceServer(g, s)
	adminpb.RegisterTimerServiceServer(g, s)
	adminpb.RegisterTransactionServiceServer(g, s)
	if s.cluster != nil {
		adminpb.RegisterClusterServiceServer(g, s)
	}
}

// statuses maps every sentinel that a tier returns to a gRPC status code.
var statuses = []struct {
	err  error
	code codes.Code
}{
	{mq.ErrIllegalTopic, codes.InvalidArgument},
	{mq.ErrIllegalGroup, codes.InvalidArgument},
	{mq.ErrInvalid, codes.InvalidArgument},
	{mq.ErrTopicNotFound, codes.NotFound},
	{mq.ErrGroupNotFound, codes.NotFound},
	{mq.ErrQueueNotFound, codes.NotFound},
	{errNoShard, codes.NotFound},
	{mq.ErrTopicExists, codes.AlreadyExists},
	{mq.ErrGroupExists, codes.AlreadyExists},
	{mq.ErrNotImplemented, codes.Unimplemented},
	{mq.ErrForbidden, codes.PermissionDenied},
	{mq.ErrIllegalOffset, codes.OutOfRange},
	{mq.ErrOffsetNotFound, codes.NotFound},
	{mq.ErrTooLarge, codes.InvalidArgument},
	{mq.ErrBusy, codes.ResourceExhausted},
	{mq.ErrStoreFull, codes.ResourceExhausted},
	{mq.ErrInvalidReceipt, codes.InvalidArgument},
	{mq.ErrLeaseEnded, codes.FailedPrecondition},
	{mq.ErrInvalidHandle, codes.InvalidArgument},
	{mq.ErrNotPending, codes.NotFound},
	{mq.ErrUnknownTransaction, codes.NotFound},
	{mq.ErrTransactionEnded, codes.FailedPrecondition},
	{mq.ErrShardNotFound, codes.Unavailable},
	{mq.ErrUnavailable, codes.Unavailable},
	{mq.ErrStopped, codes.Unavailable},
	{context.Canceled, codes.Canceled},
	{context.DeadlineExceeded, codes.DeadlineExceeded},
}

// refusal returns err as a gRPC status. Errors that the table does not know are
// logged with their text and told without it.
func (s *Server) refusal(ctx context.Context, err error) error {
	for _, c := range statuses {
		if errors.Is(err, c.err) {
			if errors.Is(c.err, mq.ErrStopped) {
				// The cause may name files of the server. It is in the log.
				return status.Error(c.code, "the store has stopped; the server's log has the cause")
			}
			return status.Error(c.code, err.Error())
		}
	}
	s.logger.ErrorContext(ctx, "unexpected error", "error", err)
	return status.Error(codes.Internal, "internal error; the server's log has the cause")
}

// invalid returns an error of kind ErrInvalid that names the field.
func invalid(field, value, reason string) error {
	return &mq.InvalidError{Kind: mq.ErrInvalid, Field: field, Value: mq.Shorten(value), Reason: reason}
}

// named is a request that names a topic or a group.
type named interface {
	GetNamespace() string
	GetName() string
}

func resource(r named) mq.Resource {
	return mq.Resource{Namespace: r.GetNamespace(), Name: r.GetName()}
}

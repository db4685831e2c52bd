package node

import (
	"context"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/perigee-mq/perigee/admin"
	"github.com/perigee-mq/perigee/proxy"
)

// The port for clients serves before the tiers are open, so that the health service
// can say that they are not: a recovery may take long, and a port that does not
// answer says nothing. Every other call waits for the recovery.

// late has the tiers for those that are made before the tiers are open. Nobody
// calls it until the node has recovered.
type late struct {
	proxyStore  lateProxyStore
	halves      lateTransactions
	handover    lateHandover
	proxyRouter lateProxyRouter
	adminStore  lateAdminStore
	adminRouter lateAdminRouter
}

type (
	lateProxyStore  struct{ proxy.Store }
	lateProxyRouter struct{ proxy.Router }

	lateTransactions struct{ proxy.Transactions }
	lateHandover     struct{ proxy.Handover }
	lateAdminStore   struct{ admin.Store }
	lateAdminRouter  struct{ admin.Router }
)

func (l *late) set(s storeTier, r routerTier) {
	l.proxyStore.Store, l.adminStore.Store = s, s
	l.halves.Transactions, l.handover.Handover = s, s
	l.proxyRouter.Router, l.adminRouter.Router = r, r
}

// gate makes calls wait for the recovery, as long as their deadlines let them.
func (n *node) gate() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if err := n.pass(ctx, info.FullMethod); err != nil {
				return nil, err
			}
			return handler(ctx, req)
		}),
		grpc.ChainStreamInterceptor(func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			if err := n.pass(stream.Context(), info.FullMethod); err != nil {
				return err
			}
			return handler(srv, stream)
		}),
	}
}

// pass returns when the method may be called, or why it cannot.
func (n *node) pass(ctx context.Context, method string) error {
	select {
	case <-n.recovered:
		return nil
	default:
	}
	if strings.HasPrefix(method, "/grpc.health.") || strings.HasPrefix(method, "/grpc.reflection.") {
		return nil
	}
	select {
	case <-n.recovered:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-n.draining:
		return status.Error(codes.Unavailable, "the server is closing")
	}
}

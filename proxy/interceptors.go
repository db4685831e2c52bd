package proxy

import (
	"context"
	"runtime/debug"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"google.golang.org/grpc"
	grpccodes "google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/perigee-mq/perigee/mq"
)

// An interceptor is both forms of one.
type interceptor struct {
	unary  grpc.UnaryServerInterceptor
	stream grpc.StreamServerInterceptor
}

// Interceptors returns the options of a gRPC server that serves s.
func (s *Server) Interceptors() []grpc.ServerOption {
	order := []interceptor{
		// Outermost, so that a panic anywhere below costs one call and not the process.
		s.recovery(),
		// Inside of it, so that the time is the call's own; it sees panics pass.
		s.observation(),
		// Inside of it, which wants to know whether the client has given up.
		inTime(),
	}
	if s.tracing != nil {
		// Innermost, so that a span is of the handler alone.
		order = append(order, s.tracing.interceptor())
	}
	var unary []grpc.UnaryServerInterceptor
	var stream []grpc.StreamServerInterceptor
	for _, i := range order {
		unary = append(unary, i.unary)
		stream = append(stream, i.stream)
	}
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(unary...), grpc.ChainStreamInterceptor(stream...)}
}

// recovery turns a panic into gRPC INTERNAL. The log has what the client must
// not see.
func (s *Server) recovery() interceptor {
	handler := recovery.WithRecoveryHandlerContext(s.panicked)
	return interceptor{recovery.UnaryServerInterceptor(handler), recovery.StreamServerInterceptor(handler)}
}

// panicked is called by whoever recovers p while the panicking stack is still
// there, and returns what the client is told.
func (s *Server) panicked(ctx context.Context, p any) error {
	method, _ := grpc.Method(ctx)
	s.logger.ErrorContext(ctx, "panic in a call", "method", method, "client", mq.Shorten(clientOf(ctx).ID),
		"panic", p, "stack", string(debug.Stack()))
	return grpcstatus.Error(grpccodes.Internal, "internal error; the server's log has the cause")
}

package proxy

import (
	"context"
	"runtime/debug"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"google.golang.org/grpc"
	grpccodes "google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
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
	s.logger.ErrorContext(ctx, "panic in a call", "method", method, "client", clientOf(ctx).ID,
		"panic", p, "stack", string(debug.Stack()))
	return grpcstatus.Error(grpccodes.Internal, "internal error; the server's log has the cause")
}

// observation tells Options.Observe how each call ended.
func (s *Server) observation() interceptor {
	observe := s.opts.Observe
	if observe == nil {
		observe = func(string, rmqpb.Code, time.Duration) {}
	}
	return interceptor{
		unary: func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			code := rmqpb.Code_INTERNAL_SERVER_ERROR // what a panic leaves
			defer func(start time.Time) { observe(info.FullMethod, code, time.Since(start)) }(time.Now())
			res, err := handler(ctx, req)
			code = codeOf(statusIn(res), err)
			return res, err
		},
		stream: func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			code := rmqpb.Code_INTERNAL_SERVER_ERROR
			defer func(start time.Time) { observe(info.FullMethod, code, time.Since(start)) }(time.Now())
			observed := &observedStream{ServerStream: stream}
			err := handler(srv, observed)
			code = codeOf(observed.status, err)
			return err
		},
	}
}

// An observedStream remembers the last status that was sent.
type observedStream struct {
	grpc.ServerStream
	status *rmqpb.Status
}

func (o *observedStream) SendMsg(m any) error {
	if st := statusIn(m); st != nil {
		o.status = st
	}
	return o.ServerStream.SendMsg(m)
}

// statusIn returns the status in a response; nil when it has none, or is
// already encoded.
func statusIn(m any) *rmqpb.Status {
	if m, ok := m.(interface{ GetStatus() *rmqpb.Status }); ok {
		return m.GetStatus()
	}
	return nil
}

// codeOf returns the code a call ended with: that of its last status, or the
// nearest to its gRPC error.
func codeOf(st *rmqpb.Status, err error) rmqpb.Code {
	switch grpcstatus.Code(err) {
	case grpccodes.OK:
		if st == nil {
			return rmqpb.Code_OK
		}
		return st.GetCode()
	case grpccodes.Canceled:
		return rmqpb.Code_REQUEST_TIMEOUT
	case grpccodes.InvalidArgument:
		return rmqpb.Code_BAD_REQUEST
	case grpccodes.Unimplemented:
		return rmqpb.Code_NOT_IMPLEMENTED
	case grpccodes.DeadlineExceeded:
		return rmqpb.Code_PROXY_TIMEOUT
	default:
		return rmqpb.Code_INTERNAL_SERVER_ERROR
	}
}

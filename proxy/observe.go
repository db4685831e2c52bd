package proxy

import (
	"context"
	"time"

	"google.golang.org/grpc"
	grpccodes "google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
)

// A Call is one call that has ended, as Options.Observe is told of it.
type Call struct {
	Method string // its full name
	// GRPC is the code of the transport. When it is not OK the client has read no
	// other.
	GRPC grpccodes.Code
	// Code is the protocol's: that of the last status that was sent, OK when there
	// was none, and 0 when GRPC is not OK.
	Code rmqpb.Code
	// Took is how long the call took, Waited how much of it was spent waiting on
	// purpose: for a message, or before an error was told.
	Took, Waited time.Duration
}

// end notes how the call ended. A call that panics never gets here.
func (c *Call) end(st *rmqpb.Status, err error) {
	c.GRPC, c.Code = grpcstatus.Code(err), 0
	switch {
	case c.GRPC != grpccodes.OK:
	case st == nil:
		c.Code = rmqpb.Code_OK
	default:
		c.Code = st.GetCode()
	}
}

// observation tells Options.Observe how each call ended.
func (s *Server) observation() interceptor {
	observe := s.opts.Observe
	if observe == nil {
		observe = func(Call) {}
	}
	return interceptor{
		unary: func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			call, start := Call{Method: info.FullMethod, GRPC: grpccodes.Internal}, time.Now()
			defer func() {
				call.Took = time.Since(start)
				observe(call)
			}()
			res, err := handler(ctx, req)
			call.end(statusIn(res), err)
			return res, err
		},
		stream: func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			call, start := Call{Method: info.FullMethod, GRPC: grpccodes.Internal}, time.Now()
			observed := &observedStream{ServerStream: stream}
			observed.ctx.Context = stream.Context()
			defer func() {
				call.Took, call.Waited = time.Since(start), observed.ctx.waited
				observe(call)
			}()
			err := handler(srv, observed)
			call.end(observed.status, err)
			return err
		},
	}
}

// An observedStream remembers the last status that was sent, and how long the
// handler has waited.
type observedStream struct {
	grpc.ServerStream
	status *rmqpb.Status
	ctx    waitingContext
}

// Context implements grpc.ServerStream.
func (o *observedStream) Context() context.Context { return &o.ctx }

// SendMsg implements grpc.ServerStream.
func (o *observedStream) SendMsg(m any) error {
	if st := statusIn(m); st != nil {
		o.status = st
	}
	return o.ServerStream.SendMsg(m)
}

// A waitingContext is the context of a stream with the time its handler waited,
// which is the handler's goroutine's alone.
type waitingContext struct {
	context.Context
	waited time.Duration
}

type waitedKey struct{}

// Value implements context.Context.
func (c *waitingContext) Value(key any) any {
	if key == (waitedKey{}) {
		return &c.waited
	}
	return c.Context.Value(key)
}

// waitedIn returns where the call notes how long it has waited; nil when nobody
// wants to know.
func waitedIn(ctx context.Context) *time.Duration {
	waited, _ := ctx.Value(waitedKey{}).(*time.Duration)
	return waited
}

// statusIn returns the status in a response; nil when it has none, or is
// already encoded.
func statusIn(m any) *rmqpb.Status {
	if m, ok := m.(interface{ GetStatus() *rmqpb.Status }); ok {
		return m.GetStatus()
	}
	return nil
}

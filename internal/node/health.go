package node

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// A healthService is the standard health service, whose Watch calls end when
// the node drains: their clients keep them open for ever, and a graceful stop
// waits for them.
type healthService struct {
	*health.Server
	draining <-chan struct{}
}

// Watch implements healthpb.HealthServer.
func (h healthService) Watch(req *healthpb.HealthCheckRequest, stream healthpb.Health_WatchServer) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		defer close(ended)
		ended <- h.Server.Watch(req, watchStream{stream, ctx})
	}()
	select {
	case err := <-ended:
		return err
	case <-h.draining:
		cancel()
		for range ended { // what comes says that it was canceled
		}
		// It may have been canceled before it had told. The error counts.
		_ = stream.Send(&healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_NOT_SERVING})
		return status.Error(codes.Unavailable, "the server is closing")
	}
}

// A watchStream ends with a context of its own.
type watchStream struct {
	grpc.ServerStreamingServer[healthpb.HealthCheckResponse]
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (w watchStream) Context() context.Context { return w.ctx }

package proxy

// PullMessage, UpdateOffset, GetOffset, QueryOffset, SyncLiteSubscription
//
// Behaviour: none is built. Each answers the status NOT_IMPLEMENTED in a normal
// response, PullMessage in its only frame: clients take a gRPC error for a
// broken connection.
//
// Codes: NOT_IMPLEMENTED, CLIENT_ID_REQUIRED.

import (
	"context"

	"google.golang.org/grpc"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
)

// notBuilt is the status of a call that this server does not have yet.
func (s *Server) notBuilt(ctx context.Context, what string) *rmqpb.Status {
	_, err := s.caller(ctx)
	if err == nil {
		err = notImplemented(what)
	}
	return s.statusOf(ctx, err)
}

func notImplemented(what string) error {
	return refuse(rmqpb.Code_NOT_IMPLEMENTED, "%s: %v by this server", what, mq.ErrNotImplemented)
}

// PullMessage is not implemented.
func (s *Server) PullMessage(_ *rmqpb.PullMessageRequest, stream grpc.ServerStreamingServer[rmqpb.PullMessageResponse]) error {
	return stream.Send(&rmqpb.PullMessageResponse{Content: &rmqpb.PullMessageResponse_Status{
		Status: s.notBuilt(stream.Context(), "PullMessage"),
	}})
}

// UpdateOffset is not implemented.
func (s *Server) UpdateOffset(ctx context.Context, _ *rmqpb.UpdateOffsetRequest) (*rmqpb.UpdateOffsetResponse, error) {
	return &rmqpb.UpdateOffsetResponse{Status: s.notBuilt(ctx, "UpdateOffset")}, nil
}

// GetOffset is not implemented.
func (s *Server) GetOffset(ctx context.Context, _ *rmqpb.GetOffsetRequest) (*rmqpb.GetOffsetResponse, error) {
	return &rmqpb.GetOffsetResponse{Status: s.notBuilt(ctx, "GetOffset")}, nil
}

// QueryOffset is not implemented.
func (s *Server) QueryOffset(ctx context.Context, _ *rmqpb.QueryOffsetRequest) (*rmqpb.QueryOffsetResponse, error) {
	return &rmqpb.QueryOffsetResponse{Status: s.notBuilt(ctx, "QueryOffset")}, nil
}

// SyncLiteSubscription is not implemented.
func (s *Server) SyncLiteSubscription(ctx context.Context, _ *rmqpb.SyncLiteSubscriptionRequest) (*rmqpb.SyncLiteSubscriptionResponse, error) {
	return &rmqpb.SyncLiteSubscriptionResponse{Status: s.notBuilt(ctx, "SyncLiteSubscription")}, nil
}

package proxy

// EndTransaction, RecallMessage
//
// Behaviour: none is built. Each answers the status NOT_IMPLEMENTED in a normal
// response: clients take a gRPC error for a broken connection.
//
// Codes: NOT_IMPLEMENTED, CLIENT_ID_REQUIRED.

import (
	"context"

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

// EndTransaction is not implemented.
func (s *Server) EndTransaction(ctx context.Context, _ *rmqpb.EndTransactionRequest) (*rmqpb.EndTransactionResponse, error) {
	return &rmqpb.EndTransactionResponse{Status: s.notBuilt(ctx, "EndTransaction")}, nil
}

// RecallMessage is not implemented.
func (s *Server) RecallMessage(ctx context.Context, _ *rmqpb.RecallMessageRequest) (*rmqpb.RecallMessageResponse, error) {
	return &rmqpb.RecallMessageResponse{Status: s.notBuilt(ctx, "RecallMessage")}, nil
}

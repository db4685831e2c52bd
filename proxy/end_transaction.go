package proxy

// EndTransaction
//
// Fields honoured: topic, message_id, transaction_id (as SendMessage or a question of the
// server has given it), resolution. The source and the trace context change nothing.
//
// Behaviour: COMMIT makes the half message visible to consumers, ROLLBACK drops it for
// good; the answer OK means that it is done and as durable as a send. Any server takes it,
// at any time in the life of the half message, also when its producer is not asked any
// more. The same resolution again is OK while the end of the transaction is remembered. A
// resolution that is not set says that the producer does not know yet: the message stays
// as it is, and is asked about later.
//
// Codes: OK, CLIENT_ID_REQUIRED, ILLEGAL_TOPIC, TOPIC_NOT_FOUND, BAD_REQUEST (an unknown
// resolution); INVALID_TRANSACTION_ID for a transaction_id that cannot be read, is of
// another message or topic, or of a transaction that never was, is not remembered any
// more, or has ended the other way; the text says which of it. And what the store
// answers: TOO_MANY_REQUESTS, PROXY_TIMEOUT, INTERNAL_SERVER_ERROR.
//
// Upstream takes it only where the message was sent and for half a minute, and its OK
// means that it was passed on.

import (
	"context"
	"fmt"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/receipt"
)

// EndTransaction commits a half message or rolls it back.
func (s *Server) EndTransaction(ctx context.Context, req *rmqpb.EndTransactionRequest) (*rmqpb.EndTransactionResponse, error) {
	return &rmqpb.EndTransactionResponse{Status: s.statusOf(ctx, s.endTransaction(ctx, req))}, nil
}

func (s *Server) endTransaction(ctx context.Context, req *rmqpb.EndTransactionRequest) error {
	c, err := s.caller(ctx)
	if err != nil {
		return err
	}
	name := c.resource(req.GetTopic())
	if err := validateTopic(name); err != nil {
		return err
	}
	resolution := req.GetResolution()
	if _, known := rmqpb.TransactionResolution_name[int32(resolution)]; !known {
		return refuse(rmqpb.Code_BAD_REQUEST, "resolution %d: must be COMMIT or ROLLBACK, or not set", resolution)
	}
	handle, err := receipt.DecodePending(req.GetTransactionId())
	if err != nil {
		return invalidTransaction("of %d characters: %v", len(req.GetTransactionId()), err)
	}
	if handle.MessageID != req.GetMessageId() {
		return invalidTransaction("is of another message than message_id %q", mq.Shorten(req.GetMessageId()))
	}
	topic, err := s.router.Topic(ctx, name)
	if err != nil {
		return err
	}
	if handle.Topic != topic.ID {
		return invalidTransaction("is of another topic than %q, or of an earlier one of that name", mq.Shorten(name.String()))
	}
	if resolution == rmqpb.TransactionResolution_TRANSACTION_RESOLUTION_UNSPECIFIED {
		return nil
	}
	if err := s.opts.Transactions.EndTransaction(ctx, handle, resolution == rmqpb.TransactionResolution_COMMIT); err != nil {
		return fmt.Errorf("resolution %s, transaction_id of message %q: %w", resolution, mq.Shorten(handle.MessageID), err)
	}
	return nil
}

func invalidTransaction(format string, args ...any) error {
	return refuse(rmqpb.Code_INVALID_TRANSACTION_ID, "transaction_id "+format, args...)
}

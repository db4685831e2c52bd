package proxy

import (
	"context"
	"fmt"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/receipt"
)

// RecallMessage takes a delayed message back.
//
// Fields: topic, and recall_handle as SendMessage has given it.
//
// Answer: OK and the message id when the message is not delivered and never will be. To
// recall it again is OK too, so that a call can be repeated when its answer was lost; that
// it was recalled is known until its time of delivery, and for a day at least.
//
// Codes: OK, ILLEGAL_TOPIC, TOPIC_NOT_FOUND; BAD_REQUEST for a handle that cannot be
// read, or is of another topic or another deployment, and when the message waits no more:
// it was delivered, cancelled with its topic, or recalled long ago. The SDKs for Node.js
// and Python take MESSAGE_NOT_FOUND for OK in every call.
//
// Upstream refuses all recalls until it is told otherwise, answers OK when the message
// was delivered already, and finds messages by their id alone, so that it may hit the
// one of another topic.
func (s *Server) RecallMessage(ctx context.Context, req *rmqpb.RecallMessageRequest) (*rmqpb.RecallMessageResponse, error) {
	id, err := s.recall(ctx, req)
	return &rmqpb.RecallMessageResponse{Status: s.statusOf(ctx, err), MessageId: id}, nil
}

func (s *Server) recall(ctx context.Context, req *rmqpb.RecallMessageRequest) (id string, err error) {
	c, err := s.caller(ctx)
	if err != nil {
		return "", err
	}
	name := c.resource(req.GetTopic())
	if err := validateTopic(name); err != nil {
		return "", err
	}
	handle, err := receipt.DecodePending(req.GetRecallHandle())
	if err != nil {
		return "", fmt.Errorf("recall_handle of %d characters: %w", len(req.GetRecallHandle()), err)
	}
	topic, err := s.router.Topic(ctx, name)
	if err != nil {
		return "", err
	}
	if handle.Topic != topic.ID {
		return "", fmt.Errorf("recall_handle: %w: it is of another topic than %q, or of an earlier one of that name",
			mq.ErrInvalidHandle, mq.Shorten(name.String()))
	}
	if err := s.store.Recall(ctx, []mq.PendingHandle{handle})[0]; err != nil {
		return "", fmt.Errorf("recall_handle of message %q: %w", mq.Shorten(handle.MessageID), err)
	}
	return handle.MessageID, nil
}

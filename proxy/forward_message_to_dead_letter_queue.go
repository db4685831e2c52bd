package proxy

import (
	"context"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
)

// ForwardMessageToDeadLetterQueue moves a delivery to the dead-letter topic of
// its group, in one step with the end of the delivery.
//
// Fields: group, topic, receipt_handle. message_id, delivery_attempt,
// max_delivery_attempts and lite_topic are the client's own and have no effect.
// Any kind of consumer may call it.
//
// Codes: OK, also when the delivery is over already or its topic or group is
// gone: clients repeat the call until they read OK, and there is nothing left to
// move. ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP; INVALID_RECEIPT_HANDLE for a
// handle that cannot be read or is of another topic or group.
//
// Apache's server writes the copy and acknowledges the original in two steps;
// when the second one is lost there are two messages.
func (s *Server) ForwardMessageToDeadLetterQueue(ctx context.Context, req *rmqpb.ForwardMessageToDeadLetterQueueRequest) (*rmqpb.ForwardMessageToDeadLetterQueueResponse, error) {
	return &rmqpb.ForwardMessageToDeadLetterQueueResponse{Status: s.statusOf(ctx, s.forward(ctx, req))}, nil
}

func (s *Server) forward(ctx context.Context, req *rmqpb.ForwardMessageToDeadLetterQueueRequest) error {
	v, err := s.settlementOf(ctx, req.GetGroup(), req.GetTopic())
	if err != nil {
		return err
	}
	l, err := v.lease(req.GetReceiptHandle())
	if err == nil {
		err = s.store.DeadLetter(ctx, l)
		if err == nil || leaseOver(err) {
			s.renewals.drop(l)
		}
	}
	if leaseOver(err) {
		return nil
	}
	return err
}

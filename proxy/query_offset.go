package proxy

// QueryOffset
//
// Fields honoured: message_queue.topic, .id and .broker.name (may be empty where the
// topic is on one shard); query_offset_policy; timestamp with TIMESTAMP.
//
// Behaviour: BEGINNING is the offset of the oldest message kept, END the one that the
// next message will get. TIMESTAMP is the first message stored at or after the time: the
// beginning when all are, the end when none is. The time is that of store_timestamp, to
// the nanosecond. A queue that holds nothing has one offset for all three.
//
// Codes: OK, CLIENT_ID_REQUIRED, ILLEGAL_TOPIC, BAD_REQUEST (policy, timestamp,
// namespace, no broker where there are several), TOPIC_NOT_FOUND (no such topic, or no
// such queue).

import (
	"context"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
)

// QueryOffset answers an offset of a queue.
func (s *Server) QueryOffset(ctx context.Context, req *rmqpb.QueryOffsetRequest) (*rmqpb.QueryOffsetResponse, error) {
	offset, err := s.queryOffset(ctx, req)
	return &rmqpb.QueryOffsetResponse{Status: s.statusOf(ctx, err), Offset: int64(offset)}, nil
}

func (s *Server) queryOffset(ctx context.Context, req *rmqpb.QueryOffsetRequest) (mq.QueueOffset, error) {
	c, err := s.caller(ctx)
	if err != nil {
		return 0, err
	}
	policy := req.GetQueryOffsetPolicy()
	switch policy {
	case rmqpb.QueryOffsetPolicy_BEGINNING, rmqpb.QueryOffsetPolicy_END:
	case rmqpb.QueryOffsetPolicy_TIMESTAMP:
		if req.Timestamp == nil || !req.Timestamp.IsValid() {
			return 0, refuse(rmqpb.Code_BAD_REQUEST, "timestamp %q: the policy TIMESTAMP needs a point in time", req.GetTimestamp())
		}
	default:
		return 0, refuse(rmqpb.Code_BAD_REQUEST, "query_offset_policy %d: must be BEGINNING, END or TIMESTAMP", policy)
	}
	at, r, err := s.queueOf(ctx, c, req.GetMessageQueue())
	switch {
	case err != nil:
		return 0, err
	case policy == rmqpb.QueryOffsetPolicy_BEGINNING:
		return r.Min, nil
	case policy == rmqpb.QueryOffsetPolicy_END:
		return r.Next, nil
	}
	return s.store.OffsetAt(ctx, at.shard, at.topic, at.queue, req.GetTimestamp().AsTime())
}

package proxy

// UpdateOffset
//
// Fields honoured: group; message_queue.topic, .id and .broker.name (may be empty where
// the topic is on one shard); offset.
//
// Behaviour: sets the progress of the group in the queue, the same that its receives move
// on. The last one wins; going back is allowed, and what lies between is delivered again,
// acknowledged or not. What is under delivery from the offset on ends: its receipts answer
// as those of ended deliveries, and it comes again as for the first time. What is under
// delivery before the offset stays so. A group that does not exist is made where the
// server makes groups. That the offset was set is on disk when the answer is OK, as
// an acknowledgement is.
//
// Codes: OK, CLIENT_ID_REQUIRED, ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP, BAD_REQUEST
// (namespace, no broker where there are several), TOPIC_NOT_FOUND (no such topic, or no
// such queue), CONSUMER_GROUP_NOT_FOUND, ILLEGAL_OFFSET (before the oldest message kept, or
// beyond the end of the queue; nothing is changed).

import (
	"context"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
)

// UpdateOffset sets where a group is in a queue.
func (s *Server) UpdateOffset(ctx context.Context, req *rmqpb.UpdateOffsetRequest) (*rmqpb.UpdateOffsetResponse, error) {
	return &rmqpb.UpdateOffsetResponse{Status: s.statusOf(ctx, s.updateOffset(ctx, req))}, nil
}

func (s *Server) updateOffset(ctx context.Context, req *rmqpb.UpdateOffsetRequest) error {
	c, err := s.caller(ctx)
	if err != nil {
		return err
	}
	name := c.resource(req.GetGroup())
	if err := validateGroup(name); err != nil {
		return err
	}
	at, r, err := s.queueOf(ctx, c, req.GetMessageQueue())
	if err != nil {
		return err
	}
	offset := mq.QueueOffset(req.GetOffset())
	if offset < r.Min || offset > r.Next { // before a group is made for it
		return &mq.OffsetError{Topic: at.topic.Resource, Queue: at.queue, Offset: offset, Min: r.Min, Next: r.Next}
	}
	group, err := s.router.EnsureGroup(ctx, name)
	if err != nil {
		return err
	}
	if on, _ := at.topic.On(at.shard); group.FIFO && on.Use != mq.ShardOpen {
		return refuse(rmqpb.Code_FORBIDDEN, "message_queue.broker.name %q: topic %q leaves it, and group %q is FIFO: set it in all queues at a time, with perigee group reset-offset",
			at.shard, at.topic.Resource, group.Resource)
	}
	_, err = s.store.SetOffset(ctx, at.shard, mq.OffsetSet{
		Topic: at.topic, Group: group, Offsets: map[mq.QueueID]mq.QueueOffset{at.queue: offset},
	})
	return err
}

package proxy

// GetOffset
//
// Fields honoured: group; message_queue.topic, .id and .broker.name (may be empty where
// the topic is on one shard).
//
// Behaviour: answers the progress of the group in the queue: the offset of the first
// message that it was never given. Messages before it may still be under delivery, or
// wait to be delivered again: that is what an acknowledgement is for, and
// perigee group describe shows how many. A group that only pulls is where it has said
// with UpdateOffset. A beginning that has moved past the progress counts as progress.
// Nothing is made: neither the group nor a place in the queue.
//
// Codes: OK, CLIENT_ID_REQUIRED, ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP, BAD_REQUEST
// (namespace, no broker where there are several), TOPIC_NOT_FOUND (no such topic, or no
// such queue), OFFSET_NOT_FOUND (also for a group that does not exist).

import (
	"context"
	"errors"
	"fmt"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
)

// GetOffset answers where a group is in a queue.
func (s *Server) GetOffset(ctx context.Context, req *rmqpb.GetOffsetRequest) (*rmqpb.GetOffsetResponse, error) {
	offset, err := s.getOffset(ctx, req)
	return &rmqpb.GetOffsetResponse{Status: s.statusOf(ctx, err), Offset: int64(offset)}, nil
}

func (s *Server) getOffset(ctx context.Context, req *rmqpb.GetOffsetRequest) (mq.QueueOffset, error) {
	c, err := s.caller(ctx)
	if err != nil {
		return 0, err
	}
	name := c.resource(req.GetGroup())
	if err := validateGroup(name); err != nil {
		return 0, err
	}
	at, _, err := s.queueOf(ctx, c, req.GetMessageQueue())
	if err != nil {
		return 0, err
	}
	group, err := s.router.Group(ctx, name)
	if errors.Is(err, mq.ErrGroupNotFound) {
		return 0, fmt.Errorf("group %s does not exist: %w", name, mq.ErrOffsetNotFound)
	}
	if err != nil {
		return 0, err
	}
	positions, err := s.store.Positions(ctx, at.shard, at.topic.ID, group.ID)
	if err != nil {
		return 0, err
	}
	if int(at.queue) >= len(positions) || !positions[at.queue].Known {
		return 0, fmt.Errorf("group %s has no place in queue %d of topic %s: %w", name, at.queue, at.topic.Resource, mq.ErrOffsetNotFound)
	}
	return positions[at.queue].Offset, nil
}

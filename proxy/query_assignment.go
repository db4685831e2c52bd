package proxy

// QueryAssignment
//
// Fields honoured: topic, group, endpoints.
//
// Behaviour: every member of a group gets the same assignments, because a
// receive takes from all queues of a shard and messages are leased one by one.
// So there is one assignment for each shard with a readable queue, with queue
// id 0 (the Node.js SDK keeps no other). Of a FIFO group each readable queue is
// assigned, so that a client may work on several message groups at a time. A
// missing group is made where the router does that.
//
// Codes: OK, CLIENT_ID_REQUIRED, ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP,
// BAD_REQUEST (namespace), TOPIC_NOT_FOUND, CONSUMER_GROUP_NOT_FOUND, FORBIDDEN
// (nothing is readable), ILLEGAL_ACCESS_POINT.
//
// Upstream answers non-FIFO groups with queue id -1 and without accepted types.

import (
	"context"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
)

// QueryAssignment answers which queues a push consumer receives from.
func (s *Server) QueryAssignment(ctx context.Context, req *rmqpb.QueryAssignmentRequest) (*rmqpb.QueryAssignmentResponse, error) {
	assignments, err := s.assign(ctx, req)
	return &rmqpb.QueryAssignmentResponse{Status: s.statusOf(ctx, err), Assignments: assignments}, nil
}

func (s *Server) assign(ctx context.Context, req *rmqpb.QueryAssignmentRequest) ([]*rmqpb.Assignment, error) {
	c, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	// Everything that can be wrong is looked at before a topic could be made.
	endpoints, err := s.reachable(ctx, req.GetEndpoints())
	if err != nil {
		return nil, err
	}
	if err := validateGroup(c.resource(req.GetGroup())); err != nil {
		return nil, err
	}
	topic, err := s.ensureTopic(ctx, c, req.GetTopic())
	if err != nil {
		return nil, err
	}
	group, err := s.ensureGroup(ctx, c, req.GetGroup())
	if err != nil {
		return nil, err
	}
	view := queueView{name: req.GetTopic(), types: acceptedTypes(topic), endpoints: endpoints}
	var assignments []*rmqpb.Assignment
	for _, shard := range topic.Shards {
		for id := range shard.Read {
			if id > 0 && !group.FIFO {
				break
			}
			if p := queuePermission(topic, shard, id); p.CanRead() {
				assignments = append(assignments, &rmqpb.Assignment{MessageQueue: view.queue(shard.Shard, id, p)})
			}
		}
	}
	if len(assignments) == 0 {
		return nil, refuse(rmqpb.Code_FORBIDDEN, "topic %q has no readable queue", topic.Resource)
	}
	return assignments, nil
}

package proxy

// QueryRoute
//
// Fields honoured: topic, endpoints.
//
// Behaviour: one queue for each queue id of each shard, in the order of shard
// and id, with what the topic and the queue numbers of the shard permit. Ids
// that permit nothing are left out; a topic that permits nothing at all shows
// its first queue on each shard with permission NONE, so that clients go on
// sending heartbeats. Broker id is always 0; the broker's name is the shard's.
// Every broker has the endpoints under which the client reached this server, or
// the advertised address. The topic is echoed as it was sent.
//
// Codes: OK, CLIENT_ID_REQUIRED, ILLEGAL_TOPIC, BAD_REQUEST (namespace),
// TOPIC_NOT_FOUND, ILLEGAL_ACCESS_POINT (no usable endpoints anywhere).
//
// Upstream also lists replicas, puts its own port into the endpoints, orders
// read-only ids before the others, and serves routes up to 20 s old.

import (
	"context"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
)

// QueryRoute answers where the queues of a topic are.
func (s *Server) QueryRoute(ctx context.Context, req *rmqpb.QueryRouteRequest) (*rmqpb.QueryRouteResponse, error) {
	queues, err := s.route(ctx, req)
	return &rmqpb.QueryRouteResponse{Status: s.statusOf(ctx, err), MessageQueues: queues}, nil
}

func (s *Server) route(ctx context.Context, req *rmqpb.QueryRouteRequest) ([]*rmqpb.MessageQueue, error) {
	c, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	// Everything that can be wrong is looked at before a topic could be made.
	endpoints, err := s.reachable(ctx, req.GetEndpoints())
	if err != nil {
		return nil, err
	}
	topic, err := s.ensureTopic(ctx, c, req.GetTopic())
	if err != nil {
		return nil, err
	}
	view := queueView{name: req.GetTopic(), types: acceptedTypes(topic), endpoints: endpoints}
	var queues []*rmqpb.MessageQueue
	for _, shard := range topic.Shards {
		for id := range shard.Queues() {
			if p := queuePermission(topic, shard, id); p != mq.PermNone {
				queues = append(queues, view.queue(shard.Shard, id, p))
			}
		}
	}
	if len(queues) > 0 {
		return queues, nil
	}
	for _, shard := range topic.Shards {
		queues = append(queues, view.queue(shard.Shard, 0, mq.PermNone))
	}
	return queues, nil
}

// queuePermission returns what clients may do with one queue: what the topic
// permits, as far as the queue is one of the readable or writable ones; of a shard that the
// topic leaves none is writable.
func queuePermission(t *mq.Topic, s mq.ShardQueues, id int32) mq.Permission {
	read := t.Permission.CanRead() && id < s.Read
	write := t.Permission.CanWrite() && id < s.Writable()
	switch {
	case read && write:
		return mq.PermReadWrite
	case read:
		return mq.PermRead
	case write:
		return mq.PermWrite
	default:
		return mq.PermNone
	}
}

func acceptedTypes(t *mq.Topic) []rmqpb.MessageType {
	var types []rmqpb.MessageType
	for _, m := range t.Type.MessageTypes() {
		types = append(types, rmqpb.MessageType(m))
	}
	return types
}

// A queueView is what the queues of one answer have in common.
type queueView struct {
	name      *rmqpb.Resource // as the client sent it
	types     []rmqpb.MessageType
	endpoints *rmqpb.Endpoints
}

func (v queueView) queue(shard string, id int32, p mq.Permission) *rmqpb.MessageQueue {
	return &rmqpb.MessageQueue{
		Topic:              v.name,
		Id:                 id,
		Permission:         rmqpb.Permission(p),
		Broker:             &rmqpb.Broker{Name: shard, Id: 0, Endpoints: v.endpoints},
		AcceptMessageTypes: v.types,
	}
}

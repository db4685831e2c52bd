package proxy

import (
	"context"
	"errors"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
)

// A queueAt is the one queue that a request names.
type queueAt struct {
	topic *mq.Topic
	shard string
	queue mq.QueueID
}

// queueOf returns the queue that a request names, and what it holds. Unlike a receive the
// calls about offsets are about this very queue: the broker's name may be left out
// where the topic is on one shard only.
func (s *Server) queueOf(ctx context.Context, c client, named *rmqpb.MessageQueue) (queueAt, mq.QueueRange, error) {
	at := queueAt{queue: mq.QueueID(named.GetId())}
	name := c.resource(named.GetTopic())
	if err := validateTopic(name); err != nil {
		return at, mq.QueueRange{}, err
	}
	var err error
	if at.topic, err = s.router.Topic(ctx, name); err != nil {
		return at, mq.QueueRange{}, err
	}
	if at.shard, err = shardNamed(at.topic, named.GetBroker().GetName()); err != nil {
		return at, mq.QueueRange{}, err
	}
	r, err := s.store.Range(ctx, at.shard, at.topic, at.queue)
	if errors.Is(err, mq.ErrQueueNotFound) {
		err = refuse(rmqpb.Code_TOPIC_NOT_FOUND, "message_queue.id %d: there is no such queue of topic %q on %q", named.GetId(), at.topic.Resource, at.shard)
	}
	return at, r, err
}

// shardNamed returns the shard that a broker's name stands for.
func shardNamed(t *mq.Topic, broker string) (string, error) {
	if broker == "" && len(t.Shards) == 1 {
		return t.Shards[0].Shard, nil
	}
	if broker == "" {
		return "", refuse(rmqpb.Code_BAD_REQUEST, "message_queue.broker.name %q: topic %q is on %d shards, say which", broker, t.Resource, len(t.Shards))
	}
	if _, err := t.On(broker); err != nil {
		return "", refuse(rmqpb.Code_TOPIC_NOT_FOUND, "message_queue.broker.name %q: topic %q has no queue there", mq.Shorten(broker), t.Resource)
	}
	return broker, nil
}

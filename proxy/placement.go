package proxy

import (
	"fmt"
	"math/rand/v2"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
)

// place returns the queue that the messages of a request go to: that whose turn it is, or
// on a PRIORITY topic the one of their priority, on any shard that has it. The topic accepts the types
// of the messages. The error matches mq.ErrForbidden when nothing is writable.
func (s *Server) place(topic *mq.Topic, msgs []*rmqpb.Message) (shard string, queue mq.QueueID, err error) {
	if topic.Type != mq.TopicPriority {
		return s.rotation.next(topic)
	}
	first := msgs[0].GetSystemProperties().GetPriority()
	queue = topic.PriorityQueue(first)
	for i, m := range msgs {
		p := m.GetSystemProperties().GetPriority()
		if other := topic.PriorityQueue(p); other != queue {
			return "", 0, refuse(rmqpb.Code_BAD_REQUEST,
				"%spriority %d: belongs in queue %d, and priority %d of the first message in queue %d; the messages of a request go to one queue",
				position(i, len(msgs)), p, other, first, queue)
		}
	}
	has := topic.ShardsWith(queue)
	if len(has) == 0 || !topic.Permission.CanWrite() {
		return "", 0, fmt.Errorf("%w: topic %q has no writable queue", mq.ErrForbidden, topic.Resource)
	}
	// By chance and not in turn: in turn, a producer whose priorities come in a rhythm
	// would send each of them to one shard.
	return has[rand.IntN(len(has))], queue, nil
}

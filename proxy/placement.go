package proxy

import (
	"cmp"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
)

// place returns the queue of the messages: that of their message group, on a PRIORITY topic
// that of their priority, else the one whose turn it is; on several shards that of the first
// message id, on a PRIORITY topic the shard of it. One request is stored in one queue,
// all or nothing, so its messages must agree on it. The topic accepts the types of the
// messages. The error matches mq.ErrForbidden when nothing is writable, or is a *codeError.
func (s *Server) place(t *mq.Topic, msgs []*rmqpb.Message) (shard string, queue mq.QueueID, err error) {
	switch t.Type {
	case mq.TopicPriority:
		return placeByPriority(t, msgs)
	case mq.TopicLite:
		return placeLite(t, msgs)
	}
	group, err := groupOf(msgs)
	if err != nil {
		return "", 0, err
	}
	if group == "" && len(t.Shards) == 1 {
		return s.rotation.next(t)
	}
	at := t.QueueOf
	if group == "" {
		// A send that comes again must come to the shard that knows the first one.
		at, group = t.QueueFor, msgs[0].GetSystemProperties().GetMessageId()
	}
	shard, queue, ok := at(group)
	if !ok || !t.Permission.CanWrite() {
		return "", 0, noWritableQueue(t)
	}
	return shard, queue, nil
}

// groupOf returns the message group of the messages, empty when they have none. There may
// be one only; messages without one go along.
func groupOf(msgs []*rmqpb.Message) (group string, err error) {
	for i, m := range msgs {
		g := m.GetSystemProperties().GetMessageGroup()
		if g != "" && group != "" && g != group {
			return "", refuse(rmqpb.Code_ILLEGAL_MESSAGE_GROUP, "%smessage_group %q: the messages of one request must have one message group, the ones before have %q",
				position(i, len(msgs)), g, group)
		}
		group = cmp.Or(group, g)
	}
	return group, nil
}

// placeByPriority returns the queue of the priority of the messages, on a shard that has it:
// that of the first message id.
func placeByPriority(t *mq.Topic, msgs []*rmqpb.Message) (shard string, queue mq.QueueID, err error) {
	first := msgs[0].GetSystemProperties().GetPriority()
	queue = t.PriorityQueue(first)
	for i, m := range msgs {
		p := m.GetSystemProperties().GetPriority()
		if other := t.PriorityQueue(p); other != queue {
			return "", 0, refuse(rmqpb.Code_BAD_REQUEST,
				"%spriority %d: belongs in queue %d, and priority %d of the first message in queue %d; the messages of a request go to one queue",
				position(i, len(msgs)), p, other, first, queue)
		}
	}
	// A send that comes again must come to the shard that knows the first one.
	shard, ok := t.ShardOf(queue, msgs[0].GetSystemProperties().GetMessageId())
	if !ok || !t.Permission.CanWrite() {
		return "", 0, noWritableQueue(t)
	}
	return shard, queue, nil
}

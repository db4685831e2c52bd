package proxy

// SendMessage
//
// Fields honoured: of each message topic, user_properties, body, and of its
// system properties tag, keys, message_id, body_digest (verified when there is
// one), body_encoding, message_type (derived when missing), born_timestamp,
// born_host, delivery_timestamp, message_group, trace_context,
// orphaned_transaction_recovery_duration, lite_topic, priority. The queue id and
// the broker are the server's choice; the rest is the server's to say.
//
// Behaviour: all or nothing. Every message is checked before any is stored. The
// messages of a request go to one queue, contiguous and in their order; requests
// take turns over the writable queues, those with a message group go to its queue. Each gets an entry, in order, with its own
// id and offset and the status of the request; transaction_id is the message id,
// as SDKs expect of every message. Only NORMAL and FIFO messages are built. A message that was
// sent before inside the topic's dedup window, by id and content, is not stored again: it
// gets the first answer.
//
// A refusal has a status and no entries. Upstream does the same, so every SDK
// reads it: they look at the status before they look for an entry.
//
// Codes: OK, CLIENT_ID_REQUIRED, those of validate_message.go, TOPIC_NOT_FOUND,
// FORBIDDEN, NOT_IMPLEMENTED (a type the topic accepts and this server does not),
// PAYLOAD_TOO_LARGE, and what the store answers: TOO_MANY_REQUESTS,
// PROXY_TIMEOUT, INTERNAL_SERVER_ERROR.
//
// Upstream checks the type of the first message only, answers a batch with one
// entry of joined ids, ignores body_digest, and reports a missing topic as a
// conflict of types.

import (
	"cmp"
	"context"
	"errors"
	"time"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/proxy/wire"
)

// SendMessage stores the messages of one request.
func (s *Server) SendMessage(ctx context.Context, req *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
	stored, err := s.append(ctx, req.GetMessages())
	status := s.statusOf(ctx, err)
	if err != nil {
		return &rmqpb.SendMessageResponse{Status: status}, nil
	}
	entries := make([]*rmqpb.SendResultEntry, len(req.GetMessages()))
	for i, m := range req.GetMessages() {
		id := m.GetSystemProperties().GetMessageId()
		entries[i] = &rmqpb.SendResultEntry{
			Status: status, MessageId: id, TransactionId: id, Offset: int64(stored[i].Offset),
		}
	}
	return &rmqpb.SendMessageResponse{Status: status, Entries: entries}, nil
}

func (s *Server) append(ctx context.Context, msgs []*rmqpb.Message) ([]mq.Appended, error) {
	c, err := s.caller(ctx)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	limits := messageLimits{body: s.opts.MaxBodySize, batch: s.opts.MaxBatchSize}
	if err := limits.validate(msgs, c, now); err != nil {
		return nil, err
	}
	topic, err := s.topicFor(ctx, c, msgs)
	if err != nil {
		return nil, err
	}
	shard, queue, err := s.place(topic, msgs)
	if err != nil {
		return nil, err
	}
	stored, err := convertMessages(msgs, wire.Arrival{Time: now, PeerHost: c.Host})
	if err != nil {
		return nil, err
	}
	return s.store.Append(ctx, shard, topic, queue, stored)
}

// place returns the queue of the messages: that of their message group, else the one whose
// turn it is. One request is stored in one queue, all or nothing, so it may have one
// message group only; those without one go along. The error matches mq.ErrForbidden, or
// is a *codeError.
func (s *Server) place(t *mq.Topic, msgs []*rmqpb.Message) (shard string, queue mq.QueueID, err error) {
	if t.Type == mq.TopicLite {
		return placeLite(t, msgs)
	}
	group := ""
	for i, m := range msgs {
		g := m.GetSystemProperties().GetMessageGroup()
		if g != "" && group != "" && g != group {
			return "", 0, refuse(rmqpb.Code_ILLEGAL_MESSAGE_GROUP, "%smessage_group %q: the messages of one request must have one message group, the ones before have %q",
				position(i, len(msgs)), g, group)
		}
		group = cmp.Or(group, g)
	}
	if group == "" {
		return s.rotation.next(t)
	}
	shard, queue, ok := t.QueueOf(group)
	if !ok || !t.Permission.CanWrite() {
		return "", 0, noWritableQueue(t)
	}
	return shard, queue, nil
}

// topicFor returns the topic of the messages if it takes them. A topic that is made
// because they are sent to it is NORMAL; it is not made for messages that it would
// then refuse.
func (s *Server) topicFor(ctx context.Context, c client, msgs []*rmqpb.Message) (*mq.Topic, error) {
	topic, err := s.router.Topic(ctx, c.resource(msgs[0].GetTopic()))
	if errors.Is(err, mq.ErrTopicNotFound) {
		if checkTypes(&mq.Topic{Resource: c.resource(msgs[0].GetTopic()), Type: mq.TopicNormal}, msgs) != nil {
			return nil, err
		}
		topic, err = s.ensureTopic(ctx, c, msgs[0].GetTopic())
	}
	if err != nil {
		return nil, err
	}
	return topic, checkTypes(topic, msgs)
}

// convertMessages returns the stored form of the messages. It writes the derived
// type into those that declare none.
func convertMessages(msgs []*rmqpb.Message, a wire.Arrival) ([]*mq.Message, error) {
	stored := make([]*mq.Message, len(msgs))
	for i, m := range msgs {
		m.SystemProperties.MessageType = typeOf(m)
		stored[i] = wire.FromProto(m, a)
		if size := len(stored[i].System) + len(stored[i].Properties); size > maxStoredProperties {
			return nil, refuse(rmqpb.Code_MESSAGE_PROPERTIES_TOO_LARGE,
				"%suser_properties and system_properties, born_host and trace_context among them, take %d bytes, the limit is %d",
				position(i, len(msgs)), size, maxStoredProperties)
		}
	}
	return stored, nil
}

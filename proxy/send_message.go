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
// take turns over the writable queues, those with a message group go to its queue, and
// those of a PRIORITY topic to that of their priority, or the last one that is writable; on
// several shards the first message id says on which, so that a repeat meets the first
// try; a request whose messages belong in several queues is refused.
// Each gets an entry, in order, with its own id and offset and the status of the request;
// transaction_id is the message id, as SDKs expect of every message but a TRANSACTION
// message: that waits as a half message until EndTransaction names its transaction_id. All
// types but LITE are built. A DELAY message comes into its queue at its
// delivery_timestamp, at once when that is past; each of a batch has its own. One that
// waits has a recall_handle. What waits has offset 0. A DELAY message with the user
// property perigee.delay has its time by the server's clock, see delay.go. A message that was sent before
// inside the topic's dedup window, by id and content, is not stored again: it gets the
// first answer.
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
// conflict of types. It refuses delays of more than a day, and keeps them to the second.

import (
	"context"
	"errors"
	"slices"
	"time"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/proxy/wire"
	"github.com/perigee-mq/perigee/receipt"
)

// SendMessage stores the messages of one request.
func (s *Server) SendMessage(ctx context.Context, req *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
	stored, to, err := s.append(ctx, req.GetMessages())
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
		if stored[i].Pending == 0 {
			continue
		}
		to.ID, to.MessageID = stored[i].Pending, id
		switch typeOf(m) {
		case rmqpb.MessageType_DELAY:
			entries[i].RecallHandle = receipt.EncodePending(to)
		case rmqpb.MessageType_TRANSACTION:
			entries[i].TransactionId = receipt.EncodePending(to)
		}
	}
	return &rmqpb.SendMessageResponse{Status: status, Entries: entries}, nil
}

// append stores the messages. It returns what became of each, and a handle that names
// shard and topic.
func (s *Server) append(ctx context.Context, msgs []*rmqpb.Message) (stored []mq.Appended, to mq.PendingHandle, err error) {
	c, err := s.caller(ctx)
	if err != nil {
		return nil, to, err
	}
	now := time.Now()
	limits := messageLimits{body: s.opts.MaxBodySize, batch: s.opts.MaxBatchSize, delay: s.opts.MaxDelay}
	if err := limits.validate(msgs, c, now); err != nil {
		return nil, to, err
	}
	topic, err := s.topicFor(ctx, c, msgs)
	if err != nil {
		return nil, to, err
	}
	converted, err := convertMessages(msgs, wire.Arrival{Time: now, PeerHost: c.Host})
	if err != nil {
		return nil, to, err
	}
	stored, shard, err := s.storeIn(ctx, topic, msgs, converted)
	return stored, mq.PendingHandle{Shard: shard, Topic: topic.ID}, err
}

// anywhere reports whether the messages may be stored on any shard of the topic. Those of
// a message group, or of a lite topic, may not: it has one place.
func anywhere(t *mq.Topic, msgs []*rmqpb.Message) bool {
	return t.Type != mq.TopicLite && !slices.ContainsFunc(msgs, func(m *rmqpb.Message) bool { return m.GetSystemProperties().GetMessageGroup() != "" })
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
		delay := takeDelay(m, a.Time)
		stored[i] = wire.FromProto(m, a)
		if t := m.SystemProperties.GetDeliveryTimestamp(); t != nil && t.GetSeconds() > 0 { // before 1970 is past too
			stored[i].DeliverAt, stored[i].Delay = t.AsTime(), delay
		}
		stored[i].Recovery = m.SystemProperties.GetOrphanedTransactionRecoveryDuration().AsDuration()
		if size := len(stored[i].System) + len(stored[i].Properties); size > maxStoredProperties {
			return nil, refuse(rmqpb.Code_MESSAGE_PROPERTIES_TOO_LARGE,
				"%suser_properties and system_properties, born_host and trace_context among them, take %d bytes, the limit is %d",
				position(i, len(msgs)), size, maxStoredProperties)
		}
	}
	return stored, nil
}

package proxy

import (
	"context"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/proxy/quirks"
)

// Limits of a receive. Those of the durations and the batch are RocketMQ's.
const (
	maxReceiveBatch     = 32
	minReceiveInvisible = 10 * time.Second
	maxInvisible        = 12 * time.Hour
	maxAttemptID        = 255
	// errorPause is how long a call with an error answer takes at least. Two SDKs
	// ask again without a pause of their own.
	errorPause = time.Second
)

// ReceiveMessage leases messages to a consumer and streams them.
//
// Fields: group; message_queue.topic and message_queue.broker.name (empty or
// unknown: any shard of the topic; while that shard has nothing for a receive that waits, the
// others are asked too, see receive_shards.go; the queue id is not looked at, any queue of
// a shard serves); filter_expression (TAG, SQL); batch_size (below 1 counts as 1,
// above 32 as 32); invisible_duration (10 s to 12 h; ignored with auto_renew);
// auto_renew; long_polling_timeout (absent: that of the client's settings, else
// the deadline less 3 s; cut to the server's limit and to the deadline).
// attempt_id, of a group that is FIFO and with lite topics (one that was answered and not
// settled gives the same messages again, with the same receipt handles and attempts; 255
// bytes at most).
//
// From a topic of type LITE a client receives from the lite topics that it has synced, see
// SyncLiteSubscription, each in its order; filter_expression has no meaning.
//
// Of a group that is broadcast each client gets every message: it receives by an instance, a
// group that is made for it, begins behind the newest message and goes when the client was
// not seen for a day. The client names the group as ever, in this call and in others. Lite
// topics are not broadcast.
//
// A group that is FIFO is given no message before all earlier ones of its message group
// are settled or part of the same answer. One that is not reads a FIFO topic in any order,
// which is said in the text of the status, in the log once, and in the metrics.
//
// Answer: status, one frame for each message, then the time of delivery. Without
// a message: MESSAGE_NOT_FOUND at the end of the poll, see
// quirks.EmptyReceiveOK. Errors are held back for about a second.
//
// Codes: OK, MESSAGE_NOT_FOUND, BAD_REQUEST (attempt_id), ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP,
// TOPIC_NOT_FOUND, CONSUMER_GROUP_NOT_FOUND, FORBIDDEN (also when the permission
// goes while it waits; nothing is delivered then),
// ILLEGAL_FILTER_EXPRESSION (of SQL with the line and column), ILLEGAL_INVISIBLE_TIME,
// ILLEGAL_POLLING_TIME (BAD_REQUEST before 5.0.3) when the deadline is too short
// to poll and nothing is ready, TOO_MANY_REQUESTS (the group has as many messages
// in flight as it may, too many receives wait, as many clients are known as may be, or so much is on its way to consumers
// that do not read that no more is read into memory).
//
// Apache's server stretches every poll to five seconds, and counts a delivery
// that could not be written to the client.
func (s *Server) ReceiveMessage(req *rmqpb.ReceiveMessageRequest, stream grpc.ServerStreamingServer[rmqpb.ReceiveMessageResponse]) error {
	ctx, start := stream.Context(), time.Now()
	c, r, err := s.receiveOf(ctx, req)
	memory := s.shareOf(c, r.AutoRenew)
	defer memory.release()
	r.Reserve = memory.reserve
	var got []mq.Delivery
	if err == nil {
		got, err = s.receive(ctx, c, r, memory)
	}
	if err != nil {
		if !pause(ctx, min(errorPause-time.Since(start), room(ctx))) {
			s.lost(ctx, c, r)
			return ended(ctx)
		}
		return s.endReceive(stream, s.statusOf(ctx, err))
	}
	if len(got) == 0 {
		return s.endReceive(stream, r.empty(c))
	}
	return s.deliver(ctx, c, r, got, stream)
}

// A receive is a validated request.
type receive struct {
	mq.Receive
	shard      string
	named      mq.Resource // the group as the client names it
	expression string      // the filter as it came in
	short      bool        // the deadline leaves no time to poll
}

func (s *Server) receiveOf(ctx context.Context, req *rmqpb.ReceiveMessageRequest) (c client, r receive, err error) {
	if c, err = s.caller(ctx); err != nil {
		return c, r, err
	}
	groupName, topicName := c.resource(req.GetGroup()), c.resource(req.GetMessageQueue().GetTopic())
	if err := validateNames(groupName, topicName); err != nil {
		return c, r, err
	}
	if r.Tags, r.Filter, err = s.filters.of(req.GetFilterExpression()); err != nil {
		return c, r, err
	}
	r.expression = expressionOf(req.GetFilterExpression())
	if r.Attempt = req.GetAttemptId(); len(r.Attempt) > maxAttemptID {
		return c, r, refuse(rmqpb.Code_BAD_REQUEST, "attempt_id has %d bytes, the limit is %d", len(r.Attempt), maxAttemptID)
	}
	r.AutoRenew, r.Waited = req.GetAutoRenew(), waitedIn(ctx)
	r.InFlight = s.opts.InFlight
	r.Max = min(max(int(req.GetBatchSize()), 1), maxReceiveBatch)
	if r.Invisible, err = s.invisibleOf(req); err != nil {
		return c, r, err
	}
	if r.Wait, r.short, err = s.polling(ctx, c, req.LongPollingTimeout); err != nil {
		return c, r, err
	}
	if r.Topic, err = s.router.Topic(ctx, topicName); err != nil {
		return c, r, err
	}
	if err = mayReceive(r.Topic); err != nil {
		return c, r, err
	}
	if r.Group, err = s.router.EnsureGroup(ctx, groupName); err != nil {
		return c, r, err
	}
	if r.Topic.Type == mq.TopicLite {
		if err = s.checkLiteReceive(c, r.Topic, r.Group); err != nil {
			return c, r, err
		}
		r.Lite, r.Tags, r.Filter = c.ID, nil, nil
	}
	if r.named = r.Group.Resource; r.Group.Broadcast && r.Lite == "" {
		if r.Group, err = s.router.Instance(ctx, r.Group, c.ID); err != nil {
			return c, r, err
		}
	}
	r.shard, err = shardOf(r.Topic, req.GetMessageQueue().GetBroker().GetName())
	return c, r, err
}

func mayReceive(t *mq.Topic) error {
	if !t.Permission.CanRead() {
		return refuse(rmqpb.Code_FORBIDDEN, "topic %q does not permit receiving", t.Resource)
	}
	return nil
}

// validateNames checks the names that every call of a consumer carries.
func validateNames(group, topic mq.Resource) error {
	if err := validateGroup(group); err != nil {
		return err
	}
	return validateTopic(topic)
}

func (s *Server) invisibleOf(req *rmqpb.ReceiveMessageRequest) (time.Duration, error) {
	if req.GetAutoRenew() {
		return s.opts.RenewSlice, nil
	}
	return checkInvisible(req.GetInvisibleDuration(), minReceiveInvisible)
}

// checkInvisible returns the duration if it lies between least and the longest
// one there may be. None at all counts as 0.
func checkInvisible(d *durationpb.Duration, least time.Duration) (time.Duration, error) {
	v := d.AsDuration()
	if d != nil && d.CheckValid() != nil || v < least || v > maxInvisible {
		return 0, refuse(rmqpb.Code_ILLEGAL_INVISIBLE_TIME, "invisible_duration %v must lie between %v and %v", v, least, maxInvisible)
	}
	return v, nil
}

// shardOf returns the shard to receive from: the one named, if the topic has
// queues there, else any of the topic's.
func shardOf(t *mq.Topic, broker string) (string, error) {
	if _, err := t.On(broker); err == nil {
		return broker, nil
	}
	if len(t.Shards) == 0 {
		return "", refuse(rmqpb.Code_TOPIC_NOT_FOUND, "topic %q has no queue", t.Resource)
	}
	return t.Shards[rand.IntN(len(t.Shards))].Shard, nil
}

// receive takes messages from the store. Their leases are renewed from then on
// when the client asked for that and has not said goodbye meanwhile.
func (s *Server) receive(ctx context.Context, c client, r receive, memory *share) ([]mq.Delivery, error) {
	session, err := s.touch(c)
	if err != nil {
		return nil, err
	}
	s.unordered.note(ctx, r)
	session.Received(r.named, mq.Subscription{Topic: r.Topic.Resource, Expression: r.expression})
	// A shard that does not answer must not take the time to say so.
	inTime, cancelPoll := context.WithTimeout(ctx, room(ctx)+margin(ctx)/2)
	defer cancelPoll()
	poll, cancel := s.streams.untilDrained(inTime)
	defer cancel()
	s.beginOnAll(poll, r)
	got, err := s.fromShards(poll, r)
	if err != nil && poll.Err() != nil && inTime.Err() == nil {
		return nil, nil // draining: the poll ends early, and empty
	}
	if err != nil || len(got) == 0 {
		return nil, err
	}
	// The permission may have gone while the receive waited.
	if t, err := s.router.Topic(ctx, r.Topic.Resource); err == nil && t.ID == r.Topic.ID {
		if err := mayReceive(t); err != nil {
			s.giveBack(ctx, got)
			return nil, err
		}
	}
	if !r.AutoRenew {
		return got, nil
	}
	s.renewals.add(c, r.Group, got, memory.found)
	// Only now: a goodbye from here on finds what was added.
	if s.sessions.Get(c.ID) != session {
		s.giveBack(ctx, got)
		return nil, nil
	}
	return got, nil
}

// empty is the status of a poll that found nothing.
func (r *receive) empty(c client) *rmqpb.Status {
	switch {
	case r.short && quirks.KnowsIllegalPollingTime(c.Version):
		return &rmqpb.Status{Code: rmqpb.Code_ILLEGAL_POLLING_TIME, Message: "the deadline leaves no time to poll, and no message is ready"}
	case r.short:
		return &rmqpb.Status{Code: rmqpb.Code_BAD_REQUEST, Message: "the deadline leaves no time to poll, and no message is ready"}
	case quirks.EmptyReceiveOK(c.Language, r.AutoRenew || r.Lite != ""):
		return ok()
	default:
		return &rmqpb.Status{Code: rmqpb.Code_MESSAGE_NOT_FOUND, Message: "no message"}
	}
}

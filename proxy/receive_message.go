package proxy

import (
	"context"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/proxy/quirks"
	"github.com/perigee-mq/perigee/proxy/transport"
	"github.com/perigee-mq/perigee/proxy/wire"
	"github.com/perigee-mq/perigee/receipt"
)

// Limits of a receive. Those of the durations and the batch are RocketMQ's.
const (
	maxReceiveBatch     = 32
	minReceiveInvisible = 10 * time.Second
	maxInvisible        = 12 * time.Hour
	// answerMargin is how long before a client's deadline it gets its answer at
	// the latest: the Rust SDK polls exactly as long as its deadline is.
	answerMargin = time.Second
	// shortMargin is the margin of a deadline below shortDeadline.
	shortMargin   = 500 * time.Millisecond
	shortDeadline = 5 * time.Second
	// minPolling is the shortest time worth polling for when the client wants
	// more than its deadline leaves.
	minPolling = time.Second
	// deadlineSlack is what the SDKs add to their polling time to get a deadline.
	deadlineSlack = 3 * time.Second
	// errorPause is how long an error answer is held back. Two SDKs ask again
	// without a pause of their own.
	errorPause = time.Second
	// takeBackTimeout bounds the calls to the store after a client has gone.
	takeBackTimeout = 5 * time.Second
	// lostInvisible is how soon messages come back whose frames were written
	// and may have been lost with the call.
	lostInvisible = time.Second
)

// ReceiveMessage leases messages to a consumer and streams them.
//
// Fields: group; message_queue.topic and message_queue.broker.name (empty or
// unknown: any shard of the topic; the queue id is not looked at, any queue of
// the shard serves); filter_expression (TAG); batch_size (below 1 counts as 1,
// above 32 as 32); invisible_duration (10 s to 12 h; ignored with auto_renew);
// auto_renew; long_polling_timeout (absent: that of the client's settings, else
// the deadline less 3 s; cut to the server's limit and to the deadline).
// attempt_id is accepted and without effect: there are no FIFO groups yet.
//
// Answer: status, one frame for each message, then the time of delivery. Without
// a message: MESSAGE_NOT_FOUND at the end of the poll, see
// quirks.EmptyReceiveOK. Errors are held back for about a second.
//
// Codes: OK, MESSAGE_NOT_FOUND, ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP,
// TOPIC_NOT_FOUND, CONSUMER_GROUP_NOT_FOUND, FORBIDDEN,
// ILLEGAL_FILTER_EXPRESSION, UNSUPPORTED (SQL), ILLEGAL_INVISIBLE_TIME,
// ILLEGAL_POLLING_TIME (BAD_REQUEST before 5.0.3) when the deadline is too short
// to poll and nothing is ready, TOO_MANY_REQUESTS.
//
// Unlike Apache's server, a poll never ends early or below five seconds, and
// what cannot be written to the client goes back without counting as a delivery.
func (s *Server) ReceiveMessage(req *rmqpb.ReceiveMessageRequest, stream grpc.ServerStreamingServer[rmqpb.ReceiveMessageResponse]) error {
	ctx := stream.Context()
	c, r, err := s.receiveOf(ctx, req)
	var got []mq.Delivery
	if err == nil {
		got, err = s.receive(ctx, c, r)
	}
	if err != nil {
		if !pause(ctx, min(errorPause, room(ctx))) {
			return context.Cause(ctx)
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
	shard string
	short bool // the deadline leaves no time to poll
}

func (s *Server) receiveOf(ctx context.Context, req *rmqpb.ReceiveMessageRequest) (c client, r receive, err error) {
	if c, err = s.caller(ctx); err != nil {
		return c, r, err
	}
	groupName, topicName := c.resource(req.GetGroup()), c.resource(req.GetMessageQueue().GetTopic())
	if err := validateNames(groupName, topicName); err != nil {
		return c, r, err
	}
	if r.Tags, err = filterTags(req.GetFilterExpression()); err != nil {
		return c, r, err
	}
	r.AutoRenew = req.GetAutoRenew()
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
	if !r.Topic.Permission.CanRead() {
		return c, r, refuse(rmqpb.Code_FORBIDDEN, "topic %q does not permit receiving", topicName)
	}
	if r.Group, err = s.router.EnsureGroup(ctx, groupName); err != nil {
		return c, r, err
	}
	r.shard, err = shardOf(r.Topic, req.GetMessageQueue().GetBroker().GetName())
	return c, r, err
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

// polling returns how long the receive may wait, and whether the deadline is too
// short for the wait the client wants.
func (s *Server) polling(ctx context.Context, c client, asked *durationpb.Duration) (wait time.Duration, short bool, err error) {
	if asked == nil {
		if session := s.sessions.Get(c.ID); session != nil {
			asked = session.Settings().GetSubscription().GetLongPollingTimeout()
		}
	}
	left := room(ctx)
	switch {
	case asked == nil && hasDeadline(ctx):
		wait = left + margin(ctx) - deadlineSlack
		short = left < minPolling
	case asked == nil:
		wait = s.opts.MaxPolling
	case asked.CheckValid() != nil:
		return 0, false, refuse(rmqpb.Code_BAD_REQUEST, "long_polling_timeout %v is not a valid duration", asked)
	default:
		wait = min(asked.AsDuration(), s.opts.MaxPolling)
		short = wait > left && left < minPolling
	}
	if short {
		return 0, true, nil
	}
	return max(min(wait, left, s.opts.MaxPolling), 0), false, nil
}

func hasDeadline(ctx context.Context) bool {
	_, ok := ctx.Deadline()
	return ok
}

// margin is how long before its deadline a call is answered at the latest.
func margin(ctx context.Context) time.Duration {
	deadline, ok := ctx.Deadline()
	switch {
	case !ok:
		return 0
	case time.Until(deadline) < shortDeadline:
		return shortMargin
	default:
		return answerMargin
	}
}

// room returns how long an answer may take, the margin before the deadline kept
// free. Without a deadline there is all the time.
func room(ctx context.Context) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return maxInvisible
	}
	return max(time.Until(deadline)-margin(ctx), 0)
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
func (s *Server) receive(ctx context.Context, c client, r receive) ([]mq.Delivery, error) {
	s.sessions.Touch(c.ID)
	got, err := s.store.Receive(ctx, r.shard, r.Receive)
	if err != nil || len(got) == 0 {
		return nil, err
	}
	if s.sessions.Get(c.ID) == nil {
		if r.AutoRenew {
			s.giveBack(ctx, got)
			return nil, nil
		}
		return got, nil
	}
	s.sessions.Touch(c.ID)
	if r.AutoRenew {
		s.renewals.add(c.ID, r.Group, got)
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
	case quirks.EmptyReceiveOK(c.Language, r.AutoRenew):
		return ok()
	default:
		return &rmqpb.Status{Code: rmqpb.Code_MESSAGE_NOT_FOUND, Message: "no message"}
	}
}

// endReceive answers a receive that delivers nothing.
func (s *Server) endReceive(stream grpc.ServerStreamingServer[rmqpb.ReceiveMessageResponse], status *rmqpb.Status) error {
	if err := sendStatus(stream, status); err != nil {
		return err
	}
	return sendTimestamp(stream)
}

func sendStatus(stream grpc.ServerStreamingServer[rmqpb.ReceiveMessageResponse], status *rmqpb.Status) error {
	return stream.Send(&rmqpb.ReceiveMessageResponse{Content: &rmqpb.ReceiveMessageResponse_Status{Status: status}})
}

func sendTimestamp(stream grpc.ServerStreamingServer[rmqpb.ReceiveMessageResponse]) error {
	return stream.Send(&rmqpb.ReceiveMessageResponse{
		Content: &rmqpb.ReceiveMessageResponse_DeliveryTimestamp{DeliveryTimestamp: timestamppb.Now()},
	})
}

// deliver streams the messages. SDKs drop everything of a call that ends with an
// error, so when it does, what was not written goes back uncounted, and what may
// have been seen comes back soon if the server renews it.
func (s *Server) deliver(ctx context.Context, c client, r receive, got []mq.Delivery, stream grpc.ServerStreamingServer[rmqpb.ReceiveMessageResponse]) error {
	sent := 0
	err := sendStatus(stream, ok())
	for err == nil && sent < len(got) {
		// A send does not fail while the connection has room for more.
		if err = context.Cause(ctx); err != nil {
			break
		}
		if err = stream.SendMsg(s.frame(r, &got[sent])); err == nil {
			sent++
		}
	}
	if err == nil {
		err = sendTimestamp(stream)
	}
	if err == nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		return nil
	}
	s.giveBack(ctx, got[sent:])
	if r.AutoRenew {
		s.shorten(ctx, got[:sent])
	}
	s.logger.DebugContext(ctx, "receive ended before its messages were sent", "client", c.ID, "sent", sent, "messages", len(got), "error", err)
	return err
}

// frame returns the encoded response that holds one message. It copies the
// stored bytes once, into a buffer that gRPC gives back after writing.
func (s *Server) frame(r receive, d *mq.Delivery) any {
	const frameOverhead = 512 // receipt handle, topic, host and times, in most cases
	fields := wire.DeliveryFields{
		ReceiptHandle: receipt.Encode(d.Lease), StoreHost: s.opts.StoreHost, InvisibleDuration: r.Invisible,
	}
	size := d.Size() + frameOverhead
	if mem.IsBelowBufferPoolingThreshold(size) {
		return transport.RawMessage(wire.AppendDelivery(nil, r.Topic.Resource, d, fields))
	}
	pool := mem.DefaultBufferPool()
	buf := pool.Get(size)
	*buf = wire.AppendDelivery((*buf)[:0], r.Topic.Resource, d, fields)
	return mem.BufferSlice{mem.NewBuffer(buf, pool)}
}

// giveBack returns messages that never reached the client. They are visible
// again at once, and the delivery does not count.
func (s *Server) giveBack(ctx context.Context, got []mq.Delivery) {
	s.takeBack(ctx, got, mq.LeaseChange{Reason: mq.GiveBack})
}

// shorten lets messages come back soon whose delivery may have been lost.
func (s *Server) shorten(ctx context.Context, got []mq.Delivery) {
	s.takeBack(ctx, got, mq.LeaseChange{Reason: mq.Extend, Invisible: lostInvisible})
}

func (s *Server) takeBack(ctx context.Context, got []mq.Delivery, change mq.LeaseChange) {
	if len(got) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), takeBackTimeout)
	defer cancel()
	changes := make([]mq.LeaseChange, len(got))
	for i := range got {
		changes[i] = change
		changes[i].Lease = got[i].Lease
	}
	s.renewals.dropAll(ctx, changes)
	logUnexpected(ctx, s.logger, "messages not taken back", s.store.ChangeInvisible(ctx, changes))
}

// pause waits for d and reports false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

package proxy

// PullMessage
//
// Fields honoured: group (a legal name; the group need not exist); message_queue.topic,
// .id and .broker.name (may be empty where the topic is on one shard); offset; batch_size
// (below 1 counts as 1, above 32 as 32); filter_expression (TAG); long_polling_timeout
// (absent: that of the client's settings, else the deadline less 3 s; cut to the server's
// limit and to the deadline).
//
// Behaviour: reads messages of the queue from the offset on, without a lease and without
// moving anything: who reads what is the client's business, so a hundred clients that
// each read all of it are broadcasting. Messages come with their offset, attempt 1 and no
// receipt handle. At the end of the queue the call waits for the first message that the
// filter wants.
//
// Answer: status, one frame for each message, then next_offset, where the next pull
// begins: behind everything that was looked at, wanted or not. Without a message
// MESSAGE_NOT_FOUND at the end of the poll, with next_offset. An offset outside of the
// queue is ILLEGAL_OFFSET, with the nearest one that is inside as next_offset. With other
// errors there is only the status, held back for about a second.
//
// Codes: OK, MESSAGE_NOT_FOUND, ILLEGAL_OFFSET, CLIENT_ID_REQUIRED, ILLEGAL_TOPIC,
// ILLEGAL_CONSUMER_GROUP, ILLEGAL_FILTER_EXPRESSION, BAD_REQUEST
// (namespace, long_polling_timeout, no broker where there are several), TOPIC_NOT_FOUND
// (no such topic, or no such queue; also when it is deleted meanwhile), FORBIDDEN (also when
// the permission goes while it waits), TOO_MANY_REQUESTS (as ReceiveMessage).

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/proxy/wire"
)

// PullMessage streams messages of a queue from an offset on.
func (s *Server) PullMessage(req *rmqpb.PullMessageRequest, stream grpc.ServerStreamingServer[rmqpb.PullMessageResponse]) error {
	ctx, start := stream.Context(), time.Now()
	c, p, err := s.pullOf(ctx, req)
	memory := s.shareOf(c, false)
	defer memory.release()
	p.Reserve = memory.reserve
	var got mq.Pulled
	if err == nil {
		got, err = s.pull(ctx, c, p)
	}
	var outside *mq.OffsetError
	switch {
	case errors.As(err, &outside):
		return endPull(stream, s.statusOf(ctx, err), outside.Nearest())
	case err != nil:
		if !pause(ctx, min(errorPause-time.Since(start), room(ctx))) {
			return ended(ctx)
		}
		return sendPullStatus(stream, s.statusOf(ctx, err))
	case len(got.Messages) == 0:
		return endPull(stream, &rmqpb.Status{Code: rmqpb.Code_MESSAGE_NOT_FOUND, Message: "no message"}, got.Next)
	}
	return s.deliverPulled(ctx, c, p.Topic.Resource, got, stream)
}

// A pull is a validated request.
type pull struct {
	mq.Pull
	shard      string
	group      mq.Resource
	expression string // the filter as it came in
}

func (s *Server) pullOf(ctx context.Context, req *rmqpb.PullMessageRequest) (c client, p pull, err error) {
	if c, err = s.caller(ctx); err != nil {
		return c, p, err
	}
	p.group = c.resource(req.GetGroup())
	if err = validateGroup(p.group); err != nil {
		return c, p, err
	}
	if p.Tags, p.Filter, err = s.filters.of(req.GetFilterExpression()); err != nil {
		return c, p, err
	}
	p.expression = expressionOf(req.GetFilterExpression())
	p.Max = min(max(int(req.GetBatchSize()), 1), maxReceiveBatch)
	if p.Wait, _, err = s.polling(ctx, c, req.LongPollingTimeout); err != nil {
		return c, p, err
	}
	at, _, err := s.queueOf(ctx, c, req.GetMessageQueue())
	if err != nil {
		return c, p, err
	}
	p.Topic, p.shard, p.Queue, p.Offset = at.topic, at.shard, at.queue, mq.QueueOffset(req.GetOffset())
	p.Waited = waitedIn(ctx)
	return c, p, mayReceive(at.topic)
}

// pull reads messages from the store.
func (s *Server) pull(ctx context.Context, c client, p pull) (mq.Pulled, error) {
	session := s.sessions.Touch(c.ID)
	session.Note(c.about())
	session.Received(p.group, mq.Subscription{Topic: p.Topic.Resource, Expression: p.expression})
	poll, cancel := s.streams.untilDrained(ctx)
	defer cancel()
	got, err := s.store.Pull(poll, p.shard, p.Pull)
	if err != nil && poll.Err() != nil && ctx.Err() == nil {
		return mq.Pulled{Next: p.Offset}, nil // draining: the poll ends early, and empty
	}
	if err != nil || len(got.Messages) == 0 {
		return got, err
	}
	// The permission may have gone while the pull waited.
	if t, err := s.router.Topic(ctx, p.Topic.Resource); err == nil && t.ID == p.Topic.ID {
		if err := mayReceive(t); err != nil {
			return mq.Pulled{}, err
		}
	}
	return got, nil
}

// deliverPulled streams the messages, and then where the next pull begins.
func (s *Server) deliverPulled(ctx context.Context, c client, topic mq.Resource, got mq.Pulled, stream grpc.ServerStreamingServer[rmqpb.PullMessageResponse]) error {
	pool := s.frames
	out := s.outgoing(ctx, c, got.Messages)
	if out != nil {
		pool = out
		defer out.stop()
	}
	err := sendPullStatus(stream, ok())
	for i := range got.Messages {
		// A send does not fail while the connection has room for more.
		if err == nil {
			err = ended(ctx)
		}
		if err != nil {
			return err
		}
		if err = stream.SendMsg(frame(topic, &got.Messages[i], wire.DeliveryFields{StoreHost: s.opts.StoreHost}, pool)); err == nil {
			out.progress()
		}
	}
	if err == nil {
		err = sendNextOffset(stream, got.Next)
	}
	if err == nil {
		out.drain(ctx)
	}
	return err
}

// endPull answers a pull that delivers nothing.
func endPull(stream grpc.ServerStreamingServer[rmqpb.PullMessageResponse], st *rmqpb.Status, next mq.QueueOffset) error {
	if err := sendPullStatus(stream, st); err != nil {
		return err
	}
	return sendNextOffset(stream, next)
}

func sendPullStatus(stream grpc.ServerStreamingServer[rmqpb.PullMessageResponse], st *rmqpb.Status) error {
	return stream.Send(&rmqpb.PullMessageResponse{Content: &rmqpb.PullMessageResponse_Status{Status: st}})
}

func sendNextOffset(stream grpc.ServerStreamingServer[rmqpb.PullMessageResponse], next mq.QueueOffset) error {
	return stream.Send(&rmqpb.PullMessageResponse{Content: &rmqpb.PullMessageResponse_NextOffset{NextOffset: int64(next)}})
}

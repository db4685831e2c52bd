package proxy

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/proxy/quirks"
	"github.com/perigee-mq/perigee/proxy/transport"
	"github.com/perigee-mq/perigee/proxy/wire"
	"github.com/perigee-mq/perigee/receipt"
)

// When messages come back whose call has failed.
const (
	// takeBackTimeout bounds the calls to the store after a client has gone.
	takeBackTimeout = 5 * time.Second
	// lostInvisible is how soon messages come back whose frames were written
	// and may have been lost with the call.
	lostInvisible = time.Second
)

// deliver streams the messages. When the call ends with an error, what was not
// written goes back uncounted. What was written may have been seen, and counts; it
// comes back soon if the server renews it or the SDK drops it all the same.
func (s *Server) deliver(ctx context.Context, c client, r receive, got []mq.Delivery, stream grpc.ServerStreamingServer[rmqpb.ReceiveMessageResponse]) error {
	sent, pool := 0, s.frames
	out := s.outgoing(ctx, c, got)
	if out != nil {
		pool = out
		defer out.stop()
	}
	fields := wire.DeliveryFields{StoreHost: s.opts.StoreHost, InvisibleDuration: r.Invisible}
	err := sendStatus(stream, s.receiveOK(r))
	for err == nil && sent < len(got) {
		// A send does not fail while the connection has room for more.
		if err = ended(ctx); err != nil {
			break
		}
		fields.ReceiptHandle = receipt.Encode(got[sent].Lease)
		if err = stream.SendMsg(frame(r.Topic.Resource, &got[sent], fields, pool)); err == nil {
			sent++
			out.progress()
		}
	}
	if err == nil {
		err = sendTimestamp(stream)
	}
	if err == nil {
		out.drain(ctx)
	}
	if err == nil {
		err = ended(ctx)
	}
	if err == nil {
		return nil
	}
	s.lost(ctx, c, r)
	s.giveBack(ctx, got[sent:])
	if r.AutoRenew || quirks.DropsCutOffReceive(c.Language) {
		s.shorten(ctx, got[:sent])
	}
	s.logger.DebugContext(ctx, "receive ended before its messages were sent", "client", mq.Shorten(c.ID), "sent", sent, "messages", len(got), "error", err)
	return err
}

// lost is called for a call that did not reach its end. When the client did not
// give it up because of its deadline, its connection may have broken, which means
// nothing where it has another one, or where the server drains and ends it.
func (s *Server) lost(ctx context.Context, c client, r receive) {
	if !r.AutoRenew || errors.Is(ctx.Err(), context.DeadlineExceeded) || s.streams.isDraining() {
		return
	}
	if c.conn != nil && c.conn.Closed() && s.links.any(c.ID) {
		return
	}
	s.renewals.suspect(c.ID, pollGrace)
}

// ended returns why the call is over, as a gRPC status, or nil.
func ended(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return status.FromContextError(ctx.Err()).Err()
}

// frame returns the encoded response that holds one message. It copies the
// stored bytes once, into a buffer that gRPC gives back after writing.
func frame(topic mq.Resource, d *mq.Delivery, fields wire.DeliveryFields, pool mem.BufferPool) any {
	const frameOverhead = 512 // receipt handle, topic, host and times, in most cases
	size := d.Size() + frameOverhead
	if mem.IsBelowBufferPoolingThreshold(size) {
		return transport.RawMessage(wire.AppendDelivery(nil, topic, d, fields))
	}
	buf := pool.Get(size)
	*buf = wire.AppendDelivery((*buf)[:0], topic, d, fields)
	return mem.BufferSlice{mem.NewBuffer(buf, pool)}
}

// giveBack returns messages that never reached the client. They are visible
// again at once, and the delivery does not count.
func (s *Server) giveBack(ctx context.Context, got []mq.Delivery) {
	s.takeBack(ctx, got, mq.LeaseChange{Reason: mq.GiveBack})
}

// shorten lets messages come back soon whose delivery is taken for lost.
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

// endReceive answers a receive that delivers nothing.
func (s *Server) endReceive(stream grpc.ServerStreamingServer[rmqpb.ReceiveMessageResponse], st *rmqpb.Status) error {
	if err := sendStatus(stream, st); err != nil {
		return err
	}
	return sendTimestamp(stream)
}

func sendStatus(stream grpc.ServerStreamingServer[rmqpb.ReceiveMessageResponse], st *rmqpb.Status) error {
	return stream.Send(&rmqpb.ReceiveMessageResponse{Content: &rmqpb.ReceiveMessageResponse_Status{Status: st}})
}

func sendTimestamp(stream grpc.ServerStreamingServer[rmqpb.ReceiveMessageResponse]) error {
	return stream.Send(&rmqpb.ReceiveMessageResponse{
		Content: &rmqpb.ReceiveMessageResponse_DeliveryTimestamp{DeliveryTimestamp: timestamppb.Now()},
	})
}

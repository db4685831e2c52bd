package loadgen

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/internal/client"
)

// Handle is a delivery that can be acknowledged.
type Handle struct {
	MessageID string
	Receipt   string
}

// acker acknowledges messages of one group and topic.
type acker struct {
	conn    *client.Conn
	meter   *meter
	prefix  int // bytes of the buffer that name group and topic
	buffer  request
	pending []Handle
	results results
}

func newAcker(conn *client.Conn, group, topic string, m *meter) *acker {
	prefix, err := proto.Marshal(&rmqpb.AckMessageRequest{Group: conn.Resource(group), Topic: conn.Resource(topic)})
	if err != nil {
		panic(fmt.Sprintf("BUG: loadgen: an ack request: %v", err)) // the route's request had the same names
	}
	return &acker{conn: conn, meter: m, prefix: len(prefix), buffer: prefix, results: results{entries: 2, status: 3}}
}

// send acknowledges the first n pending messages and returns how many of them
// are acknowledged. None of them is pending any more then.
func (a *acker) send(ctx context.Context, n int) (int, error) {
	const entryField, idField, receiptField = 3, 1, 2
	a.buffer = a.buffer[:a.prefix]
	for _, h := range a.pending[:n] {
		size := protowire.SizeTag(idField) + protowire.SizeBytes(len(h.MessageID)) +
			protowire.SizeTag(receiptField) + protowire.SizeBytes(len(h.Receipt))
		a.buffer = protowire.AppendTag(a.buffer, entryField, protowire.BytesType)
		a.buffer = protowire.AppendVarint(a.buffer, uint64(size))
		a.buffer = protowire.AppendTag(a.buffer, idField, protowire.BytesType)
		a.buffer = protowire.AppendString(a.buffer, h.MessageID)
		a.buffer = protowire.AppendTag(a.buffer, receiptField, protowire.BytesType)
		a.buffer = protowire.AppendString(a.buffer, h.Receipt)
	}
	a.pending = a.pending[:copy(a.pending, a.pending[n:])]
	start := time.Now()
	if err := call(ctx, a.conn, rmqpb.MessagingService_AckMessage_FullMethodName, a.buffer, &a.results); err != nil {
		// gRPC may still read the bytes of the call that failed.
		a.buffer = append(request(nil), a.buffer...)
		return 0, err
	}
	record(a.meter.ack, time.Since(start))
	return a.results.count(a.meter, n), nil
}

// AckLoad acknowledges deliveries that a ReceiveLoad kept.
type AckLoad struct {
	Load
	Group string
	// Batch is the number of messages of a request, at least 1.
	Batch   int
	Handles []Handle
}

// Ack acknowledges the handles of the load, each once, until its limit or the
// end of ctx.
func (t *Target) Ack(ctx context.Context, l AckLoad) (Result, error) {
	if l.Batch < 1 {
		return Result{}, fmt.Errorf("batch %d: must be 1 or more", l.Batch)
	}
	if err := l.validate(); err != nil {
		return Result{}, err
	}
	var taken atomic.Int64
	meters, workers := make([]*meter, l.Concurrency), make([]worker, l.Concurrency)
	for i := range workers {
		m := newMeter()
		m.ack = m.latency // the acks are the load
		meters[i], workers[i] = m, &settler{acks: newAcker(t.conn(i), l.Group, l.Topic, m), handles: l.Handles, taken: &taken}
	}
	r := drive(ctx, l.Load, l.Batch, false, meters, workers)
	r.AckLatency = newHistogram()
	return r, nil
}

// settler acknowledges its share of handles.
type settler struct {
	acks    *acker
	handles []Handle
	taken   *atomic.Int64
}

func (s *settler) step(ctx context.Context, n int, _ time.Time) (int, bool, error) {
	last := s.taken.Add(int64(n))
	first := min(last-int64(n), int64(len(s.handles)))
	share := s.handles[first:min(last, int64(len(s.handles)))]
	if len(share) == 0 {
		return 0, false, nil
	}
	s.acks.pending = append(s.acks.pending[:0], share...)
	s.acks.meter.requests++
	good, err := s.acks.send(ctx, len(share))
	s.acks.meter.done(good, 0)
	return len(share), true, err
}

func (s *settler) finish(context.Context) error { return nil }

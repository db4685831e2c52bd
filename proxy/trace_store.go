package proxy

import (
	"context"
	"strconv"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
	grpcstatus "google.golang.org/grpc/status"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
)

// Attributes that the conventions have no name for.
const (
	attrShard   = attribute.Key("perigee.shard")
	attrOffset  = attribute.Key("perigee.queue.offset")
	attrAttempt = attribute.Key("perigee.delivery.attempt")
)

// A tracedStore is a store that makes spans of what it does for traced calls.
type tracedStore struct {
	Store
	t *tracing
}

// Append implements Store.
func (s tracedStore) Append(ctx context.Context, shard string, topic *mq.Topic, queue mq.QueueID, msgs []*mq.Message) ([]mq.Appended, error) {
	if !trace.SpanFromContext(ctx).IsRecording() {
		return s.Store.Append(ctx, shard, topic, queue, msgs)
	}
	ctx, span := s.t.tracer.Start(ctx, "append "+topic.Name, trace.WithAttributes(
		semconv.MessagingSystemRocketMQ, semconv.MessagingDestinationName(topic.Name), partition(queue),
		attrShard.String(shard), semconv.MessagingBatchMessageCount(len(msgs))))
	defer span.End()
	a, err := s.Store.Append(ctx, shard, topic, queue, msgs)
	if err != nil {
		span.SetStatus(otelcodes.Error, "") // the call's span says which
		return a, err
	}
	span.SetAttributes(attrOffset.Int64(int64(a[0].Offset)))
	return a, nil
}

func partition(queue mq.QueueID) attribute.KeyValue {
	return semconv.MessagingDestinationPartitionID(strconv.Itoa(int(queue)))
}

// Receive implements Store.
func (s tracedStore) Receive(ctx context.Context, shard string, r mq.Receive) ([]mq.Delivery, error) {
	d, traced := ctx.Value(deliveriesKey{}).(*deliverySpans)
	start := time.Now()
	got, err := s.Store.Receive(ctx, shard, r)
	if traced && len(got) > 0 {
		s.t.delivered(ctx, d, start, r, got)
	}
	return got, err
}

// deliverySpans are the spans of a receive, which end with it.
type deliverySpans struct{ spans []trace.Span }

type deliveriesKey struct{}

// delivered begins the spans of a receive that began at start and got messages.
func (t *tracing) delivered(ctx context.Context, d *deliverySpans, start time.Time, r mq.Receive, got []mq.Delivery) {
	op := operation{
		name: "receive", typ: semconv.MessagingOperationTypeReceive,
		topic:   &rmqpb.Resource{ResourceNamespace: r.Topic.Namespace, Name: r.Topic.Name},
		group:   &rmqpb.Resource{Name: r.Group.Name},
		details: []attribute.KeyValue{semconv.MessagingBatchMessageCount(len(got))},
	}
	traced := got[:min(len(got), maxSpanLinks)]
	of := make([]trace.SpanContext, len(traced))
	for i := range traced {
		of[i] = storedContext(&traced[i].Message)
		op.link(of[i])
	}
	ctx, span := t.start(ctx, op, trace.WithTimestamp(start))
	d.spans = append(d.spans, span)
	if !span.IsRecording() {
		return
	}
	for i := range traced {
		m := &traced[i]
		opts := []trace.SpanStartOption{trace.WithAttributes(
			semconv.MessagingSystemRocketMQ, semconv.MessagingDestinationName(r.Topic.Name),
			semconv.MessagingConsumerGroupName(r.Group.Name), semconv.MessagingMessageID(told(m.ID)),
			partition(m.Lease.Queue), attrShard.String(m.Lease.Shard), attrOffset.Int64(int64(m.Lease.Offset)),
			attrAttempt.Int(int(m.Lease.Attempt)), semconv.MessagingMessageBodySize(len(m.Body)))}
		if of[i].IsValid() {
			opts = append(opts, trace.WithLinks(trace.Link{SpanContext: of[i]}))
		}
		_, one := t.tracer.Start(ctx, "deliver "+r.Topic.Name, opts...)
		d.spans = append(d.spans, one)
		if !of[i].IsValid() {
			of[i] = one.SpanContext() // what there is to follow of the message
		}
		t.leases.put(m.Lease, of[i])
	}
}

// end ends the spans of a receive.
func (d *deliverySpans) end(err error) {
	for i := len(d.spans) - 1; i >= 0; i-- {
		span := d.spans[i]
		if err != nil && span.IsRecording() {
			fail(span, grpcstatus.Code(err).String())
		}
		span.End()
	}
}

// contexts remembers the contexts of messages that were delivered and traced, until
// they are settled. Beyond maxTraced the oldest are forgotten: their settlement is
// then not linked.
type contexts struct {
	mu struct {
		sync.Mutex
		of   map[mq.Lease]trace.SpanContext
		ring []mq.Lease
		next int // in the ring, to be replaced
	}
}

func (c *contexts) put(l mq.Lease, sc trace.SpanContext) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.of == nil {
		c.mu.of = map[mq.Lease]trace.SpanContext{}
	}
	c.mu.of[l] = sc
	if len(c.mu.ring) < maxTraced {
		c.mu.ring = append(c.mu.ring, l)
		return
	}
	delete(c.mu.of, c.mu.ring[c.mu.next])
	c.mu.ring[c.mu.next] = l
	c.mu.next = (c.mu.next + 1) % maxTraced
}

// get returns the context of the message whose delivery the handle is of; none
// when it was not traced here.
func (c *contexts) get(handle string) trace.SpanContext {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.mu.of) == 0 {
		return trace.SpanContext{}
	}
	l, _ := leaseOf(handle)
	return c.mu.of[l]
}

// take returns it for the last time.
func (c *contexts) take(handle string) trace.SpanContext {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.mu.of) == 0 {
		return trace.SpanContext{}
	}
	l, _ := leaseOf(handle)
	sc := c.mu.of[l]
	delete(c.mu.of, l)
	return sc
}

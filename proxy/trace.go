package proxy

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	grpccodes "google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	grpcstatus "google.golang.org/grpc/status"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/proxy/wire"
	"github.com/perigee-mq/perigee/receipt"
)

// Bounds of what tracing costs.
const (
	// maxSpanLinks is how many messages of one call are linked to.
	maxSpanLinks = 32
	// maxTraced is how many deliveries are remembered until they are settled.
	maxTraced = 1 << 15
)

// tracing makes the spans of calls. A server without a tracer has none of it: not
// even the interceptor and the wrapping of the store that it consists of.
//
//	send      a SendMessage call: child of the caller's span, or else of its first
//	          message's context; linked to the contexts of a batch
//	append    the part of it in the store
//	receive   a ReceiveMessage call that delivers: child of the caller's span;
//	          linked to the contexts of its messages
//	deliver   each of these messages, from the store to the end of the call;
//	          linked to its context
//	ack, change, forward
//	          a call that settles: child of the caller's span; linked to the
//	          contexts of the messages, of those that were traced when they were
//	          delivered here
//
// The context of a message is its trace_context, or the user property traceparent,
// in W3C form. It is read, and passed on as it is.
type tracing struct {
	tracer trace.Tracer
	leases contexts
}

// An operation is what a span of a call says.
type operation struct {
	name    string
	typ     attribute.KeyValue
	topic   *rmqpb.Resource
	group   *rmqpb.Resource // nil: none
	parent  trace.SpanContext
	links   []trace.Link
	details []attribute.KeyValue
}

// interceptor makes the spans of calls. A receive only prepares them: the store
// knows when there is something to say.
func (t *tracing) interceptor() interceptor {
	return interceptor{
		unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (res any, err error) {
			op, ok := t.operationOf(req)
			if !ok {
				return handler(ctx, req)
			}
			ctx, span := t.start(callerContext(ctx), op)
			err = errPanicked
			defer func() { end(span, statusIn(res), err) }()
			res, err = handler(ctx, req)
			return res, err
		},
		stream: func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
			if info.FullMethod != rmqpb.MessagingService_ReceiveMessage_FullMethodName {
				return handler(srv, stream)
			}
			d := &deliverySpans{}
			err = errPanicked
			defer func() { d.end(err) }()
			err = handler(srv, tracedStream{stream, context.WithValue(callerContext(stream.Context()), deliveriesKey{}, d)})
			return err
		},
	}
}

// errPanicked is the error of a call that never returned.
var errPanicked = grpcstatus.Error(grpccodes.Internal, "panic")

type tracedStream struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // as every stream has
}

// Context implements grpc.ServerStream.
func (s tracedStream) Context() context.Context { return s.ctx }

// callerContext returns ctx with the span of the caller in it, if the metadata of
// the call names one.
func callerContext(ctx context.Context) context.Context {
	md, _ := metadata.FromIncomingContext(ctx)
	return propagation.TraceContext{}.Extract(ctx, incoming(md))
}

// incoming carries a trace context in the metadata of a call.
type incoming metadata.MD

// Get implements propagation.TextMapCarrier.
func (m incoming) Get(key string) string {
	if v := m[key]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// Set implements propagation.TextMapCarrier. Nothing is added to what came in.
func (m incoming) Set(string, string) {}

// Keys implements propagation.TextMapCarrier.
func (m incoming) Keys() []string { return nil }

const (
	traceparent = "traceparent"
	tracestate  = "tracestate"
)

// parsed returns the context in W3C form, or none.
func parsed(parent, state string) trace.SpanContext {
	if parent == "" {
		return trace.SpanContext{}
	}
	carrier := propagation.MapCarrier{traceparent: parent, tracestate: state}
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), carrier))
}

// sentContext returns the context of a message as it was sent, and storedContext
// that of one as it is stored.
func sentContext(m *rmqpb.Message) trace.SpanContext {
	if sc := parsed(m.GetSystemProperties().GetTraceContext(), ""); sc.IsValid() {
		return sc
	}
	return parsed(m.GetUserProperties()[traceparent], m.GetUserProperties()[tracestate])
}

func storedContext(m *mq.Message) trace.SpanContext {
	if sc := parsed(wire.TraceContext(m), ""); sc.IsValid() {
		return sc
	}
	if parent := wire.UserProperty(m, traceparent); parent != "" {
		return parsed(parent, wire.UserProperty(m, tracestate))
	}
	return trace.SpanContext{}
}

// operationOf returns the operation of a unary call, if it has one.
func (t *tracing) operationOf(req any) (op operation, ok bool) {
	switch req := req.(type) {
	case *rmqpb.SendMessageRequest:
		return sendOperation(req.GetMessages())
	case *rmqpb.AckMessageRequest:
		op = settleOperation("ack", req.GetGroup(), req.GetTopic())
		for _, e := range req.GetEntries() {
			op.link(t.leases.take(e.GetReceiptHandle()))
		}
		op.details = batchOf(len(req.GetEntries()), func() string { return req.GetEntries()[0].GetMessageId() })
	case *rmqpb.ChangeInvisibleDurationRequest:
		op = settleOperation("change", req.GetGroup(), req.GetTopic())
		op.link(t.leases.get(req.GetReceiptHandle()))
		op.details = batchOf(1, req.GetMessageId)
	case *rmqpb.ForwardMessageToDeadLetterQueueRequest:
		op = settleOperation("forward", req.GetGroup(), req.GetTopic())
		op.link(t.leases.take(req.GetReceiptHandle()))
		op.details = batchOf(1, req.GetMessageId)
	default:
		return op, false
	}
	return op, true
}

func sendOperation(msgs []*rmqpb.Message) (op operation, ok bool) {
	if len(msgs) == 0 {
		return op, false
	}
	op = operation{name: "send", typ: semconv.MessagingOperationTypeSend, topic: msgs[0].GetTopic(), parent: sentContext(msgs[0])}
	if len(msgs) > 1 {
		for _, m := range msgs[:min(len(msgs), maxSpanLinks)] {
			op.link(sentContext(m))
		}
	}
	op.details = batchOf(len(msgs), func() string { return msgs[0].GetSystemProperties().GetMessageId() })
	return op, true
}

func settleOperation(name string, group, topic *rmqpb.Resource) operation {
	return operation{name: name, typ: semconv.MessagingOperationTypeSettle, topic: topic, group: group}
}

// batchOf names the only message of a call, or says how many there are.
func batchOf(n int, id func() string) []attribute.KeyValue {
	if n == 1 {
		return []attribute.KeyValue{semconv.MessagingMessageID(told(id()))}
	}
	return []attribute.KeyValue{semconv.MessagingBatchMessageCount(n)}
}

// link adds a link to the context of a message, if there is one and room for it.
func (op *operation) link(sc trace.SpanContext) {
	if sc.IsValid() && len(op.links) < maxSpanLinks {
		op.links = append(op.links, trace.Link{SpanContext: sc})
	}
}

// start begins the span of a call. The message's context is the parent where the
// caller has none.
func (t *tracing) start(ctx context.Context, op operation, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	c := clientOf(ctx)
	if op.parent.IsValid() && !trace.SpanContextFromContext(ctx).IsValid() {
		ctx = trace.ContextWithRemoteSpanContext(ctx, op.parent)
	}
	opts = append(opts, trace.WithSpanKind(trace.SpanKindServer), trace.WithLinks(op.links...))
	ctx, span := t.tracer.Start(ctx, op.name+" "+told(op.topic.GetName()), opts...)
	if span.IsRecording() {
		topic := c.resource(op.topic)
		attrs := append(op.details,
			semconv.MessagingSystemRocketMQ, semconv.MessagingOperationName(op.name), op.typ,
			semconv.MessagingDestinationName(told(topic.Name)), semconv.MessagingClientID(told(c.ID)))
		if op.group != nil {
			attrs = append(attrs, semconv.MessagingConsumerGroupName(told(op.group.GetName())))
		}
		if topic.Namespace != "" {
			attrs = append(attrs, semconv.MessagingRocketMQNamespace(told(topic.Namespace)))
		}
		span.SetAttributes(attrs...)
	}
	return ctx, span
}

// told returns what may be told of a text that a client chose: it is short, and
// legal in a protobuf message.
func told(s string) string { return strings.ToValidUTF8(mq.Shorten(s), "?") }

// end ends a span with how its call went.
func end(span trace.Span, st *rmqpb.Status, err error) {
	if span.IsRecording() {
		switch {
		case err != nil:
			fail(span, grpcstatus.Code(err).String())
		case st != nil && st.GetCode() != rmqpb.Code_OK:
			fail(span, st.GetCode().String())
		}
	}
	span.End()
}

// fail notes the code of a failure. Its text may hold what the client sent.
func fail(span trace.Span, code string) {
	span.SetStatus(otelcodes.Error, code)
	span.SetAttributes(semconv.ErrorTypeKey.String(code))
}

// leaseOf returns the lease of a handle, if it can be read.
func leaseOf(handle string) (mq.Lease, bool) {
	l, err := receipt.Decode(handle)
	return l, err == nil
}

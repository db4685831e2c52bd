package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	otelcodes "go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
)

// Contexts as clients send them.
const (
	callerTrace   = "4bf92f3577b34da6a3ce929d0e0e4736"
	callerParent  = "00-" + callerTrace + "-00f067aa0ba902b7-01"
	messageTrace  = "0af7651916cd43dd8448eb211c80319c"
	messageParent = "00-" + messageTrace + "-b7ad6b7169203331-01"
)

// traced starts a server whose spans are kept, all of them.
func traced(t testing.TB, change ...func(*testOptions)) (*testServer, rmqpb.MessagingServiceClient, *tracetest.InMemoryExporter) {
	t.Helper()
	kept := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(kept))
	s := newTestServer(t, append(change, func(o *testOptions) { o.Tracer = provider.Tracer("test") })...)
	return s, rmqpb.NewMessagingServiceClient(s.dial(t)), kept
}

// spansOf returns the spans by their names, the first of each, and forgets them.
func spansOf(kept *tracetest.InMemoryExporter) map[string]tracetest.SpanStub {
	spans := map[string]tracetest.SpanStub{}
	for _, s := range kept.GetSpans() {
		if _, there := spans[s.Name]; !there {
			spans[s.Name] = s
		}
	}
	kept.Reset()
	return spans
}

func attributesOf(s tracetest.SpanStub) map[string]any {
	m := map[string]any{}
	for _, a := range s.Attributes {
		m[string(a.Key)] = a.Value.AsInterface()
	}
	return m
}

func linked(s tracetest.SpanStub) (traces []string) {
	for _, l := range s.Links {
		traces = append(traces, l.SpanContext.TraceID().String())
	}
	return traces
}

func withContext(m *rmqpb.Message, parent string) *rmqpb.Message {
	m.SystemProperties.TraceContext = &parent
	return m
}

func tracedReceive(t testing.TB, c rmqpb.MessagingServiceClient, ctx context.Context, topic string, most int32) (got []*rmqpb.Message) {
	t.Helper()
	req := (&consumer{topic: topic, group: "g"}).simple(most, time.Minute, 0)
	stream, err := c.ReceiveMessage(ctx, req)
	require.NoError(t, err)
	for {
		res, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return got
		}
		require.NoError(t, err)
		if m := res.GetMessage(); m != nil {
			got = append(got, m)
		}
	}
}

func TestAMessageIsTracedFromSendToAck(t *testing.T) {
	s, c, kept := traced(t)
	s.topic(t, "orders")
	sent, err := c.SendMessage(from(t, "producer", "traceparent", callerParent, "tracestate", "v=1"),
		&rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{withContext(message("orders", "m1", "body"), messageParent)}})
	require.NoError(t, err)
	require.Equal(t, rmqpb.Code_OK, sent.GetStatus().GetCode())
	spans := spansOf(kept)
	require.Len(t, spans, 2)
	send, stored := spans["send orders"], spans["append orders"]
	require.Equal(t, callerTrace, send.SpanContext.TraceID().String())
	require.Equal(t, "00f067aa0ba902b7", send.Parent.SpanID().String())
	require.Equal(t, "v=1", send.SpanContext.TraceState().String())
	require.Equal(t, trace.SpanKindServer, send.SpanKind)
	require.Equal(t, map[string]any{
		"messaging.system": "rocketmq", "messaging.operation.name": "send", "messaging.operation.type": "send",
		"messaging.destination.name": "orders", "messaging.client.id": "producer", "messaging.message.id": "m1",
	}, attributesOf(send))
	require.Equal(t, send.SpanContext.SpanID(), stored.Parent.SpanID())
	require.Equal(t, int64(0), attributesOf(stored)["perigee.queue.offset"])
	require.Equal(t, testShard, attributesOf(stored)["perigee.shard"])

	got := tracedReceive(t, c, from(t, "consumer"), "orders", 32)
	require.Len(t, got, 1)
	require.Equal(t, messageParent, got[0].GetSystemProperties().GetTraceContext(), "it arrives as it was sent")
	spans = spansOf(kept)
	require.Len(t, spans, 2)
	receive, deliver := spans["receive orders"], spans["deliver orders"]
	require.False(t, receive.Parent.IsValid(), "the consumer has no span")
	require.Equal(t, []string{messageTrace}, linked(receive))
	require.Equal(t, []string{messageTrace}, linked(deliver))
	require.Equal(t, receive.SpanContext.SpanID(), deliver.Parent.SpanID())
	require.Equal(t, "m1", attributesOf(deliver)["messaging.message.id"])
	require.Equal(t, "g", attributesOf(deliver)["messaging.consumer.group.name"])
	require.Equal(t, int64(1), attributesOf(deliver)["perigee.delivery.attempt"])

	handle := got[0].GetSystemProperties().GetReceiptHandle()
	ack := &rmqpb.AckMessageRequest{Group: named("g"), Topic: named("orders"), Entries: []*rmqpb.AckMessageEntry{{MessageId: "m1", ReceiptHandle: handle}}}
	_, err = c.AckMessage(from(t, "consumer", "traceparent", callerParent), ack)
	require.NoError(t, err)
	spans = spansOf(kept)
	require.Len(t, spans, 1)
	require.Equal(t, callerTrace, spans["ack orders"].SpanContext.TraceID().String())
	require.Equal(t, []string{messageTrace}, linked(spans["ack orders"]))
	require.Equal(t, "settle", attributesOf(spans["ack orders"])["messaging.operation.type"])

	for _, list := range []map[string]tracetest.SpanStub{{"a": send, "b": stored, "c": receive, "d": deliver, "e": spans["ack orders"]}} {
		for _, span := range list {
			require.NotContains(t, fmt.Sprint(attributesOf(span)), "body:", "no bodies")
			require.Equal(t, otelcodes.Unset, span.Status.Code)
		}
	}
}

func TestTheContextOfAMessageIsTheParentOfACallWithoutOne(t *testing.T) {
	s, c, kept := traced(t)
	s.topic(t, "orders")
	inProperties := message("orders", "m", "x")
	inProperties.UserProperties = map[string]string{"a": "b", "traceparent": messageParent, "z": "1"}
	for name, m := range map[string]*rmqpb.Message{
		"trace_context": withContext(message("orders", "m", "x"), messageParent), "user property": inProperties,
	} {
		_, err := c.SendMessage(from(t, "producer"), &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{m}})
		require.NoError(t, err)
		require.Equal(t, messageTrace, spansOf(kept)["send orders"].SpanContext.TraceID().String(), name)
		require.Len(t, tracedReceive(t, c, from(t, "consumer"), "orders", 32), 1)
		require.Equal(t, []string{messageTrace}, linked(spansOf(kept)["deliver orders"]), name)
	}
}

func TestOtherContextsArePassedOnUnread(t *testing.T) {
	s, c, kept := traced(t)
	s.topic(t, "orders")
	for i, odd := range []string{"", "00-0-0-01", strings.Repeat("x", 300), "0:1:2"} {
		_, err := c.SendMessage(from(t, "producer", "traceparent", "nonsense"),
			&rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{withContext(message("orders", fmt.Sprint("m", i), "x"), odd)}})
		require.NoError(t, err)
		got := tracedReceive(t, c, from(t, "consumer"), "orders", 32)
		require.Len(t, got, 1)
		require.Equal(t, odd, got[0].GetSystemProperties().GetTraceContext())
		spans := spansOf(kept)
		require.False(t, spans["send orders"].Parent.IsValid())
		require.Empty(t, spans["deliver orders"].Links)
	}
}

func TestSpansOfABatchAreBounded(t *testing.T) {
	s, c, kept := traced(t)
	s.topic(t, "orders")
	req := &rmqpb.SendMessageRequest{}
	for i := range 100 {
		req.Messages = append(req.Messages, withContext(message("orders", fmt.Sprint(i), "x"), messageParent))
	}
	_, err := c.SendMessage(from(t, "producer"), req)
	require.NoError(t, err)
	require.Len(t, kept.GetSpans(), 2)
	send := spansOf(kept)["send orders"]
	require.Len(t, send.Links, maxSpanLinks)
	require.Equal(t, int64(100), attributesOf(send)["messaging.batch.message_count"])

	got := tracedReceive(t, c, from(t, "consumer"), "orders", 32)
	require.Len(t, kept.GetSpans(), 1+len(got))
	kept.Reset()
	ack := &rmqpb.AckMessageRequest{Group: named("g"), Topic: named("orders")}
	for _, m := range got {
		for range 3 { // repeated
			ack.Entries = append(ack.Entries, &rmqpb.AckMessageEntry{ReceiptHandle: m.GetSystemProperties().GetReceiptHandle()})
		}
	}
	_, err = c.AckMessage(from(t, "consumer"), ack)
	require.NoError(t, err)
	require.Len(t, kept.GetSpans(), 1)
	require.Len(t, spansOf(kept)["ack orders"].Links, 32)
}

func TestFailuresAreInTheirSpans(t *testing.T) {
	s, c, kept := traced(t)
	_, err := c.SendMessage(from(t, "producer"), &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{message("missing", "m", "x")}})
	require.NoError(t, err)
	send := spansOf(kept)["send missing"]
	require.Equal(t, sdktrace.Status{Code: otelcodes.Error, Description: "TOPIC_NOT_FOUND"}, send.Status)
	require.Equal(t, "TOPIC_NOT_FOUND", attributesOf(send)["error.type"])

	s.topic(t, "orders")
	for _, call := range []func() error{
		func() error {
			_, err := c.ChangeInvisibleDuration(from(t, "consumer"), &rmqpb.ChangeInvisibleDurationRequest{
				Group: named("g"), Topic: named("orders"), ReceiptHandle: "nonsense", MessageId: strings.Repeat("i", 1000),
			})
			return err
		},
		func() error {
			_, err := c.ForwardMessageToDeadLetterQueue(from(t, "consumer"), &rmqpb.ForwardMessageToDeadLetterQueueRequest{
				Group: named("g"), Topic: named("orders"), ReceiptHandle: "nonsense",
			})
			return err
		},
		func() error {
			_, err := c.SendMessage(from(t, "producer"), &rmqpb.SendMessageRequest{})
			return err
		},
	} {
		require.NoError(t, call())
	}
	spans := spansOf(kept)
	require.Len(t, spans, 2, "a request without messages has no span")
	require.Len(t, attributesOf(spans["change orders"])["messaging.message.id"], 67, "what a client chose is shortened")
	require.Equal(t, otelcodes.Error, spans["forward orders"].Status.Code)

	require.Empty(t, tracedReceive(t, c, from(t, "consumer"), "orders", 1))
	require.Empty(t, kept.GetSpans(), "an empty poll has no span")
}

func TestAPanicEndsItsSpan(t *testing.T) {
	s, c, kept := traced(t)
	s.Server.router = panickingRouter{s.Server.router}
	_, err := c.SendMessage(from(t, "producer"), &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{message("orders", "m", "x")}})
	require.Error(t, err)
	require.Equal(t, "Internal", spansOf(kept)["send orders"].Status.Description)
}

type panickingRouter struct{ Router }

func (panickingRouter) Topic(context.Context, mq.Resource) (*mq.Topic, error) { panic("boom") }

func TestRenewalsAndOtherCallsMakeNoSpans(t *testing.T) {
	s, c, kept := traced(t)
	s.topic(t, "orders")
	_, err := c.QueryRoute(from(t, "c", "traceparent", callerParent), &rmqpb.QueryRouteRequest{Topic: named("orders")})
	require.NoError(t, err)
	_, err = c.Heartbeat(from(t, "c"), &rmqpb.HeartbeatRequest{ClientType: rmqpb.ClientType_PRODUCER})
	require.NoError(t, err)
	require.Empty(t, kept.GetSpans())
}

func TestWithoutATracerThereIsNothingOfIt(t *testing.T) {
	s := newTestServer(t)
	require.Nil(t, s.tracing)
	require.Equal(t, any(s.nodes), any(s.Server.store), "the store is called directly")
}

func TestForgottenDeliveriesAreBounded(t *testing.T) {
	var c contexts
	sc := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}})
	for i := range mq.QueueOffset(2 * maxTraced) {
		c.put(mq.Lease{Offset: i}, sc)
	}
	require.Len(t, c.mu.of, maxTraced)
	require.Len(t, c.mu.ring, maxTraced)
	require.NotContains(t, c.mu.of, mq.Lease{Offset: maxTraced - 1})
	require.Contains(t, c.mu.of, mq.Lease{Offset: 2*maxTraced - 1})
}

// BenchmarkTracing sends over gRPC: without tracing, with it for calls that are not
// sampled, and for calls that are.
func BenchmarkTracing(b *testing.B) {
	samplers := map[string]sdktrace.Sampler{"off": nil, "unsampled": sdktrace.NeverSample(), "sampled": sdktrace.AlwaysSample()}
	for _, name := range []string{"off", "unsampled", "sampled"} {
		b.Run(name, func(b *testing.B) {
			s := newTestServer(b, func(o *testOptions) {
				if sampler := samplers[name]; sampler != nil {
					o.Tracer = sdktrace.NewTracerProvider(sdktrace.WithSampler(sampler), sdktrace.WithBatcher(tracetest.NewNoopExporter())).Tracer("")
				}
			})
			s.topic(b, "t")
			c := rmqpb.NewMessagingServiceClient(s.dial(b))
			req := &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{message("t", "m", strings.Repeat("x", 1024))}}
			ctx := from(b, "sender")
			b.ReportAllocs()
			for b.Loop() {
				if res, err := c.SendMessage(ctx, req); err != nil || res.GetStatus().GetCode() != rmqpb.Code_OK {
					b.Fatal(res, err)
				}
			}
		})
	}
}

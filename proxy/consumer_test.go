package proxy

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/proxy/transport"
)

// A consumer is a client of one topic and group that calls the handlers.
type consumer struct {
	s       *testServer
	id      string
	headers []string
	topic   string
	group   string
}

func (s *testServer) consumer(topic, group string, headers ...string) *consumer {
	return &consumer{s: s, id: "consumer-" + group, headers: headers, topic: topic, group: group}
}

func (c *consumer) ctx(t testing.TB) context.Context { return as(t, c.id, c.headers...) }

// simple returns the request of a simple consumer, and push that of a push one.
func (c *consumer) simple(most int32, invisible, poll time.Duration) *rmqpb.ReceiveMessageRequest {
	return &rmqpb.ReceiveMessageRequest{
		Group: named(c.group), MessageQueue: &rmqpb.MessageQueue{Topic: named(c.topic)},
		BatchSize: most, InvisibleDuration: durationpb.New(invisible), LongPollingTimeout: durationpb.New(poll),
	}
}

func (c *consumer) push(most int32, poll time.Duration) *rmqpb.ReceiveMessageRequest {
	r := c.simple(most, 0, poll)
	r.InvisibleDuration, r.AutoRenew = nil, true
	return r
}

// An answer is what a receive streamed.
type answer struct {
	code     rmqpb.Code
	text     string
	messages []*rmqpb.Message
	kinds    string // s, m and t for status, message and timestamp, in order
}

func (a *answer) add(t testing.TB, r *rmqpb.ReceiveMessageResponse) {
	switch c := r.GetContent().(type) {
	case *rmqpb.ReceiveMessageResponse_Status:
		a.code, a.text, a.kinds = c.Status.GetCode(), c.Status.GetMessage(), a.kinds+"s"
	case *rmqpb.ReceiveMessageResponse_Message:
		a.messages, a.kinds = append(a.messages, c.Message), a.kinds+"m"
	case *rmqpb.ReceiveMessageResponse_DeliveryTimestamp:
		a.kinds += "t"
	default:
		t.Errorf("a frame without content: %v", r)
	}
}

func (a *answer) handle(i int) string {
	return a.messages[i].GetSystemProperties().GetReceiptHandle()
}

func (a *answer) ids() []string {
	ids := []string{}
	for _, m := range a.messages {
		ids = append(ids, m.GetSystemProperties().GetMessageId())
	}
	return ids
}

func (a *answer) attempts() []int32 {
	var list []int32
	for _, m := range a.messages {
		list = append(list, m.GetSystemProperties().GetDeliveryAttempt())
	}
	return list
}

// receive calls the handler and requires that the stream ends well.
func (c *consumer) receive(t testing.TB, req *rmqpb.ReceiveMessageRequest) *answer {
	t.Helper()
	return c.receiveIn(t, c.ctx(t), req)
}

func (c *consumer) receiveIn(t testing.TB, ctx context.Context, req *rmqpb.ReceiveMessageRequest) *answer {
	t.Helper()
	stream := &frameStream{ctx: ctx, t: t}
	require.NoError(t, c.s.ReceiveMessage(req, stream))
	return &stream.answer
}

func (c *consumer) ack(t testing.TB, handles ...string) *rmqpb.AckMessageResponse {
	t.Helper()
	req := &rmqpb.AckMessageRequest{Group: named(c.group), Topic: named(c.topic)}
	for _, h := range handles {
		req.Entries = append(req.Entries, &rmqpb.AckMessageEntry{MessageId: "id of " + h, ReceiptHandle: h})
	}
	resp, err := c.s.AckMessage(c.ctx(t), req)
	require.NoError(t, err)
	return resp
}

func (c *consumer) acked(t testing.TB, handles ...string) {
	t.Helper()
	resp := c.ack(t, handles...)
	require.Equal(t, rmqpb.Code_OK, resp.GetStatus().GetCode(), resp.GetStatus().GetMessage())
}

func (c *consumer) change(t testing.TB, handle string, d time.Duration) *rmqpb.ChangeInvisibleDurationResponse {
	t.Helper()
	resp, err := c.s.ChangeInvisibleDuration(c.ctx(t), &rmqpb.ChangeInvisibleDurationRequest{
		Group: named(c.group), Topic: named(c.topic), ReceiptHandle: handle, InvisibleDuration: durationpb.New(d),
	})
	require.NoError(t, err)
	return resp
}

func (c *consumer) forward(t testing.TB, handle string) rmqpb.Code {
	t.Helper()
	resp, err := c.s.ForwardMessageToDeadLetterQueue(c.ctx(t), &rmqpb.ForwardMessageToDeadLetterQueueRequest{
		Group: named(c.group), Topic: named(c.topic), ReceiptHandle: handle,
	})
	require.NoError(t, err)
	return resp.GetStatus().GetCode()
}

func (c *consumer) heartbeat(t testing.TB) {
	t.Helper()
	resp, err := c.s.Heartbeat(c.ctx(t), &rmqpb.HeartbeatRequest{Group: named(c.group), ClientType: rmqpb.ClientType_PUSH_CONSUMER})
	require.NoError(t, err)
	require.Equal(t, rmqpb.Code_OK, resp.GetStatus().GetCode())
}

// live lets the time pass while the client sends heartbeats.
func (c *consumer) live(t testing.TB, d time.Duration) {
	t.Helper()
	const beat = 10 * time.Second
	for ; d > beat; d -= beat {
		time.Sleep(beat)
		c.heartbeat(t)
	}
	time.Sleep(d)
	c.heartbeat(t)
}

func (c *consumer) terminate(t testing.TB) {
	t.Helper()
	resp, err := c.s.NotifyClientTermination(c.ctx(t), &rmqpb.NotifyClientTerminationRequest{Group: named(c.group)})
	require.NoError(t, err)
	require.Equal(t, rmqpb.Code_OK, resp.GetStatus().GetCode())
}

// deadLetters returns the ids in the dead-letter topic of the group.
func (c *consumer) deadLetters(t testing.TB) []string {
	t.Helper()
	ids := []string{}
	for _, d := range c.s.leased(t, mq.DeadLetterPrefix+c.group, "undertaker", 32, 0) {
		ids = append(ids, d.ID)
	}
	return ids
}

// A frameStream takes the frames of a receive through the server's codec.
type frameStream struct {
	grpc.ServerStream
	ctx    context.Context
	t      testing.TB
	answer answer
	// before is called before each frame; its error is that of the send.
	before func(frame int) error
	frames int
}

func (s *frameStream) Context() context.Context { return s.ctx }

func (s *frameStream) Send(r *rmqpb.ReceiveMessageResponse) error { return s.SendMsg(r) }

func (s *frameStream) SendMsg(m any) error {
	if s.before != nil {
		if err := s.before(s.frames); err != nil {
			return err
		}
	}
	s.frames++
	data, err := transport.NewCodec(transport.NewBufferPool()).Marshal(m)
	require.NoError(s.t, err)
	var r rmqpb.ReceiveMessageResponse
	require.NoError(s.t, proto.Unmarshal(data.Materialize(), &r))
	data.Free()
	s.answer.add(s.t, &r)
	return nil
}

// receiveOver receives over a connection, as an SDK does.
func receiveOver(t testing.TB, ctx context.Context, conn *grpc.ClientConn, req *rmqpb.ReceiveMessageRequest) (*answer, error) {
	t.Helper()
	stream, err := rmqpb.NewMessagingServiceClient(conn).ReceiveMessage(ctx, req)
	require.NoError(t, err)
	a := new(answer)
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return a, nil
		}
		if err != nil {
			return a, err
		}
		a.add(t, r)
	}
}

// A faultyStore fails the calls it is told to fail, and counts what the server
// renews.
type faultyStore struct {
	Store
	mu       sync.Mutex
	fail     func(call string) error
	renewals int
}

// withFaults makes a server whose store goes through the returned one.
func withFaults(t testing.TB, change ...func(*testOptions)) (*testServer, *faultyStore) {
	t.Helper()
	s := newTestServer(t, change...)
	f := &faultyStore{Store: s.Server.store}
	s.Server.store = f
	return s, f
}

func (f *faultyStore) failing(fail func(call string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = fail
}

func (f *faultyStore) renewed() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.renewals
}

func (f *faultyStore) fault(call string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail == nil {
		return nil
	}
	return f.fail(call)
}

func all(err error, n int) []error {
	errs := make([]error, n)
	for i := range errs {
		errs[i] = err
	}
	return errs
}

func (f *faultyStore) Ack(ctx context.Context, leases []mq.Lease) []error {
	if err := f.fault("ack"); err != nil {
		return all(err, len(leases))
	}
	return f.Store.Ack(ctx, leases)
}

func (f *faultyStore) ChangeInvisible(ctx context.Context, changes []mq.LeaseChange) []error {
	call := "change"
	if changes[0].Reason == mq.Renew {
		call = "renew"
		f.mu.Lock()
		f.renewals++
		f.mu.Unlock()
	}
	if err := f.fault(call); err != nil {
		return all(err, len(changes))
	}
	return f.Store.ChangeInvisible(ctx, changes)
}

func (f *faultyStore) DeadLetter(ctx context.Context, lease mq.Lease) error {
	if err := f.fault("dead letter"); err != nil {
		return err
	}
	return f.Store.DeadLetter(ctx, lease)
}

package proxy

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	grpccodes "google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/internal/hostile"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

// A specimen is a good request of one RPC with most of its fields set, made anew
// for every call: some use up what they name.
type specimen struct {
	want rmqpb.Code
	make func(t testing.TB, s *testServer) proto.Message
}

// fixed is a specimen that uses nothing up.
func fixed(want rmqpb.Code, m proto.Message) specimen {
	return specimen{want, func(testing.TB, *testServer) proto.Message { return proto.Clone(m) }}
}

// held is a specimen about a message that the consumer of the test holds.
func held(want rmqpb.Code, request func(handle string) proto.Message) specimen {
	return specimen{want, func(t testing.TB, s *testServer) proto.Message {
		s.send(t, message("orders", "m"+rand.Text(), "body")) // one more, whatever was sent before
		c := s.consumer("orders", "g")
		return request(c.receive(t, c.simple(1, maxInvisible, 0)).handle(0))
	}}
}

// A storedAt is where a message lies.
type storedAt struct {
	queue  *rmqpb.MessageQueue
	offset int64
}

// stored sends a message and returns where it lies.
func (s *testServer) stored(t testing.TB) storedAt {
	s.sent++
	id := fmt.Sprint("stored-", s.sent)
	offset := s.send(t, message("orders", id, "body"))[0].GetOffset()
	topic, err := s.meta.Topic(t.Context(), mq.Resource{Name: "orders"})
	require.NoError(t, err)
	for queue := range mq.QueueID(topic.Shards[0].Read) {
		got, err := s.nodes.Pull(t.Context(), testShard, mq.Pull{Topic: topic, Queue: queue, Offset: mq.QueueOffset(offset), Max: 1})
		if err == nil && len(got.Messages) == 1 && got.Messages[0].ID == id {
			at := storedAt{fullQueue(), offset}
			at.queue.Id = int32(queue)
			return at
		}
	}
	t.Fatalf("message %s is in no queue", id)
	return storedAt{}
}

func fullMessage() *rmqpb.Message {
	m := message("orders", "m", "body")
	m.UserProperties = map[string]string{"k": "v"}
	m.SystemProperties.Tag, m.SystemProperties.Keys = new("t"), []string{"k"}
	m.SystemProperties.BodyDigest = &rmqpb.Digest{Type: rmqpb.DigestType_MD5, Checksum: "841A2D689AD86BD1611447453C22C6FC"}
	m.SystemProperties.BodyEncoding = rmqpb.Encoding_IDENTITY
	m.SystemProperties.BornTimestamp = &timestamppb.Timestamp{Seconds: 1, Nanos: 1}
	m.SystemProperties.BornHost = "host"
	m.SystemProperties.OrphanedTransactionRecoveryDuration = durationpb.New(1)
	m.SystemProperties.TraceContext = new("trace")
	return m
}

func fullQueue() *rmqpb.MessageQueue {
	return &rmqpb.MessageQueue{
		Topic: named("orders"), Id: 1, Permission: rmqpb.Permission_READ_WRITE,
		Broker:             &rmqpb.Broker{Name: testShard, Endpoints: endpoints(1, "10.0.0.1", 8081)},
		AcceptMessageTypes: []rmqpb.MessageType{rmqpb.MessageType_NORMAL},
	}
}

func settingsCommand(settings *rmqpb.Settings) *rmqpb.TelemetryCommand {
	settings.AccessPoint = endpoints(1, "10.0.0.1", 8081)
	settings.BackoffPolicy = exponential(3, 1, 2, 2)
	settings.RequestTimeout = durationpb.New(time.Second)
	settings.Metric = &rmqpb.Metric{On: true, Endpoints: endpoints(1, "10.0.0.1", 8081)}
	settings.UserAgent = &rmqpb.UA{Language: rmqpb.Language_JAVA, Version: "5.0.7"}
	settings.ClientProperties = map[string]string{"k": "v"}
	return &rmqpb.TelemetryCommand{Command: &rmqpb.TelemetryCommand_Settings{Settings: settings}}
}

// specimens has one for every RPC of the protocol. A new RPC needs one here, and
// one that is built now needs another answer.
var specimens = map[string]specimen{
	"QueryRoute": fixed(rmqpb.Code_OK, &rmqpb.QueryRouteRequest{Topic: named("orders"), Endpoints: endpoints(1, "10.0.0.1", 8081)}),
	"QueryAssignment": fixed(rmqpb.Code_OK, &rmqpb.QueryAssignmentRequest{
		Topic: named("orders"), Group: named("g"), Endpoints: endpoints(1, "10.0.0.1", 8081),
	}),
	"Heartbeat": fixed(rmqpb.Code_OK, &rmqpb.HeartbeatRequest{Group: named("g"), ClientType: rmqpb.ClientType_PUSH_CONSUMER}),
	"SendMessage": fixed(rmqpb.Code_OK, &rmqpb.SendMessageRequest{
		Messages: []*rmqpb.Message{fullMessage(), message("orders", "n", "body")},
	}),
	"ReceiveMessage": {rmqpb.Code_OK, func(t testing.TB, s *testServer) proto.Message {
		s.send(t, message("orders", "m"+rand.Text(), "body")) // one more, whatever was sent before
		return &rmqpb.ReceiveMessageRequest{
			Group: named("g"), MessageQueue: fullQueue(), BatchSize: 1, InvisibleDuration: durationpb.New(maxInvisible),
			FilterExpression:   &rmqpb.FilterExpression{Type: rmqpb.FilterType_TAG, Expression: "*"},
			LongPollingTimeout: durationpb.New(time.Second), AttemptId: new("a"),
		}
	}},
	"AckMessage": held(rmqpb.Code_OK, func(handle string) proto.Message {
		return &rmqpb.AckMessageRequest{
			Group: named("g"), Topic: named("orders"),
			Entries: []*rmqpb.AckMessageEntry{{MessageId: "m", ReceiptHandle: handle}},
		}
	}),
	"ChangeInvisibleDuration": held(rmqpb.Code_OK, func(handle string) proto.Message {
		return &rmqpb.ChangeInvisibleDurationRequest{
			Group: named("g"), Topic: named("orders"), ReceiptHandle: handle, InvisibleDuration: durationpb.New(maxInvisible),
			MessageId: "m", Suspend: new(true),
		}
	}),
	"ForwardMessageToDeadLetterQueue": held(rmqpb.Code_OK, func(handle string) proto.Message {
		return &rmqpb.ForwardMessageToDeadLetterQueueRequest{
			Group: named("g"), Topic: named("orders"), ReceiptHandle: handle, MessageId: "m", DeliveryAttempt: 1, MaxDeliveryAttempts: 17,
		}
	}),
	"NotifyClientTermination": fixed(rmqpb.Code_OK, &rmqpb.NotifyClientTerminationRequest{Group: named("g")}),
	"PullMessage": {rmqpb.Code_OK, func(t testing.TB, s *testServer) proto.Message {
		at := s.stored(t)
		return &rmqpb.PullMessageRequest{
			Group: named("g"), MessageQueue: at.queue, Offset: at.offset, BatchSize: 1, LongPollingTimeout: durationpb.New(time.Second),
			FilterExpression: &rmqpb.FilterExpression{Type: rmqpb.FilterType_TAG, Expression: "*"},
		}
	}},
	"UpdateOffset": {rmqpb.Code_OK, func(t testing.TB, s *testServer) proto.Message {
		at := s.stored(t)
		return &rmqpb.UpdateOffsetRequest{Group: named("g"), MessageQueue: at.queue, Offset: at.offset}
	}},
	"GetOffset": {rmqpb.Code_OK, func(t testing.TB, s *testServer) proto.Message {
		at := s.stored(t)
		_, err := s.UpdateOffset(as(t, "c"), &rmqpb.UpdateOffsetRequest{Group: named("g"), MessageQueue: at.queue})
		require.NoError(t, err)
		return &rmqpb.GetOffsetRequest{Group: named("g"), MessageQueue: at.queue}
	}},
	"QueryOffset": fixed(rmqpb.Code_OK, &rmqpb.QueryOffsetRequest{
		MessageQueue: fullQueue(), QueryOffsetPolicy: rmqpb.QueryOffsetPolicy_TIMESTAMP, Timestamp: timestamppb.New(time.Unix(1, 1)),
	}),
	"EndTransaction": {rmqpb.Code_OK, func(t testing.TB, s *testServer) proto.Message {
		id := fmt.Sprint("m", time.Now().UnixNano())
		entries := s.send(t, halfMessage("halves", id))
		return &rmqpb.EndTransactionRequest{
			Topic: named("halves"), MessageId: id, TransactionId: entries[0].GetTransactionId(), Resolution: rmqpb.TransactionResolution_COMMIT,
		}
	}},
	"RecallMessage": {rmqpb.Code_OK, func(t testing.TB, s *testServer) proto.Message {
		entries := s.send(t, delayedMessage("late", fmt.Sprint("m", time.Now().UnixNano()), time.Hour))
		return &rmqpb.RecallMessageRequest{Topic: named("late"), RecallHandle: entries[0].GetRecallHandle()}
	}},
	"SyncLiteSubscription": fixed(rmqpb.Code_OK, &rmqpb.SyncLiteSubscriptionRequest{
		Topic: named("parent"), Group: named("g"), LiteTopicSet: []string{"l"}, Version: new(int64(1)),
	}),
	"Telemetry": {rmqpb.Code_OK, nil}, // see TestMalformedTelemetryIsRefusedByNameOrAnswered
}

// malformedServer has what the specimens name, and more queues than an answer
// may repeat a large field in.
func malformedServer(t testing.TB, log io.Writer) *testServer {
	s := newTestServer(t, func(o *testOptions) {
		o.Logger = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	})
	s.topic(t, "orders", router.TopicSpec{Queues: 64})
	s.topic(t, "late", router.TopicSpec{Type: mq.TopicDelay, Queues: 1})
	s.transactions(t, "halves")
	s.liteParent(t)
	s.group(t, "g")
	return s
}

// A state is what a refused call must leave as it was.
type state struct {
	revision                                           uint64
	sessions, renewals                                 int
	appended, delivered, settled, refused, deadLetters uint64
	records                                            uint64
}

// state returns the state of the server. The log's own records count only where
// no time has passed, in which leases may have ended.
func (s *testServer) state(timeless bool) state {
	st := s.nodes.Stats()[testShard]
	now := state{
		revision: s.meta.Revision(), sessions: s.sessions.Len(), renewals: s.renewals.len(),
		appended: st.Appended, delivered: st.Delivered, settled: st.Settled, refused: st.Refused, deadLetters: st.DeadLettered,
	}
	if timeless {
		now.records = st.Records
	}
	return now
}

// answers makes one call and returns all that it answers.
func answers(t testing.TB, conn *grpc.ClientConn, ctx context.Context, m protoreflect.MethodDescriptor, req proto.Message) ([]proto.Message, error) {
	t.Helper()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/"+string(m.Parent().FullName())+"/"+string(m.Name()))
	require.NoError(t, err)
	require.NoError(t, stream.SendMsg(req))
	require.NoError(t, stream.CloseSend())
	var all []proto.Message
	for {
		res := emptyOf(t, m.Output())
		err := stream.RecvMsg(res)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		all = append(all, res)
	}
}

// statusesIn returns every status in m, at any depth.
func statusesIn(m protoreflect.Message) []*rmqpb.Status {
	var all []*rmqpb.Status
	eachMessage(m, func(m protoreflect.Message) {
		if st, ok := m.Interface().(*rmqpb.Status); ok {
			all = append(all, st)
		}
	})
	return all
}

// eachMessage calls fn for m and every message inside of it.
func eachMessage(m protoreflect.Message, fn func(protoreflect.Message)) {
	fn(m)
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Message() == nil || f.IsMap():
		case f.IsList():
			for i := range v.List().Len() {
				eachMessage(v.List().Get(i).Message(), fn)
			}
		default:
			eachMessage(v.Message(), fn)
		}
		return true
	})
}

// requireSoundAnswer checks what holds for every answer to whatever request: a
// status that is no error of the server and, where it is a refusal, names what is
// wrong; whole endpoints; and no more bytes than the request deserves. It returns
// whether the request as a whole was refused.
func requireSoundAnswer(t testing.TB, what hostile.Mutation, req proto.Message, res []proto.Message) (refused bool) {
	t.Helper()
	size := 0
	for i, m := range res {
		size += proto.Size(m)
		requireSoundEndpoints(t, m)
		for j, st := range statusesIn(m.ProtoReflect()) {
			switch code := st.GetCode(); code {
			case rmqpb.Code_OK, rmqpb.Code_MULTIPLE_RESULTS, rmqpb.Code_MESSAGE_NOT_FOUND:
				continue
			case rmqpb.Code_NOT_IMPLEMENTED, rmqpb.Code_UNSUPPORTED: // they say what
			default:
				require.Equal(t, rmqpb.Code(4), code/10000, "%s: %s", what, st)
				require.True(t, what.NamedBy(st.GetMessage()), "%s: the text names nothing of it: %s", what, st)
			}
			require.NotEmpty(t, st.GetMessage(), what)
			require.Less(t, len(st.GetMessage()), 1000, what)
			refused = refused || i == 0 && j == 0
		}
	}
	require.Less(t, size, 64<<10+2*proto.Size(req), "%s: the answer is out of proportion", what)
	return refused
}

// requireSoundEndpoints checks what every SDK needs of the endpoints and queues in
// an answer.
func requireSoundEndpoints(t testing.TB, answer proto.Message) {
	t.Helper()
	eachMessage(answer.ProtoReflect(), func(m protoreflect.Message) {
		switch m := m.Interface().(type) {
		case *rmqpb.Endpoints:
			require.NotZero(t, m.GetScheme(), "endpoints without a scheme: %v", m)
			require.NotEmpty(t, m.GetAddresses())
			require.LessOrEqual(t, len(m.GetAddresses()), maxDialled)
			for _, a := range m.GetAddresses() {
				require.Equal(t, dialledAddress(a).GetScheme(), m.GetScheme(), "the scheme does not fit the host: %v", m)
			}
		case *rmqpb.MessageQueue:
			require.NotZero(t, m.GetPermission())
			require.NotEmpty(t, m.GetAcceptMessageTypes())
			require.NotContains(t, m.GetAcceptMessageTypes(), rmqpb.MessageType_MESSAGE_TYPE_UNSPECIFIED)
			require.NotNil(t, m.GetBroker().GetEndpoints())
		}
	})
}

func TestMalformedRequestsAreRefusedByNameAndChangeNothing(t *testing.T) {
	for _, service := range []protoreflect.FullName{"apache.rocketmq.v2.MessagingService", "apache.rocketmq.v2.Admin"} {
		for _, m := range methodsOf(t, service) {
			if m.IsStreamingClient() {
				require.Contains(t, specimens, string(m.Name()))
				continue
			}
			t.Run(string(m.Name()), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { malform(t, m) })
			})
		}
	}
}

func malform(t *testing.T, m protoreflect.MethodDescriptor) {
	var log strings.Builder
	s := malformedServer(t, &log)
	conn := s.dial(t)
	of, ok := specimens[string(m.Name())]
	if m.Parent().Name() == "Admin" {
		of = fixed(rmqpb.Code_NOT_IMPLEMENTED, emptyOf(t, m.Input()))
	} else {
		require.True(t, ok, "%s: a new RPC needs a specimen", m.Name())
	}
	if m.Output().Fields().ByName("status") == nil && !m.IsStreamingServer() {
		return // no status to say anything in: ChangeLogLevel
	}
	req := of.make(t, s)
	good, err := answers(t, conn, from(t, "c"), m, req)
	require.NoError(t, err)
	require.Equal(t, of.want, statusesIn(good[0].ProtoReflect())[0].GetCode(), "%v", good[0])

	refused := 0
	for _, mutation := range hostile.Mutations(req) {
		req := of.make(t, s)
		mutation.Apply(req)
		synctest.Wait()
		before := s.state(!m.IsStreamingServer())
		res, err := answers(t, conn, from(t, "c"), m, req)
		require.NoError(t, err, mutation)
		require.NotEmpty(t, statusesIn(res[0].ProtoReflect()), mutation)
		if requireSoundAnswer(t, mutation, req, res) {
			refused++
			synctest.Wait()
			require.Equal(t, before, s.state(!m.IsStreamingServer()), "%s: refused, and yet it changed something", mutation)
		}
	}
	require.Positive(t, refused)
	requireServing(t, s, conn)
	require.Empty(t, log.String())
}

// requireServing checks that what is in the topic of the specimens, and one more
// message, can be delivered and is whole.
func requireServing(t *testing.T, s *testServer, conn *grpc.ClientConn) {
	t.Helper()
	s.send(t, message("orders", "last", "body"))
	c := s.consumer("orders", "afterwards")
	last := false
	for {
		a, err := receiveOver(t, from(t, c.id), conn, c.simple(32, time.Minute, 0))
		require.NoError(t, err)
		if len(a.messages) == 0 {
			break
		}
		for i, m := range a.messages {
			sys := m.GetSystemProperties()
			last = last || sys.GetMessageId() == "last"
			require.Nil(t, verifyDigest(sys.GetBodyDigest(), m.GetBody()))
			require.Equal(t, rmqpb.MessageType_NORMAL, sys.GetMessageType())
			require.Contains(t, []rmqpb.Encoding{rmqpb.Encoding_IDENTITY, rmqpb.Encoding_GZIP}, sys.GetBodyEncoding())
			require.True(t, sys.GetBornTimestamp().IsValid() && sys.GetStoreTimestamp().IsValid())
			c.acked(t, a.handle(i))
		}
	}
	require.True(t, last)
}

func TestMalformedTelemetryIsRefusedByNameOrAnswered(t *testing.T) {
	subscription := subscriber(rmqpb.ClientType_PUSH_CONSUMER, "g", "orders")
	subscription.GetSubscription().Fifo, subscription.GetSubscription().ReceiveBatchSize = new(false), new(int32(32))
	subscription.GetSubscription().LongPollingTimeout = durationpb.New(time.Second)
	for name, command := range map[string]*rmqpb.TelemetryCommand{
		"producer": settingsCommand(publisher("orders")),
		"consumer": settingsCommand(subscription),
		"report": {Command: &rmqpb.TelemetryCommand_ThreadStackTrace{
			ThreadStackTrace: &rmqpb.ThreadStackTrace{Nonce: "n", ThreadStackTrace: new("s")},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log strings.Builder
				s := malformedServer(t, &log)
				conn := s.dial(t)
				c := rmqpb.NewMessagingServiceClient(conn)
				for _, mutation := range hostile.Mutations(command) {
					spoiled := proto.CloneOf(command)
					mutation.Apply(spoiled)
					ctx, cancel := context.WithCancel(from(t, "c"))
					stream := open(t, c, ctx)
					require.NoError(t, stream.Send(spoiled))
					synctest.Wait()
					if err := stream.Send(settingsCommand(publisher("after"))); err != nil {
						require.ErrorIs(t, err, io.EOF, "the stream ends for nothing but a refusal")
					}
					for {
						cmd, err := stream.Recv()
						if err != nil {
							st := grpcstatus.Convert(err)
							require.Contains(t, []grpccodes.Code{grpccodes.InvalidArgument, grpccodes.Unimplemented}, st.Code(), "%s: %v", mutation, err)
							require.True(t, mutation.NamedBy(st.Message()), "%s: the text names nothing of it: %v", mutation, err)
							break
						}
						requireSoundAnswer(t, mutation, spoiled, []proto.Message{cmd})
						require.NotNil(t, cmd.GetSettings().GetBackoffPolicy().GetStrategy(), mutation)
						require.True(t, proto.Equal(&rmqpb.Metric{}, cmd.GetSettings().GetMetric()), mutation)
						if topics := cmd.GetSettings().GetPublishing().GetTopics(); len(topics) == 1 && topics[0].GetName() == "after" {
							break
						}
					}
					cancel()
					synctest.Wait()
				}
				requireServing(t, s, conn)
				require.Empty(t, log.String())
			})
		})
	}
}

// rawBytes is a codec whose requests are bytes.
type rawBytes struct{}

func (rawBytes) Name() string                  { return "proto" }
func (rawBytes) Marshal(v any) ([]byte, error) { return v.([]byte), nil }
func (rawBytes) Unmarshal([]byte, any) error   { return nil }

func TestBytesThatAreNoRequestCostOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		s := malformedServer(t, &log)
		conn := s.dial(t)
		before := s.state(true)
		for _, m := range methodsOf(t, "apache.rocketmq.v2.MessagingService") {
			for _, request := range [][]byte{{0xff}, {0x0a, 0x05, 0x12}, {0x0a, 0x04, 0x12, 0x02, 0xc3, 0x28}, make([]byte, 1000)} {
				stream, err := conn.NewStream(from(t, "c"), &grpc.StreamDesc{ServerStreams: true, ClientStreams: m.IsStreamingClient()},
					"/"+string(m.Parent().FullName())+"/"+string(m.Name()), grpc.ForceCodec(rawBytes{}))
				require.NoError(t, err)
				require.NoError(t, stream.SendMsg(request))
				require.NoError(t, stream.CloseSend())
				for err == nil {
					err = stream.RecvMsg(new([]byte))
				}
			}
		}
		before.sessions = 1 // its stream was open
		require.Equal(t, before, s.state(true))
		requireServing(t, s, conn)
		require.Empty(t, log.String())
	})
}

func TestAnAckOfMoreThanAnybodyCanHoldIsRefused(t *testing.T) {
	s := newTestServer(t)
	s.topic(t, "orders")
	s.send(t, message("orders", "m"+rand.Text(), "body")) // one more, whatever was sent before
	c := s.consumer("orders", "g")
	handle := c.receive(t, c.simple(1, maxInvisible, 0)).handle(0)
	for n, want := range map[int]rmqpb.Code{maxAckEntries + 1: rmqpb.Code_PAYLOAD_TOO_LARGE, 0: rmqpb.Code_BAD_REQUEST} {
		resp := c.ack(t, slices.Repeat([]string{handle}, n)...)
		require.Equal(t, want, resp.GetStatus().GetCode())
		require.Contains(t, resp.GetStatus().GetMessage(), "entries")
		require.Empty(t, resp.GetEntries())
	}
	require.Zero(t, s.nodes.Stats()[testShard].Settled)
	c.acked(t, slices.Repeat([]string{handle}, maxAckEntries)...)
}

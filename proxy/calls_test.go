package proxy

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
)

func TestCallsKeepASessionAliveAndMakeNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "orders")
		s.sessions.Touch("c")
		for range 5 {
			time.Sleep(80 * time.Second)
			s.routeOf(t, as(t, "c"), "orders")
			s.routeOf(t, as(t, "other"), "orders")
		}
		require.NotNil(t, s.sessions.Get("c"))
		require.Equal(t, 1, s.sessions.Len())
		time.Sleep(3 * time.Minute)
		require.Zero(t, s.sessions.Len())
	})
}

// methodsOf returns the RPCs of a service of the protocol.
func methodsOf(t testing.TB, service protoreflect.FullName) []protoreflect.MethodDescriptor {
	t.Helper()
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(service)
	require.NoError(t, err)
	methods := d.(protoreflect.ServiceDescriptor).Methods()
	var out []protoreflect.MethodDescriptor
	for i := range methods.Len() {
		out = append(out, methods.Get(i))
	}
	return out
}

func emptyOf(t testing.TB, d protoreflect.MessageDescriptor) proto.Message {
	t.Helper()
	kind, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	require.NoError(t, err)
	return kind.New().Interface()
}

// call makes one call that is not a client stream and returns the first status
// in its answer, nil when it has none.
func call(t testing.TB, conn *grpc.ClientConn, ctx context.Context, m protoreflect.MethodDescriptor, req proto.Message) (*rmqpb.Status, error) {
	t.Helper()
	path := fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
	res := emptyOf(t, m.Output())
	if !m.IsStreamingServer() {
		err := conn.Invoke(ctx, path, req, res)
		return statusIn(res), err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, path)
	require.NoError(t, err)
	require.NoError(t, stream.SendMsg(req))
	require.NoError(t, stream.CloseSend())
	err = stream.RecvMsg(res)
	return statusIn(res), err
}

func TestEveryCallNeedsAClientIDAndNamesItsHeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // a receive holds its errors back
		s := newTestServer(t)
		conn := s.dial(t)
		checked := 0
		for _, id := range []string{"", "  "} {
			ctx := t.Context()
			if id != "" {
				ctx = metadata.AppendToOutgoingContext(ctx, headerClientID, id)
			}
			for _, m := range methodsOf(t, "apache.rocketmq.v2.MessagingService") {
				if m.IsStreamingClient() {
					continue // Telemetry has a test of its own
				}
				st, err := call(t, conn, ctx, m, emptyOf(t, m.Input()))
				require.NoError(t, err, m.Name())
				require.Equal(t, rmqpb.Code_CLIENT_ID_REQUIRED, st.GetCode(), m.Name())
				require.Contains(t, st.GetMessage(), "x-mq-client-id", m.Name())
				checked++
			}
		}
		require.Equal(t, 2*16, checked)
	})
}

func TestClientIDIsTheOnlyHeaderNeeded(t *testing.T) {
	s := newTestServer(t)
	s.topic(t, "orders")
	c := rmqpb.NewMessagingServiceClient(s.dial(t))
	ctx := from(t, "new")
	route, err := c.QueryRoute(ctx, &rmqpb.QueryRouteRequest{Topic: named("orders")})
	require.NoError(t, err)
	require.Equal(t, rmqpb.Code_OK, route.GetStatus().GetCode())
	require.Equal(t, "perigee.test", route.GetMessageQueues()[0].GetBroker().GetEndpoints().GetAddresses()[0].GetHost())
	assignments, err := c.QueryAssignment(ctx, &rmqpb.QueryAssignmentRequest{Topic: named("orders"), Group: named("g")})
	require.NoError(t, err)
	require.Equal(t, rmqpb.Code_OK, assignments.GetStatus().GetCode())
	// Repeated headers count with their first value.
	ctx = metadata.AppendToOutgoingContext(ctx, headerClientID, "", headerNamespace, "", headerNamespace, "other")
	sent, err := c.SendMessage(ctx, &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{message("orders", "m", "body")}})
	require.NoError(t, err)
	require.Equal(t, rmqpb.Code_OK, sent.GetStatus().GetCode())
	require.Zero(t, s.sessions.Len(), "none of these calls makes a session")
}

func TestCallsThatAreNotBuiltSaySo(t *testing.T) {
	s := newTestServer(t)
	conn := s.dial(t)
	for _, m := range methodsOf(t, "apache.rocketmq.v2.MessagingService") {
		switch m.Name() {
		case "PullMessage", "UpdateOffset", "GetOffset", "QueryOffset", "EndTransaction", "RecallMessage", "SyncLiteSubscription":
			st, err := call(t, conn, from(t, "c"), m, emptyOf(t, m.Input()))
			require.NoError(t, err, m.Name())
			require.Equal(t, rmqpb.Code_NOT_IMPLEMENTED, st.GetCode(), m.Name())
			require.Contains(t, st.GetMessage(), string(m.Name()))
		}
	}
	for _, m := range methodsOf(t, "apache.rocketmq.v2.Admin") {
		st, err := call(t, conn, t.Context(), m, emptyOf(t, m.Input()))
		if m.Name() == "ChangeLogLevel" { // no status to say it in
			require.ErrorContains(t, err, "Unimplemented")
			continue
		}
		require.NoError(t, err, m.Name())
		require.Equal(t, rmqpb.Code_NOT_IMPLEMENTED, st.GetCode(), m.Name())
		require.Contains(t, st.GetMessage(), string(m.Name()))
	}
}

// mutilated calls fn with copies of m, each without one of the fields that are
// set in it, at any depth, or with one sub-message made empty, and with its path.
func mutilated(m proto.Message, fn func(path string, m proto.Message)) {
	type descent func(protoreflect.Message) protoreflect.Message
	var walk func(path string, to descent)
	walk = func(path string, to descent) {
		to(m.ProtoReflect()).Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
			name := path + "." + string(f.Name())
			without := proto.Clone(m)
			to(without.ProtoReflect()).Clear(f)
			fn(name, without)
			switch {
			case f.IsMap() || f.Message() == nil:
			case f.IsList():
				for i := range v.List().Len() {
					walk(fmt.Sprintf("%s[%d]", name, i), func(m protoreflect.Message) protoreflect.Message {
						return to(m).Get(f).List().Get(i).Message()
					})
				}
			default:
				empty := proto.Clone(m)
				to(empty.ProtoReflect()).Set(f, protoreflect.ValueOfMessage(v.Message().New()))
				fn(name+"{}", empty)
				walk(name, func(m protoreflect.Message) protoreflect.Message { return to(m).Get(f).Message() })
			}
			return true
		})
	}
	walk("", func(m protoreflect.Message) protoreflect.Message { return m })
}

func TestMutilatedRequestsAreRefusedAndNeverBreakTheServer(t *testing.T) {
	var log strings.Builder
	s := newTestServer(t, func(o *testOptions) { o.Logger = textLogger(&log) })
	s.topic(t, "orders")
	conn := s.dial(t)
	full := message("orders", "m", "body")
	full.Topic.ResourceNamespace = ""
	full.UserProperties = map[string]string{"k": "v"}
	full.SystemProperties.Tag, full.SystemProperties.Keys = new("t"), []string{"k"}
	full.SystemProperties.BodyDigest = &rmqpb.Digest{Type: rmqpb.DigestType_MD5, Checksum: "841A2D689AD86BD1611447453C22C6FC"}
	full.SystemProperties.BornTimestamp = &timestamppb.Timestamp{Seconds: 1, Nanos: 1}
	full.SystemProperties.BornHost = "host"
	full.SystemProperties.OrphanedTransactionRecoveryDuration = durationpb.New(1)
	requests := map[string]proto.Message{
		"QueryRoute":      &rmqpb.QueryRouteRequest{Topic: named("orders"), Endpoints: endpoints(1, "10.0.0.1", 8081)},
		"QueryAssignment": &rmqpb.QueryAssignmentRequest{Topic: named("orders"), Group: named("g"), Endpoints: endpoints(1, "10.0.0.1", 8081)},
		"SendMessage":     &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{full, proto.CloneOf(full)}},
	}
	refused := 0
	for _, m := range methodsOf(t, "apache.rocketmq.v2.MessagingService") {
		req, ok := requests[string(m.Name())]
		if !ok {
			continue
		}
		st, err := call(t, conn, from(t, "c"), m, req)
		require.NoError(t, err)
		require.Equal(t, rmqpb.Code_OK, st.GetCode(), "%s: %s", m.Name(), st.GetMessage())
		mutilated(req, func(path string, req proto.Message) {
			st, err := call(t, conn, from(t, "c"), m, req)
			require.NoError(t, err, path)
			if st.GetCode() == rmqpb.Code_OK {
				return
			}
			refused++
			require.Equal(t, rmqpb.Code(4), st.GetCode()/10000, "%s%s: %s", m.Name(), path, st)
			require.NotEmpty(t, st.GetMessage())
		})
	}
	require.GreaterOrEqual(t, refused, 3+6+1+2*8)
	require.Empty(t, log.String())
}

func TestMutilatedSettingsAreRefusedOrAnswered(t *testing.T) {
	s := newTestServer(t)
	c := rmqpb.NewMessagingServiceClient(s.dial(t))
	full := subscriber(rmqpb.ClientType_PUSH_CONSUMER, "g", "orders")
	full.AccessPoint = endpoints(1, "10.0.0.1", 8081)
	full.BackoffPolicy = exponential(3, 1, 2, 2)
	full.Metric = &rmqpb.Metric{On: true, Endpoints: endpoints(1, "10.0.0.1", 8081)}
	for _, settings := range []*rmqpb.Settings{full, publisher("orders")} {
		mutilated(settings, func(path string, m proto.Message) {
			ctx, cancel := context.WithCancel(from(t, "c"))
			defer cancel()
			stream := open(t, c, ctx)
			offer(t, stream, m.(*rmqpb.Settings))
			cmd, err := stream.Recv()
			if err != nil {
				require.ErrorContains(t, err, "InvalidArgument", path)
				return
			}
			got := cmd.GetSettings()
			require.NotNil(t, got.GetBackoffPolicy().GetStrategy(), path)
			require.Nil(t, got.GetMetric().GetEndpoints())
			require.False(t, got.GetMetric().GetOn())
			if e := got.GetAccessPoint(); e != nil {
				require.NotZero(t, e.GetScheme(), path)
				require.Len(t, e.GetAddresses(), 1, path)
			}
		})
	}
}

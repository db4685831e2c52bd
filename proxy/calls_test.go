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

func TestAClientIDOfAnySizeIsNoKeyOfATable(t *testing.T) {
	s := newTestServer(t)
	for n, want := range map[int]rmqpb.Code{maxClientID: rmqpb.Code_OK, maxClientID + 1: rmqpb.Code_BAD_REQUEST} {
		res, err := s.Heartbeat(as(t, strings.Repeat("c", n)), &rmqpb.HeartbeatRequest{ClientType: rmqpb.ClientType_PRODUCER})
		require.NoError(t, err)
		require.Equal(t, want, res.GetStatus().GetCode())
		if want != rmqpb.Code_OK {
			require.Contains(t, res.GetStatus().GetMessage(), headerClientID)
		}
	}
	require.Equal(t, 1, s.sessions.Len())
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

func TestAHeartbeatOfNoClientTypeThereIsIsRefused(t *testing.T) {
	s := newTestServer(t)
	s.sessions.Touch("c") // being known is no excuse
	for _, kind := range []rmqpb.ClientType{-1, 7, 99} {
		res, err := s.Heartbeat(as(t, "c"), &rmqpb.HeartbeatRequest{ClientType: kind})
		require.NoError(t, err)
		require.Equal(t, rmqpb.Code_UNRECOGNIZED_CLIENT_TYPE, res.GetStatus().GetCode(), kind)
		require.Contains(t, res.GetStatus().GetMessage(), "client_type")
	}
}

package admin

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/internal/hostile"
)

// specimens has a good request of every RPC of every service, about the topic and
// the group that the test makes anew for each. A new RPC needs one here.
var specimens = map[string]proto.Message{
	"CreateTopic": &adminpb.CreateTopicRequest{
		Name: "new", Type: adminpb.TopicType_TOPIC_TYPE_NORMAL, Queues: 2, Permission: adminpb.Permission_PERMISSION_READ_WRITE,
	},
	"GetTopic":   &adminpb.GetTopicRequest{Name: "t"},
	"ListTopics": &adminpb.ListTopicsRequest{IncludeSystem: true},
	"UpdateTopic": &adminpb.UpdateTopicRequest{
		Name: "t", ReadQueues: new(int32(4)), WriteQueues: new(int32(4)), Permission: adminpb.Permission_PERMISSION_READ.Enum(),
	},
	"DeleteTopic": &adminpb.DeleteTopicRequest{Name: "t"},
	"PurgeTopic":  &adminpb.PurgeTopicRequest{Name: "t"},
	"CreateGroup": &adminpb.CreateGroupRequest{
		Name: "new",
		Retry: &adminpb.RetryPolicy{
			MaxAttempts: 3, Customized: []*durationpb.Duration{durationpb.New(time.Second)},
			Initial: durationpb.New(time.Second), Max: durationpb.New(time.Minute), Multiplier: 2,
		},
		Start: &adminpb.StartPosition{Policy: adminpb.StartPosition_POLICY_TIMESTAMP, Time: timestamppb.New(time.Unix(1, 0))},
	},
	"GetGroup":   &adminpb.GetGroupRequest{Name: "g"},
	"ListGroups": &adminpb.ListGroupsRequest{},
	"UpdateGroup": &adminpb.UpdateGroupRequest{
		Name: "g", Fifo: new(false),
		Retry: &adminpb.RetryPolicy{MaxAttempts: 3, Initial: durationpb.New(time.Second), Max: durationpb.New(time.Minute), Multiplier: 2},
		Start: &adminpb.StartPosition{Policy: adminpb.StartPosition_POLICY_LATEST},
	},
	"DeleteGroup":        &adminpb.DeleteGroupRequest{Name: "g"},
	"ReconnectClients":   &adminpb.ReconnectClientsRequest{ClientIds: []string{"c", "d"}},
	"ListDeadLetters":    &adminpb.ListDeadLettersRequest{Namespace: "n"},
	"RedriveDeadLetters": &adminpb.RedriveDeadLettersRequest{Group: "g", Max: 5},
	"ListPositions":      &adminpb.ListPositionsRequest{Group: "g", Topic: "t"},
	"ResetOffset": &adminpb.ResetOffsetRequest{
		Group: "g", Topic: "t", Shard: "s1", Queue: new(int32(1)), Target: &adminpb.ResetOffsetRequest_Offset{Offset: 0},
	},
	"ListTimers":       &adminpb.ListTimersRequest{Topic: "t", PageSize: 10, PageToken: "0.5.6", MessageId: "m"},
	"CancelTimers":     &adminpb.CancelTimersRequest{Topic: "t", Ids: []string{"s1/7", "s2/8"}},
	"PostponeTimers":   &adminpb.PostponeTimersRequest{Topic: "t", Ids: []string{"s1/7"}, DeliverAt: timestamppb.New(time.Unix(1, 0))},
	"ListClients":      &adminpb.ListClientsRequest{Namespace: "n", Group: "g", Topic: "t", PageSize: 10, After: "b"},
	"ListTransactions": &adminpb.ListTransactionsRequest{Topic: "t", Stage: adminpb.TransactionStage_TRANSACTION_STAGE_WAITING, PageSize: 10, PageToken: "1.0.0.5.6", MessageId: "m"},
	"GetCluster":       &adminpb.GetClusterRequest{},
	"ListNodes":        &adminpb.ListNodesRequest{},
	"ListShards":       &adminpb.ListShardsRequest{},
	"SetShard":         &adminpb.SetShardRequest{Name: "spare", State: adminpb.ShardState_SHARD_STATE_DRAINING},
	"RemoveShard":      &adminpb.RemoveShardRequest{Name: "spare", LoseDeadLetters: true},
	"EndTransactions":  &adminpb.EndTransactionsRequest{Ids: []string{"s1/7", "s2/8"}, End: adminpb.TransactionEnd_TRANSACTION_END_ROLLBACK},
}

func TestMalformedRequestsAreRefusedByNameAndChangeNothing(t *testing.T) {
	services := 0
	protoregistry.GlobalFiles.RangeFilesByPackage("perigee.admin.v1", func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			if file.Services().Get(i).Name() == "ControlService" {
				continue // is served at a socket, by internal/node, and tested there
			}
			services++
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				m := methods.Get(j)
				t.Run(string(m.Name()), func(t *testing.T) {
					good, ok := specimens[string(m.Name())]
					require.True(t, ok, "%s: a new RPC needs a specimen", m.FullName())
					malform(t, m, good)
				})
			}
		}
		return true
	})
	require.Equal(t, 6, services)
}

func malform(t *testing.T, m protoreflect.MethodDescriptor, good proto.Message) {
	s, ctx := newFixture(t), t.Context()
	s.deploy(t)
	conn := s.dial(t)
	invoke := func(req proto.Message) error {
		kind, err := protoregistry.GlobalTypes.FindMessageByName(m.Output().FullName())
		require.NoError(t, err)
		return conn.Invoke(ctx, "/"+string(m.Parent().FullName())+"/"+string(m.Name()), req, kind.New().Interface())
	}
	anew := func() {
		for _, name := range []string{"t", "new"} {
			_, err := s.DeleteTopic(ctx, &adminpb.DeleteTopicRequest{Name: name})
			require.Contains(t, []codes.Code{codes.OK, codes.NotFound}, status.Code(err))
		}
		for _, name := range []string{"g", "new"} {
			_, err := s.DeleteGroup(ctx, &adminpb.DeleteGroupRequest{Name: name})
			require.Contains(t, []codes.Code{codes.OK, codes.NotFound}, status.Code(err))
		}
		_, err := s.CreateTopic(ctx, &adminpb.CreateTopicRequest{Name: "t"})
		require.NoError(t, err)
		_, err = s.CreateGroup(ctx, &adminpb.CreateGroupRequest{Name: "g"})
		require.NoError(t, err)
	}
	anew()
	require.NoError(t, invoke(good))
	refused := 0
	for _, mutation := range hostile.Mutations(good) {
		anew()
		req := proto.Clone(good)
		mutation.Apply(req)
		before := s.router.Revision()
		st := status.Convert(invoke(req))
		switch st.Code() {
		case codes.OK:
			continue
		case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.Unimplemented, codes.OutOfRange:
		default:
			t.Errorf("%s: %v", mutation, st)
		}
		refused++
		// What is named by name and namespace is a topic or a group in the texts.
		noun := "group"
		if strings.HasSuffix(string(m.Name()), "Topic") {
			noun = "topic"
		}
		about := (mutation.Path == "name" || mutation.Path == "namespace") && strings.Contains(st.Message(), noun)
		text := strings.ReplaceAll(st.Message(), "-", "_") // some are named as the command line does
		require.True(t, about || mutation.NamedBy(text), "%s: the text names nothing of it: %v", mutation, st)
		require.Less(t, len(st.Message()), 1000, mutation)
		require.Equal(t, before, s.router.Revision(), "%s: refused, and yet it changed something", mutation)
	}
	if m.Input().Fields().Len() > 0 {
		require.Positive(t, refused)
	}
}

// dial serves the fixture over a pipe and returns a connection to it.
func (f *fixture) dial(t *testing.T) *grpc.ClientConn {
	t.Helper()
	listener := bufconn.Listen(1 << 20)
	g := grpc.NewServer()
	f.Register(g)
	served := make(chan error, 1)
	go func() { served <- g.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///admin.test",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, conn.Close())
		g.Stop()
		require.NoError(t, <-served)
	})
	return conn
}

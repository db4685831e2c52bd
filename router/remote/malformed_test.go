package remote

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/timestamppb"

	routerpb "github.com/perigee-mq/perigee/gen/perigee/router/v1"
	"github.com/perigee-mq/perigee/internal/hostile"
	"github.com/perigee-mq/perigee/internal/tiererr"
	"github.com/perigee-mq/perigee/internal/tierwire"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

var (
	someRetry = tierwire.FromRetry(mq.RetryPolicy{MaxAttempts: 3, Initial: 1e9, Max: 1e10, Multiplier: 2})
	someStart = &routerpb.StartPosition{Policy: routerpb.StartPolicy_START_POLICY_TIMESTAMP, Time: &timestamppb.Timestamp{Seconds: 1}}
)

// specimens has a good request of every RPC, about the topic t, the group g and the shard
// s1, which the test makes anew for each. A new RPC needs one here.
var specimens = map[string]proto.Message{
	"Register": &routerpb.RegisterRequest{Node: &routerpb.Node{
		Name: "n", Tier: routerpb.Tier_TIER_STORE, Address: "n:1", Shards: []string{"s1"}, Version: "v", Started: &timestamppb.Timestamp{Seconds: 1}, Identity: "i",
	}},
	"Watch":     &routerpb.WatchRequest{Known: &routerpb.Known{}},
	"FindTopic": &routerpb.FindTopicRequest{Name: &routerpb.Resource{Name: "t"}, Id: 1, Ensure: true},
	"FindGroup": &routerpb.FindGroupRequest{
		Name: &routerpb.Resource{Name: "g"}, Id: 1, System: &routerpb.GroupSpec{Name: &routerpb.Resource{Name: mq.RedriveGroup}, Retry: someRetry, Start: someStart},
	},
	"CreateTopic": &routerpb.CreateTopicRequest{Spec: &routerpb.TopicSpec{Name: &routerpb.Resource{Name: "new"}, Type: 1, Queues: 2, Permission: 4}},
	"UpdateTopic": &routerpb.UpdateTopicRequest{
		Name: &routerpb.Resource{Name: "t"}, Type: routerpb.TopicType_TOPIC_TYPE_DELAY.Enum(), ReadQueues: new(int32(4)), WriteQueues: new(int32(4)),
		Permission: routerpb.Permission_PERMISSION_READ.Enum(), Retention: new(int64(1e12)), Dedup: new(int64(1e10)), LiteTtl: new(int64(0)),
	},
	"DeleteTopic": &routerpb.DeleteTopicRequest{Name: &routerpb.Resource{Name: "t"}},
	"CreateGroup": &routerpb.CreateGroupRequest{Spec: &routerpb.GroupSpec{Name: &routerpb.Resource{Name: "new"}, Retry: someRetry, Start: someStart}},
	"UpdateGroup": &routerpb.UpdateGroupRequest{Name: &routerpb.Resource{Name: "g"}, Fifo: new(true), Retry: someRetry, Start: someStart},
	"DeleteGroup": &routerpb.DeleteGroupRequest{Name: &routerpb.Resource{Name: "g"}},
	"ListNodes":   &routerpb.ListNodesRequest{},
	"ListShards":  &routerpb.ListShardsRequest{},
	"SetShard":    &routerpb.SetShardRequest{Name: "s1", State: routerpb.ShardState_SHARD_STATE_DRAINING},
	"RemoveShard": &routerpb.RemoveShardRequest{Name: "s2"},
	"CloseShard":  &routerpb.CloseShardRequest{Name: "s2", Topics: []*routerpb.ClosedTopic{{Id: 1, Placed: 2}}},
}

// TestMalformedRequestsAreRefusedWithTheirKindAndChangeNothing: whatever a peer sends is
// carried out or refused with an error of a known kind, and a refusal changes nothing.
func TestMalformedRequestsAreRefusedWithTheirKindAndChangeNothing(t *testing.T) {
	methods := routerpb.File_perigee_router_v1_router_proto.Services().ByName("RouterService").Methods()
	for i := range methods.Len() {
		m := methods.Get(i)
		t.Run(string(m.Name()), func(t *testing.T) {
			good, ok := specimens[string(m.Name())]
			require.True(t, ok, "%s: a new RPC needs a specimen", m.FullName())
			inWorld(t, "r1", func(w *world) { w.malform(m, good) })
		})
	}
}

func (w *world) malform(m protoreflect.MethodDescriptor, good proto.Message) {
	r, ctx := w.hosts["r1"].router, w.Context()
	conn, err := grpc.NewClient("passthrough:///r1", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(w.network.dial))
	require.NoError(w, err)
	defer conn.Close()
	kind, err := protoregistry.GlobalTypes.FindMessageByName(m.Output().FullName())
	require.NoError(w, err)
	invoke := func(req proto.Message) error {
		method := "/" + string(m.Parent().FullName()) + "/" + string(m.Name())
		if !m.IsStreamingServer() {
			return conn.Invoke(ctx, method, req, kind.New().Interface())
		}
		stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: m.IsStreamingClient()}, method)
		require.NoError(w, err)
		require.NoError(w, stream.SendMsg(req))
		require.NoError(w, stream.CloseSend())
		for { // up to the end, or to what says that all is well
			resp := kind.New().Interface()
			if err := stream.RecvMsg(resp); err != nil {
				return err
			}
			if watch, ok := resp.(*routerpb.WatchResponse); !ok || watch.GetNodes() != nil {
				return nil
			}
		}
	}
	anew := func() {
		for _, name := range []string{"t", "new"} {
			_, _ = r.DeleteTopic(ctx, named(name))
			_, _ = r.DeleteGroup(ctx, named(name))
		}
		_, _ = r.DeleteGroup(ctx, named("g"))
		for _, s := range []string{"s1", "s2", "s3"} {
			_, err := r.AddShard(ctx, s)
			require.NoError(w, err)
		}
		_, err := r.SetShard(ctx, "s1", router.ShardActive)
		require.NoError(w, err)
		_, err = r.SetShard(ctx, "s2", router.ShardDraining)
		require.NoError(w, err)
		w.topic(w.hosts["r1"], "t")
		_, _, err = r.CreateGroup(ctx, router.GroupSpec{Resource: named("g")})
		require.NoError(w, err)
	}
	anew()
	require.NoError(w, invoke(good))
	for _, mutation := range hostile.Mutations(good) {
		anew()
		req := proto.Clone(good)
		mutation.Apply(req)
		before := r.Revision()
		err := invoke(req)
		if err == nil {
			continue
		}
		if text := status.Convert(err).Message(); status.Code(err) == codes.Internal {
			// What is no UTF-8 gRPC itself refuses to send or to read.
			require.Contains(w, text, "UTF-8", "%s", mutation)
			continue
		}
		require.NotContains(w, []codes.Code{codes.Unknown, codes.DeadlineExceeded}, status.Code(err), "%s: %v", mutation, err)
		require.Less(w, len(tiererr.FromStatus(err).Error()), 1000, "%s", mutation)
		require.Equal(w, before, r.Revision(), "%s: refused, and yet it changed something", mutation)
	}
}

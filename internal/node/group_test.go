package node_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
)

func TestAChangedRetryPolicyReachesRunningConsumersAndWhatTheyHold(t *testing.T) {
	r := start(t, t.TempDir())
	_, err := r.admin.CreateTopic(t.Context(), &adminpb.CreateTopicRequest{Name: "t"})
	require.NoError(t, err)
	_, err = r.admin.CreateGroup(t.Context(), &adminpb.CreateGroupRequest{Name: "g"})
	require.NoError(t, err)
	stream, err := r.rmq.Telemetry(as(t.Context()))
	require.NoError(t, err)
	require.NoError(t, stream.Send(&rmqpb.TelemetryCommand{Command: &rmqpb.TelemetryCommand_Settings{Settings: &rmqpb.Settings{
		ClientType: rmqpb.ClientType_PUSH_CONSUMER.Enum(),
		PubSub:     &rmqpb.Settings_Subscription{Subscription: &rmqpb.Subscription{Group: &rmqpb.Resource{Name: "g"}}},
	}}}))
	policy := func() *rmqpb.RetryPolicy {
		cmd, err := stream.Recv()
		require.NoError(t, err)
		return cmd.GetSettings().GetBackoffPolicy()
	}
	require.EqualValues(t, 17, policy().GetMaxAttempts())
	require.Equal(t, rmqpb.Code_OK, r.send(t, "t").GetCode())
	receive := func(topic, group string) (handles []string) {
		stream, err := r.rmq.ReceiveMessage(as(t.Context()), &rmqpb.ReceiveMessageRequest{
			Group: &rmqpb.Resource{Name: group}, MessageQueue: &rmqpb.MessageQueue{Topic: &rmqpb.Resource{Name: topic}},
			BatchSize: 32, InvisibleDuration: durationpb.New(time.Hour), LongPollingTimeout: durationpb.New(10 * time.Second),
		})
		require.NoError(t, err)
		for {
			resp, err := stream.Recv()
			if err != nil {
				return handles
			}
			if m := resp.GetMessage(); m != nil {
				handles = append(handles, m.GetSystemProperties().GetReceiptHandle())
			}
		}
	}
	held := receive("t", "g")
	require.Len(t, held, 1)

	_, err = r.admin.UpdateGroup(t.Context(), &adminpb.UpdateGroupRequest{Name: "g", Retry: &adminpb.RetryPolicy{
		MaxAttempts: 1, Customized: []*durationpb.Duration{durationpb.New(3 * time.Second)},
	}})
	require.NoError(t, err)
	told := policy()
	for told.GetMaxAttempts() != 1 { // the settings of before may have been told once more
		told = policy()
	}
	require.Equal(t, 3*time.Second, told.GetCustomizedBackoff().GetNext()[0].AsDuration())

	resp, err := r.rmq.ChangeInvisibleDuration(as(t.Context()), &rmqpb.ChangeInvisibleDurationRequest{
		Group: &rmqpb.Resource{Name: "g"}, Topic: &rmqpb.Resource{Name: "t"}, ReceiptHandle: held[0], InvisibleDuration: durationpb.New(0),
	})
	require.NoError(t, err)
	require.Equal(t, rmqpb.Code_OK, resp.GetStatus().GetCode())
	require.Len(t, receive("%DLQ%g", "undertaker"), 1, "it was the only attempt, as the limit is now")
	r.stop(t)
}

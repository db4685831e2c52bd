package node_test

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/internal/config"
)

// libraryLimit is how much a client receives at once where nobody says otherwise,
// as in the SDKs for Node.js, C# and Rust.
const libraryLimit = 4 << 20

func (r *running) sendBodies(t *testing.T, topic string, sizes ...int) *rmqpb.Status {
	t.Helper()
	req := &rmqpb.SendMessageRequest{}
	for _, size := range sizes {
		req.Messages = append(req.Messages, &rmqpb.Message{
			Topic: &rmqpb.Resource{Name: topic}, Body: make([]byte, size),
			UserProperties:   map[string]string{"key": "a value as people have them"},
			SystemProperties: &rmqpb.SystemProperties{MessageId: rand.Text()},
		})
	}
	resp, err := r.rmq.SendMessage(as(t.Context()), req)
	require.NoError(t, err, "limits are answered in the response")
	return resp.GetStatus()
}

// receiveBodies returns the sizes of the bodies that one receive gets.
func receiveBodies(t *testing.T, conn *grpc.ClientConn, group, topic string) (sizes []int, err error) {
	t.Helper()
	stream, err := rmqpb.NewMessagingServiceClient(conn).ReceiveMessage(as(t.Context()), &rmqpb.ReceiveMessageRequest{
		Group: &rmqpb.Resource{Name: group}, MessageQueue: &rmqpb.MessageQueue{Topic: &rmqpb.Resource{Name: topic}},
		BatchSize: 32, InvisibleDuration: durationpb.New(time.Minute),
	})
	require.NoError(t, err)
	for {
		frame, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return sizes, nil
		}
		if err != nil {
			return sizes, err
		}
		if m := frame.GetMessage(); m != nil {
			sizes = append(sizes, len(m.GetBody()))
		}
	}
}

func TestBodiesUpToTheLimitAreTakenAndLargerOnesRefusedInTheResponse(t *testing.T) {
	r := start(t, t.TempDir())
	r.topic(t, "t")
	limit := int(config.Default().MaxBodySize)
	require.Equal(t, rmqpb.Code_OK, r.sendBodies(t, "t", limit).GetCode())
	require.Equal(t, rmqpb.Code_OK, r.sendBodies(t, "t", limit, limit, limit, limit).GetCode(), "also several in a request")
	refused := r.sendBodies(t, "t", limit+1)
	require.Equal(t, rmqpb.Code_MESSAGE_BODY_TOO_LARGE, refused.GetCode())
	require.Contains(t, refused.GetMessage(), fmt.Sprint(limit))
	require.Equal(t, rmqpb.Code_MESSAGE_BODY_TOO_LARGE, r.sendBodies(t, "t", 1, limit+1).GetCode())
	require.Equal(t, rmqpb.Code_MESSAGE_BODY_TOO_LARGE, r.sendBodies(t, "t", 10*limit).GetCode())

	stream, err := r.rmq.Telemetry(as(t.Context()))
	require.NoError(t, err)
	require.NoError(t, stream.Send(&rmqpb.TelemetryCommand{Command: &rmqpb.TelemetryCommand_Settings{Settings: &rmqpb.Settings{
		ClientType: rmqpb.ClientType_PRODUCER.Enum(), PubSub: &rmqpb.Settings_Publishing{Publishing: &rmqpb.Publishing{}},
	}}}))
	answer, err := stream.Recv()
	require.NoError(t, err)
	require.EqualValues(t, limit, answer.GetSettings().GetPublishing().GetMaxBodySize())

	conn := connect(t, r.info.GRPCAddr, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	received := 0
	for received < 5 {
		sizes, err := receiveBodies(t, conn, "g", "t")
		require.NoError(t, err)
		require.NotEmpty(t, sizes)
		for _, size := range sizes {
			require.Equal(t, limit, size)
		}
		received += len(sizes)
	}
	require.Equal(t, 5, received)
	r.stop(t)
}

func TestABatchReachesAClientThatTakesFourMegabytesAtOnce(t *testing.T) {
	r := start(t, t.TempDir())
	r.topic(t, "batch")
	sizes := make([]int, 32)
	for i := range sizes {
		sizes[i] = 100 << 10
	}
	require.Equal(t, rmqpb.Code_OK, r.sendBodies(t, "batch", sizes...).GetCode())
	conn := connect(t, r.info.GRPCAddr, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(libraryLimit)))
	got, err := receiveBodies(t, conn, "g", "batch")
	require.NoError(t, err)
	require.Equal(t, sizes, got)

	// A message is one frame: its body, its properties and what the server adds. A
	// body that leaves room for them arrives, one of 4 MiB cannot.
	r.topic(t, "fits")
	require.Equal(t, rmqpb.Code_OK, r.sendBodies(t, "fits", libraryLimit-4<<10).GetCode())
	got, err = receiveBodies(t, conn, "g", "fits")
	require.NoError(t, err)
	require.Equal(t, []int{libraryLimit - 4<<10}, got)
	r.topic(t, "full")
	require.Equal(t, rmqpb.Code_OK, r.sendBodies(t, "full", libraryLimit).GetCode())
	_, err = receiveBodies(t, conn, "g", "full")
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	r.stop(t)
}

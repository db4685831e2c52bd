package crashtest

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/internal/torture/table"
)

// TestAServerKilledWithMuchToReplayIsBackSoon kills a server once that has written
// PERIGEE_REPLAY_MIB of log since its views were last on the disk, and measures how
// long it takes to be back, per GiB of log that it replays.
func TestAServerKilledWithMuchToReplayIsBackSoon(t *testing.T) {
	mib := number(t, "PERIGEE_REPLAY_MIB", 16)
	s := newServer(t, binary(t), "async")
	_, err := s.start()
	require.NoError(t, err)
	conn, err := s.connection(t.Context())
	require.NoError(t, err)
	_, err = adminpb.NewAdminServiceClient(conn).CreateTopic(t.Context(), &adminpb.CreateTopicRequest{Name: topicName, Queues: 4})
	require.NoError(t, err)

	// The time of a start that has nothing to replay is no part of the measure.
	s.down()
	empty, err := s.start()
	require.NoError(t, err)

	sendMiB(t, s, mib)
	s.down()
	before := s.check(t)
	require.True(t, before.Derived)
	replayed := before.End - before.AppliedTo
	took, err := s.start()
	require.NoError(t, err)
	gib := float64(replayed) / (1 << 30)
	perGiB := (took - empty).Seconds() / gib
	t.Logf("%d MiB of log replayed in %v (an empty start takes %v): %.1f s/GiB", replayed>>20, took, empty, perGiB)
	require.Greater(t, replayed, int64(mib)<<20, "the views were on the disk before the kill")
	// However much there is, the views are never far behind.
	sendMiB(t, s, 3*mib)
	s.down()
	after := s.check(t)
	require.LessOrEqual(t, after.End-after.AppliedTo, int64(512<<20))
	require.NoError(t, table.Add(
		table.Cell{Column: "killed, async", Row: "log replayed after one kill", Value: fmt.Sprintf("%d MiB", replayed>>20)},
		table.Cell{Column: "killed, async", Row: "recovery per GiB replayed", Value: fmt.Sprintf("%.1f s", perGiB)},
	))
}

// sendMiB sends that much to the server.
func sendMiB(t *testing.T, s *server, mib uint64) {
	t.Helper()
	const size, batch = 1 << 10, 32
	var left atomic.Int64
	left.Store(int64(mib) << 20 / (size * batch))
	var senders sync.WaitGroup
	for n := range 8 {
		senders.Go(func() {
			for left.Add(-1) >= 0 {
				if err := sendBatch(t.Context(), s, fmt.Sprint("filler-", n), size, batch); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	senders.Wait()
}

var fillerID atomic.Int64

func sendBatch(ctx context.Context, s *server, client string, size, batch int) error {
	conn, err := s.connection(ctx)
	if err != nil {
		return err
	}
	req := &rmqpb.SendMessageRequest{}
	for range batch {
		req.Messages = append(req.Messages, &rmqpb.Message{
			Topic: topicResource, Body: make([]byte, size),
			SystemProperties: &rmqpb.SystemProperties{
				MessageId: fmt.Sprint("filler-", fillerID.Add(1)), BodyEncoding: rmqpb.Encoding_IDENTITY,
				MessageType: rmqpb.MessageType_NORMAL, BornTimestamp: timestamppb.Now(), BornHost: "crashtest",
			},
		})
	}
	callCtx, cancel := call(ctx, client, 30*time.Second)
	defer cancel()
	resp, err := rmqpb.NewMessagingServiceClient(conn).SendMessage(callCtx, req)
	if err == nil && resp.GetStatus().GetCode() != rmqpb.Code_OK {
		err = fmt.Errorf("send: %v", resp.GetStatus())
	}
	return err
}

package crashtest

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
)

// TestWhatWasDeletedStaysDeletedHoweverTheServerEnds kills the server as soon as a
// deletion is answered: the log has not been told of it, or the views have not.
func TestWhatWasDeletedStaysDeletedHoweverTheServerEnds(t *testing.T) {
	bin := binary(t)
	for _, flush := range []string{"sync", "async"} {
		t.Run(flush, func(t *testing.T) {
			t.Parallel()
			d := &deletion{t: t, server: newServer(t, bin, flush)}
			d.start()
			var gone []uint32
			rounds := 4
			if testing.Short() {
				rounds = 2
			}
			for round := range rounds {
				gone = append(gone, d.round(round))
			}
			d.server.terminate(20 * time.Second)
			d.requireNoTrace(bin, gone)
		})
	}
}

// A deletion is a server with a topic that comes and goes, and one that stays.
type deletion struct {
	t      *testing.T
	server *server
	conn   *grpc.ClientConn
	kept   int // messages in the topic that stays
}

func (d *deletion) start() {
	d.t.Helper()
	_, err := d.server.start()
	require.NoError(d.t, err)
	d.conn, err = d.server.connection(d.t.Context())
	require.NoError(d.t, err)
}

func (d *deletion) admin() adminpb.AdminServiceClient { return adminpb.NewAdminServiceClient(d.conn) }

// round lets the topic live, deletes it, kills the server and looks. It returns the
// topic's id.
func (d *deletion) round(round int) uint32 {
	t := d.t
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, name := range []string{"kept", "doomed"} {
		_, err := d.admin().CreateTopic(ctx, &adminpb.CreateTopicRequest{Name: name, Queues: 2})
		require.NoError(t, err)
		require.Equal(t, rmqpb.Code_OK, d.send(ctx, name, 20))
	}
	d.kept += 20
	handles := d.receive(ctx, "doomed", "doomed-group")
	require.Len(t, handles, 20, "and nothing of an earlier life")
	topic, err := d.admin().GetTopic(ctx, &adminpb.GetTopicRequest{Name: "doomed"})
	require.NoError(t, err)

	_, err = d.admin().DeleteTopic(ctx, &adminpb.DeleteTopicRequest{Name: "doomed"})
	require.NoError(t, err)
	if round%2 == 0 { // the group outlives its topic, or not
		_, err = d.admin().DeleteGroup(ctx, &adminpb.DeleteGroupRequest{Name: "doomed-group"})
		require.NoError(t, err)
	}
	d.server.down()
	if round%2 == 1 {
		require.NoError(t, d.server.killStarting(time.Duration(round)*10*time.Millisecond))
	}
	d.start()

	require.Equal(t, rmqpb.Code_TOPIC_NOT_FOUND, d.send(ctx, "doomed", 1))
	_, err = d.admin().GetTopic(ctx, &adminpb.GetTopicRequest{Name: "doomed"})
	require.Equal(t, codes.NotFound, status.Code(err))
	list, err := d.admin().ListTopics(ctx, &adminpb.ListTopicsRequest{IncludeSystem: true})
	require.NoError(t, err)
	for _, other := range list.GetTopics() {
		require.NotEqual(t, "doomed", other.GetName())
		require.NotEqual(t, topic.GetTopic().GetId(), other.GetId())
	}
	group, err := d.admin().GetGroup(ctx, &adminpb.GetGroupRequest{Name: "doomed-group"})
	if round%2 == 0 {
		require.Equal(t, codes.NotFound, status.Code(err))
	} else {
		require.NoError(t, err)
		require.Empty(t, group.GetTopics())
	}
	require.Equal(t, rmqpb.Code_INVALID_RECEIPT_HANDLE, d.ack(ctx, handles[0]))
	kept, err := d.admin().GetTopic(ctx, &adminpb.GetTopicRequest{Name: "kept"})
	require.NoError(t, err)
	messages := int64(0)
	for _, q := range kept.GetQueues() {
		messages += q.GetMaxOffset() - q.GetMinOffset()
	}
	require.EqualValues(t, d.kept, messages, "the other topic is unharmed")
	return topic.GetTopic().GetId()
}

func (d *deletion) send(ctx context.Context, topic string, n int) rmqpb.Code {
	d.t.Helper()
	req := &rmqpb.SendMessageRequest{}
	for range n {
		req.Messages = append(req.Messages, &rmqpb.Message{
			Topic: &rmqpb.Resource{Name: topic}, Body: []byte("body"),
			SystemProperties: &rmqpb.SystemProperties{MessageId: rand.Text()},
		})
	}
	ctx, cancel := call(ctx, "deleter", 10*time.Second)
	defer cancel()
	resp, err := rmqpb.NewMessagingServiceClient(d.conn).SendMessage(ctx, req)
	require.NoError(d.t, err)
	return resp.GetStatus().GetCode()
}

func (d *deletion) receive(ctx context.Context, topic, group string) (handles []string) {
	d.t.Helper()
	ctx, cancel := call(ctx, "deleter", 10*time.Second)
	defer cancel()
	stream, err := rmqpb.NewMessagingServiceClient(d.conn).ReceiveMessage(ctx, &rmqpb.ReceiveMessageRequest{
		Group: &rmqpb.Resource{Name: group}, MessageQueue: &rmqpb.MessageQueue{Topic: &rmqpb.Resource{Name: topic}},
		BatchSize: 32, InvisibleDuration: durationpb.New(time.Hour), LongPollingTimeout: durationpb.New(0),
	})
	require.NoError(d.t, err)
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

func (d *deletion) ack(ctx context.Context, handle string) rmqpb.Code {
	d.t.Helper()
	ctx, cancel := call(ctx, "deleter", 10*time.Second)
	defer cancel()
	resp, err := rmqpb.NewMessagingServiceClient(d.conn).AckMessage(ctx, &rmqpb.AckMessageRequest{
		Group: &rmqpb.Resource{Name: "doomed-group"}, Topic: &rmqpb.Resource{Name: "doomed"},
		Entries: []*rmqpb.AckMessageEntry{{ReceiptHandle: handle}},
	})
	require.NoError(d.t, err)
	return resp.GetStatus().GetCode()
}

// requireNoTrace checks that the views of the stopped server hold nothing of the
// topics but that they are gone. Due times stay until they have come.
func (d *deletion) requireNoTrace(bin string, topics []uint32) {
	t := d.t
	out, err := exec.CommandContext(t.Context(), bin, "dump", "keys", "--json", "--data-dir", d.server.dataDir).CombinedOutput()
	require.NoError(t, err, "%s", out)
	kinds := map[string]int{}
	for line := range strings.Lines(string(out)) {
		var key struct {
			What  string `json:"what"`
			Topic any    `json:"topic"`
		}
		require.NoError(t, json.Unmarshal([]byte(line), &key), line)
		kinds[key.What]++
		for _, id := range topics {
			if key.What != "due" {
				require.NotEqual(t, float64(id), key.Topic, line)
			}
		}
	}
	require.GreaterOrEqual(t, kinds["gone"], len(topics))
	require.Equal(t, d.kept, kinds["entry"])
	require.Zero(t, kinds["lease"])
}

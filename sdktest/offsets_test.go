package sdktest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	rmqpb "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// offsets makes the calls about offsets, which no SDK makes, with the stubs of the SDK.
type offsets struct {
	rmqpb.MessagingServiceClient
	t     *testing.T
	queue *rmqpb.MessageQueue
	group *rmqpb.Resource
}

func (s server) offsets(topic, group string) offsets {
	conn, err := grpc.NewClient(s.Endpoint(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(s.t, err)
	s.t.Cleanup(func() { require.NoError(s.t, conn.Close()) })
	return offsets{
		rmqpb.NewMessagingServiceClient(conn), s.t,
		&rmqpb.MessageQueue{Topic: &rmqpb.Resource{Name: topic}}, &rmqpb.Resource{Name: group},
	}
}

func (o offsets) ctx() context.Context {
	return metadata.AppendToOutgoingContext(o.t.Context(), "x-mq-client-id", "offsets")
}

// pull returns the messages from an offset on, and where the next pull begins.
func (o offsets) pull(offset int64) (pulled []*rmqpb.Message, next int64, code rmqpb.Code) {
	o.t.Helper()
	stream, err := o.PullMessage(o.ctx(), &rmqpb.PullMessageRequest{
		Group: o.group, MessageQueue: o.queue, Offset: offset, BatchSize: 32, LongPollingTimeout: durationpb.New(time.Second),
	})
	require.NoError(o.t, err)
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return pulled, next, code
		}
		require.NoError(o.t, err)
		switch c := r.GetContent().(type) {
		case *rmqpb.PullMessageResponse_Status:
			code = c.Status.GetCode()
		case *rmqpb.PullMessageResponse_Message:
			pulled = append(pulled, c.Message)
		case *rmqpb.PullMessageResponse_NextOffset:
			next = c.NextOffset
		}
	}
}

func (o offsets) find(policy rmqpb.QueryOffsetPolicy, at *timestamppb.Timestamp) int64 {
	o.t.Helper()
	r, err := o.QueryOffset(o.ctx(), &rmqpb.QueryOffsetRequest{MessageQueue: o.queue, QueryOffsetPolicy: policy, Timestamp: at})
	require.NoError(o.t, err)
	require.Equal(o.t, rmqpb.Code_OK, r.GetStatus().GetCode(), r.GetStatus().GetMessage())
	return r.GetOffset()
}

func TestTheStubsOfTheSDKPullAndMoveOffsets(t *testing.T) {
	t.Parallel()
	s := oneShardServer(t)
	topic, group := s.topic("--queues", "1"), s.group()
	p := startProducer(t, s.Endpoint(), topic)
	var sent []string
	for i := range 10 {
		sent = append(sent, fmt.Sprint("message ", i))
		send(t, p, message(topic, sent[i], ""))
	}
	o := s.offsets(topic, group)
	require.EqualValues(t, 0, o.find(rmqpb.QueryOffsetPolicy_BEGINNING, nil))
	require.EqualValues(t, 10, o.find(rmqpb.QueryOffsetPolicy_END, nil))
	require.EqualValues(t, 10, o.find(rmqpb.QueryOffsetPolicy_TIMESTAMP, timestamppb.New(time.Now().Add(time.Hour))))
	pulled, next, code := o.pull(4)
	require.Equal(t, rmqpb.Code_OK, code)
	require.Len(t, pulled, 6)
	for i, m := range pulled {
		require.Equal(t, sent[4+i], string(m.GetBody()))
		require.EqualValues(t, 4+i, m.GetSystemProperties().GetQueueOffset())
	}
	require.EqualValues(t, 10, next)
	_, next, code = o.pull(10)
	require.Equal(t, rmqpb.Code_MESSAGE_NOT_FOUND, code)
	require.EqualValues(t, 10, next)
	_, next, code = o.pull(11)
	require.Equal(t, rmqpb.Code_ILLEGAL_OFFSET, code)
	require.EqualValues(t, 10, next)

	where, err := o.GetOffset(o.ctx(), &rmqpb.GetOffsetRequest{Group: o.group, MessageQueue: o.queue})
	require.NoError(t, err)
	require.Equal(t, rmqpb.Code_OFFSET_NOT_FOUND, where.GetStatus().GetCode())
	set, err := o.UpdateOffset(o.ctx(), &rmqpb.UpdateOffsetRequest{Group: o.group, MessageQueue: o.queue, Offset: 7})
	require.NoError(t, err)
	require.Equal(t, rmqpb.Code_OK, set.GetStatus().GetCode(), set.GetStatus().GetMessage())
	where, err = o.GetOffset(o.ctx(), &rmqpb.GetOffsetRequest{Group: o.group, MessageQueue: o.queue})
	require.NoError(t, err)
	require.EqualValues(t, 7, where.GetOffset())
	c := startSimpleConsumer(t, s.Endpoint(), group, topic, everything)
	require.ElementsMatch(t, sent[7:], bodies(c.receive(3, longInvisible)))
}

// TestAResetReachesConsumersThatRun: a push consumer has acknowledged everything, and a
// simple one holds something, when an operator sets their groups back.
func TestAResetReachesConsumersThatRun(t *testing.T) {
	t.Parallel()
	s := oneShardServer(t)
	topic, pushGroup, group := s.topic("--queues", "1"), s.group(), s.group()
	p := startProducer(t, s.Endpoint(), topic)
	for i := range 4 {
		send(t, p, message(topic, fmt.Sprint("old ", i), ""))
	}
	for i := range 3 {
		send(t, p, message(topic, fmt.Sprint("new ", i), ""))
	}
	stored, _, _ := s.offsets(topic, group).pull(0)
	at := func(i int) string {
		return stored[i].GetSystemProperties().GetStoreTimestamp().AsTime().Format(time.RFC3339Nano)
	}
	box := newInbox()
	startPushConsumer(t, s.Endpoint(), pushGroup, topic, everything, box.accept)
	for range 7 {
		box.next(t)
	}
	s.awaitSettled(pushGroup, topic)
	c := startSimpleConsumer(t, s.Endpoint(), group, topic, everything)
	held := c.receive(7, longInvisible)

	start := time.Now()
	s.perigee("group", "reset-offset", pushGroup, "--topic", topic, "--time", at(4))
	var got []string
	for range 3 {
		got = append(got, string(box.next(t).GetBody()))
	}
	require.Less(t, time.Since(start), 5*time.Second)
	require.ElementsMatch(t, []string{"new 0", "new 1", "new 2"}, got)
	s.awaitSettled(pushGroup, topic)
	require.Empty(t, box, "those since then, once each")

	s.perigee("group", "reset-offset", group, "--topic", topic, "--time", at(0))
	again := c.receive(7, longInvisible)
	require.ElementsMatch(t, bodies(held), bodies(again))
	c.ack(again...)
	s.awaitSettled(group, topic)
}

// TestAResetOfAFIFOGroupStartsAgainInOrder: its consumers run, and one message group waits
// for a message that a consumer holds. To the end ends that as well.
func TestAResetOfAFIFOGroupStartsAgainInOrder(t *testing.T) {
	t.Parallel()
	s := oneShardServer(t)
	topic, group := s.topic("--type", "FIFO", "--queues", "1"), s.group("--fifo")
	p := startProducer(t, s.Endpoint(), topic)
	var sent []string
	sendOne := func(body string) {
		m := message(topic, body, "")
		m.SetMessageGroup("g")
		send(t, p, m)
	}
	for i := range 6 {
		sent = append(sent, fmt.Sprint("message ", i))
		sendOne(sent[i])
	}
	c := startSimpleConsumer(t, s.Endpoint(), group, topic, everything)
	held := c.receive(6, longInvisible)
	require.Equal(t, sent, bodies(held))
	c.ack(held[0])
	s.perigee("group", "reset-offset", group, "--topic", topic, "--queue", "0", "--offset", "2")
	again := c.receive(4, longInvisible)
	require.Equal(t, sent[2:], bodies(again), "what came before is done with")
	sendOne("waits")
	s.perigee("group", "reset-offset", group, "--topic", topic, "--latest")
	sendOne("new")
	got := c.receive(1, longInvisible)
	require.Equal(t, []string{"new"}, bodies(got))
	c.ack(got...)
	s.awaitSettled(group, topic)
}

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/proxy/transport"
)

// maxBatch is the most messages a receive delivers.
const maxBatch = 32

// noop gives the smallest valid answers and keeps nothing.
type noop struct {
	rmqpb.UnimplementedMessagingServiceServer
	frames []transport.RawMessage // status, messages, delivery time
}

var okStatus = &rmqpb.Status{Code: rmqpb.Code_OK}

// serveNoop serves at an address until ctx ends. Its first line of output is where.
func serveNoop(ctx context.Context, at string, stdout io.Writer) error {
	service, err := newNoop()
	if err != nil {
		return err
	}
	calls, err := net.Listen("tcp", at)
	if err != nil {
		return err
	}
	metrics, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := grpc.NewServer(transport.ServerOptions(transport.ServerConfig{})...)
	rmqpb.RegisterMessagingServiceServer(server, service)
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.Handler())
	web := &http.Server{Handler: mux}

	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(calls) })
	serving.Go(func() { _ = web.Serve(metrics) })
	err = json.NewEncoder(stdout).Encode(addresses{GRPC: calls.Addr().String(), HTTP: metrics.Addr().String()})
	if err == nil {
		<-ctx.Done()
	}
	server.Stop()
	_ = web.Close() // nothing depends on it
	serving.Wait()
	return err
}

func newNoop() (*noop, error) {
	n := &noop{}
	add := func(resp *rmqpb.ReceiveMessageResponse) error {
		frame, err := proto.Marshal(resp)
		n.frames = append(n.frames, frame)
		return err
	}
	err := add(&rmqpb.ReceiveMessageResponse{Content: &rmqpb.ReceiveMessageResponse_Status{Status: okStatus}})
	for i := range int64(maxBatch) {
		if err != nil {
			return nil, err
		}
		receipt, attempt := fmt.Sprintf("%0128d", i), int32(1)
		err = add(&rmqpb.ReceiveMessageResponse{Content: &rmqpb.ReceiveMessageResponse_Message{Message: &rmqpb.Message{
			Topic: &rmqpb.Resource{Name: topicName},
			SystemProperties: &rmqpb.SystemProperties{
				MessageId: fmt.Sprintf("%034X", i), ReceiptHandle: &receipt, MessageType: rmqpb.MessageType_NORMAL,
				BodyEncoding:  rmqpb.Encoding_IDENTITY,
				BodyDigest:    &rmqpb.Digest{Type: rmqpb.DigestType_SHA1, Checksum: fmt.Sprintf("%040X", i)},
				BornTimestamp: timestamppb.Now(), BornHost: "localhost", QueueOffset: &i, DeliveryAttempt: &attempt,
			},
			Body: make([]byte, bodySize),
		}}})
	}
	if err != nil {
		return nil, err
	}
	return n, add(&rmqpb.ReceiveMessageResponse{
		Content: &rmqpb.ReceiveMessageResponse_DeliveryTimestamp{DeliveryTimestamp: timestamppb.Now()},
	})
}

func (n *noop) QueryRoute(_ context.Context, req *rmqpb.QueryRouteRequest) (*rmqpb.QueryRouteResponse, error) {
	return &rmqpb.QueryRouteResponse{Status: okStatus, MessageQueues: []*rmqpb.MessageQueue{{
		Topic: req.GetTopic(), Permission: rmqpb.Permission_READ_WRITE,
		Broker:             &rmqpb.Broker{Name: "noop", Endpoints: req.GetEndpoints()},
		AcceptMessageTypes: []rmqpb.MessageType{rmqpb.MessageType_NORMAL},
	}}}, nil
}

func (n *noop) SendMessage(_ context.Context, req *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
	resp := &rmqpb.SendMessageResponse{Status: okStatus, Entries: make([]*rmqpb.SendResultEntry, 0, len(req.GetMessages()))}
	for _, m := range req.GetMessages() {
		resp.Entries = append(resp.Entries, &rmqpb.SendResultEntry{Status: okStatus, MessageId: m.GetSystemProperties().GetMessageId()})
	}
	return resp, nil
}

func (n *noop) ReceiveMessage(req *rmqpb.ReceiveMessageRequest, stream grpc.ServerStreamingServer[rmqpb.ReceiveMessageResponse]) error {
	messages := min(int(req.GetBatchSize()), maxBatch)
	for i, frame := range n.frames {
		if 0 < i && i <= maxBatch && i > messages {
			continue
		}
		if err := stream.SendMsg(frame); err != nil {
			return err
		}
	}
	return nil
}

func (n *noop) AckMessage(_ context.Context, req *rmqpb.AckMessageRequest) (*rmqpb.AckMessageResponse, error) {
	resp := &rmqpb.AckMessageResponse{Status: okStatus, Entries: make([]*rmqpb.AckMessageResultEntry, 0, len(req.GetEntries()))}
	for _, e := range req.GetEntries() {
		resp.Entries = append(resp.Entries, &rmqpb.AckMessageResultEntry{
			MessageId: e.GetMessageId(), ReceiptHandle: e.GetReceiptHandle(), Status: okStatus,
		})
	}
	return resp, nil
}

func (n *noop) Heartbeat(context.Context, *rmqpb.HeartbeatRequest) (*rmqpb.HeartbeatResponse, error) {
	return &rmqpb.HeartbeatResponse{Status: okStatus}, nil
}

func (n *noop) NotifyClientTermination(context.Context, *rmqpb.NotifyClientTerminationRequest) (*rmqpb.NotifyClientTerminationResponse, error) {
	return &rmqpb.NotifyClientTerminationResponse{Status: okStatus}, nil
}

func (n *noop) Telemetry(stream grpc.BidiStreamingServer[rmqpb.TelemetryCommand, rmqpb.TelemetryCommand]) error {
	for {
		command, err := stream.Recv()
		if err != nil {
			return nil // the client has gone
		}
		command.Status = okStatus
		if err := stream.Send(command); err != nil {
			return err
		}
	}
}

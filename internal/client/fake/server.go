// Package fake is a server for the tests of clients: topics with one queue in
// memory, groups that are a position in it, and receipts that are good once. It
// checks of a request only what its tests are about.
package fake

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
)

// Server answers over a real listener on the loopback address.
type Server struct {
	rmqpb.UnimplementedMessagingServiceServer
	Admin
	Clients
	Offsets
	Timers
	Transactions
	Cluster

	// Addr is its host:port.
	Addr string

	leave func() // ends the server

	mu struct {
		sync.Mutex
		topics   map[string][]*rmqpb.Message
		types    map[string]rmqpb.MessageType // of topics that are not NORMAL
		synced   []*rmqpb.SyncLiteSubscriptionRequest
		position map[string]int  // of a group in a topic
		leased   map[string]bool // by receipt
		acked    int
		headers  map[string]metadata.MD // of the last call of each method
		settings []*rmqpb.Settings
		hungUp   int
		fail     *rmqpb.Status
		calls    map[string]int // that are left to a method; those not in it have no end
		arrived  chan struct{}  // closed and replaced at each send
	}
}

// Start starts a server with the given topics and ends it with the test.
func Start(t testing.TB, topics ...string) *Server {
	t.Helper()
	s := &Server{}
	s.mu.topics = map[string][]*rmqpb.Message{}
	s.mu.types = map[string]rmqpb.MessageType{}
	s.mu.position = map[string]int{}
	s.mu.leased = map[string]bool{}
	s.mu.headers = map[string]metadata.MD{}
	s.mu.calls = map[string]int{}
	s.mu.arrived = make(chan struct{})
	for _, topic := range topics {
		s.mu.topics[topic] = nil
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.Addr = listener.Addr().String()
	server := grpc.NewServer(
		grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
			if err := s.note(ctx, info.FullMethod); err != nil {
				return nil, err
			}
			return handle(ctx, req)
		}),
		grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
			if err := s.note(stream.Context(), info.FullMethod); err != nil {
				return err
			}
			return handle(srv, stream)
		}),
	)
	s.leave = sync.OnceFunc(func() { go server.Stop() })
	rmqpb.RegisterMessagingServiceServer(server, s)
	adminpb.RegisterAdminServiceServer(server, &s.Admin)
	adminpb.RegisterClientServiceServer(server, &s.Clients)
	adminpb.RegisterOffsetServiceServer(server, &s.Offsets)
	adminpb.RegisterTimerServiceServer(server, &s.Timers)
	adminpb.RegisterTransactionServiceServer(server, &s.Transactions)
	adminpb.RegisterClusterServiceServer(server, &s.Cluster)
	served := make(chan struct{})
	go func() {
		defer close(served)
		// A test may be over before the server has begun.
		if err := server.Serve(listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Errorf("the fake server ended: %v", err)
		}
	}()
	t.Cleanup(func() {
		server.Stop()
		<-served
	})
	return s
}

// note notes a call. The error says that the server leaves.
func (s *Server) note(ctx context.Context, method string) error {
	md, _ := metadata.FromIncomingContext(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.headers[method] = md
	if left, ends := s.mu.calls[method]; ends {
		if left == 0 {
			s.leave()
			return status.Error(codes.Unavailable, "leaving")
		}
		s.mu.calls[method] = left - 1
	}
	return nil
}

// LeaveAfter lets the server answer so many calls of a method; with the next one it ends.
func (s *Server) LeaveAfter(calls int, method string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.calls[method] = calls
}

// Headers returns the metadata of the last call of a method.
func (s *Server) Headers(method string) metadata.MD {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.headers[method]
}

// Settings returns the settings that clients have sent.
func (s *Server) Settings() []*rmqpb.Settings {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.settings
}

// HungUp returns the number of Telemetry streams that clients have ended in order.
func (s *Server) HungUp() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.hungUp
}

// Messages returns the messages of a topic.
func (s *Server) Messages(topic string) []*rmqpb.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.topics[topic]
}

// Acked returns how many messages have been acknowledged.
func (s *Server) Acked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.acked
}

// Fail answers every send, receive and ack with the status from now on.
func (s *Server) Fail(code rmqpb.Code, message string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.fail = &rmqpb.Status{Code: code, Message: message}
}

func ok() *rmqpb.Status { return &rmqpb.Status{Code: rmqpb.Code_OK, Message: "OK"} }

// checkLocked returns the status that refuses a call for the topic, or nil.
func (s *Server) checkLocked(topic string) *rmqpb.Status {
	if s.mu.fail != nil {
		return s.mu.fail
	}
	if _, found := s.mu.topics[topic]; !found {
		return &rmqpb.Status{Code: rmqpb.Code_TOPIC_NOT_FOUND, Message: "topic " + topic + " not found"}
	}
	return nil
}

// SetType says which messages a topic takes.
func (s *Server) SetType(topic string, kind rmqpb.MessageType) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.types[topic] = kind
}

// SyncLiteSubscription notes the request.
func (s *Server) SyncLiteSubscription(_ context.Context, req *rmqpb.SyncLiteSubscriptionRequest) (*rmqpb.SyncLiteSubscriptionResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if refused := s.checkLocked(req.GetTopic().GetName()); refused != nil {
		return &rmqpb.SyncLiteSubscriptionResponse{Status: refused}, nil
	}
	s.mu.synced = append(s.mu.synced, req)
	return &rmqpb.SyncLiteSubscriptionResponse{Status: ok()}, nil
}

// Synced returns the requests of SyncLiteSubscription.
func (s *Server) Synced() []*rmqpb.SyncLiteSubscriptionRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.mu.synced)
}

// QueryRoute answers one queue.
func (s *Server) QueryRoute(_ context.Context, req *rmqpb.QueryRouteRequest) (*rmqpb.QueryRouteResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, found := s.mu.topics[req.GetTopic().GetName()]; !found {
		return &rmqpb.QueryRouteResponse{Status: s.checkLocked(req.GetTopic().GetName())}, nil
	}
	return &rmqpb.QueryRouteResponse{Status: ok(), MessageQueues: []*rmqpb.MessageQueue{{
		Topic: req.GetTopic(), Permission: rmqpb.Permission_READ_WRITE,
		Broker:             &rmqpb.Broker{Name: "fake", Endpoints: req.GetEndpoints()},
		AcceptMessageTypes: []rmqpb.MessageType{max(s.mu.types[req.GetTopic().GetName()], rmqpb.MessageType_NORMAL)},
	}}}, nil
}

// SendMessage stores the messages.
func (s *Server) SendMessage(_ context.Context, req *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	resp := &rmqpb.SendMessageResponse{Status: ok()}
	for _, m := range req.GetMessages() {
		topic := m.GetTopic().GetName()
		if refused := s.checkLocked(topic); refused != nil {
			return &rmqpb.SendMessageResponse{Status: refused, Entries: []*rmqpb.SendResultEntry{{Status: refused}}}, nil
		}
		id := m.GetSystemProperties().GetMessageId()
		resp.Entries = append(resp.Entries, &rmqpb.SendResultEntry{
			Status: ok(), MessageId: id, TransactionId: id, Offset: int64(len(s.mu.topics[topic])),
		})
		s.mu.topics[topic] = append(s.mu.topics[topic], m)
	}
	close(s.mu.arrived)
	s.mu.arrived = make(chan struct{})
	return resp, nil
}

// ReceiveMessage delivers what the group has not had yet.
func (s *Server) ReceiveMessage(req *rmqpb.ReceiveMessageRequest, stream grpc.ServerStreamingServer[rmqpb.ReceiveMessageResponse]) error {
	timer := time.NewTimer(req.GetLongPollingTimeout().AsDuration())
	defer timer.Stop()
	for {
		messages, status, arrived := s.take(req)
		if len(messages) > 0 || status.GetCode() != rmqpb.Code_MESSAGE_NOT_FOUND {
			return deliver(stream, messages, status)
		}
		select {
		case <-arrived:
		case <-timer.C:
			return deliver(stream, nil, status)
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

func (s *Server) take(req *rmqpb.ReceiveMessageRequest) ([]*rmqpb.Message, *rmqpb.Status, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	topic := req.GetMessageQueue().GetTopic().GetName()
	if refused := s.checkLocked(topic); refused != nil {
		return nil, refused, nil
	}
	key := req.GetGroup().GetName() + " " + topic
	stored := s.mu.topics[topic][s.mu.position[key]:]
	stored = stored[:min(len(stored), int(req.GetBatchSize()))]
	if len(stored) == 0 {
		return nil, &rmqpb.Status{Code: rmqpb.Code_MESSAGE_NOT_FOUND, Message: "no new message"}, s.mu.arrived
	}
	messages := make([]*rmqpb.Message, 0, len(stored))
	for _, m := range stored {
		m = proto.CloneOf(m)
		offset := int64(s.mu.position[key])
		receipt := fmt.Sprintf("%s %d", key, offset)
		attempt := int32(1)
		m.SystemProperties.ReceiptHandle = &receipt
		m.SystemProperties.QueueOffset = &offset
		m.SystemProperties.DeliveryAttempt = &attempt
		m.SystemProperties.StoreTimestamp = timestamppb.Now()
		s.mu.leased[receipt] = true
		s.mu.position[key]++
		messages = append(messages, m)
	}
	return messages, ok(), nil
}

func deliver(stream grpc.ServerStreamingServer[rmqpb.ReceiveMessageResponse], messages []*rmqpb.Message, status *rmqpb.Status) error {
	frames := []*rmqpb.ReceiveMessageResponse{{Content: &rmqpb.ReceiveMessageResponse_Status{Status: status}}}
	for _, m := range messages {
		frames = append(frames, &rmqpb.ReceiveMessageResponse{Content: &rmqpb.ReceiveMessageResponse_Message{Message: m}})
	}
	frames = append(frames, &rmqpb.ReceiveMessageResponse{
		Content: &rmqpb.ReceiveMessageResponse_DeliveryTimestamp{DeliveryTimestamp: timestamppb.Now()},
	})
	for _, f := range frames {
		if err := stream.Send(f); err != nil {
			return err
		}
	}
	return nil
}

// AckMessage ends leases; a second ack of the same one is refused.
func (s *Server) AckMessage(_ context.Context, req *rmqpb.AckMessageRequest) (*rmqpb.AckMessageResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if refused := s.checkLocked(req.GetTopic().GetName()); refused != nil {
		return &rmqpb.AckMessageResponse{Status: refused}, nil
	}
	resp := &rmqpb.AckMessageResponse{Status: ok()}
	for _, e := range req.GetEntries() {
		status := ok()
		if s.mu.leased[e.GetReceiptHandle()] {
			delete(s.mu.leased, e.GetReceiptHandle())
			s.mu.acked++
		} else {
			status = &rmqpb.Status{Code: rmqpb.Code_INVALID_RECEIPT_HANDLE, Message: "unknown receipt handle"}
			resp.Status.Code = rmqpb.Code_MULTIPLE_RESULTS
		}
		resp.Entries = append(resp.Entries, &rmqpb.AckMessageResultEntry{
			MessageId: e.GetMessageId(), ReceiptHandle: e.GetReceiptHandle(), Status: status,
		})
	}
	if len(resp.Entries) == 1 {
		resp.Status = resp.Entries[0].Status
	}
	return resp, nil
}

// Telemetry answers settings with the same settings.
func (s *Server) Telemetry(stream grpc.BidiStreamingServer[rmqpb.TelemetryCommand, rmqpb.TelemetryCommand]) error {
	for {
		command, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			s.mu.Lock()
			s.mu.hungUp++
			s.mu.Unlock()
		}
		if err != nil {
			return nil // the client has gone
		}
		if settings := command.GetSettings(); settings != nil {
			s.mu.Lock()
			s.mu.settings = append(s.mu.settings, settings)
			s.mu.Unlock()
		}
		command.Status = ok()
		if err := stream.Send(command); err != nil {
			return err
		}
	}
}

// Heartbeat is always good.
func (s *Server) Heartbeat(context.Context, *rmqpb.HeartbeatRequest) (*rmqpb.HeartbeatResponse, error) {
	return &rmqpb.HeartbeatResponse{Status: ok()}, nil
}

// NotifyClientTermination is always good.
func (s *Server) NotifyClientTermination(context.Context, *rmqpb.NotifyClientTerminationRequest) (*rmqpb.NotifyClientTerminationResponse, error) {
	return &rmqpb.NotifyClientTerminationResponse{Status: ok()}, nil
}

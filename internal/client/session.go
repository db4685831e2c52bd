package client

import (
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
)

const (
	heartbeatPeriod = 10 * time.Second
	settingsTimeout = 3 * time.Second
	requestTimeout  = 3 * time.Second
)

// Session tells the server who the client is, the way SDKs do: settings over a
// Telemetry stream, and heartbeats. Some servers refuse to deliver to a client
// that they do not know so; for Perigee it is of no consequence, and so is its
// failure here.
type Session struct {
	conn   *Conn
	group  *rmqpb.Resource
	cancel context.CancelFunc
	done   sync.WaitGroup
	// hungUp is closed when the stream has ended, which closing finish asks for.
	finish, hungUp chan struct{}
}

// StartProducer starts the session of a producer to topic.
func (c *Conn) StartProducer(ctx context.Context, topic string) *Session {
	kind := rmqpb.ClientType_PRODUCER
	return c.startSession(ctx, nil, kind, &rmqpb.Settings{
		PubSub: &rmqpb.Settings_Publishing{Publishing: &rmqpb.Publishing{
			Topics: []*rmqpb.Resource{c.Resource(topic)}, ValidateMessageType: true,
		}},
	})
}

// StartConsumer starts the session of a simple consumer of topic in group.
func (c *Conn) StartConsumer(ctx context.Context, group, topic string, filter *rmqpb.FilterExpression, wait time.Duration) *Session {
	kind := rmqpb.ClientType_SIMPLE_CONSUMER
	return c.startSession(ctx, c.Resource(group), kind, &rmqpb.Settings{
		PubSub: &rmqpb.Settings_Subscription{Subscription: &rmqpb.Subscription{
			Group:              c.Resource(group),
			Subscriptions:      []*rmqpb.SubscriptionEntry{{Topic: c.Resource(topic), Expression: filter}},
			LongPollingTimeout: durationpb.New(wait),
		}},
	})
}

func (c *Conn) startSession(ctx context.Context, group *rmqpb.Resource, kind rmqpb.ClientType, settings *rmqpb.Settings) *Session {
	settings.ClientType = &kind
	settings.AccessPoint = c.Endpoints()
	settings.RequestTimeout = durationpb.New(requestTimeout)
	settings.UserAgent = &rmqpb.UA{Language: rmqpb.Language_GOLANG, Version: c.opts.Version, Hostname: Host()}

	ctx, cancel := context.WithCancel(ctx)
	s := &Session{conn: c, group: group, cancel: cancel, finish: make(chan struct{}), hungUp: make(chan struct{})}
	answered := make(chan struct{})
	s.done.Go(func() {
		defer close(answered)
		s.announce(ctx, settings)
	})
	// The goroutine that reads the stream ends with it.
	timer := time.NewTimer(settingsTimeout)
	defer timer.Stop()
	select {
	case <-answered:
	case <-timer.C:
	case <-ctx.Done():
	}
	s.done.Go(func() { s.heartbeat(ctx, kind) })
	return s
}

// announce sends the settings and returns when they are answered, or cannot be.
// The stream stays open until the session ends.
func (s *Session) announce(ctx context.Context, settings *rmqpb.Settings) {
	stream, err := rmqpb.NewMessagingServiceClient(s.conn).Telemetry(ctx)
	if err != nil {
		close(s.hungUp)
		return
	}
	answered := make(chan struct{})
	s.done.Go(func() {
		defer close(s.hungUp)
		read(stream, answered)
	})
	command := &rmqpb.TelemetryCommand{Command: &rmqpb.TelemetryCommand_Settings{Settings: settings}}
	if stream.Send(command) != nil {
		return
	}
	s.done.Go(func() {
		<-s.finish
		_ = stream.CloseSend() // it may have ended
	})
	select {
	case <-answered:
	case <-s.hungUp:
	}
}

// read reads the commands of a stream until its end, and closes answered with the first
// that answers the settings.
func read(stream rmqpb.MessagingService_TelemetryClient, answered chan struct{}) {
	for settled := false; ; {
		command, err := stream.Recv()
		if err != nil {
			return
		}
		if !settled && (command.GetSettings() != nil || command.GetStatus() != nil) {
			settled = true
			close(answered)
		}
	}
}

func (s *Session) heartbeat(ctx context.Context, kind rmqpb.ClientType) {
	ticker := time.NewTicker(heartbeatPeriod)
	defer ticker.Stop()
	service := rmqpb.NewMessagingServiceClient(s.conn)
	for {
		// A server that is gone shows in the calls that matter.
		_, _ = service.Heartbeat(ctx, &rmqpb.HeartbeatRequest{Group: s.group, ClientType: kind})
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// hangUpTimeout is how long the server may take to end the stream of a session that ends.
const hangUpTimeout = time.Second

// Close tells the server that the client ends, and ends the session. It returns when the
// server has ended its side of the stream, or after hangUpTimeout: some servers forget a
// client with its stream, and would forget its next session with that of this one.
func (s *Session) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	_, _ = rmqpb.NewMessagingServiceClient(s.conn).NotifyClientTermination(ctx,
		&rmqpb.NotifyClientTerminationRequest{Group: s.group})
	close(s.finish)
	timer := time.NewTimer(hangUpTimeout)
	defer timer.Stop()
	select {
	case <-s.hungUp:
	case <-timer.C:
	}
	s.cancel()
	s.done.Wait()
}

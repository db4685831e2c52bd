package proxy

// Telemetry
//
// Fields honoured: settings. Other commands, also those of later versions, are
// ignored.
//
// Behaviour: the response headers go out at once, because one SDK waits for them
// before it sends anything. Each settings command is a full snapshot, kept for
// the client id and answered on its own stream with status OK and the settings
// to work with (settings.go); some SDKs get them once more, unasked, and all
// consumers when their group was changed (group_changed.go). A later
// stream of the same client takes over the server's own commands at once; the
// earlier one goes on answering. Commands wait in a short queue and are dropped
// when it is full: some SDKs stop reading. Nothing depends on a stream being open.
//
// Codes: a refused client gets a gRPC error, because SDKs wait for ever on a
// refusal inside the stream: INVALID_ARGUMENT for the protocol's 4xxxx
// (CLIENT_ID_REQUIRED, BAD_REQUEST, ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP,
// ILLEGAL_FILTER_EXPRESSION, UNRECOGNIZED_CLIENT_TYPE);
// RESOURCE_EXHAUSTED when as many clients are known
// as may be, or their settings are as much. One SDK cannot take an error once it has
// the headers; its streams end without.
//
// Upstream lets clients widen some limits, and keeps a dead stream as the
// client's until a write to it fails. It checks client_properties, which are only
// echoed here.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	grpccodes "google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/proxy/quirks"
	"github.com/perigee-mq/perigee/proxy/session"
)

type telemetryStream = grpc.BidiStreamingServer[rmqpb.TelemetryCommand, rmqpb.TelemetryCommand]

// Telemetry exchanges settings with a client and carries the server's commands.
func (s *Server) Telemetry(stream telemetryStream) error {
	ctx := stream.Context()
	c, err := s.caller(ctx)
	if err != nil {
		return s.streamError(ctx, err)
	}
	if err := stream.SendHeader(metadata.MD{}); err != nil {
		return err
	}
	if err := s.exchange(stream, c); err != nil && !quirks.ReadsOnAfterStreamError(c.Language) {
		return err
	}
	return nil
}

// exchange is a call whose headers are sent.
func (s *Server) exchange(stream telemetryStream, c client) error {
	ctx := stream.Context()
	t := &telemetry{server: s, client: c, out: session.NewStream()}
	if _, err := t.attach(); err != nil {
		return s.streamError(ctx, err)
	}
	defer t.detach(ctx)

	received := make(chan error, 1)
	closing, ok := s.streams.start(t, func() { received <- t.receive(stream) })
	if !ok {
		return errClosing
	}
	defer s.streams.ended(t)
	for {
		select {
		case cmd := <-t.out.Commands():
			t.out.Took(cmd)
			if err := stream.Send(cmd); err != nil {
				s.checks.unsent([]*rmqpb.TelemetryCommand{cmd})
				return err
			}
			s.checks.sent(cmd)
		case err := <-received:
			return s.streamError(ctx, err)
		case <-closing:
			return errClosing
		}
	}
}

// errClosing ends the streams when the server closes: clients open another one,
// on another server if there is one.
var errClosing = grpcstatus.Error(grpccodes.Unavailable, "the server is closing")

// streamError returns the gRPC error that ends a stream, nil when it is the
// client that ended it.
func (s *Server) streamError(ctx context.Context, err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return nil
	}
	if st, ok := grpcstatus.FromError(err); ok {
		if st.Code() == grpccodes.Canceled || st.Code() == grpccodes.DeadlineExceeded {
			return nil
		}
		return err
	}
	st := s.statusOf(ctx, err)
	switch code := st.GetCode(); {
	case code == rmqpb.Code_TOO_MANY_REQUESTS:
		return grpcstatus.Error(grpccodes.ResourceExhausted, st.GetMessage())
	case code >= rmqpb.Code_BAD_REQUEST && code < rmqpb.Code_INTERNAL_ERROR:
		return grpcstatus.Error(grpccodes.InvalidArgument, st.GetMessage())
	case code == rmqpb.Code_NOT_IMPLEMENTED, code == rmqpb.Code_UNSUPPORTED:
		return grpcstatus.Error(grpccodes.Unimplemented, st.GetMessage())
	default:
		return grpcstatus.Error(grpccodes.Internal, st.GetMessage())
	}
}

// A telemetry is one Telemetry call. Its handler sends what is queued in out;
// another goroutine receives.
type telemetry struct {
	server *Server
	client client
	out    *session.Stream
	unread bool // the log says so; the receiver's own
	// answering is held from the look at the group until its settings are queued,
	// so that those of a group as it was do not come after those of it as it is.
	answering sync.Mutex

	mu struct {
		sync.Mutex
		session *session.Session // where out is attached; nil once detached
		ended   bool
		again   *time.Timer // sends the settings once more; nil: never did
	}
}

// attach makes the stream the client's. It does so again when the session was
// ended meanwhile, because the client said goodbye and stayed.
func (t *telemetry) attach() (*session.Session, error) {
	current, err := t.server.touch(t.client)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.session != current && !t.mu.ended {
		if t.mu.session != nil {
			t.mu.session.Detach(t.out)
		}
		current.Attach(t.out)
		t.mu.session = current
	}
	return current, nil
}

// detach ends it. A client that has no stream left, and did not end this one of
// its own accord, may be gone.
func (t *telemetry) detach(ctx context.Context) {
	left := t.detached()
	t.server.producers().disconnected(left)
	t.server.checks.unsent(t.out.End())
	if left.Connected() || !errors.Is(ctx.Err(), context.Canceled) || t.server.streams.isDraining() {
		return
	}
	t.server.renewals.suspect(t.client.ID, streamGrace)
}

func (t *telemetry) detached() *session.Session {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.ended = true
	t.mu.session.Detach(t.out)
	if t.mu.again != nil {
		t.mu.again.Stop()
	}
	return t.mu.session
}

// receive takes the client's commands until the stream ends. It returns why. It
// runs outside of the interceptors, and so recovers itself.
func (t *telemetry) receive(stream telemetryStream) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = t.server.panicked(stream.Context(), p)
		}
	}()
	for {
		cmd, err := stream.Recv()
		if err != nil {
			return err
		}
		if settings := cmd.GetSettings(); settings != nil {
			if err := t.settings(stream.Context(), settings); err != nil {
				return err
			}
		}
	}
}

func (t *telemetry) settings(ctx context.Context, settings *rmqpb.Settings) error {
	if err := t.server.validateSettings(t.client, settings); err != nil {
		return err
	}
	current, err := t.attach()
	if err != nil {
		return err
	}
	if !current.SetSettings(settings) {
		return fmt.Errorf("settings: the %d bytes are not kept, because those of all clients have %d bytes at the most: %w",
			proto.Size(settings), t.server.opts.SettingsMemory, mq.ErrBusy)
	}
	reply, sent := t.answer(ctx, settings)
	// From here on it may be asked: questions come behind the settings.
	t.server.producers().set(current, t.client.resources(settings.GetPublishing().GetTopics()))
	if !sent && !t.unread {
		t.unread = true // once for each stream: the client decides how often this happens
		t.server.logger.WarnContext(ctx, "client does not read its telemetry", "client", mq.Shorten(t.client.ID))
	}
	if wait := quirks.SettingsAgain(t.client.Language); wait > 0 {
		t.sendAgain(reply, wait)
	}
	return nil
}

// sendAgain queues the newest reply once more, after wait.
func (t *telemetry) sendAgain(reply *rmqpb.TelemetryCommand, wait time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.ended {
		return
	}
	if t.mu.again != nil {
		t.mu.again.Stop()
	}
	t.mu.again = time.AfterFunc(wait, func() { t.out.Send(reply) })
}

// streams are the Telemetry calls under way, and what ends them and the receives
// that wait. Their receivers can be ended only by ending the call, so they end
// soon after it; wait is for them.
type streams struct {
	mu struct {
		sync.Mutex
		draining bool
		open     map[*telemetry]struct{}
	}
	// serving is the server's own, no call's: it ends when the server drains.
	serving    context.Context
	endServing context.CancelFunc
	receivers  sync.WaitGroup // added to under mu, and not once draining
}

func (s *streams) init() { s.serving, s.endServing = context.WithCancel(context.Background()) }

// start adds a call and runs its receive unless the server is closing, and returns
// what tells of that. The call ends with ended.
func (s *streams) start(t *telemetry, receive func()) (closing <-chan struct{}, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.draining {
		return nil, false
	}
	if s.mu.open == nil {
		s.mu.open = map[*telemetry]struct{}{}
	}
	s.mu.open[t] = struct{}{}
	s.receivers.Go(receive)
	return s.serving.Done(), true
}

func (s *streams) ended(t *telemetry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.mu.open, t)
}

// len returns the number of calls under way.
func (s *streams) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mu.open)
}

// all returns the calls under way, in no order.
func (s *streams) all() []*telemetry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.mu.open))
}

// drain ends the calls, but those whose client does not read: they end with
// their connection.
func (s *streams) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.mu.draining {
		s.mu.draining = true
		s.endServing()
	}
}

func (s *streams) isDraining() bool { return s.serving.Err() != nil }

// untilDrained returns a context that ends with ctx or when the server drains.
func (s *streams) untilDrained(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.serving, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

func (s *streams) wait() { s.receivers.Wait() }

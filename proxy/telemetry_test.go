package proxy

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	grpccodes "google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
)

type clientStream = rmqpb.MessagingService_TelemetryClient

// open opens a Telemetry stream and waits for its headers.
func open(t testing.TB, c rmqpb.MessagingServiceClient, ctx context.Context) clientStream {
	t.Helper()
	stream, err := c.Telemetry(ctx)
	require.NoError(t, err)
	_, err = stream.Header()
	require.NoError(t, err)
	return stream
}

func offer(t testing.TB, stream clientStream, settings *rmqpb.Settings) {
	t.Helper()
	require.NoError(t, stream.Send(&rmqpb.TelemetryCommand{Command: &rmqpb.TelemetryCommand_Settings{Settings: settings}}))
}

// reply reads the answer to settings.
func reply(t testing.TB, stream clientStream) *rmqpb.Settings {
	t.Helper()
	cmd, err := stream.Recv()
	require.NoError(t, err)
	require.Equal(t, rmqpb.Code_OK, cmd.GetStatus().GetCode(), "one SDK takes no settings without a status")
	require.NotNil(t, cmd.GetSettings())
	return cmd.GetSettings()
}

func TestSettingsAreAnsweredEveryTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		c := rmqpb.NewMessagingServiceClient(s.dial(t))
		stream := open(t, c, from(t, "c")) // the headers come before anything is sent
		for _, topic := range []string{"a", "b"} {
			offer(t, stream, publisher(topic))
			require.Equal(t, topic, reply(t, stream).GetPublishing().GetTopics()[0].GetName())
			require.Equal(t, topic, s.sessions.Get("c").Settings().GetPublishing().GetTopics()[0].GetName())
		}
		// Commands that the server did not ask for are passed over.
		require.NoError(t, stream.Send(&rmqpb.TelemetryCommand{}))
		require.NoError(t, stream.Send(&rmqpb.TelemetryCommand{Command: &rmqpb.TelemetryCommand_ThreadStackTrace{}}))
		offer(t, stream, subscriber(rmqpb.ClientType_PUSH_CONSUMER, "g", "unknown"))
		require.NotNil(t, reply(t, stream).GetSubscription())
	})
}

func TestLaterStreamTakesOverAtOnceAndKeepsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		c := rmqpb.NewMessagingServiceClient(s.dial(t))
		command := &rmqpb.TelemetryCommand{Command: &rmqpb.TelemetryCommand_ReconnectEndpointsCommand{
			ReconnectEndpointsCommand: &rmqpb.ReconnectEndpointsCommand{Nonce: "n"},
		}}
		ctx1, cancel1 := context.WithCancel(from(t, "c"))
		first := open(t, c, ctx1)
		offer(t, first, publisher())
		reply(t, first)
		ctx2, cancel2 := context.WithCancel(from(t, "c"))
		second := open(t, c, ctx2)

		cancel1()
		synctest.Wait() // the first stream has ended, after the second began
		require.True(t, s.sessions.Get("c").Send(command))
		got, err := second.Recv()
		require.NoError(t, err)
		require.True(t, proto.Equal(command, got))

		cancel2()
		synctest.Wait()
		require.False(t, s.sessions.Get("c").Send(command), "without a stream the client cannot be reached")
	})
}

func TestEarlierStreamGoesOnAnswering(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		c := rmqpb.NewMessagingServiceClient(s.dial(t))
		first, second := open(t, c, from(t, "c")), open(t, c, from(t, "c"))
		offer(t, first, publisher("a"))
		require.Equal(t, "a", reply(t, first).GetPublishing().GetTopics()[0].GetName())
		offer(t, second, publisher("b"))
		require.Equal(t, "b", reply(t, second).GetPublishing().GetTopics()[0].GetName())
	})
}

func TestNodeJSGetsItsSettingsOnceMoreUnasked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		c := rmqpb.NewMessagingServiceClient(s.dial(t))
		stream := open(t, c, from(t, "c", headerLanguage, "HTTP"))
		start := time.Now()
		offer(t, stream, publisher("a"))
		asked := reply(t, stream)
		require.True(t, proto.Equal(asked, reply(t, stream)))
		require.Equal(t, 2*time.Second, time.Since(start)) // fake time

		ctx, cancel := context.WithCancel(from(t, "d", headerLanguage, "JAVA"))
		java := open(t, c, ctx)
		offer(t, java, publisher("a"))
		reply(t, java)
		time.AfterFunc(time.Minute, cancel)
		_, err := java.Recv()
		require.Equal(t, grpccodes.Canceled, grpcstatus.Code(err), "nobody else gets more")
	})
}

func TestRefusedSettingsEndTheStreamWithAReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		c := rmqpb.NewMessagingServiceClient(s.dial(t))
		for _, r := range []struct {
			settings *rmqpb.Settings
			want     grpccodes.Code
			text     string
		}{
			{&rmqpb.Settings{}, grpccodes.InvalidArgument, "publishing or subscription"},
			{publisher("a.b"), grpccodes.InvalidArgument, "a.b"},
			{&rmqpb.Settings{ClientType: rmqpb.ClientType_LITE_PUSH_CONSUMER.Enum(), PubSub: publisher().PubSub}, grpccodes.InvalidArgument, "LITE_PUSH_CONSUMER"},
		} {
			stream := open(t, c, from(t, "c"))
			offer(t, stream, r.settings)
			_, err := stream.Recv()
			require.Equal(t, r.want, grpcstatus.Code(err), "%v", err)
			require.ErrorContains(t, err, r.text)
		}
		stream, err := c.Telemetry(metadata.NewOutgoingContext(t.Context(), nil))
		require.NoError(t, err)
		_, err = stream.Recv()
		require.Equal(t, grpccodes.InvalidArgument, grpcstatus.Code(err))
		require.ErrorContains(t, err, "x-mq-client-id")
	})
}

func TestClientThatDoesNotReadItsStreamBlocksNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s := newTestServer(t, func(o *testOptions) { o.Logger = textLogger(&log) })
		c := rmqpb.NewMessagingServiceClient(s.dial(t))
		stream := open(t, c, from(t, "c"))
		topics := make([]string, 2000)
		for i := range topics {
			topics[i] = "a-topic-with-a-name"
		}
		for range 100 { // a few megabytes that nobody reads
			offer(t, stream, publisher(topics...))
			synctest.Wait()
		}
		offer(t, stream, publisher("last"))
		synctest.Wait()
		require.Equal(t, "last", s.sessions.Get("c").Settings().GetPublishing().GetTopics()[0].GetName())
		again := &rmqpb.TelemetryCommand{Command: &rmqpb.TelemetryCommand_Settings{Settings: publisher(topics...)}}
		require.False(t, s.sessions.Get("c").Send(again), "its queue is full")
		require.Equal(t, 1, strings.Count(log.String(), "does not read"), "a client must not fill the log")
	})
}

func TestDrainEndsTheStreamsAndRefusesNewOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		c := rmqpb.NewMessagingServiceClient(s.dial(t))
		stream := open(t, c, from(t, "c"))
		s.Drain()
		_, err := stream.Recv()
		require.Equal(t, grpccodes.Unavailable, grpcstatus.Code(err))
		late, err := c.Telemetry(from(t, "c"))
		require.NoError(t, err)
		_, err = late.Recv()
		require.Equal(t, grpccodes.Unavailable, grpcstatus.Code(err))
		s.Drain()
	})
}

// Its SDK reads on after an error, for ever. One before the headers is still an error:
// that fails its start.
func TestStreamsOfRustEndWithoutAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		c := rmqpb.NewMessagingServiceClient(s.dial(t))
		stream := open(t, c, from(t, "c", headerLanguage, "RUST"))
		s.Drain()
		_, err := stream.Recv()
		require.ErrorIs(t, err, io.EOF)
		nameless, err := c.Telemetry(from(t, "", headerLanguage, "RUST"))
		require.NoError(t, err)
		_, err = nameless.Recv()
		require.Equal(t, grpccodes.InvalidArgument, grpcstatus.Code(err))
	})
}

func TestGoodbyeDoesNotCutOffAStreamThatGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		c := rmqpb.NewMessagingServiceClient(s.dial(t))
		stream := open(t, c, from(t, "c"))
		s.sessions.Remove("c")
		offer(t, stream, publisher("a"))
		reply(t, stream)
		require.True(t, s.sessions.Get("c").Connected())
	})
}

package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/test/bufconn"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/proxy/transport"
)

// countedConn counts the bytes a client writes.
type countedConn struct {
	net.Conn
	written *atomic.Int64
}

func (c countedConn) Write(b []byte) (int, error) {
	c.written.Add(int64(len(b)))
	return c.Conn.Write(b)
}

// counted serves s and returns a client of it and the count of what it writes.
func (s *testServer) counted(t *testing.T) (rmqpb.MessagingServiceClient, *atomic.Int64) {
	t.Helper()
	listener := bufconn.Listen(64 << 10)
	g := grpc.NewServer(append(transport.ServerOptions(transport.ServerConfig{}), s.Interceptors()...)...)
	s.Register(g)
	served := make(chan error, 1)
	go func() { served <- g.Serve(listener) }()
	written := &atomic.Int64{}
	conn, err := grpc.NewClient("passthrough:///perigee.test:8081",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			c, err := listener.DialContext(ctx)
			return countedConn{c, written}, err
		}),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, conn.Close())
		g.Stop()
		require.NoError(t, <-served)
	})
	return rmqpb.NewMessagingServiceClient(conn), written
}

func TestASendThatDoesNotFitIsRefusedBeforeItIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var codes []rmqpb.Code
		s := newTestServer(t, func(o *testOptions) {
			o.SendBudget = 5 << 20
			o.Observe = func(c Call) { codes = append(codes, c.Code) }
		})
		s.topic(t, "a")
		c, written := s.counted(t)
		sends := 0
		send := func() *rmqpb.SendMessageResponse {
			sends++
			req := &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{message("a", fmt.Sprint("large-", sends), string(make([]byte, 4<<20)))}}
			resp, err := c.SendMessage(from(t, "p"), req)
			require.NoError(t, err)
			return resp
		}
		require.Equal(t, rmqpb.Code_OK, send().GetStatus().GetCode())
		require.Greater(t, written.Load(), int64(4<<20))

		other, err := s.acquireSend(t.Context(), 2<<20)
		require.NoError(t, err)
		before, start := written.Load(), time.Now()
		resp := send()
		require.Equal(t, rmqpb.Code_TOO_MANY_REQUESTS, resp.GetStatus().GetCode())
		require.Contains(t, resp.GetStatus().GetMessage(), "5242880 bytes")
		require.Empty(t, resp.GetEntries())
		require.Equal(t, sendWait, time.Since(start))
		require.Less(t, written.Load()-before, int64(1<<20))
		require.Equal(t, []rmqpb.Code{rmqpb.Code_OK, rmqpb.Code_TOO_MANY_REQUESTS}, codes, "refusals are counted")

		other.release()
		require.Equal(t, rmqpb.Code_OK, send().GetStatus().GetCode(), "the connection is as good as before")
		require.Len(t, append(s.leased(t, "a", "g", 32, 0), s.leased(t, "a", "g", 32, 0)...), 2, "nothing of the refused one")
		require.Zero(t, s.sends.mu.used)
	})
}

func TestARequestThatIsTooLargeIsRefusedBeforeItIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t, func(o *testOptions) { o.MaxRequestSize = 1 << 20 })
		s.topic(t, "a")
		c, written := s.counted(t)
		resp, err := c.SendMessage(from(t, "p"), &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{message("a", "large", string(make([]byte, 3<<20)))}})
		require.NoError(t, err)
		require.Equal(t, rmqpb.Code_PAYLOAD_TOO_LARGE, resp.GetStatus().GetCode())
		require.Contains(t, resp.GetStatus().GetMessage(), "the limit is 1048576")
		require.Less(t, written.Load(), int64(1<<20))
	})
}

// A scripted stream yields prefixes and bytes.
type scripted struct {
	grpc.ServerTransportStream
	prefixes [][]byte
	err      error
	body     []byte
}

func (s *scripted) ReadMessageHeader(header []byte) error {
	if len(s.prefixes) == 0 {
		return s.err
	}
	copy(header, s.prefixes[0])
	s.prefixes = s.prefixes[1:]
	return nil
}

func (s *scripted) Read(n int) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(s.body[:n])}, nil
}

func TestBrokenFramingOfASendIsAnErrorOfTheCall(t *testing.T) {
	s := newTestServer(t)
	handler := s.admitSend(func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		return nil, decode(&rmqpb.SendMessageRequest{})
	})
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		stream *scripted
		want   string
	}{
		"nothing":         {&scripted{err: io.EOF}, "no request"},
		"a lost stream":   {&scripted{err: broken}, "broken"},
		"compressed":      {&scripted{prefixes: [][]byte{{1, 0, 0, 0, 2}}}, "compressed"},
		"two requests":    {&scripted{prefixes: [][]byte{{0, 0, 0, 0, 0}, {0, 0, 0, 0, 0}}}, "more than one request"},
		"lost at the end": {&scripted{prefixes: [][]byte{{0, 0, 0, 0, 0}}, err: broken}, "broken"},
	} {
		_, err := handler(s.Server, grpc.NewContextWithServerTransportStream(t.Context(), c.stream), nil, nil)
		require.ErrorContains(t, err, c.want, name)
		require.Zero(t, s.sends.mu.used, name)
	}
	bad := &scripted{prefixes: [][]byte{{0, 0, 0, 0, 1}}, err: io.EOF, body: []byte{0xff}}
	_, err := handler(s.Server, grpc.NewContextWithServerTransportStream(t.Context(), bad), nil, nil)
	require.ErrorContains(t, err, "cannot be decoded")
	require.Zero(t, s.sends.mu.used)
}

func TestAStreamThatShowsNoSizesIsReadAsEver(t *testing.T) {
	s := newTestServer(t)
	called := false
	handler := s.admitSend(func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		called = true
		return nil, decode(nil)
	})
	_, err := handler(s.Server, t.Context(), func(any) error { return nil }, nil)
	require.NoError(t, err)
	require.True(t, called)
}

// stalled is a request that is announced and does not come.
type stalled struct {
	scripted
	gone chan struct{}
}

func (s *stalled) Read(int) (mem.BufferSlice, error) {
	<-s.gone
	return nil, io.ErrUnexpectedEOF
}

func TestSendsThatDoNotArriveHoldNoRoomForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t, func(o *testOptions) { o.SendBudget = 8 << 20 })
		handler := s.admitSend(func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			return nil, decode(&rmqpb.SendMessageRequest{})
		})
		gone := make(chan struct{})
		ended := make(chan error, 2)
		for range 2 {
			stream := &stalled{scripted: scripted{prefixes: [][]byte{{0, 0, 0x40, 0, 0}}}, gone: gone} // 4 MiB
			go func() {
				_, err := handler(s.Server, grpc.NewContextWithServerTransportStream(t.Context(), stream), nil, nil)
				ended <- err
			}()
		}
		synctest.Wait()
		_, err := s.acquireSend(t.Context(), 1<<20)
		require.ErrorIs(t, err, mq.ErrBusy)
		time.Sleep(slowSend)
		all, err := s.acquireSend(t.Context(), 8<<20)
		require.NoError(t, err, "they have sent nothing, and take nothing")
		all.release()
		close(gone)
		for range 2 {
			require.ErrorIs(t, <-ended, io.ErrUnexpectedEOF)
		}
		require.Zero(t, s.sends.mu.used)
	})
}

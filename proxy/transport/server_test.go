package transport

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/internal/tether"
)

// A bubble is a server on a listener in memory, under fake time.
type bubble struct {
	pipe  *bufconn.Listener
	limit *Limit
	svc   service
}

func inBubble(t *testing.T, fn func(t *testing.T, b *bubble)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bubble{pipe: bufconn.Listen(1 << 16), limit: NewLimit(100, quiet())}
		serve(t, NewListener(b.pipe, ListenerOptions{Limit: b.limit}), newCredentials(t, Permissive, io.Discard), &b.svc)
		fn(t, b)
	})
}

func TestAnIdleClientWithHeartbeatsKeepsItsConnection(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		dials := 0
		client := dial(t, "bufconn", trusting(), grpc.WithIdleTimeout(0), grpc.WithContextDialer(
			func(ctx context.Context, _ string) (net.Conn, error) {
				dials++
				return b.pipe.DialContext(ctx)
			}))
		for start := time.Now(); time.Since(start) < 15*time.Minute; time.Sleep(30 * time.Second) {
			_, err := heartbeat(t, client)
			require.NoError(t, err)
		}
		require.Equal(t, 1, dials)
	})
}

func TestAnOpenStreamKeepsAConnection(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		more := make(chan struct{})
		b.svc.receive = func(stream grpc.ServerStream) error {
			<-more
			return stream.SendMsg(&rmqpb.ReceiveMessageResponse{})
		}
		client := dial(t, "bufconn", cleartext(), grpc.WithIdleTimeout(0), throughPipe(b.pipe))
		stream, err := client.ReceiveMessage(t.Context(), &rmqpb.ReceiveMessageRequest{})
		require.NoError(t, err)
		time.Sleep(5 * time.Hour)
		require.EqualValues(t, 1, b.limit.Open())
		close(more)
		_, err = stream.Recv()
		require.NoError(t, err)
	})
}

func TestAConnectionWithoutCallsIsClosed(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		client := dial(t, "bufconn", cleartext(), grpc.WithIdleTimeout(0), throughPipe(b.pipe))
		_, err := heartbeat(t, client)
		require.NoError(t, err)
		time.Sleep(idleAfter - time.Second)
		require.EqualValues(t, 1, b.limit.Open())
		time.Sleep(time.Minute)
		require.Zero(t, b.limit.Open())
		_, err = heartbeat(t, client)
		require.NoError(t, err, "the next call brings it back")
	})
}

// A rawClient speaks frames by itself.
type rawClient struct {
	net.Conn
	*http2.Framer
}

// rawDial connects and exchanges settings. What comes later is read and dropped.
func rawDial(t *testing.T, pipe *bufconn.Listener) rawClient {
	t.Helper()
	conn, err := pipe.Dial()
	require.NoError(t, err)
	c := rawClient{conn, http2.NewFramer(conn, conn)}
	_, err = conn.Write([]byte(http2.ClientPreface))
	require.NoError(t, err)
	require.NoError(t, c.WriteSettings())
	go func() { _, _ = io.Copy(io.Discard, conn) }()
	t.Cleanup(func() { conn.Close() })
	synctest.Wait()
	return c
}

// until calls fn every few seconds until it fails, and returns how long that took.
func until(t *testing.T, fn func() error) time.Duration {
	t.Helper()
	start := time.Now()
	for fn() == nil {
		require.Less(t, time.Since(start), time.Hour, "it goes on for ever")
		time.Sleep(5 * time.Second)
	}
	return time.Since(start)
}

func TestSlowFramesAreGivenUpInTime(t *testing.T) {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	require.NoError(t, encoder.WriteField(hpack.HeaderField{Name: ":method", Value: "POST"}))
	for name, dribble := range map[string]func(c rawClient) func() error{
		"a header block that never ends": func(c rawClient) func() error {
			_ = c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes()})
			return func() error { return c.WriteContinuation(1, false, nil) }
		},
		"a frame byte by byte": func(c rawClient) func() error {
			_, _ = c.Write([]byte{0, 0x40, 0, 1, 4, 0, 0, 0, 1}) // HEADERS of 16 KiB
			return func() error {
				_, err := c.Write([]byte{0})
				return err
			}
		},
		"nothing": func(c rawClient) func() error {
			return func() error {
				_, err := c.Write(nil)
				return err
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				c := rawDial(t, b.pipe)
				next := dribble(c)
				took := until(t, func() error {
					if err := next(); err != nil {
						return err
					}
					if b.limit.Open() == 0 {
						return net.ErrClosed
					}
					return nil
				})
				require.LessOrEqual(t, took, pingAfter+pingTimeout+5*time.Second)
				synctest.Wait()
				require.Zero(t, b.limit.Open())
			})
		})
	}
}

func TestAPeerThatVanishesIsNoticed(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		ended := make(chan error, 1)
		b.svc.receive = func(stream grpc.ServerStream) error {
			<-stream.Context().Done()
			ended <- stream.Context().Err()
			return nil
		}
		inner, err := b.pipe.Dial()
		require.NoError(t, err)
		cut := make(chan struct{})
		conn := tether.New(inner, cut)
		client := dial(t, "bufconn", cleartext(), grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return conn, nil }))
		_, err = client.ReceiveMessage(t.Context(), &rmqpb.ReceiveMessageRequest{})
		require.NoError(t, err)
		time.Sleep(time.Hour)
		require.Empty(t, ended, "a peer that answers pings is there")
		close(cut)
		start := time.Now()
		require.True(t, errors.Is(<-ended, context.Canceled))
		require.LessOrEqual(t, time.Since(start), pingAfter+pingTimeout)
		synctest.Wait()
		require.Zero(t, b.limit.Open())
	})
}

func TestWhatAClientMaySendAheadIsBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		conn, err := b.pipe.Dial()
		require.NoError(t, err)
		defer conn.Close()
		_, err = conn.Write([]byte(http2.ClientPreface))
		require.NoError(t, err)
		framer := http2.NewFramer(conn, conn)
		require.NoError(t, framer.WriteSettings())
		frame, err := framer.ReadFrame()
		require.NoError(t, err)
		settings, ok := frame.(*http2.SettingsFrame)
		require.True(t, ok)
		for id, want := range map[http2.SettingID]uint32{
			http2.SettingInitialWindowSize: streamWindow, http2.SettingMaxConcurrentStreams: maxConcurrentStreams,
			http2.SettingMaxHeaderListSize: maxHeaderListSize,
		} {
			got, ok := settings.Value(id)
			require.True(t, ok, id)
			require.Equal(t, want, got, id)
		}
	})
}

func TestPingsOfTheSDKsAreBorne(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := rawDial(t, b.pipe)
		for range 8 { // C++ every 60 s without a call, some faster
			time.Sleep(minPing + time.Second)
			require.NoError(t, c.WritePing(false, [8]byte{1}))
			synctest.Wait()
			require.EqualValues(t, 1, b.limit.Open())
		}
	})
}

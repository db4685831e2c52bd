package transport

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/test/bufconn"
)

func TestOnePortServesTLSAndCleartext(t *testing.T) {
	addr := listen(t, Permissive, io.Discard)
	kind, err := heartbeat(t, dial(t, addr, cleartext()))
	require.NoError(t, err)
	require.Equal(t, "insecure", kind)
	kind, err = heartbeat(t, dial(t, addr, trusting()))
	require.NoError(t, err)
	require.Equal(t, "tls h2", kind)
}

func TestRequiredServesOnlyTLS(t *testing.T) {
	var log logBuffer
	addr := listen(t, Required, &log)
	kind, err := heartbeat(t, dial(t, addr, trusting()))
	require.NoError(t, err)
	require.Equal(t, "tls h2", kind)
	_, err = heartbeat(t, dial(t, addr, cleartext()))
	require.Error(t, err)
	require.Contains(t, log.lines(t)[0]["reason"], "tls mode required")
}

func TestDisabledServesOnlyCleartext(t *testing.T) {
	var log logBuffer
	addr := listen(t, Disabled, &log)
	kind, err := heartbeat(t, dial(t, addr, cleartext()))
	require.NoError(t, err)
	require.Equal(t, "insecure", kind)
	_, err = heartbeat(t, dial(t, addr, trusting()))
	require.Error(t, err)
	require.Contains(t, log.lines(t)[0]["reason"], "tls mode disabled")
}

func TestClientThatChecksCertificatesIsNamedInTheLog(t *testing.T) {
	var log logBuffer
	addr := listen(t, Permissive, &log)
	_, err := heartbeat(t, dial(t, addr, credentials.NewTLS(&tls.Config{ServerName: "localhost"})))
	require.Error(t, err)
	require.Eventually(t, func() bool { return len(log.lines(t)) > 0 }, 10*time.Second, time.Millisecond)
	require.Contains(t, log.lines(t)[0]["reason"], "TLS handshake: ")
}

func TestUnknownServerNameIsServed(t *testing.T) {
	addr := listen(t, Permissive, io.Discard)
	_, err := heartbeat(t, dial(t, addr, trusting(), grpc.WithAuthority("IPAuthority")))
	require.NoError(t, err)
}

// slowConn writes one byte at a time.
type slowConn struct{ net.Conn }

func (c slowConn) Write(p []byte) (int, error) {
	for i := range p {
		if _, err := c.Conn.Write(p[i : i+1]); err != nil {
			return i, err
		}
	}
	return len(p), nil
}

func TestBytesThatArriveOneByOneAreReplayed(t *testing.T) {
	addr := listen(t, Permissive, io.Discard)
	dialer := grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "tcp", addr)
		return slowConn{conn}, err
	})
	for want, creds := range map[string]credentials.TransportCredentials{"insecure": cleartext(), "tls h2": trusting()} {
		kind, err := heartbeat(t, dial(t, addr, creds, dialer))
		require.NoError(t, err, want)
		require.Equal(t, want, kind)
	}
}

func TestForeignProtocolsAreClosedAtOnceAndNamed(t *testing.T) {
	remoting := "\x00\x00\x00\x73\x00\x00\x00\x6f{\"code\":105,\"language\":\"JAVA\"}"
	for _, tc := range []struct{ name, sent, reason string }{
		{"classic remoting", remoting, "classic remoting protocol"},
		{"one zero byte", "\x00", "classic remoting protocol"},
		{"HTTP/1 GET", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1"},
		{"HTTP/1 POST, like PRI at first", "POST / HTTP/1.1\r\n\r\n", "HTTP/1"},
		{"PROXY v1", "PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n", "PROXY protocol"},
		{"PROXY v2", "\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c", "PROXY protocol"},
		{"almost a preface", "PRIX", "neither TLS nor HTTP/2"},
		{"preface of another version", "PRI * HTTP/3", "neither TLS nor HTTP/2"},
		{"garbage", "\xff\xfe\xfd", "neither TLS nor HTTP/2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var log logBuffer
			conn, err := net.Dial("tcp", listen(t, Permissive, &log))
			require.NoError(t, err)
			defer conn.Close()
			_, err = conn.Write([]byte(tc.sent))
			require.NoError(t, err)
			requireClosed(t, conn)
			lines := log.lines(t)
			require.Len(t, lines, 1)
			require.Contains(t, lines[0]["reason"], tc.reason)
			require.Equal(t, conn.LocalAddr().String(), lines[0]["peer"])
		})
	}
}

// requireClosed reads until the server has closed conn, which must not answer.
func requireClosed(t *testing.T, conn net.Conn) {
	t.Helper()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(DefaultHandshakeTimeout/2)))
	n, err := conn.Read(make([]byte, 100))
	require.Zero(t, n)
	require.Error(t, err)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the server waited for more")
}

func TestHealthChecksThatOnlyConnectAreNotLogged(t *testing.T) {
	var log logBuffer
	creds := newCredentials(t, Permissive, &log)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer lis.Close()
	client, err := net.Dial("tcp", lis.Addr().String())
	require.NoError(t, err)
	server, err := lis.Accept()
	require.NoError(t, err)
	require.NoError(t, client.Close())
	_, _, err = creds.ServerHandshake(server)
	require.Equal(t, io.EOF, err, "gRPC passes over exactly this error in silence")
	require.Empty(t, log.lines(t))
}

func TestWrongConnectionsLeaveNothingBehind(t *testing.T) {
	var log logBuffer
	limit := NewLimit(1<<20, quiet())
	addr, _ := listenWith(t, Permissive, &log, ListenerOptions{Limit: limit})
	client := dial(t, addr, cleartext())
	_, err := heartbeat(t, client)
	require.NoError(t, err)
	goroutines, descriptors := runtime.NumGoroutine(), openDescriptors(t)
	wrong := []string{
		"\x00\x00\x00\x73\x00\x00\x00\x6f{\"code\":105,\"language\":\"JAVA\"}", // classic remoting
		"GET / HTTP/1.1\r\n\r\n",
		"\x16\x03\x01\x00\x04x\x00\x00\x00", // a TLS record that is no hello
		"PRI * HTTP/9.9\r\n\r\nXX\r\n\r\n",
		http2Preface + "GET / HTTP/1.1\r\n\r\n", // no frame
		"",                                      // says nothing and goes
		"P",
	}
	repeats := 10_000
	if testing.Short() {
		repeats = 500
	}
	for i := range repeats {
		conn, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		sent := wrong[i%len(wrong)]
		_, err = conn.Write([]byte(sent))
		require.NoError(t, err)
		if len(sent) > 1 {
			require.NoError(t, conn.SetReadDeadline(time.Now().Add(DefaultHandshakeTimeout/2)))
			_, err = io.Copy(io.Discard, conn) // an alert or a GOAWAY may come first
			require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "%q was kept", sent)
		}
		require.NoError(t, conn.Close())
	}
	// One more is the goroutine that looks.
	require.Eventually(t, func() bool { return runtime.NumGoroutine() <= goroutines+1 && limit.Open() == 1 }, 10*time.Second, 5*time.Millisecond)
	require.Equal(t, descriptors, openDescriptors(t))
	_, err = heartbeat(t, client)
	require.NoError(t, err, "others are unaffected")
	require.LessOrEqual(t, len(log.lines(t)), 60, "at most one line in ten seconds")
}

// openDescriptors counts them where the system tells, and returns 0 elsewhere.
func openDescriptors(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Log("descriptors are not counted: ", err)
	}
	return len(entries)
}

func TestRefusalsAreLoggedOncePerIntervalWithACount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logBuffer
		creds := newCredentials(t, Permissive, &log)
		refuse := func() {
			client, server := net.Pipe()
			defer client.Close()
			go func() { _, _ = client.Write([]byte{0}) }()
			_, _, err := creds.ServerHandshake(server)
			require.ErrorContains(t, err, "classic remoting")
		}
		for range 5 {
			refuse()
		}
		time.Sleep(refusalInterval)
		refuse()
		lines := log.lines(t)
		require.Len(t, lines, 2)
		require.EqualValues(t, 0, lines[0]["suppressed"])
		require.EqualValues(t, 4, lines[1]["suppressed"])
	})
}

func TestConnectionThatSendsNothingIsClosedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		creds := newCredentials(t, Permissive, io.Discard)
		client, server := net.Pipe()
		start := time.Now()
		_, _, err := creds.ServerHandshake(server)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Equal(t, DefaultHandshakeTimeout, time.Since(start))
		_, err = client.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)
	})
}

func TestConnectionThatStopsInItsHandshakeIsClosedInTime(t *testing.T) {
	for name, sent := range map[string]string{
		"TLS hello cut off":   "\x16\x03\x01\x02\x00\x01",
		"preface cut off":     http2Preface[:20],
		"nothing after 'P'":   "P",
		"preface, no setting": http2.ClientPreface,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lis := bufconn.Listen(1 << 16)
				serve(t, lis, newCredentials(t, Permissive, io.Discard), &service{})
				conn, err := lis.Dial()
				require.NoError(t, err)
				defer conn.Close()
				start := time.Now()
				_, err = conn.Write([]byte(sent))
				require.NoError(t, err)
				_, err = io.Copy(io.Discard, conn)
				require.True(t, err == nil || errors.Is(err, io.ErrClosedPipe), "%v", err)
				require.LessOrEqual(t, time.Since(start), 2*DefaultHandshakeTimeout)
			})
		})
	}
}

func TestDeadlinesOfTheHandshakeDoNotOutliveIt(t *testing.T) {
	for name, creds := range map[string]credentials.TransportCredentials{"cleartext": cleartext(), "TLS": trusting()} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lis := bufconn.Listen(1 << 16)
				serve(t, lis, newCredentials(t, Permissive, io.Discard), &service{})
				dials := 0
				client := dial(t, "bufconn", creds, grpc.WithIdleTimeout(0), grpc.WithContextDialer(
					func(ctx context.Context, _ string) (net.Conn, error) {
						dials++
						return lis.DialContext(ctx)
					}))
				_, err := heartbeat(t, client)
				require.NoError(t, err)
				time.Sleep(idleAfter - time.Second)
				_, err = heartbeat(t, client)
				require.NoError(t, err)
				require.Equal(t, 1, dials, "the connection was replaced")
			})
		})
	}
}

func TestReplayGivesBackEveryByteInOrder(t *testing.T) {
	client, server := net.Pipe()
	go func() {
		_, _ = client.Write([]byte("later"))
		client.Close()
	}()
	c := &prereadConn{Conn: server, pending: []byte("first ")}
	var got bytes.Buffer
	_, err := io.CopyBuffer(&got, struct{ io.Reader }{c}, make([]byte, 4))
	require.NoError(t, err)
	require.Equal(t, "first later", got.String())
}

func TestServerCredentialsCannotDial(t *testing.T) {
	creds := newCredentials(t, Permissive, io.Discard)
	_, _, err := creds.ClientHandshake(t.Context(), "", nil)
	require.Error(t, err)
}

func TestTLSWithoutCertificateIsRefused(t *testing.T) {
	for _, mode := range []Mode{Permissive, Required} {
		_, err := NewCredentials(CredentialsOptions{Mode: mode})
		require.ErrorContains(t, err, mode.String())
	}
	_, err := NewCredentials(CredentialsOptions{Mode: Disabled + 1})
	require.Error(t, err)
}

func TestModesHaveTheirConfigurationNames(t *testing.T) {
	for _, mode := range []Mode{Permissive, Required, Disabled} {
		got, err := ParseMode(mode.String())
		require.NoError(t, err)
		require.Equal(t, mode, got)
	}
	_, err := ParseMode("on")
	require.ErrorContains(t, err, "permissive, required, disabled")
}

func FuzzSniff(f *testing.F) {
	f.Add([]byte("PRI * HTTP/2.0"))
	f.Add([]byte{0x16, 3, 1})
	f.Add([]byte("PUT"))
	f.Fuzz(func(t *testing.T, first []byte) {
		// Judging early and judging late must agree.
		for n := range len(first) {
			if early := sniff(first[:n]); early != undecided {
				require.Equal(t, early, sniff(first))
			}
		}
		if len(first) >= len(http2Preface) {
			require.NotEqual(t, undecided, sniff(first))
		}
		if sniff(first) == foreign {
			require.False(t, strings.Contains(describeForeign(first), "\n"))
		}
	})
}

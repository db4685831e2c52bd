package transport

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/test/bufconn"
)

// version2 returns a header of version 2.
func version2(command, family byte, rest []byte) string {
	b := append([]byte(proxyV2Start), command, family)
	return string(append(binary.BigEndian.AppendUint16(b, uint16(len(rest))), rest...))
}

// addresses returns the fields of version 2 that two addresses make.
func addresses(source, destination string) []byte {
	from, to := netip.MustParseAddrPort(source), netip.MustParseAddrPort(destination)
	b := append(from.Addr().AsSlice(), to.Addr().AsSlice()...)
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(b, from.Port()), to.Port())
}

// headers are good ones and the address that each names; empty: none.
var headers = []struct{ name, header, source, destination string }{
	{"version 1, IPv4", "PROXY TCP4 192.0.2.7 192.0.2.8 56324 443\r\n", "192.0.2.7:56324", "192.0.2.8:443"},
	{"version 1, IPv6", "PROXY TCP6 ::1 2001:db8::2 56324 8081\r\n", "[::1]:56324", "[2001:db8::2]:8081"},
	{"version 1, longest", "PROXY TCP6 " + strings.Repeat("ffff:", 7) + "ffff " + strings.Repeat("ffff:", 7) + "ffff 65535 65535\r\n", "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535", "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535"},
	{"version 1, unknown", "PROXY UNKNOWN\r\n", "", ""},
	{"version 1, unknown with more", "PROXY UNKNOWN ffff::1 x y z\r\n", "", ""},
	{"version 2, IPv4", version2(0x21, 0x11, addresses("192.0.2.7:56324", "192.0.2.8:443")), "192.0.2.7:56324", "192.0.2.8:443"},
	{"version 2, IPv6", version2(0x21, 0x21, addresses("[::1]:56324", "[2001:db8::2]:8081")), "[::1]:56324", "[2001:db8::2]:8081"},
	{"version 2, IPv4 in IPv6", version2(0x21, 0x21, addresses("[::ffff:192.0.2.7]:1", "[::ffff:192.0.2.8]:2")), "192.0.2.7:1", "192.0.2.8:2"},
	{"version 2, more fields", version2(0x21, 0x11, append(addresses("192.0.2.7:56324", "192.0.2.8:443"), make([]byte, 3000)...)), "192.0.2.7:56324", "192.0.2.8:443"},
	{"version 2, local", version2(0x20, 0, nil), "", ""},
	{"version 2, local with addresses", version2(0x20, 0x11, addresses("192.0.2.7:56324", "192.0.2.8:443")), "", ""},
	{"version 2, UDP", version2(0x21, 0x12, addresses("192.0.2.7:56324", "192.0.2.8:443")), "", ""},
	{"version 2, Unix sockets", version2(0x21, 0x31, make([]byte, 216)), "", ""},
}

var badHeaders = []struct{ name, header, reason string }{
	{"version 1, no end", strings.Repeat("PROXY ", 30), "does not end within 107 bytes"},
	{"version 1, bare line feed", "PROXY TCP4 192.0.2.7 192.0.2.8 1 2\n" + strings.Repeat("x", 100), "does not end within 107 bytes"},
	{"version 1, other protocol", "PROXY UDP4 192.0.2.7 192.0.2.8 1 2\r\n", "TCP4, TCP6 or UNKNOWN"},
	{"version 1, too few fields", "PROXY TCP4 192.0.2.7 192.0.2.8 1\r\n", "4 fields"},
	{"version 1, two blanks", "PROXY TCP4  192.0.2.7 192.0.2.8 1 2\r\n", "6 fields"},
	{"version 1, no address", "PROXY TCP4 host 192.0.2.8 1 2\r\n", `source: "host"`},
	{"version 1, wrong family", "PROXY TCP4 192.0.2.7 ::1 1 2\r\n", `destination: "::1"`},
	{"version 1, zone", "PROXY TCP6 fe80::1%eth0 ::1 1 2\r\n", "source"},
	{"version 1, port out of range", "PROXY TCP4 192.0.2.7 192.0.2.8 65536 2\r\n", `"65536" is not a port`},
	{"version 1, signed port", "PROXY TCP4 192.0.2.7 192.0.2.8 1 +2\r\n", `"+2" is not a port`},
	{"version 2, another version", version2(0x11, 0x11, nil), "command 0x11"},
	{"version 2, another command", version2(0x22, 0x11, nil), "command 0x22"},
	{"version 2, another family", version2(0x21, 0x41, nil), "family 0x41"},
	{"version 2, another transport", version2(0x21, 0x13, nil), "family 0x13"},
	{"version 2, too short for its addresses", version2(0x21, 0x21, make([]byte, 35)), "below the 36 bytes"},
	{"version 2, too long", version2(0x21, 0x11, make([]byte, proxyV2Max+1)), "above 4096"},
}

// behind returns a dialler whose connections begin with header, written whole or
// byte by byte as everything after it.
func behind(header string, bytewise bool) grpc.DialOption {
	return grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		if bytewise {
			conn = slowConn{conn}
		}
		_, err = conn.Write([]byte(header))
		return conn, err
	})
}

func TestAProxyHeaderNamesThePeer(t *testing.T) {
	for _, mode := range []ProxyMode{ProxyOptional, ProxyRequired} {
		addr, svc := listenWith(t, Permissive, io.Discard, ListenerOptions{Proxy: mode, Advertise: "public:1"})
		for _, h := range headers {
			for _, bytewise := range []bool{false, true} {
				for _, creds := range []credentials.TransportCredentials{cleartext(), trusting()} {
					_, err := heartbeat(t, dial(t, addr, creds, behind(h.header, bytewise)))
					require.NoError(t, err, "%s, %s, byte by byte %v", h.name, creds.Info().SecurityProtocol, bytewise)
					peer := svc.caller.Load()
					local, ok := peer.LocalAddr.(*LocalAddr)
					require.True(t, ok)
					require.Equal(t, "public:1", local.Advertise)
					if h.source == "" {
						require.Contains(t, peer.Addr.String(), "127.0.0.1:", h.name)
						require.Equal(t, addr, local.String(), h.name)
						continue
					}
					require.Equal(t, h.source, peer.Addr.String(), h.name)
					require.Equal(t, h.destination, local.String(), h.name)
				}
			}
		}
	}
}

func TestABadProxyHeaderClosesItsConnectionOnly(t *testing.T) {
	for _, h := range badHeaders {
		t.Run(h.name, func(t *testing.T) {
			var log logBuffer
			addr, _ := listenWith(t, Permissive, &log, ListenerOptions{Proxy: ProxyOptional})
			good := dial(t, addr, trusting())
			_, err := heartbeat(t, good)
			require.NoError(t, err)
			conn, err := net.Dial("tcp", addr)
			require.NoError(t, err)
			defer conn.Close()
			_, err = conn.Write([]byte(h.header))
			require.NoError(t, err)
			requireClosed(t, conn)
			require.Contains(t, log.lines(t)[0]["reason"], "bad PROXY protocol header: ")
			require.Contains(t, log.lines(t)[0]["reason"], h.reason)
			_, err = heartbeat(t, good)
			require.NoError(t, err)
		})
	}
}

func TestProxyHeadersAreTakenWhereTheListenerSaysSo(t *testing.T) {
	const header = "PROXY TCP4 192.0.2.7 192.0.2.8 1 2\r\n"
	for _, tc := range []struct {
		mode   ProxyMode
		header string
		served bool
		reason string
	}{
		{ProxyOff, "", true, ""},
		{ProxyOff, header, false, "set proxy_protocol"},
		{ProxyOptional, "", true, ""},
		{ProxyOptional, header, true, ""},
		{ProxyOptional, header + header, false, "set proxy_protocol"},
		{ProxyRequired, "", false, "no PROXY protocol header"},
		{ProxyRequired, header, true, ""},
	} {
		for _, creds := range []credentials.TransportCredentials{cleartext(), trusting()} {
			var log logBuffer
			addr, _ := listenWith(t, Permissive, &log, ListenerOptions{Proxy: tc.mode})
			_, err := heartbeat(t, dial(t, addr, creds, behind(tc.header, false)))
			require.Equal(t, tc.served, err == nil, "%v %q: %v", tc.mode, tc.header, err)
			if !tc.served {
				require.Contains(t, log.lines(t)[0]["reason"], tc.reason)
			}
		}
	}
}

func TestRefusalsBehindABalancerNameTheClient(t *testing.T) {
	var log logBuffer
	addr, _ := listenWith(t, Permissive, &log, ListenerOptions{Proxy: ProxyRequired})
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer conn.Close()
	_, err = conn.Write([]byte("PROXY TCP6 2001:db8::7 ::1 99 2\r\nGET / HTTP/1.1\r\n\r\n"))
	require.NoError(t, err)
	requireClosed(t, conn)
	require.Equal(t, "[2001:db8::7]:99", log.lines(t)[0]["peer"])
	require.Contains(t, log.lines(t)[0]["reason"], "HTTP/1")
}

func TestAHealthCheckOfABalancerIsNotLogged(t *testing.T) {
	for _, header := range []string{"", "PROXY UNKNOWN\r\n", version2(0x20, 0, nil)} {
		var log logBuffer
		creds := newCredentials(t, Permissive, &log)
		inner, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		lis := NewListener(inner, ListenerOptions{Proxy: ProxyRequired})
		client, err := net.Dial("tcp", inner.Addr().String())
		require.NoError(t, err)
		server, err := lis.Accept()
		require.NoError(t, err)
		_, err = client.Write([]byte(header))
		require.NoError(t, err)
		require.NoError(t, client.Close())
		_, _, err = creds.ServerHandshake(server)
		require.Equal(t, io.EOF, err)
		require.Empty(t, log.lines(t))
		require.NoError(t, lis.Close())
	}
}

func TestAProxyHeaderThatDribblesIsGivenUpInTime(t *testing.T) {
	for _, h := range headers[:7] {
		t.Run(h.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log logBuffer
				pipe := bufconn.Listen(1 << 16)
				lis := NewListener(pipe, ListenerOptions{Proxy: ProxyRequired})
				serve(t, lis, newCredentials(t, Permissive, &log), &service{})
				conn, err := pipe.Dial()
				require.NoError(t, err)
				defer conn.Close()
				start, sent := time.Now(), 0
				for err == nil {
					_, err = conn.Write([]byte{h.header[sent]})
					sent++
					time.Sleep(time.Second)
				}
				require.Less(t, sent, len(h.header))
				require.LessOrEqual(t, time.Since(start), DefaultHandshakeTimeout+2*time.Second)
				require.Contains(t, log.lines(t)[0]["reason"], "not enough to be understood")
			})
		})
	}
}

func TestProxyModesHaveTheirConfigurationNames(t *testing.T) {
	for _, mode := range []ProxyMode{ProxyOff, ProxyOptional, ProxyRequired} {
		got, err := ParseProxyMode(mode.String())
		require.NoError(t, err)
		require.Equal(t, mode, got)
	}
	_, err := ParseProxyMode("on")
	require.ErrorContains(t, err, "off, optional, required")
}

func FuzzProxyHeader(f *testing.F) {
	for _, h := range headers {
		f.Add([]byte(h.header + http2Preface))
	}
	for _, h := range badHeaders {
		f.Add([]byte(h.header))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		h, length, err := parseProxyHeader(data)
		require.LessOrEqual(t, length, len(data))
		require.LessOrEqual(t, length, proxyV2Head+proxyV2Max)
		require.Equal(t, h.source.IsValid(), h.destination.IsValid())
		if err != nil {
			require.Zero(t, length)
			require.Equal(t, proxyHeader{}, h)
		}
		// Bytes that come late change nothing, and bytes that follow neither.
		for n := range len(data) {
			early, some, earlyErr := parseProxyHeader(data[:n])
			switch {
			case earlyErr != nil:
				require.Error(t, err)
				require.Equal(t, errors.Is(earlyErr, errNoProxyHeader), errors.Is(err, errNoProxyHeader))
			case some > 0:
				require.Equal(t, some, length)
				require.Equal(t, early, h)
			}
		}
		if err == nil && length == 0 {
			require.Less(t, len(data), proxyV2Head+proxyV2Max)
		}
	})
}

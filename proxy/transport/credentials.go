package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// DefaultHandshakeTimeout bounds each of the two steps before a connection
// serves calls: its first bytes, a PROXY header included, and the handshake that
// follows.
const DefaultHandshakeTimeout = 10 * time.Second

// CredentialsOptions configure NewCredentials.
type CredentialsOptions struct {
	// Mode says what the port serves. Zero: Permissive.
	Mode Mode
	// Keyring is what TLS clients are shown, and asked for. Needed unless Mode is
	// Disabled.
	Keyring *Keyring
	// HandshakeTimeout bounds the wait for the first bytes and, again, the
	// handshake. Zero: DefaultHandshakeTimeout.
	HandshakeTimeout time.Duration
	// Logger gets a line about refused connections, at most one in ten
	// seconds. Nil: none are written.
	Logger *slog.Logger
}

// Credentials are the server's transport credentials. They take the header of
// the PROXY protocol off a connection where its Listener says so, look at the
// first bytes and serve TLS or cleartext HTTP/2, as the mode allows; everything
// else is closed at once. Neither SNI nor authority is checked: some clients send
// placeholders.
//
// Handlers find credentials.TLSInfo in the peer of a TLS call; the AuthType of
// a cleartext one is "insecure".
type Credentials struct {
	mode     Mode
	timeout  time.Duration
	tls      credentials.TransportCredentials // nil when disabled
	clear    credentials.TransportCredentials
	refusals *refusals
}

var _ credentials.TransportCredentials = (*Credentials)(nil)

// NewCredentials returns the credentials opts describe. It fails when the mode
// includes TLS and there is no keyring.
func NewCredentials(opts CredentialsOptions) (*Credentials, error) {
	if opts.HandshakeTimeout == 0 {
		opts.HandshakeTimeout = DefaultHandshakeTimeout
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Credentials{
		mode: opts.Mode, timeout: opts.HandshakeTimeout, clear: insecure.NewCredentials(),
		refusals: &refusals{log: opts.Logger},
	}
	switch {
	case opts.Mode > Disabled:
		return nil, fmt.Errorf("tls mode %v is unknown", opts.Mode)
	case opts.Mode == Disabled:
		return c, nil
	case opts.Keyring == nil:
		return nil, fmt.Errorf("tls mode %v needs a keyring", opts.Mode)
	}
	c.tls = credentials.NewTLS(opts.Keyring.serverConfig())
	return c, nil
}

// ServerHandshake decides what conn speaks and does the TLS handshake where
// there is one. It replaces the read deadline of conn; gRPC clears it when the
// connection is up. On an error conn is closed.
func (c *Credentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	out, info, err := c.handshake(conn)
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return out, info, nil
}

func (c *Credentials) handshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if err := raw.SetReadDeadline(time.Now().Add(c.timeout)); err != nil {
		return nil, nil, err
	}
	conn := &prereadConn{Conn: raw}
	if err := conn.proxyHeader(proxyModeOf(raw)); err != nil {
		return nil, nil, c.unclear(conn, err)
	}
	proto, err := conn.sniff()
	if err != nil {
		return nil, nil, c.unclear(conn, err)
	}
	// The handshake and the HTTP/2 preface get their own time: clearing the
	// deadline here would let a client stop after its first bytes for ever.
	if err := raw.SetReadDeadline(time.Now().Add(c.timeout)); err != nil {
		return nil, nil, err
	}
	switch {
	case proto == foreign:
		return nil, nil, c.refuse(conn, describeForeign(conn.pending))
	case proto == tlsHandshake && c.mode == Disabled:
		return nil, nil, c.refuse(conn, "TLS, but this port serves cleartext only (tls mode disabled)")
	case proto == cleartextHTTP2 && c.mode == Required:
		return nil, nil, c.refuse(conn, "cleartext HTTP/2, but this port serves TLS only (tls mode required)")
	case proto == cleartextHTTP2:
		return c.clear.ServerHandshake(conn)
	}
	first := conn.pending
	out, info, err := c.tls.ServerHandshake(conn)
	if err != nil && !errors.Is(err, io.EOF) {
		c.refusals.add(conn.RemoteAddr(), "TLS handshake: "+err.Error(), firstBytes(first))
	}
	return out, info, err
}

// proxyModeOf returns what the listener of conn says.
func proxyModeOf(c net.Conn) ProxyMode {
	if c, ok := c.(*conn); ok {
		return c.listener.opts.Proxy
	}
	return ProxyOff
}

// unclear ends a connection that has not come as far as to speak a protocol.
func (c *Credentials) unclear(conn *prereadConn, err error) error {
	switch {
	case errors.Is(err, io.EOF):
		// Health checks do that. gRPC passes over exactly this error in silence.
		return io.EOF
	case errors.Is(err, errNoProxyHeader):
		return c.refuse(conn, "no PROXY protocol header, which this port requires (proxy_protocol)")
	case errors.Is(err, errBadProxyHeader):
		return c.refuse(conn, err.Error())
	case isTimeout(err) && len(conn.pending) > 0:
		return c.refuse(conn, fmt.Sprintf("sent %d bytes in %v and not enough to be understood", len(conn.pending), c.timeout))
	default:
		return err // it has said nothing, or is gone
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

func (c *Credentials) refuse(conn *prereadConn, reason string) error {
	c.refusals.add(conn.RemoteAddr(), reason, firstBytes(conn.pending))
	return errors.New(reason)
}

// Refused returns how many connections were closed before they served calls,
// because they spoke something else or broke its rules.
func (c *Credentials) Refused() uint64 { return c.refusals.total.Load() }

// Info describes the credentials to gRPC.
func (c *Credentials) Info() credentials.ProtocolInfo {
	if c.tls == nil {
		return c.clear.Info()
	}
	return c.tls.Info()
}

// ClientHandshake fails: these are credentials of a server.
func (c *Credentials) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("server credentials used by a client")
}

// Clone returns c, which nothing can change.
func (c *Credentials) Clone() credentials.TransportCredentials { return c }

// OverrideServerName does nothing; a server has no name to override.
func (c *Credentials) OverrideServerName(string) error { return nil }

package transport

import (
	"context"
	"crypto/tls"
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
// serves calls: its first bytes, and the handshake that follows.
const DefaultHandshakeTimeout = 10 * time.Second

// CredentialsOptions configure NewCredentials.
type CredentialsOptions struct {
	// Mode says what the port serves. Zero: Permissive.
	Mode Mode
	// Certificate is what TLS clients are shown. Needed unless Mode is Disabled.
	Certificate *tls.Certificate
	// HandshakeTimeout bounds the wait for the first bytes and, again, the
	// handshake. Zero: DefaultHandshakeTimeout.
	HandshakeTimeout time.Duration
	// Logger gets a line about refused connections, at most one in ten
	// seconds. Nil: none are written.
	Logger *slog.Logger
}

// Credentials are the server's transport credentials. They look at the first
// bytes of each connection and serve TLS or cleartext HTTP/2, as the mode
// allows; everything else is closed at once. Neither SNI nor authority is
// checked: some clients send placeholders.
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
// includes TLS and there is no certificate.
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
	case opts.Certificate == nil:
		return nil, fmt.Errorf("tls mode %v needs a certificate", opts.Mode)
	}
	c.tls = credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{*opts.Certificate},
		MinVersion:   tls.VersionTLS12,
	})
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

func (c *Credentials) handshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if err := conn.SetReadDeadline(time.Now().Add(c.timeout)); err != nil {
		return nil, nil, err
	}
	first, proto, err := peek(conn)
	if err != nil {
		return nil, nil, err
	}
	// The handshake and the HTTP/2 preface get their own time: clearing the
	// deadline here would let a client stop after its first bytes for ever.
	if err := conn.SetReadDeadline(time.Now().Add(c.timeout)); err != nil {
		return nil, nil, err
	}
	replayed := &replayConn{Conn: conn, pending: first}
	switch {
	case proto == foreign:
		return nil, nil, c.refuse(conn, describeForeign(first), first)
	case proto == tlsHandshake && c.mode == Disabled:
		return nil, nil, c.refuse(conn, "TLS, but this port serves cleartext only (tls mode disabled)", first)
	case proto == cleartextHTTP2 && c.mode == Required:
		return nil, nil, c.refuse(conn, "cleartext HTTP/2, but this port serves TLS only (tls mode required)", first)
	case proto == cleartextHTTP2:
		return c.clear.ServerHandshake(replayed)
	}
	out, info, err := c.tls.ServerHandshake(replayed)
	if err != nil && !errors.Is(err, io.EOF) {
		c.refusals.add(conn.RemoteAddr(), "TLS handshake: "+err.Error(), first)
	}
	return out, info, err
}

func (c *Credentials) refuse(conn net.Conn, reason string, first []byte) error {
	c.refusals.add(conn.RemoteAddr(), reason, first)
	return errors.New(reason)
}

// peek reads until the first bytes tell what the connection speaks, and returns
// all it has read. It returns io.EOF itself when the peer closes before that,
// as health checks do; gRPC passes over that one in silence.
func peek(conn net.Conn) ([]byte, protocol, error) {
	first := make([]byte, 0, peekSize)
	for {
		n, err := conn.Read(first[len(first):cap(first)])
		first = first[:len(first)+n]
		if proto := sniff(first); proto != undecided {
			return first, proto, nil
		}
		if err != nil {
			return nil, undecided, err
		}
	}
}

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

// A replayConn gives back what was read ahead before it reads on.
type replayConn struct {
	net.Conn
	pending []byte
}

// Read reads what is pending, or else from the connection.
func (c *replayConn) Read(p []byte) (int, error) {
	if len(c.pending) == 0 {
		return c.Conn.Read(p)
	}
	n := copy(p, c.pending)
	c.pending = c.pending[n:]
	return n, nil
}

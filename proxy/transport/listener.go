package transport

import (
	"context"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/peer"
)

// ListenerOptions configure NewListener.
type ListenerOptions struct {
	// Advertise is the host:port that clients of this listener are told to
	// connect to. Empty: what they have dialled.
	Advertise string
	// Proxy says whether connections begin with a header of the PROXY protocol.
	// Zero: ProxyOff. Credentials read it.
	Proxy ProxyMode
	// Limit bounds the open connections; listeners may share one. Nil: no bound.
	Limit *Limit
}

// A Listener accepts the connections of a gRPC server that uses Credentials. It
// knows which are open and which of them serve calls already.
type Listener struct {
	net.Listener
	opts ListenerOptions

	mu struct {
		sync.Mutex
		starting map[*conn]struct{} // those that serve no calls yet
		closed   bool
	}
}

// NewListener returns a listener that accepts from inner and owns it.
func NewListener(inner net.Listener, opts ListenerOptions) *Listener {
	l := &Listener{Listener: inner, opts: opts}
	l.mu.starting = map[*conn]struct{}{}
	return l
}

// Accept returns the next connection. Those above the limit are closed and
// passed over.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if !l.opts.Limit.take(raw.RemoteAddr()) {
			raw.Close()
			continue
		}
		setUserTimeout(raw, pingTimeout)
		c := &conn{Conn: raw, listener: l}
		c.local = LocalAddr{Addr: raw.LocalAddr(), Advertise: l.opts.Advertise, conn: c}
		if !l.started(c) {
			_ = c.Close()
			return nil, net.ErrClosed
		}
		return c, nil
	}
}

// Close ends Accept, and with it the connections that do not serve calls yet: a
// gRPC server that stops would wait for each of them. The others are left alone.
func (l *Listener) Close() error {
	l.mu.Lock()
	l.mu.closed = true
	starting := l.mu.starting
	l.mu.starting = nil
	l.mu.Unlock()
	for c := range starting {
		_ = c.Close() // there is nobody to tell
	}
	return l.Listener.Close()
}

func (l *Listener) started(c *conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.closed {
		return false
	}
	l.mu.starting[c] = struct{}{}
	return true
}

// serves notes that c serves calls from now on, or is closed.
func (l *Listener) serves(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.mu.starting, c)
}

// A conn is an accepted connection.
type conn struct {
	net.Conn
	listener *Listener
	local    LocalAddr
	closed   sync.Once
}

// LocalAddr returns a *LocalAddr.
func (c *conn) LocalAddr() net.Addr { return &c.local }

// SetDeadline clears the deadlines when a gRPC server has brought the connection
// up; only it sets both at once.
func (c *conn) SetDeadline(t time.Time) error {
	if t.IsZero() {
		c.listener.serves(c)
	}
	return c.Conn.SetDeadline(t)
}

// Close closes the connection. It counts as closed from then on.
func (c *conn) Close() error {
	c.closed.Do(func() {
		c.listener.serves(c)
		c.listener.opts.Limit.giveBack()
	})
	return c.Conn.Close()
}

// A LocalAddr is where a connection has arrived; handlers find it in the peer of
// a call. Its String is the address, which behind a balancer that speaks the
// PROXY protocol is the balancer's.
type LocalAddr struct {
	net.Addr
	// Advertise is that of the listener.
	Advertise string
	conn      net.Conn
}

// Advertised returns what the listener advertises that a call has come through,
// or nothing.
func Advertised(ctx context.Context) string {
	if at := arrival(ctx); at != nil {
		return at.Advertise
	}
	return ""
}

func arrival(ctx context.Context) *LocalAddr {
	if p, ok := peer.FromContext(ctx); ok {
		if at, ok := p.LocalAddr.(*LocalAddr); ok {
			return at
		}
	}
	return nil
}

// Cut closes the connection that a call has come over, if it was accepted by a
// Listener, so that everything ends that is under way on it. It is for peers that
// take nothing any more: gRPC keeps what it could not send for as long as the
// connection lives.
func Cut(ctx context.Context) {
	if at := arrival(ctx); at != nil {
		at.conn.Close()
	}
}

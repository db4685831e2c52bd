package transport

import (
	"context"
	"net"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// A Connection is one accepted connection, as the handlers of its calls see it.
// Its methods may be called from any goroutine.
type Connection struct {
	attached atomic.Value
	mu       struct {
		sync.Mutex
		closed bool
		after  []func()
	}
}

// ConnectionOf returns the connection that a call came over; nil in a handler
// that was called directly.
func ConnectionOf(ctx context.Context) *Connection {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	addr, ok := p.Addr.(connectionAddr)
	if !ok {
		return nil
	}
	return addr.connection
}

// Attached returns what the first caller has attached to the connection: what its
// make returned. It goes when the connection and the last call over it are gone.
func (c *Connection) Attached(make func() any) any {
	if v := c.attached.Load(); v != nil {
		return v
	}
	c.attached.CompareAndSwap(nil, make())
	return c.attached.Load()
}

// AfterClose calls fn when the connection has been closed, at once if it is
// closed already. The calls over it end only then. fn must be quick and must not
// wait for anything.
func (c *Connection) AfterClose(fn func()) {
	c.mu.Lock()
	closed := c.mu.closed
	if !closed {
		c.mu.after = append(c.mu.after, fn)
	}
	c.mu.Unlock()
	if closed {
		fn()
	}
}

// Closed reports whether the connection has been closed. While a call over it goes
// on, false may be out of date; a call that ended with it finds true.
func (c *Connection) Closed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.closed
}

func (c *Connection) close() {
	c.mu.Lock()
	after := c.mu.after
	c.mu.closed, c.mu.after = true, nil
	c.mu.Unlock()
	for _, fn := range after {
		fn()
	}
}

// tracked are credentials whose connections ConnectionOf finds. gRPC tells
// handlers no other way which connection a call came over, and when that one
// ended, but for statistics of every frame of every call.
type tracked struct {
	credentials.TransportCredentials
}

// ServerHandshake does that of the credentials inside.
func (t tracked) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := t.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	return &trackedConn{Conn: conn}, info, nil
}

// Clone returns t, which nothing can change.
func (t tracked) Clone() credentials.TransportCredentials { return t }

// A trackedConn is the net.Conn of a Connection.
type trackedConn struct {
	net.Conn
	connection Connection
}

// RemoteAddr returns the address of the peer, which knows the connection.
func (c *trackedConn) RemoteAddr() net.Addr {
	return connectionAddr{c.Conn.RemoteAddr(), &c.connection}
}

// Close closes the connection and tells those who wait for that.
func (c *trackedConn) Close() error {
	err := c.Conn.Close()
	c.connection.close()
	return err
}

// A connectionAddr is the address of a peer.
type connectionAddr struct {
	net.Addr
	connection *Connection
}

// Package tether has connections whose peer vanishes without a word, for the tests of
// both sides.
//
// It knows nothing of what they carry.
package tether

import (
	"io"
	"net"
	"sync"
)

// A Conn carries a connection until it is cut, which tells nobody: what is written after
// that is lost, nothing is read, and the other end does not learn of Close.
type Conn struct {
	net.Conn
	cut    <-chan struct{}
	closed chan struct{}
	once   sync.Once
}

// New returns inner, which it owns, until cut is closed.
func New(inner net.Conn, cut <-chan struct{}) *Conn {
	return &Conn{Conn: inner, cut: cut, closed: make(chan struct{})}
}

func (c *Conn) isCut() bool {
	select {
	case <-c.cut:
		return true
	default:
		return false
	}
}

// Read implements net.Conn. After the cut it waits until Close.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.isCut() {
		<-c.closed
		return 0, io.EOF
	}
	return n, err
}

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (int, error) {
	if c.isCut() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// Close implements net.Conn.
func (c *Conn) Close() error {
	c.once.Do(func() { close(c.closed) })
	if c.isCut() {
		return nil
	}
	return c.Conn.Close()
}

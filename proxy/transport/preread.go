package transport

import (
	"errors"
	"fmt"
	"net"
)

// A prereadConn gives back what was read ahead before it reads on, and stands
// for the addresses that a header of the PROXY protocol has named.
type prereadConn struct {
	net.Conn
	pending       []byte
	remote, local net.Addr // nil: those of Conn
}

// Read reads what is pending, or else from the connection.
func (c *prereadConn) Read(p []byte) (int, error) {
	if len(c.pending) == 0 {
		return c.Conn.Read(p)
	}
	n := copy(p, c.pending)
	c.pending = c.pending[n:]
	return n, nil
}

// RemoteAddr returns whom the connection comes from.
func (c *prereadConn) RemoteAddr() net.Addr {
	if c.remote != nil {
		return c.remote
	}
	return c.Conn.RemoteAddr()
}

// LocalAddr returns where the connection has arrived.
func (c *prereadConn) LocalAddr() net.Addr {
	if c.local != nil {
		return c.local
	}
	return c.Conn.LocalAddr()
}

// fill reads once more into pending, which holds at most most bytes.
func (c *prereadConn) fill(most int) error {
	if cap(c.pending) < most {
		grown := make([]byte, len(c.pending), most)
		copy(grown, c.pending)
		c.pending = grown
	}
	n, err := c.Conn.Read(c.pending[len(c.pending):most])
	c.pending = c.pending[:len(c.pending)+n]
	if n > 0 {
		return nil
	}
	return err
}

// errBadProxyHeader says that a header of the PROXY protocol breaks its rules.
var errBadProxyHeader = errors.New("bad PROXY protocol header")

// proxyHeader takes a header of the PROXY protocol off the connection, if mode
// asks for one. Besides errors of reading it returns errNoProxyHeader and
// errBadProxyHeader.
func (c *prereadConn) proxyHeader(mode ProxyMode) error {
	if mode == ProxyOff {
		return nil
	}
	most := proxyV1Max
	for {
		header, length, err := parseProxyHeader(c.pending)
		switch {
		case errors.Is(err, errNoProxyHeader) && mode == ProxyOptional:
			return nil
		case errors.Is(err, errNoProxyHeader):
			return err
		case err != nil:
			return fmt.Errorf("%w: %w", errBadProxyHeader, err)
		case length > 0:
			c.pending = c.pending[length:]
			c.comesFrom(header)
			return nil
		}
		if len(c.pending) >= proxyV2Head {
			most = proxyV2Head + proxyV2Max
		}
		if err := c.fill(most); err != nil {
			return err
		}
	}
}

func (c *prereadConn) comesFrom(h proxyHeader) {
	if !h.source.IsValid() {
		return
	}
	c.remote = net.TCPAddrFromAddrPort(h.source)
	destination := net.TCPAddrFromAddrPort(h.destination)
	if arrived, ok := c.Conn.LocalAddr().(*LocalAddr); ok {
		c.local = &LocalAddr{Addr: destination, Advertise: arrived.Advertise, conn: arrived.conn}
	} else {
		c.local = destination
	}
}

// sniff reads until the first bytes tell what the connection speaks. They stay
// pending.
func (c *prereadConn) sniff() (protocol, error) {
	for {
		if proto := sniff(c.pending); proto != undecided {
			return proto, nil
		}
		if err := c.fill(max(peekSize, len(c.pending)+1)); err != nil {
			return undecided, err
		}
	}
}

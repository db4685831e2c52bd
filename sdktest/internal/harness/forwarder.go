package harness

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
)

// A Forwarder listens on a loopback port of its own and passes every connection
// on to another address, as a container's port mapping does.
type Forwarder struct {
	listener net.Listener
	target   string
	accepted atomic.Int64
	running  sync.WaitGroup

	mu struct {
		sync.Mutex
		closed bool
		conns  map[net.Conn]struct{} // both sides of each connection
	}
}

// OpenForwarder returns a forwarder to target, a host:port. The caller must
// Close it.
func OpenForwarder(target string) (*Forwarder, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	f := &Forwarder{listener: l, target: target}
	f.mu.conns = map[net.Conn]struct{}{}
	f.running.Go(f.accept)
	return f, nil
}

// Port returns the port that the forwarder listens on.
func (f *Forwarder) Port() int { return f.listener.Addr().(*net.TCPAddr).Port }

// Accepted returns how many connections have been made to the forwarder.
func (f *Forwarder) Accepted() int { return int(f.accepted.Load()) }

// Close ends all connections and returns once nothing runs any more.
func (f *Forwarder) Close() error {
	err := f.listener.Close()
	f.mu.Lock()
	f.mu.closed = true
	for c := range f.mu.conns {
		c.Close()
	}
	f.mu.Unlock()
	f.running.Wait()
	return err
}

func (f *Forwarder) accept() {
	for {
		outside, err := f.listener.Accept()
		if err != nil {
			return
		}
		f.accepted.Add(1)
		inside, err := net.Dial("tcp", f.target)
		if err != nil {
			outside.Close()
			continue
		}
		f.pass(outside, inside)
		f.pass(inside, outside)
	}
}

// pass copies one direction. The end of either direction ends both.
func (f *Forwarder) pass(from, to net.Conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.closed {
		from.Close()
		return
	}
	f.mu.conns[from] = struct{}{}
	f.running.Go(func() {
		_, _ = io.Copy(to, from) // an error is the end of a connection, too
		from.Close()
		to.Close()
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.mu.conns, from)
	})
}

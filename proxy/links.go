package proxy

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/perigee-mq/perigee/proxy/transport"
)

// maxLinks bounds how many clients are told apart on one connection; a sidecar
// brings those of its pod. The loss of the others is noticed by their silence.
const maxLinks = 1024

// A link is one client with a session on one connection. The end of the connection
// is the first sign that the client is gone, or that an answer it was sent has
// never arrived.
type link struct {
	client string
	heard  atomic.Int64 // when its latest call came in, on the clock of the renewals
}

// peers are the links of one connection.
type peers struct {
	latest   atomic.Pointer[link] // most connections have one
	accounts accounts
	mu       struct {
		sync.Mutex
		links map[string]*link
	}
}

func newPeers() any {
	p := new(peers)
	p.mu.links = map[string]*link{}
	return p
}

func (p *peers) get(id string) *link {
	if l := p.latest.Load(); l != nil && l.client == id {
		return l
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.mu.links[id]
	if l != nil {
		p.latest.Store(l)
	}
	return l
}

// add returns the link of the client, made if there is none and room for it.
func (p *peers) add(id string) (l *link, made bool) {
	if l := p.get(id); l != nil {
		return l, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	l = p.mu.links[id]
	if l != nil || len(p.mu.links) >= maxLinks {
		return l, false
	}
	l = &link{client: id}
	p.mu.links[id] = l
	p.latest.Store(l)
	return l, true
}

// links count the connections of each client.
type links struct {
	mu struct {
		sync.Mutex
		open map[string]int
	}
}

func (ls *links) opened(id string) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.mu.open == nil {
		ls.mu.open = map[string]int{}
	}
	ls.mu.open[id]++
}

// closed reports whether it was the client's last one.
func (ls *links) closed(id string) (last bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.mu.open[id]--
	if ls.mu.open[id] > 0 {
		return false
	}
	delete(ls.mu.open, id)
	return true
}

// any reports whether the client has a connection.
func (ls *links) any(id string) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.mu.open[id] > 0
}

// heard notes that a call of the client came over its connection. A client without
// a session gets no link: it holds nothing here.
func (s *Server) heard(c client, session bool) {
	if c.conn == nil {
		return
	}
	l := c.conn.Attached(newPeers).(*peers).get(c.ID)
	if l == nil && session {
		l = s.linkOf(c)
	}
	if l != nil {
		l.heard.Store(int64(s.renewals.now()))
	}
}

// linkOf returns the link of a call's client; nil when the handler was called
// directly, or the connection has too many.
func (s *Server) linkOf(c client) *link {
	if c.conn == nil {
		return nil
	}
	l, made := c.conn.Attached(newPeers).(*peers).add(c.ID)
	if made {
		l.heard.Store(int64(s.renewals.now()))
		s.links.opened(c.ID)
		c.conn.AfterClose(func() { s.disconnected(l) })
	}
	return l
}

// disconnected is called when the connection of a link has ended. That a server
// which drains ends it says nothing about the client.
func (s *Server) disconnected(l *link) {
	last := s.links.closed(l.client)
	if !s.streams.isDraining() {
		s.renewals.cutOff(l, last)
	}
}

// What the end of a connection says about the messages that went over it.
const (
	// arrivalProof is how long after a delivery a call over the same connection
	// must come to prove that the client has it: one that came sooner may have
	// crossed it.
	arrivalProof = 500 * time.Millisecond
	// arrivalLimit is how long after a delivery the end of the connection can mean
	// that it was lost: a connection that was dead by then does not last longer.
	arrivalLimit = transport.DeadPeerTimeout + 10*time.Second
)

// mayBeLost reports whether a delivery over the link may never have arrived, the
// connection having ended now.
func (l *link) mayBeLost(delivered, now time.Duration) bool {
	return time.Duration(l.heard.Load()) < delivered+arrivalProof && now < delivered+arrivalLimit
}

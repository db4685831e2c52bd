package remote

import (
	"context"
	"sync/atomic"
	"time"
)

// Stats is what a Client has counted, and the connections that it has.
type Stats struct {
	// Connected are the store nodes with a connection, Unreachable those that were called
	// and that no connection can be made to.
	Connected, Unreachable int
	// The frequent calls, which go over the links, by how they ended: Answered, also with a
	// refusal; Unknown, because the connection broke before there was an answer; Abandoned,
	// because their callers did not wait. Unsent are calls of every kind that reached no node.
	Answered, Unsent, Unknown, Abandoned uint64
}

// counts are the calls of Stats.
type counts struct {
	answered, unsent, unknown, abandoned atomic.Uint64
}

// Stats returns what is counted, from when the client was made.
func (c *Client) Stats() Stats {
	s := Stats{
		Answered: c.counts.answered.Load(), Unsent: c.counts.unsent.Load(),
		Unknown: c.counts.unknown.Load(), Abandoned: c.counts.abandoned.Load(),
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, n := range c.nodes {
		switch {
		case !n.down():
			s.Connected++
		case n.late():
			s.Unreachable++
		}
	}
	return s
}

// late reports whether a link is missing for longer than a call waits for it.
func (n *node) late() bool {
	for i := range n.lines {
		l := &n.lines[i]
		l.mu.Lock()
		late := l.link == nil && time.Since(l.down) >= connectWait
		l.mu.Unlock()
		if late {
			return true
		}
	}
	return false
}

// Reach returns nil when there is a connection to the node at addr, and else why not. It
// waits a bit for one that is being made, as a call does.
func (c *Client) Reach(ctx context.Context, addr string) error {
	n, err := c.at(addr)
	if err != nil {
		return err
	}
	for i := range n.lines {
		if _, err := n.lines[i].get(ctx, addr); err != nil {
			return err
		}
	}
	return nil
}

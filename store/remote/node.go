package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"

	storepb "github.com/perigee-mq/perigee/gen/perigee/store/v1"
	"github.com/perigee-mq/perigee/mq"
)

const (
	// maxCall bounds a message between tiers: the largest request of a client, and what
	// is added to it.
	maxCall = 64 << 20
	// window is how much may be on its way before it is read.
	window = 4 << 20
	// A peer that answers nothing is given up after keepaliveAfter and keepaliveWait.
	keepaliveAfter = 5 * time.Second
	keepaliveWait  = 3 * time.Second
	// connectWait is how long a call waits for a connection that is being made.
	connectWait = 2 * time.Second
	// How long after a link that broke the next one is tried.
	minBackoff = 50 * time.Millisecond
	maxBackoff = 2 * time.Second
)

// The links of a node: one for what is sent and settled, and one for what is received,
// so that bodies on their way to consumers hold up no acknowledgement.
const (
	settling  = 0
	receiving = 1
	links     = 2
)

// A node is the connection to one store node. It is made anew whenever it breaks.
type node struct {
	addr   string
	conn   *grpc.ClientConn
	store  storepb.StoreServiceClient
	lines  [links]line
	counts *counts
	logger *slog.Logger

	ctx    context.Context // ends with close
	cancel context.CancelFunc
	run    sync.WaitGroup
}

// A line is the place of a link that is replaced when it ends.
type line struct {
	mu      sync.Mutex
	link    *link         // nil while there is none
	changed chan struct{} // closed when link is set
	down    time.Time     // since when there is none
	err     error         // why
}

func dial(addr string, counts *counts, logger *slog.Logger, opts []grpc.DialOption) (*node, error) {
	opts = append([]grpc.DialOption{
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(newCodec()), grpc.MaxCallRecvMsgSize(maxCall), grpc.MaxCallSendMsgSize(maxCall)),
		grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(window),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveAfter, Timeout: keepaliveWait, PermitWithoutStream: true}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: minBackoff, Multiplier: 2, Jitter: 0.2, MaxDelay: maxBackoff},
			MinConnectTimeout: connectWait,
		}),
	}, opts...)
	conn, err := grpc.NewClient(addr, opts...)
	if err != nil {
		return nil, fmt.Errorf("store node %s: %w", addr, err)
	}
	n := &node{addr: addr, conn: conn, store: storepb.NewStoreServiceClient(conn), counts: counts, logger: logger}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	for i := range n.lines {
		l := &n.lines[i]
		l.changed, l.down, l.err = make(chan struct{}), time.Now(), errors.New("not connected yet")
		n.run.Go(func() { n.keep(l) })
	}
	return n, nil
}

func (n *node) close() error {
	n.cancel()
	err := n.conn.Close()
	n.run.Wait()
	return err
}

// down reports whether nothing connects the node.
func (n *node) down() bool {
	for i := range n.lines {
		l := &n.lines[i]
		l.mu.Lock()
		up := l.link != nil
		l.mu.Unlock()
		if up {
			return false
		}
	}
	return true
}

// keep makes a link whenever there is none.
func (n *node) keep(l *line) {
	for wait := minBackoff; n.ctx.Err() == nil; {
		began := time.Now()
		err := n.link(l)
		if n.ctx.Err() != nil {
			return
		}
		if errors.Is(err, io.EOF) {
			err = errors.New("the node stops")
		}
		l.mu.Lock()
		l.link, l.err, l.down, l.changed = nil, err, time.Now(), make(chan struct{})
		l.mu.Unlock()
		if time.Since(began) > maxBackoff {
			wait = minBackoff
		}
		n.logger.Warn("no connection to a store node", "node", n.addr, "error", err)
		timer := time.NewTimer(wait/2 + rand.N(wait))
		select {
		case <-timer.C:
		case <-n.ctx.Done():
		}
		timer.Stop()
		wait = min(2*wait, maxBackoff)
	}
}

// link makes one link and lets it carry calls until it ends.
func (n *node) link(l *line) error {
	ctx, cancel := context.WithCancel(n.ctx)
	defer cancel()
	stream, err := n.store.Calls(ctx, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	// The node says something first: a stream alone does not show that it is there.
	if _, err := stream.Header(); err != nil {
		return err
	}
	link := newLink(n.addr)
	l.mu.Lock()
	l.link = link
	close(l.changed)
	l.mu.Unlock()
	return link.run(stream)
}

// get returns the link, for which it waits a bit while one is being made.
func (l *line) get(ctx context.Context, addr string) (*link, error) {
	var patience <-chan time.Time
	for {
		l.mu.Lock()
		link, changed, down, err := l.link, l.changed, l.down, l.err
		l.mu.Unlock()
		if link != nil {
			return link, nil
		}
		left := connectWait - time.Since(down)
		if left <= 0 {
			return nil, fmt.Errorf("%w: store node %s cannot be reached (%w)", mq.ErrUnavailable, addr, err)
		}
		if patience == nil {
			timer := time.NewTimer(left)
			defer timer.Stop()
			patience = timer.C
		}
		select {
		case <-changed:
		case <-patience:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// do makes a call, whose fields fn appends, and returns the fields of the answer.
func (n *node) do(ctx context.Context, which, size int, fn func(w *builder)) (answer []byte, l *link, id uint64, err error) {
	for {
		l, err := n.lines[which].get(ctx, n.addr)
		if err != nil {
			n.counts.unsent.Add(1)
			return nil, nil, 0, err
		}
		c := l.start()
		if c == nil {
			continue // it has ended just now
		}
		l.out.put(build(size, func(w *builder) {
			begun := w.begin(callsCalls)
			w.uint(callID, c.id)
			fn(w)
			w.end(begun)
		}))
		select {
		case answer, ok := <-c.answer:
			if !ok {
				n.counts.unknown.Add(1)
				return nil, nil, 0, l.unknown()
			}
			n.counts.answered.Add(1)
			return answer, l, c.id, nil
		case <-ctx.Done():
			n.counts.abandoned.Add(1)
			l.forget(c)
			return nil, l, c.id, fmt.Errorf("store node %s has not answered: %w", n.addr, ctx.Err())
		}
	}
}

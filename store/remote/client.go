package remote

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/perigee-mq/perigee/mq"
)

// A Directory says where shards are. It may be called from any goroutine, and is called
// for each call, so it must be quick.
type Directory interface {
	// NodeOf returns the address of the node that serves the shard; the error wraps
	// mq.ErrShardNotFound or mq.ErrUnavailable.
	NodeOf(shard string) (addr string, err error)
	// Nodes returns the addresses of all nodes that are alive.
	Nodes() []string
}

// Options configure a Client.
type Options struct {
	Directory Directory
	// Dial has the options for connections to nodes: credentials at least.
	Dial   []grpc.DialOption
	Logger *slog.Logger // nil: nothing is logged
}

// A Client makes the calls of package store to the nodes that serve the shards. Its
// methods may be called from any goroutine. They do what those of the same name in package
// store do, except that:
//
//   - mq.ErrUnavailable is the error when no node that serves the shard can be reached,
//     or the connection broke before it had answered; then the outcome is unknown;
//   - a Receive or Pull reads messages into memory before Reserve is asked.
type Client struct {
	opts   Options
	logger *slog.Logger
	known  encoded
	counts counts

	mu     sync.RWMutex
	nodes  map[string]*node // by address
	closed bool
}

// NewClient returns a client that connects when it is first asked for something.
func NewClient(opts Options) *Client {
	c := &Client{opts: opts, logger: opts.Logger, nodes: map[string]*node{}}
	if c.logger == nil {
		c.logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Close ends the connections. Calls that are under way fail, and their outcome is unknown.
func (c *Client) Close() error {
	c.mu.Lock()
	nodes := c.nodes
	c.nodes, c.closed = nil, true
	c.mu.Unlock()
	var errs []error
	for _, n := range nodes {
		errs = append(errs, n.close())
	}
	return errors.Join(errs...)
}

// of returns the node of a shard.
func (c *Client) of(shard string) (*node, error) {
	addr, err := c.opts.Directory.NodeOf(shard)
	if err != nil {
		c.counts.unsent.Add(1)
		return nil, err
	}
	return c.at(addr)
}

func (c *Client) at(addr string) (*node, error) {
	c.mu.RLock()
	n, closed := c.nodes[addr], c.closed
	c.mu.RUnlock()
	if n != nil {
		return n, nil
	}
	if closed {
		return nil, fmt.Errorf("store client: %w", mq.ErrStopped)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, fmt.Errorf("store client: %w", mq.ErrStopped)
	}
	if n = c.nodes[addr]; n != nil {
		return n, nil
	}
	n, err := dial(addr, &c.counts, c.logger, c.opts.Dial)
	if err != nil {
		return nil, err
	}
	c.forget()
	c.nodes[addr] = n
	return n, nil
}

// forget ends the connections to nodes that are not there any more: one has come back
// at another address, or for good has gone.
func (c *Client) forget() {
	alive := c.opts.Directory.Nodes()
	for addr, n := range c.nodes {
		if !slices.Contains(alive, addr) && n.down() {
			delete(c.nodes, addr)
			go func() { _ = n.close() }()
		}
	}
}

// Append is that of store.Store.
func (c *Client) Append(ctx context.Context, shard string, topic *mq.Topic, queue mq.QueueID, msgs []*mq.Message) ([]mq.Appended, error) {
	n, err := c.of(shard)
	if err != nil {
		return nil, err
	}
	size := 0
	for _, m := range msgs {
		size += m.Size() + 64
	}
	if size > maxCall/2 {
		return nil, fmt.Errorf("%w: %d bytes in one request, the limit between tiers is %d", mq.ErrTooLarge, size, maxCall/2)
	}
	answer, _, _, err := n.do(ctx, settling, size, func(w *builder) {
		w.string(callShard, shard)
		begun := w.begin(callAppend)
		w.bytes(appendTopic, c.known.topic(topic))
		w.int(appendQueue, int64(queue))
		for _, m := range msgs {
			w.message(appendMessages, m)
		}
		w.end(begun)
	})
	if err != nil {
		return nil, err
	}
	stored := make([]mq.Appended, 0, len(msgs))
	err = readAnswer(answer, func(r *reader) error {
		if r.num != answerAppended {
			return nil
		}
		stored = append(stored, mq.Appended{})
		return readAppended(r.bytes(), &stored[len(stored)-1])
	})
	if err == nil && len(stored) != len(msgs) {
		err = fmt.Errorf("%w: %d answers to %d messages", errFrame, len(stored), len(msgs))
	}
	if err != nil {
		return nil, err
	}
	return stored, nil
}

// Receive is that of store.Store. Messages whose answer ctx did not wait for, or that
// Reserve refuses, are given back, uncounted.
func (c *Client) Receive(ctx context.Context, shard string, r mq.Receive) ([]mq.Delivery, error) {
	n, err := c.of(shard)
	if err != nil {
		return nil, err
	}
	answer, link, id, err := n.do(ctx, receiving, 0, func(w *builder) { c.receive(w, shard, &r) })
	if link != nil && err != nil {
		link.settle(callsCancelled, id)
	}
	if err != nil {
		return nil, err
	}
	var got []mq.Delivery
	bytes := 0
	err = readAnswer(answer, func(f *reader) error {
		switch f.num {
		case answerDeliveries:
			got = append(got, mq.Delivery{Lease: mq.Lease{Shard: shard, Topic: r.Topic.ID, Group: r.Group.ID, AutoRenew: r.AutoRenew}})
			bytes += len(f.val)
			return readDelivery(f.bytes(), &got[len(got)-1])
		case answerWaited:
			if r.Waited != nil {
				*r.Waited += time.Duration(f.int())
			}
		}
		return nil
	})
	if err == nil && len(got) > 0 && r.Reserve != nil {
		err = r.Reserve(ctx, bytes)
	}
	switch {
	case err != nil:
		link.settle(callsCancelled, id)
		return nil, err
	case len(got) > 0:
		link.settle(callsTaken, id)
	}
	return got, nil
}

func (c *Client) receive(w *builder, shard string, r *mq.Receive) {
	w.string(callShard, shard)
	begun := w.begin(callReceive)
	w.bytes(receiveTopic, c.known.topic(r.Topic))
	w.bytes(receiveGroup, c.known.group(r.Group))
	for _, tag := range r.Tags {
		w.element(receiveTags, tag)
	}
	if r.Filter != nil {
		w.string(receiveFilter, r.Filter.String())
	}
	w.int(receiveMax, int64(r.Max))
	w.int(receiveInvisible, int64(r.Invisible))
	w.string(receiveAttempt, r.Attempt)
	w.int(receiveWait, int64(r.Wait))
	w.bool(receiveAutoRenew, r.AutoRenew)
	w.int(receiveInFlight, int64(r.InFlight))
	w.string(receiveLite, r.Lite)
	w.end(begun)
}

// Ack is that of store.Store.
func (c *Client) Ack(ctx context.Context, leases []mq.Lease) []error {
	return c.settle(ctx, len(leases), callAck, func(i int) string { return leases[i].Shard },
		func(w *builder, i int) { w.lease(leasesLeases, &leases[i]) })
}

// ChangeInvisible is that of store.Store.
func (c *Client) ChangeInvisible(ctx context.Context, changes []mq.LeaseChange) []error {
	return c.settle(ctx, len(changes), callChange, func(i int) string { return changes[i].Lease.Shard },
		func(w *builder, i int) { w.leaseChange(leasesLeases, &changes[i]) })
}

// settle asks about leases, and answers in their order.
func (c *Client) settle(ctx context.Context, count int, field protoNumber, shard func(i int) string, add func(w *builder, i int)) []error {
	return c.byNode(count, shard, func(n *node, places []int) ([]error, error) {
		results := make([]error, 0, len(places))
		for len(places) > 0 {
			page := places[:min(len(places), maxLeases)]
			places = places[len(page):]
			answers, err := n.settle(ctx, len(page), field, func(w *builder) {
				for _, i := range page {
					add(w, i)
				}
			})
			for at := range page { // what other pages have come to stands
				if err != nil {
					answers[at] = err
				}
			}
			results = append(results, answers...)
		}
		return results, nil
	})
}

// maxLeases is how many leases one call has at most, and maxReceive how many messages are
// asked for at a time: a node does the work of one call without a pause.
const (
	maxLeases  = 1024
	maxReceive = 1024
)

func (n *node) settle(ctx context.Context, count int, field protoNumber, add func(w *builder)) ([]error, error) {
	answer, _, _, err := n.do(ctx, settling, 64*count, func(w *builder) {
		begun := w.begin(field)
		add(w)
		w.end(begun)
	})
	results := make([]error, count)
	if err != nil {
		return results, err
	}
	at := 0
	err = readAnswer(answer, func(r *reader) error {
		if r.num != answerSettled {
			return nil
		}
		if at == count {
			return fmt.Errorf("%w: more answers than leases", errFrame)
		}
		refused, err := readSettled(r.bytes())
		results[at] = refused
		at++
		return err
	})
	if err == nil && at != 0 && at != count {
		err = fmt.Errorf("%w: %d answers to %d leases", errFrame, at, count)
	}
	return results, err
}

// readAnswer calls fn for the fields of an answer, and returns the error it carries.
func readAnswer(answer []byte, fn func(r *reader) error) error {
	r := reader{b: answer}
	for r.next() {
		if r.num == answerError {
			refused, err := readError(r.bytes())
			return errors.Join(refused, err)
		}
		if err := fn(&r); err != nil {
			return err
		}
	}
	return r.err
}

package remote

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/perigee-mq/perigee/internal/tiererr"
	"github.com/perigee-mq/perigee/mq"
)

// An incoming call is one that a proxy makes of the node.
type incoming struct {
	st    *stream
	id    uint64
	shard string
	kind  protoNumber
	body  []byte
	err   error // it is refused
}

// run makes the call and answers it.
func (c *incoming) run(ctx context.Context) {
	if c.err != nil {
		c.refuse(c.err)
		return
	}
	switch c.kind {
	case callAppend:
		c.append(ctx)
	case callReceive:
		c.receive(ctx)
	case callAck:
		c.ack(ctx)
	case callChange:
		c.change(ctx)
	}
}

// answer sends what fn appends.
func (c *incoming) answer(size int, fn func(w *builder)) {
	c.st.out.put(c.build(size, fn))
}

func (c *incoming) build(size int, fn func(w *builder)) mem.Buffer {
	return build(size, func(w *builder) {
		begun := w.begin(answersAnswers)
		w.uint(answerID, c.id)
		fn(w)
		w.end(begun)
	})
}

func (c *incoming) refuse(err error) {
	c.answer(0, func(w *builder) { w.bytes(answerError, encodeError(err)) })
}

func encodeError(err error) []byte {
	b, _ := proto.Marshal(tiererr.Encode(err)) // its texts are valid UTF-8
	return b
}

func (c *incoming) append(ctx context.Context) {
	var topic *mq.Topic
	var queue mq.QueueID
	var msgs []*mq.Message
	r := reader{b: c.body}
	for r.next() && c.err == nil {
		switch r.num {
		case appendTopic:
			topic, c.err = c.st.s.known.topic(r.bytes())
		case appendQueue:
			queue = mq.QueueID(r.int())
		case appendMessages:
			m := new(mq.Message)
			c.err = readMessage(r.bytes(), m)
			msgs = append(msgs, m)
		}
	}
	if err := c.complete(r.err, topic != nil && len(msgs) > 0); err != nil {
		c.refuse(err)
		return
	}
	stored, err := c.st.s.store.Append(ctx, c.shard, topic, queue, msgs)
	if err != nil {
		c.refuse(err)
		return
	}
	c.answer(32*len(stored), func(w *builder) {
		for i := range stored {
			w.appended(&stored[i])
		}
	})
}

// complete returns why a call cannot be made: it cannot be read, or something is missing.
func (c *incoming) complete(err error, complete bool) error {
	if err = errors.Join(c.err, err); err == nil && !complete {
		err = errFrame
	}
	return err
}

func (c *incoming) receive(ctx context.Context) {
	var waited time.Duration
	room := c.st.s.room()
	r, err := c.receiveOf()
	if err != nil {
		c.received(nil, room, 0, err)
		return
	}
	r.Waited, r.Reserve = &waited, room.reserve
	got, err := c.st.s.store.Receive(ctx, c.shard, r)
	if err != nil && ctx.Err() != nil {
		got, err = nil, nil // the node stops, or nobody waits any more
	}
	c.received(got, room, waited, err)
}

// received answers a receive. Its messages are given back unless the proxy says that it
// has them.
func (c *incoming) received(got []mq.Delivery, room *room, waited time.Duration, err error) {
	st := c.st
	rc := &delivering{room: room, got: make([]mq.LeaseChange, len(got))}
	size := 0
	for i := range got {
		rc.got[i] = mq.LeaseChange{Lease: got[i].Lease, Reason: mq.GiveBack}
		size += got[i].Size() + 64
	}
	b := c.build(size, func(w *builder) {
		if err != nil {
			w.bytes(answerError, encodeError(err))
			return
		}
		for i := range got {
			w.delivery(&got[i])
		}
		w.int(answerWaited, int64(waited))
	})
	st.mu.Lock()
	before := st.receives[c.id]
	before.cancel()
	if st.receives[c.id] = rc; before.unwanted || len(got) == 0 {
		delete(st.receives, c.id)
	}
	st.mu.Unlock()
	if before.unwanted || len(got) == 0 {
		st.release(rc, len(got) > 0)
	}
	st.out.put(b)
}

func (c *incoming) receiveOf() (r mq.Receive, err error) {
	f := reader{b: c.body}
	for f.next() && err == nil {
		switch f.num {
		case receiveTopic:
			r.Topic, err = c.st.s.known.topic(f.bytes())
		case receiveGroup:
			r.Group, err = c.st.s.known.group(f.bytes())
		case receiveTags:
			r.Tags = append(r.Tags, f.string())
		case receiveFilter:
			r.Filter, err = c.st.s.filter(f.string())
		case receiveMax:
			r.Max = int(f.int())
		case receiveInvisible:
			r.Invisible = time.Duration(f.int())
		case receiveAttempt:
			r.Attempt = f.string()
		case receiveWait:
			r.Wait = time.Duration(f.int())
		case receiveAutoRenew:
			r.AutoRenew = f.bool()
		case receiveInFlight:
			r.InFlight = int(f.int())
		case receiveLite:
			r.Lite = f.string()
		}
	}
	c.err = errors.Join(err, atMost("max", r.Max, maxReceive))
	return r, c.complete(f.err, r.Topic != nil && r.Group != nil && r.Max > 0 && r.Invisible > 0)
}

// atMost refuses what a node would have to do without a pause.
func atMost(field string, n, limit int) error {
	if n <= limit {
		return nil
	}
	return &mq.InvalidError{Kind: mq.ErrInvalid, Field: field, Value: strconv.Itoa(n), Reason: fmt.Sprintf("must be at most %d in one call", limit)}
}

// filter returns the filter of an expression, compiled once.
func (s *Server) filter(expression string) (mq.Filter, error) {
	return s.filters.get(expression, func(mq.Filter) bool { return true }, func() (mq.Filter, error) {
		if s.opts.CompileFilter == nil {
			return nil, mq.ErrNotImplemented
		}
		return s.opts.CompileFilter(expression)
	})
}

func (c *incoming) ack(ctx context.Context) {
	var leases []mq.Lease
	r := reader{b: c.body}
	for r.next() && c.err == nil {
		if r.num == leasesLeases {
			leases = append(leases, mq.Lease{})
			c.err = readLease(r.bytes(), &leases[len(leases)-1])
		}
	}
	c.settled(r.err, len(leases), func() []error { return c.st.s.store.Ack(ctx, leases) })
}

func (c *incoming) change(ctx context.Context) {
	var changes []mq.LeaseChange
	r := reader{b: c.body}
	for r.next() && c.err == nil {
		if r.num == leasesLeases {
			changes = append(changes, mq.LeaseChange{})
			c.err = readLeaseChange(r.bytes(), &changes[len(changes)-1])
		}
	}
	c.settled(r.err, len(changes), func() []error { return c.st.s.store.ChangeInvisible(ctx, changes) })
}

// settled makes a call about leases and answers it: nothing when all went well, else one
// result for each.
func (c *incoming) settled(err error, n int, call func() []error) {
	if err := errors.Join(c.complete(err, n > 0), atMost("leases", n, maxLeases)); err != nil {
		c.refuse(err)
		return
	}
	results := call()
	bad := 0
	for _, err := range results {
		if err != nil {
			bad++
		}
	}
	c.answer(256*bad, func(w *builder) {
		for i := range results {
			if bad == 0 {
				break
			}
			begun := w.begin(answerSettled)
			if results[i] != nil {
				w.bytes(settledError, encodeError(results[i]))
			}
			w.end(begun)
		}
	})
}

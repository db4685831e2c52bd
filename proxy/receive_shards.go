package proxy

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perigee-mq/perigee/mq"
)

// errOtherShard gives back what a shard has found when another one was before it.
var errOtherShard = errors.New("another shard has messages for the receive")

// Bounds of a FIFO group's turns over the shards of a topic.
const (
	// The shard that the receive names is waited at for so long before the others are asked
	// again: little at first, as a backlog has its next message soon.
	minTurn = 100 * time.Millisecond
	maxTurn = time.Second
	// otherTurn is how long another shard may take to say that it has nothing.
	otherTurn = time.Second
)

// alone reports whether a receive asks the shard that it names and no other. Who asks each
// shard by itself does, as push consumers do, whose leases are renewed; who does not wait;
// and an attempt that comes again, whose messages are under delivery on that shard.
func (r *receive) alone() bool {
	return len(r.Topic.Shards) < 2 || r.Wait == 0 || r.AutoRenew || r.Attempt != "" && (r.Group.FIFO || r.Lite != "")
}

// fromShards takes messages from the shard that the receive names. While that has none the
// other shards of the topic are asked too, for what is there or comes first: a consumer
// that asks one shard after the other would wait at an empty one while others have a
// backlog. The messages of a call are of one shard.
func (s *Server) fromShards(ctx context.Context, r receive) ([]mq.Delivery, error) {
	switch {
	case r.alone() && r.Group.FIFO:
		return s.receiveInOrder(ctx, &r)
	case r.alone():
		return s.store.Receive(ctx, r.shard, r.Receive)
	case r.Group.FIFO:
		return s.fromEach(ctx, r)
	}
	end := time.Now().Add(r.Wait)
	at := r.Receive
	at.Wait = 0
	got, err := s.store.Receive(ctx, r.shard, at)
	if len(got) > 0 || err != nil && !othersMayHave(err) {
		return got, err
	}
	r.Wait = max(time.Until(end), 0)
	return s.fromAny(ctx, r)
}

// othersMayHave reports whether err, of the shard that a receive names, is about that shard
// alone.
func othersMayHave(err error) bool {
	return errors.Is(err, mq.ErrUnavailable) || errors.Is(err, mq.ErrTooManyInFlight)
}

// fromEach takes messages for a FIFO group from one shard after the other, beginning with the
// one that the receive names, and waits there between two turns. Two shards are never asked at
// once: what one gave back because the other had answered might be overtaken in its message
// group. A shard that does not answer in time is not asked again.
func (s *Server) fromEach(ctx context.Context, r receive) ([]mq.Delivery, error) {
	end := time.Now().Add(r.Wait)
	silent := map[string]bool{}
	for turn := minTurn; ; turn = min(2*turn, maxTurn) {
		got, err := s.turnAt(ctx, &r, r.shard, 0)
		if len(got) > 0 || err != nil && !othersMayHave(err) {
			return got, err
		}
		for _, sh := range r.Topic.Shards {
			if sh.Shard == r.shard || silent[sh.Shard] {
				continue
			}
			inTime, cancel := context.WithTimeout(ctx, otherTurn)
			got, failed := s.turnAt(inTime, &r, sh.Shard, 0)
			cancel()
			if len(got) > 0 {
				return got, nil
			}
			silent[sh.Shard] = failed != nil && inTime.Err() != nil
		}
		left := min(turn, time.Until(end))
		if err != nil || left <= 0 || ctx.Err() != nil {
			return nil, err
		}
		if got, err = s.turnAt(ctx, &r, r.shard, left); len(got) > 0 || err != nil && !othersMayHave(err) {
			return got, err
		}
	}
}

// turnAt receives from a shard in order.
func (s *Server) turnAt(ctx context.Context, r *receive, shard string, wait time.Duration) ([]mq.Delivery, error) {
	at := *r
	at.shard, at.Wait = shard, wait
	got, err := s.receiveInOrder(ctx, &at)
	if r.Topic, r.Group = at.Topic, at.Group; shard == r.shard {
		r.shard = at.shard
	}
	return got, err
}

// answered is what a shard has answered.
type answered struct {
	shard  string
	got    []mq.Delivery
	err    error
	waited time.Duration
}

// fromAny waits at all shards of the topic. The first that finds something is the one that
// answers. An error of the shard that the receive names ends it; when it is that nobody
// reaches that shard, the others have a moment.
func (s *Server) fromAny(ctx context.Context, r receive) ([]mq.Delivery, error) {
	ctx, cancel := context.WithCancel(ctx)
	var asking sync.WaitGroup
	defer asking.Wait()
	defer cancel()
	var first atomic.Pointer[string] // the shard
	answers := make(chan answered, len(r.Topic.Shards))
	for _, sh := range r.Topic.Shards {
		asking.Go(func() { answers <- s.askShard(ctx, sh.Shard, r.Receive, &first) })
	}
	var named answered
	for range r.Topic.Shards {
		a := <-answers
		if won := first.Load(); won != nil && *won == a.shard {
			r.addWaited(a.waited)
			return a.got, a.err
		}
		if a.shard != r.shard {
			continue
		}
		named = a
		if errors.Is(a.err, mq.ErrUnavailable) {
			defer time.AfterFunc(errorPause, cancel).Stop()
		} else if a.err != nil {
			cancel()
		}
	}
	r.addWaited(named.waited)
	return nil, named.err
}

// askShard waits for messages at one shard, and leaves them there unless it is the first.
func (s *Server) askShard(ctx context.Context, shard string, r mq.Receive, first *atomic.Pointer[string]) answered {
	a := answered{shard: shard}
	reserve := r.Reserve
	r.Waited = &a.waited
	r.Reserve = func(ctx context.Context, bytes int) error {
		// One that was first and lost its messages again, as the log was cut, stays it.
		if !first.CompareAndSwap(nil, &shard) && *first.Load() != shard {
			return errOtherShard
		}
		return reserve(ctx, bytes)
	}
	if a.got, a.err = s.store.Receive(ctx, shard, r); errors.Is(a.err, errOtherShard) {
		a.err = nil
	}
	return a
}

func (r *receive) addWaited(d time.Duration) {
	if r.Waited != nil {
		*r.Waited += d
	}
}

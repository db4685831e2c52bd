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

// alone reports whether a receive asks the shard that it names and no other. Who asks each
// shard by itself does, as push consumers do, whose leases are renewed; who does not wait;
// and who must be answered by that shard: a FIFO group, and an attempt that comes again.
func (r *receive) alone() bool {
	return len(r.Topic.Shards) < 2 || r.Wait == 0 || r.AutoRenew || r.Group.FIFO || r.Lite != "" && r.Attempt != ""
}

// fromShards takes messages from the shard that the receive names. While that has none the
// other shards of the topic are asked too, for what is there or comes first: a consumer
// that asks one shard after the other would wait at an empty one while others have a
// backlog. The messages of a call are of one shard.
func (s *Server) fromShards(ctx context.Context, r receive) ([]mq.Delivery, error) {
	if r.alone() {
		return s.store.Receive(ctx, r.shard, r.Receive)
	}
	end := time.Now().Add(r.Wait)
	at := r.Receive
	at.Wait = 0
	got, err := s.store.Receive(ctx, r.shard, at)
	if len(got) > 0 || err != nil && !errors.Is(err, mq.ErrUnavailable) && !errors.Is(err, mq.ErrTooManyInFlight) {
		return got, err
	}
	r.Wait = max(time.Until(end), 0)
	return s.fromAny(ctx, r)
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

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
	// othersTurn is how long the others may take together.
	othersTurn = 300 * time.Millisecond
)

// alone reports whether a receive asks the shard that it names and no other. Who asks each
// shard by itself does, as push consumers do, whose leases are renewed; who does not wait;
// an attempt that comes again, whose messages are under delivery on that shard; and a FIFO
// group in lite topics.
func (r *receive) alone() bool {
	switch {
	case len(r.Topic.Shards) < 2 || r.Wait == 0 || r.AutoRenew:
		return true
	case r.Lite != "":
		return r.Attempt != "" || r.Group.FIFO
	default:
		return r.Attempt != "" && r.Group.FIFO
	}
}

// fromShards takes messages from the shard that the receive names. While that has none the
// other shards of the topic are asked too, for what is there or comes first: a consumer
// that asks one shard after the other would wait at an empty one while others have a
// backlog. The messages of a call are of one shard.
func (s *Server) fromShards(ctx context.Context, r receive) ([]mq.Delivery, error) {
	switch {
	case r.alone() && r.Group.FIFO:
		return s.receiveInOrder(ctx, &r, time.Now().Add(max(r.Wait, heldTime)))
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
// one that the receive names, and waits there between two turns. Two shards are never asked
// for messages at once: what one gave back because the other had answered might be overtaken
// in its message group.
func (s *Server) fromEach(ctx context.Context, r receive) ([]mq.Delivery, error) {
	end := time.Now().Add(r.Wait)
	held := time.Now().Add(max(r.Wait, heldTime))
	silent := map[string]bool{} // shards that have not answered in time
	answers := false            // the shard that is named does, or has
	for turn := minTurn; ; turn = min(2*turn, maxTurn) {
		got, err := s.turnAt(ctx, &r, r.shard, 0, held)
		if len(got) > 0 || err != nil && !othersMayHave(err) {
			return got, err
		}
		if got := s.fromOthers(ctx, &r, end, silent); len(got) > 0 {
			return got, nil
		}
		left := time.Until(end)
		switch {
		case errors.Is(err, mq.ErrUnavailable) && answers:
			return nil, nil // as when its node ends the poll itself
		case errors.Is(err, mq.ErrUnavailable) || left <= 0 || ctx.Err() != nil:
			return nil, err
		}
		full := err != nil
		if full {
			turn = maxTurn // it is held for so long there, until there is room
		}
		answers = true
		got, err = s.turnAt(ctx, &r, r.shard, min(turn, left), held)
		if len(got) > 0 || err != nil && (full || !othersMayHave(err)) {
			return got, err
		}
	}
}

// fromOthers asks the shards that the receive does not name whether they owe the group
// anything, all at once, and takes messages from the first that has some to give. All of that
// takes othersTurn at most. One that does not answer by then is noted as silent and not asked
// again; one that cannot be asked is another time.
func (s *Server) fromOthers(ctx context.Context, r *receive, end time.Time, silent map[string]bool) []mq.Delivery {
	type answer struct {
		shard string
		owes  bool
	}
	var asking sync.WaitGroup
	defer asking.Wait()
	inTime, cancel := context.WithTimeout(ctx, min(othersTurn, max(time.Until(end), 0)))
	defer cancel()
	topic, group := r.Topic.ID, r.Group.ID
	answers, asked := make(chan answer, len(r.Topic.Shards)), map[string]bool{}
	for _, sh := range r.Topic.Shards {
		if sh.Shard == r.shard || silent[sh.Shard] {
			continue
		}
		asked[sh.Shard] = true
		asking.Go(func() {
			owes, err := s.store.Owed(inTime, sh.Shard, topic, group)
			answers <- answer{sh.Shard, err == nil && owes}
		})
	}
	for len(asked) > 0 && inTime.Err() == nil {
		select {
		case a := <-answers:
			if a.owes {
				// What it cannot give now it has the next time.
				if got, _ := s.turnAt(inTime, r, a.shard, 0, end); len(got) > 0 {
					return got
				}
			}
			if inTime.Err() == nil {
				delete(asked, a.shard)
			}
		case <-inTime.Done():
		}
	}
	for shard := range asked {
		silent[shard] = true
	}
	return nil
}

// turnAt receives from a shard in order; until held it waits for a newer version of the topic
// or the group that the shard may know.
func (s *Server) turnAt(ctx context.Context, r *receive, shard string, wait time.Duration, held time.Time) ([]mq.Delivery, error) {
	at := *r
	at.shard, at.Wait = shard, wait
	got, err := s.receiveInOrder(ctx, &at, held)
	r.Topic, r.Group = at.Topic, at.Group
	if _, gone := r.Topic.On(r.shard); gone != nil && len(r.Topic.Shards) > 0 {
		r.shard = r.Topic.Shards[0].Shard
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

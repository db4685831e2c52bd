package proxy

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/perigee-mq/perigee/mq"
)

const (
	// beginLimit bounds how long a first receive lets the instance of its client begin on other
	// shards.
	beginLimit = 2 * time.Second
	// maxBegun is how many pairs of instance and topic are remembered. When there are more,
	// all are forgotten and begun again, which changes nothing where they have.
	maxBegun = 1 << 14
)

// begun has the instances of broadcast groups that are known to have begun on every shard of a
// topic.
type begun struct {
	mu    sync.Mutex
	known map[beginning]bool
}

type beginning struct {
	group mq.GroupID
	topic mq.TopicID
}

// note notes that an instance begins, and reports false when it has.
func (b *begun) note(at beginning) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.known[at] {
		return false
	}
	if b.known == nil || len(b.known) >= maxBegun {
		b.known = map[beginning]bool{}
	}
	b.known[at] = true
	return true
}

func (b *begun) forget(at beginning) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.known, at)
}

// beginOnAll lets the instance of a broadcast group begin on every shard of the topic with the
// first receive of its client. On a shard it begins behind what is there when it first
// receives from it; one after the other it would miss what is sent meanwhile.
func (s *Server) beginOnAll(ctx context.Context, r receive) {
	at := beginning{r.Group.ID, r.Topic.ID}
	if !r.Group.IsInstance() || len(r.Topic.Shards) < 2 || !s.begun.note(at) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, beginLimit)
	defer cancel()
	first := mq.Receive{Topic: r.Topic, Group: r.Group, Max: 1, Invisible: r.Invisible}
	var asking sync.WaitGroup
	defer asking.Wait()
	for _, sh := range r.Topic.Shards {
		asking.Go(func() {
			got, err := s.store.Receive(ctx, sh.Shard, first)
			s.giveBack(ctx, got) // it had begun before
			if err != nil && !errors.Is(err, mq.ErrTooManyInFlight) {
				s.begun.forget(at) // the next receive tries again
			}
		})
	}
}

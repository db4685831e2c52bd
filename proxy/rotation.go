package proxy

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/perigee-mq/perigee/mq"
)

// A rotation spreads the requests to a topic evenly over its writable queues.
// It starts anywhere, so that proxies do not move in step. It takes no lock. What
// it remembers is a few words for each topic sent to, of which it forgets all when
// they are many: topics come and go, and their ids never come back.
type rotation struct {
	turns sync.Map // mq.TopicID to *atomic.Uint64
	size  atomic.Int64
}

// maxTurns is how many topics a rotation remembers.
const maxTurns = 1 << 16

// next returns the queue whose turn it is. The error matches mq.ErrForbidden.
func (r *rotation) next(t *mq.Topic) (shard string, queue mq.QueueID, err error) {
	var writable uint64
	for _, s := range t.Shards {
		writable += uint64(s.Writable())
	}
	if writable == 0 || !t.Permission.CanWrite() {
		return "", 0, noWritableQueue(t)
	}
	n := r.turn(t.ID).Add(1) % writable
	for _, s := range t.Shards {
		if n < uint64(s.Writable()) {
			return s.Shard, mq.QueueID(n), nil
		}
		n -= uint64(s.Writable())
	}
	panic("BUG: the turn lies outside of the queues it was taken from")
}

func noWritableQueue(t *mq.Topic) error {
	return fmt.Errorf("%w: topic %q has no writable queue", mq.ErrForbidden, t.Resource)
}

func (r *rotation) turn(id mq.TopicID) *atomic.Uint64 {
	if v, ok := r.turns.Load(id); ok {
		return v.(*atomic.Uint64)
	}
	start := new(atomic.Uint64)
	start.Store(rand.Uint64N(1 << 32))
	if r.size.Add(1) > maxTurns {
		r.size.Store(1)
		r.turns.Clear()
	}
	v, _ := r.turns.LoadOrStore(id, start)
	return v.(*atomic.Uint64)
}

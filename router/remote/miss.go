package remote

import (
	"context"
	"sync"
	"time"
)

// missRate is how many names and ids that are not known are asked for in a second.
const missRate = 200

// A bucket bounds how often something is done: rate times in a second, and as often at
// once.
type bucket struct {
	rate float64
	mu   struct {
		sync.Mutex
		used float64
		at   time.Time
	}
}

func (b *bucket) take(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if elapsed := now.Sub(b.mu.at); elapsed > 0 {
		b.mu.used = max(0, b.mu.used-elapsed.Seconds()*b.rate)
		b.mu.at = now
	}
	if b.mu.used+1 > b.rate {
		return false
	}
	b.mu.used++
	return true
}

// flights are questions under way: who asks the same gets the same answer.
type flights[K comparable, V any] struct {
	mu struct {
		sync.Mutex
		of map[K]*flight[V]
	}
}

type flight[V any] struct {
	done  chan struct{}
	value V
	err   error
}

// ask returns the answer of f, or of the one that is under way for k. f is run in a
// goroutine of its own by start, and not cut short when this caller gives up. When
// start returns false it is not run, and ask returns false.
func (q *flights[K, V]) ask(ctx context.Context, k K, start func(func()) bool, f func() (V, error)) (v V, err error, ok bool) {
	q.mu.Lock()
	asked := q.mu.of[k]
	if asked == nil {
		asked = &flight[V]{done: make(chan struct{})}
		run := func() {
			asked.value, asked.err = f()
			q.mu.Lock()
			delete(q.mu.of, k)
			q.mu.Unlock()
			close(asked.done)
		}
		if q.mu.of == nil {
			q.mu.of = map[K]*flight[V]{}
		}
		q.mu.of[k] = asked
		if !start(run) {
			delete(q.mu.of, k)
			q.mu.Unlock()
			return v, nil, false
		}
	}
	q.mu.Unlock()
	select {
	case <-asked.done:
		return asked.value, asked.err, true
	case <-ctx.Done():
		return v, ctx.Err(), true
	}
}

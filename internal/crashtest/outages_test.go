package crashtest

import (
	"slices"
	"sync"
	"time"
)

// A span is a time from one moment to another.
type span struct{ from, to time.Time }

func (s span) overlaps(o span) bool { return !s.to.Before(o.from) && !o.to.Before(s.from) }

// outages are the times in which a proxy may have found no way to a shard: its store node
// was away, or the proxy was new.
type outages struct {
	mu sync.Mutex
	of map[string][]*span // by shard; to is zero as long as it goes on
}

// begin notes that outages of shards begin, and returns what ends them.
func (o *outages) begin(shards ...string) (end func()) {
	now := &span{from: time.Now()}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.of == nil {
		o.of = map[string][]*span{}
	}
	for _, shard := range shards {
		o.of[shard] = append(o.of[shard], now)
	}
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		now.to = time.Now()
	}
}

// met reports whether one of the shards was away during one of the tries. Only then a send
// may have been stored on another shard than the one of its id.
func (o *outages) met(tries []span, shards []string) bool {
	if o == nil {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.ContainsFunc(shards, func(shard string) bool {
		return slices.ContainsFunc(o.of[shard], func(away *span) bool {
			until := *away
			if until.to.IsZero() {
				until.to = time.Now()
			}
			return slices.ContainsFunc(tries, until.overlaps)
		})
	})
}

package crashtest

import (
	"slices"
	"sync"
	"time"
)

// A span is a time from one moment to another.
type span struct{ from, to time.Time }

func (s span) overlaps(o span) bool { return !s.to.Before(o.from) && !o.to.Before(s.from) }

// outages are the times in which something was away. A shard is away as long as a proxy may
// find no way to it: its store node is gone or cut off, or the proxy is new.
type outages struct {
	mu sync.Mutex
	of map[string][]*span // by what was away; to is zero as long as it goes on
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

// anything is what outages are of where it does not matter.
var anything = []string{"anything"}

// any reports whether there has been an outage.
func (o *outages) any() bool { return !o.last().IsZero() }

// last returns when the last one was over: now, when one goes on.
func (o *outages) last() (at time.Time) {
	if o == nil {
		return at
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, all := range o.of {
		for _, away := range all {
			to := away.to
			if to.IsZero() {
				to = time.Now()
			}
			if to.After(at) {
				at = to
			}
		}
	}
	return at
}

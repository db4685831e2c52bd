package session

import (
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	// addedKept is how long it is remembered that a client has added a lite topic: longer
	// than the calls of an SDK may take.
	addedKept = 10 * time.Second
	// maxAdded bounds how many are remembered.
	maxAdded = 4096
)

// Lites is what a client did to its lite topics a moment ago.
//
// SDKs say again and again which lite topics a client has, as a whole set, beside the calls
// that add one. They make the set before an addition is answered, and send it before or
// after, without a version. So the latest set may be older than the latest addition.
type Lites struct {
	// Turn is held by one sync of the client at a time, from the question what it has added
	// to the answer of the store.
	Turn sync.Mutex

	mu struct {
		sync.Mutex
		added map[addedLite]time.Time
	}
}

type addedLite struct{ scope, name string }

// Added notes that the client has added lite topics of a scope: a topic and a group.
func (l *Lites) Added(scope string, names []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if l.mu.added == nil {
		l.mu.added = map[addedLite]time.Time{}
	}
	maps.DeleteFunc(l.mu.added, func(_ addedLite, at time.Time) bool { return now.Sub(at) >= addedKept })
	for _, name := range names {
		if len(l.mu.added) < maxAdded {
			l.mu.added[addedLite{scope, name}] = now
		}
	}
}

// Removed notes that the client has removed lite topics, or lost them; all of the scope
// when none are named.
func (l *Lites) Removed(scope string, names ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.mu.added, func(one addedLite, _ time.Time) bool {
		return one.scope == scope && (len(names) == 0 || slices.Contains(names, one.name))
	})
}

// WithAdded returns the set, with what the client has added to the scope a moment ago.
func (l *Lites) WithAdded(scope string, names []string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := slices.Clone(names)
	for one, at := range l.mu.added {
		if one.scope == scope && time.Since(at) < addedKept && !slices.Contains(names, one.name) {
			all = append(all, one.name)
		}
	}
	slices.Sort(all[len(names):])
	return all
}

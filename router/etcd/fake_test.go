package etcd

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// A fakeEtcd is an etcd in memory: revisions, transactions, watches, compaction.
type fakeEtcd struct {
	mu        sync.Mutex
	revision  int64
	compacted int64
	values    map[string]value
	history   []value // all that was ever written, in order
	written   chan struct{}
	late      sync.WaitGroup // transactions on their way
}

func newFake() *fakeEtcd {
	return &fakeEtcd{revision: 1, values: map[string]value{}, written: make(chan struct{})}
}

// write makes a transaction and returns its revision, 0 when the guard is another one.
func (f *fakeEtcd) write(guard string, at int64, writes []value) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if guard != "" && f.values[guard].revision != at {
		return 0
	}
	f.revision++
	for _, w := range writes {
		w.revision = f.revision
		if w.bytes == nil {
			if _, there := f.values[w.key]; !there {
				continue
			}
			delete(f.values, w.key)
		} else {
			f.values[w.key] = w
		}
		f.history = append(f.history, w)
	}
	close(f.written)
	f.written = make(chan struct{})
	return f.revision
}

// compact forgets all revisions before the newest.
func (f *fakeEtcd) compact() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.compacted = f.revision
}

// restore brings back how it was at a revision. The numbers behind that are given out
// again.
func (f *fakeEtcd) restore(revision int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.revision, f.values = revision, map[string]value{}
	f.history = slices.DeleteFunc(f.history, func(v value) bool { return v.revision > revision })
	for _, v := range f.history {
		if v.bytes == nil {
			delete(f.values, v.key)
		} else {
			f.values[v.key] = v
		}
	}
}

// now returns the newest revision.
func (f *fakeEtcd) now() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.revision
}

// all returns what is there, by key.
func (f *fakeEtcd) all() map[string]value {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.values)
}

// past returns what was ever written.
func (f *fakeEtcd) past() []value {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.history)
}

// since returns what was written from a revision on to keys with the prefix, the revision
// up to which that is, and a channel that is closed with the next write.
func (f *fakeEtcd) since(prefix string, from int64) (values []value, upTo int64, written <-chan struct{}, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if from <= f.compacted {
		return nil, 0, nil, errCompacted
	}
	for _, v := range f.history {
		if v.revision >= from && strings.HasPrefix(v.key, prefix) {
			values = append(values, v)
		}
	}
	return values, f.revision, f.written, nil
}

// How a line to etcd is.
type state int

const (
	up       state = iota
	refusing       // an error at once
	silent         // nothing, until the caller gives up
)

// A line is how one router reaches the fake, with all that may be wrong with it.
type line struct {
	etcd *fakeEtcd
	mu   struct {
		sync.Mutex
		state       state
		changed     chan struct{} // closed when the state is another
		lostReplies int           // of the next transactions: they are made
		lostCalls   int           // of the next transactions: they are not made
		lateCalls   int           // of the next transactions: they are made after lateBy
		lateBy      time.Duration
		sentTwice   int           // of the next transactions: what is answered is the second
		lag         time.Duration // of watches
		deaf        bool          // the watch under way brings nothing more
		watches     int           // how many were begun
	}
}

func (f *fakeEtcd) line() *line {
	l := &line{etcd: f}
	l.mu.changed = make(chan struct{})
	return l
}

// set changes what is wrong.
func (l *line) set(change func(l *line)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(l)
	close(l.mu.changed)
	l.mu.changed = make(chan struct{})
}

func (l *line) heal() {
	l.set(func(l *line) {
		l.mu.state, l.mu.lag, l.mu.lostCalls, l.mu.lostReplies, l.mu.lateCalls, l.mu.sentTwice = up, 0, 0, 0, 0, 0
	})
}

var errLine = errors.New("connection lost")

// pass returns nil when a call gets through.
func (l *line) pass(ctx context.Context) error {
	for {
		l.mu.Lock()
		state, changed := l.mu.state, l.mu.changed
		l.mu.Unlock()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		switch state {
		case up:
			return nil
		case refusing:
			return errLine
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

func (l *line) get(ctx context.Context, key string) (value, error) {
	if err := l.pass(ctx); err != nil {
		return value{}, err
	}
	l.etcd.mu.Lock()
	defer l.etcd.mu.Unlock()
	v := l.etcd.values[key]
	v.key = key
	return v, nil
}

func (l *line) list(ctx context.Context, from, end string, limit int, at int64) ([]value, bool, int64, error) {
	if err := l.pass(ctx); err != nil {
		return nil, false, 0, err
	}
	f := l.etcd
	f.mu.Lock()
	defer f.mu.Unlock()
	if at == 0 {
		at = f.revision
	}
	if at < f.compacted {
		return nil, false, 0, errCompacted
	}
	then := map[string]value{}
	for _, v := range f.history {
		switch {
		case v.revision > at || v.key < from || v.key >= end:
		case v.bytes == nil:
			delete(then, v.key)
		default:
			then[v.key] = v
		}
	}
	keys := slices.Sorted(maps.Keys(then))
	more := len(keys) > limit
	var page []value
	for _, k := range keys[:min(len(keys), limit)] {
		page = append(page, then[k])
	}
	return page, more, at, nil
}

func (l *line) swap(ctx context.Context, guard string, at int64, writes []value) (int64, error) {
	if err := l.pass(ctx); err != nil {
		return 0, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.mu.lostCalls > 0:
		l.mu.lostCalls--
		return 0, errLine
	case l.mu.lateCalls > 0:
		l.mu.lateCalls--
		timer := time.NewTimer(l.mu.lateBy)
		l.etcd.late.Go(func() {
			<-timer.C
			l.etcd.write(guard, at, writes)
		})
		return 0, errLine
	}
	made := l.etcd.write(guard, at, writes)
	if l.mu.sentTwice > 0 {
		l.mu.sentTwice--
		made = l.etcd.write(guard, at, writes)
	}
	if l.mu.lostReplies > 0 {
		l.mu.lostReplies--
		return 0, errLine
	}
	return made, nil
}

func (l *line) watch(ctx context.Context, prefix string, from int64, show func([]value, int64) error) error {
	l.mu.Lock()
	l.mu.watches++
	l.mu.deaf = false
	l.mu.Unlock()
	for {
		if err := l.pass(ctx); err != nil {
			return err
		}
		values, upTo, written, err := l.etcd.since(prefix, from)
		if err != nil {
			return err
		}
		l.mu.Lock()
		lag, deaf, changed := l.mu.lag, l.mu.deaf, l.mu.changed
		l.mu.Unlock()
		if len(values) > 0 && lag > 0 && !deaf {
			timer := time.NewTimer(lag)
			select {
			case <-timer.C:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if len(values) > 0 && !deaf {
			if err := show(values, upTo); err != nil {
				return err
			}
			from = upTo + 1
			continue
		}
		if deaf {
			written = nil
		}
		select {
		case <-written:
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (l *line) close() error { return nil }

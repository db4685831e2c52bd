package router

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perigee-mq/perigee/mq"
)

// How long what may take with a shared backend. Callers in other processes give a router
// three seconds.
const (
	askTimeout     = 2500 * time.Millisecond // until what is newest is known, and shown here
	lagTimeout     = time.Second             // until what is newest must have come; it is followed anew then
	probeInterval  = 3 * time.Second         // between two looks at whether the backend answers
	maxFollowDelay = 3 * time.Second         // between two tries to follow
)

// maxTries is how often a change is tried when other routers come first each time.
const maxTries = 20

// errForked: somebody has brought back an older copy, and others have gone on from there.
var errForked = errors.New("metadata with another past than what is known")

// sharing is what a router has whose backend is shared: it follows what others commit.
type sharing struct {
	backend    SharedBackend
	name       string          // of the backend, for errors
	ctx        context.Context // ends with the router's Close
	cancel     context.CancelFunc
	background sync.WaitGroup
	again      atomic.Pointer[context.CancelFunc] // ends the Follow under way, to begin another
	trouble    atomic.Pointer[error]              // why the newest commit is not known; nil: it is

	// asks are questions for the newest commit.
	asks struct {
		sync.Mutex
		next   *ask // which has not begun; nil: nobody waits for one
		busy   bool // one is under way
		closed bool
	}
	// doubt is the commit of this router that is under way. It is guarded by
	// Router.showing.
	doubt doubt
}

// An ask is one question, of all who came before it began.
type ask struct {
	done chan struct{}
	err  error
}

// share begins to follow what others commit.
func (r *Router) share(backend SharedBackend, name string) {
	s := &sharing{backend: backend, name: name}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	r.sharing = s
	s.background.Go(r.follow)
	s.background.Go(r.probe)
}

// end ends what waits and follows, and lets nobody ask any more.
func (s *sharing) end() {
	s.asks.Lock()
	s.asks.closed = true
	s.asks.Unlock()
	s.cancel()
}

// pause waits before the n-th try in a row, from 1; it is false when ctx has ended.
func pause(ctx context.Context, n int, longest time.Duration) bool {
	delay := min(5*time.Millisecond<<min(n, 16), longest)
	timer := time.NewTimer(delay/2 + rand.N(delay/2+1))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Degraded returns why the router cannot tell, for the time being, what other routers have
// changed, and can change nothing: the shared backend does not answer. Lookups go on with what is known. It is nil while all is well, and without a
// shared backend.
func (r *Router) Degraded() error {
	if r.sharing == nil {
		return nil
	}
	if trouble := r.sharing.trouble.Load(); trouble != nil {
		return *trouble
	}
	return nil
}

func (r *Router) setTrouble(err error) {
	if err == nil {
		if r.sharing.trouble.Swap(nil) != nil {
			r.logger.Info("the metadata are followed and can be changed again")
		}
		return
	}
	if r.sharing.trouble.Swap(&err) == nil && r.sharing.ctx.Err() == nil {
		r.logger.Warn("the metadata cannot be followed or changed", "reason", err)
	}
}

// CatchUp waits until the router shows all that any router had committed before the call.
// It returns at once without a shared backend. When that cannot be known, the error
// matches mq.ErrUnavailable.
func (r *Router) CatchUp(ctx context.Context) error {
	s := r.sharing
	if s == nil {
		return nil
	}
	if failed := r.failed.Load(); failed != nil {
		return *failed
	}
	s.asks.Lock()
	if s.asks.closed {
		s.asks.Unlock()
		return fmt.Errorf("router closed: %w", mq.ErrStopped)
	}
	if s.asks.next == nil {
		s.asks.next = &ask{done: make(chan struct{})}
	}
	mine := s.asks.next
	if !s.asks.busy {
		s.asks.busy = true
		s.background.Go(r.answer)
	}
	s.asks.Unlock()
	select {
	case <-mine.done:
		return mine.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// answer asks as long as somebody waits for it.
func (r *Router) answer() {
	s := r.sharing
	for {
		s.asks.Lock()
		next := s.asks.next
		s.asks.next = nil
		s.asks.busy = next != nil
		s.asks.Unlock()
		if next == nil {
			return
		}
		next.err = r.catchUp(s.ctx)
		r.setTrouble(next.err)
		close(next.done)
	}
}

func (r *Router) catchUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	before := r.current.Load()
	entry, err := r.sharing.backend.Get(ctx, countersKey)
	if err != nil {
		return err
	}
	var newest snapshot
	err = readCounters(entry, &newest)
	if err == nil {
		err = newest.continues(before)
	}
	if err != nil {
		return r.end(err)
	}
	return r.reach(ctx, newest.revision)
}

// continues returns nil when s is old, or may have come of it by commits.
func (s *snapshot) continues(old *snapshot) error {
	switch {
	case s.life != old.life && old.life != "":
		return fmt.Errorf("%w: %s, and %s is known", ErrOtherLife, s.life, old.life)
	case s.revision < old.revision:
		return fmt.Errorf("%w: they end at revision %d, and %d is known", ErrOlder, s.revision, old.revision)
	case s.revision == old.revision && s.by != old.by:
		return fmt.Errorf("%w: revision %d", errForked, s.revision)
	}
	return nil
}

// end ends the changes for good because of what is in the backend. Only a restart takes
// that over.
func (r *Router) end(err error) error {
	return r.fail(fmt.Errorf("%w: %w", mq.ErrStopped, located(err, "follow", r.sharing.name)))
}

// reach waits until a revision is shown.
func (r *Router) reach(ctx context.Context, revision uint64) error {
	lag := time.NewTimer(lagTimeout)
	defer lag.Stop()
	for {
		now := r.current.Load()
		if now.revision >= revision {
			return nil
		}
		select {
		case <-now.superseded:
		case <-lag.C:
			if again := r.sharing.again.Load(); again != nil {
				(*again)()
			}
		case <-ctx.Done():
			return fmt.Errorf("%w: revision %d was committed, and has not come here, where %d is known", mq.ErrUnavailable, revision, r.current.Load().revision)
		}
		if failed := r.failed.Load(); failed != nil {
			return *failed
		}
	}
}

// probe finds out whether the backend answers while nobody asks.
func (r *Router) probe() {
	ticker := time.NewTicker(probeInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			_ = r.CatchUp(r.sharing.ctx) // it is told by Degraded
		case <-r.sharing.ctx.Done():
			return
		}
	}
}

// follow shows what is committed, until Close or until it cannot be understood.
func (r *Router) follow() {
	s := r.sharing
	for tries := 0; ; {
		ctx, cancel := context.WithCancel(s.ctx)
		s.again.Store(&cancel)
		before := r.current.Load()
		err := s.backend.Follow(ctx, r.take)
		cancel()
		if errors.Is(err, ErrMissed) {
			err = r.reload()
		}
		if s.ctx.Err() != nil {
			return
		}
		if unusable(err) {
			_ = r.end(err) // Err has it
			return
		}
		if r.current.Load() != before {
			tries = 0
		}
		tries++
		if err != nil {
			r.logger.Debug("metadata followed anew", "reason", err)
		}
		if !pause(s.ctx, tries, maxFollowDelay) {
			return
		}
	}
}

// unusable reports whether an error says that entries mean nothing to this program, or
// cannot have come of what it knows.
func unusable(err error) bool {
	_, damaged := errors.AsType[*DamageError](err)
	_, newer := errors.AsType[*VersionError](err)
	return damaged || newer || errors.Is(err, ErrOtherLife) || errors.Is(err, ErrOlder) || errors.Is(err, errForked)
}

// take shows what one commit has changed, of this router or another.
func (r *Router) take(entries []Entry) error {
	r.showing.Lock()
	defer r.showing.Unlock()
	now := r.current.Load()
	if revision, err := RevisionOf(entries); err == nil && revision <= now.revision {
		return nil // it was this router's, or was read with Load
	}
	next, err := now.after(entries)
	if err != nil {
		return err
	}
	r.sharing.doubt.judge(next)
	r.showLocked(next)
	return nil
}

// reload shows what commits have led to that cannot be had one by one.
func (r *Router) reload() error {
	loaded, err := loadSnapshot(r.sharing.ctx, r.backend)
	if err != nil {
		return err
	}
	r.showing.Lock()
	defer r.showing.Unlock()
	now := r.current.Load()
	if loaded.revision < now.revision {
		return fmt.Errorf("%w, or read while they changed: revision %d", ErrMissed, loaded.revision)
	}
	if err := loaded.continues(now); err != nil || loaded.revision == now.revision {
		return err
	}
	next, err := now.replacement(Snapshot{loaded}.State())
	if err != nil {
		return err
	}
	next.by, next.behind = loaded.by, loaded.behind
	r.sharing.doubt.judge(next)
	r.showLocked(next)
	return nil
}

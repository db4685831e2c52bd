package node

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store"
	"github.com/perigee-mq/perigee/store/shard"
)

// How often the shards are surveyed, however often they are asked about, and how
// long a scrape waits for a survey before it takes the one before.
const (
	surveyInterval = time.Second
	surveyShare    = 20 // a survey takes at most one part in so many of the time
	surveyPatience = 2 * time.Second
)

// surveys takes surveys of the shards when they are asked for, one at a time, and
// keeps the last one.
type surveys struct {
	store  func() *store.Store // nil while it is not open
	logger *slog.Logger

	mu struct {
		sync.Mutex
		closed bool
		under  chan struct{} // closed when the survey under way is taken; nil: none is
		cancel context.CancelFunc
		next   time.Time // not before
		taken  time.Time
		last   map[string]shard.Survey // nil: none, or it failed
	}
	running sync.WaitGroup // added to under mu, and not once closed
}

// close ends a survey that is under way. No other begins.
func (s *surveys) close() {
	s.mu.Lock()
	s.mu.closed = true
	if s.mu.under != nil {
		s.mu.cancel()
	}
	s.mu.Unlock()
	s.running.Wait()
}

// get returns the newest survey of each shard by its name, and how old it is;
// nothing when there is none.
func (s *surveys) get() (list map[string]shard.Survey, age time.Duration) {
	if under := s.begin(); under != nil {
		patience := time.NewTimer(surveyPatience)
		defer patience.Stop()
		select {
		case <-under:
		case <-patience.C:
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.last != nil {
		age = time.Since(s.mu.taken)
	}
	return s.mu.last, age
}

// begin begins a survey if it is time for one, and returns what says that the one
// under way is taken; nil when none is.
func (s *surveys) begin() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	stores := s.store()
	if s.mu.under != nil || s.mu.closed || stores == nil || time.Now().Before(s.mu.next) {
		return s.mu.under
	}
	under := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	s.mu.under, s.mu.cancel = under, cancel
	s.running.Go(func() {
		defer cancel()
		start := time.Now()
		list, err := take(ctx, stores)
		if err != nil && !errors.Is(err, mq.ErrStopped) && ctx.Err() == nil {
			s.logger.Error("topics and groups not surveyed", "error", err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if err != nil {
			list = nil // figures that do not change any more are worse than none
		}
		s.mu.last, s.mu.taken, s.mu.under = list, time.Now(), nil
		s.mu.next = s.mu.taken.Add(max(surveyInterval, surveyShare*time.Since(start)))
		close(under)
	})
	return under
}

func take(ctx context.Context, stores *store.Store) (map[string]shard.Survey, error) {
	list := map[string]shard.Survey{}
	for name := range stores.Stats() {
		survey, err := stores.Survey(ctx, name)
		if err != nil {
			return nil, err
		}
		list[name] = survey
	}
	return list, nil
}

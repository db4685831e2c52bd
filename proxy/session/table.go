package session

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Table holds the sessions of a proxy and ends those that fall silent. A client
// with an open stream is not silent: the transport notices when its peer is gone.
type Table struct {
	limits   Limits
	settings atomic.Int64 // bytes of all settings that are kept
	timeout  time.Duration
	ended    func(*Session)
	start    time.Time

	mu struct {
		sync.RWMutex
		sessions map[string]*Session
		timer    *time.Timer // runs while there are sessions
		closed   bool
		sweeps   sync.WaitGroup // added to under the lock, and not once closed
	}
}

// Limits bound what a table holds; 0: any number.
type Limits struct {
	Sessions int
	Settings int64 // bytes of the settings of all sessions, encoded
}

// NewTable returns an empty table. ended is called, without a lock held, for
// every session that was silent for timeout.
func NewTable(timeout time.Duration, limits Limits, ended func(*Session)) *Table {
	t := &Table{timeout: timeout, limits: limits, ended: ended, start: time.Now()}
	t.mu.sessions = map[string]*Session{}
	return t
}

// Touch returns the session of the client id, made if there is none, and notes
// a sign of life. It is nil when there is none and the table is full.
func (t *Table) Touch(id string) *Session {
	if s := t.Seen(id); s != nil {
		return s
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.mu.sessions[id]
	if s == nil {
		if most := t.limits.Sessions; most > 0 && len(t.mu.sessions) >= most {
			return nil
		}
		s = &Session{ID: id, start: t.start, table: t}
		t.mu.sessions[id] = s
		if t.mu.timer == nil && !t.mu.closed {
			t.mu.timer = time.AfterFunc(t.timeout, t.sweep)
		}
	}
	s.touch()
	return s
}

// Seen notes a sign of life of the client and returns its session, or nil when
// there is none.
func (t *Table) Seen(id string) *Session {
	t.mu.RLock()
	defer t.mu.RUnlock()
	s := t.mu.sessions[id]
	if s != nil {
		s.touch()
	}
	return s
}

// Get returns the session of the client id, or nil.
func (t *Table) Get(id string) *Session {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.mu.sessions[id]
}

// Remove ends a session because the client said goodbye, and returns it, or nil
// when there is none. It does not call ended.
func (t *Table) Remove(id string) *Session {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.mu.sessions[id]
	delete(t.mu.sessions, id)
	if s != nil {
		s.drop()
	}
	return s
}

// All returns the sessions there are, in no order.
func (t *Table) All() []*Session {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Collect(maps.Values(t.mu.sessions))
}

// Len returns the number of sessions.
func (t *Table) Len() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.mu.sessions)
}

// Close stops the table from ending sessions. It waits for a call of ended that
// is under way.
func (t *Table) Close() {
	t.mu.Lock()
	t.mu.closed = true
	if t.mu.timer != nil {
		t.mu.timer.Stop()
	}
	t.mu.Unlock()
	t.mu.sweeps.Wait()
}

// sweep ends the sessions that were silent for the timeout. It runs again when
// the oldest one left could be; without sessions nothing runs.
func (t *Table) sweep() {
	ended, ok := t.silent()
	if !ok {
		return
	}
	defer t.mu.sweeps.Done()
	for _, s := range ended {
		t.ended(s)
	}
}

func (t *Table) silent() (ended []*Session, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closed {
		return nil, false
	}
	t.mu.sweeps.Add(1)
	next := t.timeout
	for id, s := range t.mu.sessions {
		if s.Connected() {
			s.touch()
		}
		left := t.timeout - s.Silent()
		if left <= 0 {
			delete(t.mu.sessions, id)
			s.drop()
			ended = append(ended, s)
			continue
		}
		next = min(next, left)
	}
	if len(t.mu.sessions) == 0 {
		t.mu.timer = nil
	} else {
		t.mu.timer.Reset(max(next, time.Second))
	}
	return ended, true
}

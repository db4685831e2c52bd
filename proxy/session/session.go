// Package session keeps who is connected to a proxy: for each client id the
// settings it sent, its Telemetry streams and when it last gave a sign of life.
//
// Everything in it is a convenience of one proxy. No call may depend on a
// session being there: clients lose theirs for minutes after a restart.
package session

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
)

// A Session is one client id. Its methods may be called from any goroutine.
type Session struct {
	ID    string
	table *Table
	start time.Time    // times are counted from here: a step of the wall clock ends no session
	seen  atomic.Int64 // nanoseconds since start
	// Lites are the lite topics that it has added a moment ago.
	Lites Lites

	mu struct {
		sync.Mutex
		settings *rmqpb.Settings
		size     int64     // of the settings, as the table counts them
		dropped  bool      // the table has forgotten it
		streams  []*Stream // open ones, the newest last
		lost     int64     // just after the last of them ended, as seen; 0: never
		about    About
		role     role
	}
}

// Settings returns the settings the client last sent, or nil. They are shared
// and must not be changed.
func (s *Session) Settings() *rmqpb.Settings {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.settings
}

// SetSettings replaces the settings: each one is a full snapshot. It reports false, and
// keeps the earlier ones, when those of all clients would be more than the table keeps.
func (s *Session) SetSettings(settings *rmqpb.Settings) bool {
	size := int64(proto.Size(settings))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.dropped { // it counts no more, and goes with its last stream
		s.mu.settings = settings
		return true
	}
	more := size - s.mu.size
	if all := s.table.settings.Add(more); more > 0 && s.table.limits.Settings > 0 && all > s.table.limits.Settings {
		s.table.settings.Add(-more)
		return false
	}
	s.mu.settings, s.mu.size = settings, size
	return true
}

// drop notes that the table has forgotten the session.
func (s *Session) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.dropped = true
	s.table.settings.Add(-s.mu.size)
	s.mu.size = 0
}

// Seen returns when the client last gave a sign of life, by the clock as it is now.
func (s *Session) Seen() time.Time { return time.Now().Add(-s.Silent()) }

// Silent returns for how long the client has given no sign of life.
func (s *Session) Silent() time.Duration { return time.Since(s.start) - time.Duration(s.seen.Load()) }

func (s *Session) touch() { s.seen.Store(int64(time.Since(s.start))) }

// Attach makes st the client's stream at once. Earlier ones stay open but get no
// further command: the client has opened a new one because it lost the old, or
// because it keeps one for each endpoint.
func (s *Session) Attach(st *Stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.streams = append(s.mu.streams, st)
}

// Detach forgets st, which has ended. Commands go on to the newest stream that
// is still open; the end of any but the newest changes nothing.
func (s *Session) Detach(st *Stream) {
	s.touch()
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.mu.streams, st); i >= 0 {
		s.mu.streams = slices.Delete(s.mu.streams, i, i+1)
	}
	if len(s.mu.streams) == 0 {
		s.mu.lost = s.seen.Load() + 1
	}
}

// Connected reports whether the client has a stream open.
func (s *Session) Connected() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mu.streams) > 0
}

// Send queues a command for the client's stream and reports whether there is a
// stream with room for it.
func (s *Session) Send(cmd *rmqpb.TelemetryCommand) bool {
	st := s.Newest()
	return st != nil && st.Send(cmd)
}

// Newest returns the client's stream, the newest that is open; nil: there is none.
func (s *Session) Newest() *Stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.mu.streams); n > 0 {
		return s.mu.streams[n-1]
	}
	return nil
}

package transport

import (
	"log/slog"
	"net"
	"sync/atomic"
)

// A Limit bounds how many connections are open at once. Descriptors are what it
// guards: without any left the store could not open its own files. A nil Limit
// is none.
type Limit struct {
	most     int64
	open     atomic.Int64
	refusals refusals
}

// NewLimit returns a limit of most connections, which must be above 0. The log
// gets a line about refused ones, at most one in ten seconds.
func NewLimit(most int, log *slog.Logger) *Limit {
	return &Limit{most: int64(most), refusals: refusals{log: log}}
}

// Most returns the limit.
func (l *Limit) Most() int64 { return l.most }

// Open returns how many connections are open.
func (l *Limit) Open() int64 { return l.open.Load() }

// Refused returns how many connections were closed because of the limit.
func (l *Limit) Refused() uint64 { return l.refusals.total.Load() }

func (l *Limit) take(peer net.Addr) bool {
	if l == nil {
		return true
	}
	if l.open.Add(1) <= l.most {
		return true
	}
	l.open.Add(-1)
	l.refusals.add(peer, "max_connections are open already", slog.Int64("max_connections", l.most))
	return false
}

func (l *Limit) giveBack() {
	if l != nil {
		l.open.Add(-1)
	}
}

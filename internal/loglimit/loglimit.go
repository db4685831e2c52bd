// Package loglimit bounds how often the same message is logged, so that no client
// can fill a disk with lines.
//
// Messages are constants in this project, and what differs is in the attributes: so
// the text of a message and its level are what is counted. The package writes
// nothing itself.
package loglimit

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// The bounds for one message: so many at once, and then one in each interval.
const (
	burst    = 20
	interval = time.Second
	// maxMessages bounds what is remembered. Messages beyond share one count.
	maxMessages = 1000
)

// A Handler passes records on within the bounds. Records below slog.LevelInfo, which
// somebody asked for, all pass.
type Handler struct {
	next   slog.Handler
	counts *counts
}

// New returns a handler that passes records on to next.
func New(next slog.Handler) *Handler {
	c := &counts{}
	c.mu.of = map[message]*count{}
	return &Handler{next: next, counts: c}
}

type message struct {
	level slog.Level
	text  string
}

// A count is a bucket of tokens that fills with time.
type count struct {
	tokens     float64
	at         time.Time // when it was last filled
	suppressed int       // since the last record that passed
}

type counts struct {
	mu struct {
		sync.Mutex
		of map[message]*count
	}
}

// pass reports whether a record may pass at now, and how many did not since the
// last one that did.
func (c *counts) pass(m message, now time.Time) (suppressed int, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.mu.of[m]
	if n == nil && len(c.mu.of) >= maxMessages {
		m = message{}
		n = c.mu.of[m]
	}
	if n == nil {
		n = &count{tokens: burst, at: now}
		c.mu.of[m] = n
	}
	if elapsed := now.Sub(n.at); elapsed > 0 {
		n.tokens = min(burst, n.tokens+float64(elapsed)/float64(interval))
		n.at = now
	}
	if n.tokens < 1 {
		n.suppressed++
		return 0, false
	}
	n.tokens--
	suppressed, n.suppressed = n.suppressed, 0
	return suppressed, true
}

// Enabled implements slog.Handler.
func (h *Handler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.next.Enabled(ctx, level)
}

// Handle implements slog.Handler. A record that passes after others did not says how
// many in the attribute "suppressed".
func (h *Handler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelInfo {
		return h.next.Handle(ctx, r)
	}
	suppressed, ok := h.counts.pass(message{r.Level, r.Message}, r.Time)
	if !ok {
		return nil
	}
	if suppressed > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int("suppressed", suppressed))
	}
	return h.next.Handle(ctx, r)
}

// WithAttrs implements slog.Handler. The counts are shared.
func (h *Handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &Handler{next: h.next.WithAttrs(attrs), counts: h.counts}
}

// WithGroup implements slog.Handler. The counts are shared.
func (h *Handler) WithGroup(name string) slog.Handler {
	return &Handler{next: h.next.WithGroup(name), counts: h.counts}
}

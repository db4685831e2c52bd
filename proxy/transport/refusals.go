package transport

import (
	"encoding/hex"
	"log/slog"
	"net"
	"sync"
	"time"
)

// refusalInterval is the least time between two log lines about refused
// connections: a scanner or a misconfigured fleet must not fill the log.
const refusalInterval = 10 * time.Second

// refusals logs connections that were refused, at most one per interval.
type refusals struct {
	log *slog.Logger
	mu  struct {
		sync.Mutex
		next       time.Time // no line before
		suppressed int       // refusals since the last line
	}
}

// add logs the refusal of peer, or counts it towards the next line.
func (r *refusals) add(peer net.Addr, reason string, first []byte) {
	now := time.Now()
	r.mu.Lock()
	if now.Before(r.mu.next) {
		r.mu.suppressed++
		r.mu.Unlock()
		return
	}
	suppressed := r.mu.suppressed
	r.mu.suppressed = 0
	r.mu.next = now.Add(refusalInterval)
	r.mu.Unlock()
	r.log.Warn("connection refused",
		"peer", peer.String(), "reason", reason, "first_bytes", hex.EncodeToString(first), "suppressed", suppressed)
}

package transport

import (
	"encoding/hex"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// refusalInterval is the least time between two log lines about refused
// connections: a scanner or a misconfigured fleet must not fill the log.
const refusalInterval = 10 * time.Second

// refusals counts connections that were refused and logs them, at most one per
// interval.
type refusals struct {
	log   *slog.Logger
	total atomic.Uint64
	mu    struct {
		sync.Mutex
		next       time.Time // no line before
		suppressed int       // refusals since the last line
	}
}

// add counts the refusal of peer, and logs it or counts it towards the next line.
func (r *refusals) add(peer net.Addr, reason string, more slog.Attr) {
	r.total.Add(1)
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
		"peer", peer.String(), "reason", reason, more, "suppressed", suppressed)
}

// firstBytes shows what a connection began with.
func firstBytes(first []byte) slog.Attr {
	return slog.String("first_bytes", hex.EncodeToString(first[:min(len(first), peekSize)]))
}

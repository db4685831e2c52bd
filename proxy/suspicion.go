package proxy

import (
	"time"
)

// How long a client may be silent after a loss before it counts as gone.
const (
	// pollGrace is for a client one of whose polls was cut off. It polls again
	// at once: the slowest SDK waits for a second.
	pollGrace = 5 * time.Second
	// lossGrace is for a client whose last connection ended. One with all its
	// hands full does not poll; what comes next is an ack or a heartbeat, which
	// most SDKs send every ten seconds. The message of a dead one is not to wait
	// longer than that.
	lossGrace = 8 * time.Second
	// streamGrace is for a client that lost its last Telemetry stream and nothing
	// else we know of. Sidecars cut off idle streams, and some SDKs do not open
	// another one for minutes: their heartbeats, every 30 s at the slowest, count.
	streamGrace = 35 * time.Second
	// sameLoss is how far apart the signs of one loss may be: the streams of a
	// broken connection do not all end in the same instant.
	sameLoss = time.Second
)

// A suspicion is that the client of a renewal is gone: it lost something at loss,
// and at judge it is looked whether it has given a sign of life since. Both are 0
// without one.
type suspicion struct {
	loss, judge time.Duration
	// unlinked: what it lost was its last connection, so that having one again is
	// a sign of life.
	unlinked bool
}

// add notes a loss.
func (s *suspicion) add(now, grace time.Duration, unlinked bool) {
	if s.loss == 0 || now-s.loss > sameLoss {
		*s = suspicion{loss: max(now, 1), judge: now + grace, unlinked: unlinked}
		return
	}
	s.judge = min(s.judge, now+grace)
	s.unlinked = s.unlinked || unlinked
}

// take returns the suspicion and forgets it when it is to be judged now. Else it
// returns none and leaves it.
func (s *suspicion) take(now time.Duration) (due suspicion) {
	if s.loss != 0 && now >= s.judge {
		due, *s = *s, suspicion{}
	}
	return due
}

// putBack brings back what take took, to be judged at due, unless there was
// another loss since.
func (s *suspicion) putBack(taken suspicion, due time.Duration) {
	if s.loss == 0 && taken.loss != 0 {
		*s = taken
		s.judge = due
	}
}

// suspect looks after a grace period whether a client is still there that lost a
// stream. Its leases are then renewed as usual, or come back.
func (r *renewals) suspect(client string, grace time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	for e := r.mu.clients[client]; e != nil; e = e.next {
		r.suspectLocked(e, now, grace, false)
	}
}

// cutOff is told that a connection has ended. What went over it and may never
// have arrived comes back at once: its client would be there, and be renewed for,
// without knowing of it. When it was the client's last one the client is suspected.
func (r *renewals) cutOff(l *link, last bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	for e := r.mu.clients[l.client]; e != nil; e = e.next {
		switch {
		case e.link == l && l.mayBeLost(e.limit-r.server.opts.RenewLimit, now):
			e.lost = true
			r.hastenLocked(e, now)
		case last:
			r.suspectLocked(e, now, lossGrace, true)
		}
	}
}

func (r *renewals) suspectLocked(e *renewal, now, grace time.Duration, unlinked bool) {
	e.suspicion.add(now, grace, unlinked)
	r.hastenLocked(e, e.suspicion.judge)
}

// hastenLocked moves a renewal forward to due. One that is in a batch or held is
// looked at when it is back.
func (r *renewals) hastenLocked(e *renewal, due time.Duration) {
	if e.scheduled() && e.due > due {
		r.unscheduleLocked(e)
		r.scheduleLocked(e, due)
	}
}

// alive reports whether the client of a renewal in a batch is still there.
func (r *renewals) alive(e *renewal, now time.Duration) bool {
	session := r.server.sessions.Get(e.client)
	if session == nil {
		return r.leavesToOthers()
	}
	loss := e.judged.suspicion
	if loss.loss == 0 || session.Connected() || loss.unlinked && r.server.links.any(e.client) {
		return true
	}
	return session.Silent() < now-loss.loss-sameLoss
}

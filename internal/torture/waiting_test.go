package main

import (
	"errors"
	"time"

	"github.com/perigee-mq/perigee/mq"
)

// What the ledger knows of messages that wait for their time, or for the end of their
// transaction.

// waiting is what was asked about such a message.
type waiting struct {
	handle mq.PendingHandle
	lost   bool      // the handle may name nothing any more
	busy   bool      // somebody recalls or postpones it
	asked  int       // how often its producer was asked, as the last question said
	unsure bool      // a question was given back
	times  []newTime // the times of delivery that were asked for, the first with the send

	recall, commit, rollback promise
}

type newTime struct {
	at   time.Time
	ok   bool
	when time.Time
}

// A promise is something that was asked for.
type promise struct {
	begun   bool
	ok      bool // it was answered OK
	refused bool // it was answered that it cannot be any more
	when    time.Time
}

func (p *promise) forget(since time.Time) {
	if p.when.After(since) {
		p.ok, p.refused = false, false
	}
}

// isRefusal reports whether the error is an answer of a store that works.
func isRefusal(err error) bool {
	for _, kind := range []error{mq.ErrLeaseEnded, mq.ErrNotPending, mq.ErrUnknownTransaction, mq.ErrTransactionEnded, mq.ErrInvalidHandle} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// asked notes the time of delivery of a message that is about to be sent; the zero time
// for a half message.
func (l *ledger) asked(id string, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting[id] = &waiting{times: []newTime{{at: at}}}
}

// firstTime returns the time of delivery with which a message is sent.
func (l *ledger) firstTime(id string) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waiting[id].times[0].at
}

// startWaiting notes the handle of a message.
func (l *ledger) startWaiting(sn *sent, id string, pending mq.PendingID) {
	w := l.waiting[id]
	if w == nil {
		l.fault(&l.counts.other, "%s waits for nothing and has the handle %d", id, pending)
		w = &waiting{times: make([]newTime, 1)}
		l.waiting[id] = w
	}
	w.handle = mq.PendingHandle{Shard: shardName, Topic: sn.topic, ID: pending, MessageID: id}
	w.lost = false
}

func (l *ledger) forgetWaiting(since time.Time) {
	for id, w := range l.waiting {
		w.lost = !l.msgs[id].acked
		w.recall.forget(since)
		w.commit.forget(since)
		w.rollback.forget(since)
		for i := range w.times {
			w.times[i].ok = w.times[i].ok && !w.times[i].when.After(since)
		}
	}
}

// earliest returns the earliest time at which a delayed message may be delivered.
func (w *waiting) earliest() time.Time {
	first := always
	for i := len(w.times) - 1; i >= 0; i-- {
		if t := w.times[i]; t.at.Before(first) {
			first = t.at
		}
		if w.times[i].ok {
			break
		}
	}
	return first
}

// latest returns the time by which all delayed messages are due.
func (l *ledger) latest() (at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.waiting {
		for _, t := range w.times {
			if t.at.After(at) {
				at = t.at
			}
		}
	}
	return at
}

// mayBeSeen judges that a message is in somebody's hands.
func (l *ledger) mayBeSeen(id string, now time.Time) {
	w, sn := l.waiting[id], l.msgs[id]
	if w == nil {
		return
	}
	switch {
	case sn.kind == mq.Delay && w.earliest().After(l.clock.latest()):
		l.fault(&l.counts.early, "%s was delivered %v early", id, w.earliest().Sub(l.clock.latest()))
	case sn.kind == mq.Delay && w.recall.ok:
		l.fault(&l.counts.visible, "%s was delivered after it had been recalled", id)
	case sn.kind == mq.Transaction && !w.commit.begun:
		l.fault(&l.counts.visible, "%s was delivered and nobody committed it", id)
	case sn.kind == mq.Transaction && w.rollback.ok:
		l.fault(&l.counts.visible, "%s was delivered after it had been rolled back", id)
	}
}

// claim returns a message of the kind that waited when it was sent, whose handle was
// answered, and which pick chooses. A delayed one is not handed out again before release.
func (l *ledger) claim(kind mq.MessageType, pick func(n int) int) (id string, w *waiting) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var ids []string
	for _, sn := range l.sends[max(0, len(l.sends)-60):] {
		if sn.kind != kind {
			continue
		}
		for _, id := range sn.ids {
			if w := l.waiting[id]; w != nil && w.handle.ID != 0 && !w.busy {
				ids = append(ids, id)
			}
		}
	}
	if len(ids) == 0 {
		return "", nil
	}
	id = ids[pick(len(ids))]
	w = l.waiting[id]
	w.busy = kind == mq.Delay
	return id, w
}

func (l *ledger) beginRecall(w *waiting) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w.recall.begun = true
}

func (l *ledger) endRecall(life int, id string, w *waiting, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w.busy = false
	trace("recall of %s: %v", id, err)
	if life != l.life {
		return
	}
	switch {
	case err == nil:
		w.recall.ok, w.recall.when = true, time.Now()
		l.counts.recalls++
		l.delayedStill(id, w, "recalled")
	case errors.Is(err, mq.ErrNotPending):
		l.refusedWait(id, w, err)
		if w.recall.ok {
			l.fault(&l.counts.other, "%s was recalled, and then it was answered: %v", id, err)
		}
		w.recall.refused, w.recall.when = true, time.Now()
	case errors.Is(err, mq.ErrInvalidHandle):
		l.refusedWait(id, w, err)
	case !errors.Is(err, mq.ErrStopped):
		l.fault(&l.counts.other, "recall of %s: %v", id, err)
	}
}

// delayedStill judges that a message was answered to wait, of which someone has seen
// that it does not.
func (l *ledger) delayedStill(id string, w *waiting, what string) {
	for at, other := range l.at {
		if other == id {
			l.fault(&l.counts.visible, "%s was %s when it had been delivered from %+v", id, what, at)
		}
	}
}

// refusedWait judges that a delayed message was answered not to wait any more.
func (l *ledger) refusedWait(id string, w *waiting, err error) {
	if sn := l.msgs[id]; sn.acked && !w.lost && !w.recall.begun && w.earliest().After(l.clock.latest()) {
		l.fault(&l.counts.other, "%s waits until %v, and it was answered: %v", id, w.earliest().Format(stamp), err)
	}
}

func (l *ledger) beginPostpone(w *waiting, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w.times = append(w.times, newTime{at: at})
}

func (l *ledger) endPostpone(life int, id string, w *waiting, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w.busy = false
	trace("postponed %s to %v: %v", id, w.times[len(w.times)-1].at.Format(stamp), err)
	if life != l.life {
		return
	}
	last := &w.times[len(w.times)-1]
	switch {
	case err == nil:
		last.ok, last.when = true, time.Now()
		l.delayedStill(id, w, "postponed")
		if w.recall.ok {
			l.fault(&l.counts.other, "%s was postponed after it had been recalled", id)
		}
	case errors.Is(err, mq.ErrNotPending), errors.Is(err, mq.ErrInvalidHandle):
		w.times = w.times[:len(w.times)-1]
		l.refusedWait(id, w, err)
	case !errors.Is(err, mq.ErrStopped):
		l.fault(&l.counts.other, "postponing %s: %v", id, err)
	}
}

func (w *waiting) end(commit bool) *promise {
	if commit {
		return &w.commit
	}
	return &w.rollback
}

func (l *ledger) beginEnd(w *waiting, commit bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w.end(commit).begun = true
}

func (l *ledger) endEnd(life int, id string, w *waiting, commit bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	trace("end of the transaction of %s, commit: %t: %v", id, commit, err)
	if life != l.life {
		return
	}
	end, other := w.end(commit), w.end(!commit)
	switch {
	case err == nil:
		end.ok, end.when = true, time.Now()
		l.counts.ends++
		if other.ok {
			l.fault(&l.counts.visible, "%s was committed and rolled back", id)
		}
	case errors.Is(err, mq.ErrTransactionEnded):
		end.refused, end.when = true, time.Now()
		if end.ok || !other.begun {
			l.fault(&l.counts.other, "the end of the transaction of %s (commit: %t) was refused: %v", id, commit, err)
		}
	case errors.Is(err, mq.ErrUnknownTransaction):
		if l.msgs[id].acked && !w.lost {
			l.fault(&l.counts.lost, "the half message %s is not known any more: %v", id, err)
		}
	case !errors.Is(err, mq.ErrStopped) && !l.says(err):
		l.fault(&l.counts.other, "end of the transaction of %s: %v", id, err)
	}
}

// questioned judges a question about a half message, and returns what is known of it; nil
// when it is none of this ledger.
func (l *ledger) questioned(life int, c *mq.Check) *waiting {
	l.mu.Lock()
	defer l.mu.Unlock()
	if life != l.life {
		return nil
	}
	l.counts.checks++
	sn, w := l.msgs[c.MessageID], l.waiting[c.MessageID]
	switch {
	case sn == nil || sn.kind != mq.Transaction:
		l.fault(&l.counts.other, "a producer was asked about %s, which is no half message", c.MessageID)
		return nil
	case string(c.Message.Body) != body(c.MessageID):
		l.fault(&l.counts.other, "a producer was asked about %s with the body %q", c.MessageID, c.Message.Body)
	}
	if w.handle.ID == 0 {
		w.handle = c.PendingHandle // the answer to the send was lost
	}
	if l.clean && !w.unsure && c.Checks <= w.asked {
		l.fault(&l.counts.other, "the question %d about %s was handed out after question %d", c.Checks, c.MessageID, w.asked)
	}
	w.asked = max(w.asked, c.Checks)
	if !w.commit.ok && !w.rollback.ok {
		return w
	}
	return nil
}

// unasked notes that a question is given back.
func (l *ledger) unasked(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w := l.waiting[id]; w != nil {
		w.unsure = true
	}
}

// listedTimers judges what is said to wait for its time.
func (l *ledger) listedTimers(life int, list []mq.PendingMessage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if life != l.life || l.served.IsZero() {
		return
	}
	now := time.Now()
	shift, steps := l.clock.shifted()
	for _, m := range list {
		due := m.At.Add(-shift)
		if l.served.After(due) {
			due = l.served
		}
		w := l.waiting[m.MessageID]
		if w != nil {
			// It may be put off into the past; the list may be from before or behind that.
			if last := w.times[len(w.times)-1]; w.busy || last.when.After(due) {
				due = now
			}
		}
		switch {
		case m.MessageID == "" && l.readsWrong(): // nobody can say which one it is
		case w == nil || l.msgs[m.MessageID].kind != mq.Delay:
			l.fault(&l.counts.other, "%s is listed as delayed", m.MessageID)
		case now.Sub(due) > lateTimer+l.slow && steps == l.steps && !l.misread: // a step may go unnoticed for seconds
			l.fault(&l.counts.stuck, "%s was due at %v and waits at %v still", m.MessageID, m.At.Format(stamp), now.Format(stamp))
		}
	}
}

// lateTimer is how late a delayed message may be on a server that works.
const lateTimer = 50 * time.Millisecond

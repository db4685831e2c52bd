package main

import (
	"time"

	"github.com/perigee-mq/perigee/mq"
)

// What must not be: a receive that waits while there is something for it, a queue with more
// in flight than it may have, a question that nobody asks.

// idleSlack is how long after something came a receive that waits must have it. A filter's
// receives look at new messages every few milliseconds.
const idleSlack = 20 * time.Millisecond

// surelyLeased reports whether a consumer holds the message, by a delivery from before a
// pop.
func (f *fate) surelyLeased(pop mq.PopID, now time.Time) bool {
	return !f.acked && f.open == 0 && f.under == 0 && !f.givenUp && !f.excused && f.loose.IsZero() && f.pop < pop && f.until.Sub(now) > slack
}

// withinLimit judges that a group has no more of a queue in flight than the limit of its
// receives.
func (l *ledger) withinLimit(life int, g consumers, limit int, got []mq.Delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if life != l.life || limit == 0 || len(got) == 0 {
		return
	}
	now, held := time.Now(), map[queueKey]int{}
	for key, f := range l.fates {
		if key.group == g.ID && f.life == l.life && f.surelyLeased(got[0].Lease.PopID+1, now) {
			held[queueKey{f.at.topic, f.at.queue}]++
		}
	}
	for _, d := range got {
		if q := (queueKey{d.Lease.Topic, d.Lease.Queue}); held[q] > limit {
			l.fault(&l.counts.other, "group %d has %d messages of %+v in flight, the limit is %d", g.ID, held[q], q, limit)
			return
		}
	}
}

// gotNothing judges that a receive which has waited for all its time had nothing to get.
// lites are the lite topics that it was for, if it was for any.
func (l *ledger) gotNothing(life int, g consumers, topic *mq.Topic, lites map[string]bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if life != l.life || l.served.IsZero() || l.slow > 0 || l.counts.misreads > 0 {
		return
	}
	since := time.Now().Add(-idleSlack)
	for _, sn := range l.sends {
		if sn.topic != topic.ID || !sn.acked || g.ordered(sn) || !g.wants(sn) || sn.born != l.life || !sn.when.Before(since) {
			continue
		}
		for id, at := range sn.at {
			if f := l.fates[fateKey{g.ID, id}]; l.missed(g, sn, at, f, since) {
				l.fault(&l.counts.stuck, "group %d waited and got nothing while %s was at %+v since %v", g.ID, id, at, sn.when.Format(stamp))
				return
			}
		}
	}
	for key, f := range l.fates {
		sn := l.msgs[key.id]
		if key.group != g.ID || sn == nil || sn.topic != topic.ID || g.ordered(sn) || !g.wants(sn) || f.life != l.life {
			continue
		}
		// Of a delivery about when the group was moved it is not known which attempt it was.
		if f.attempt > 0 && !f.acked && f.open == 0 && f.under == 0 && !f.excused && f.loose.IsZero() && !f.due.IsZero() && f.due.Before(since) && f.attempt < l.limits[g.ID] {
			l.fault(&l.counts.stuck, "group %d waited and got nothing while %s was due again at %v", g.ID, key.id, f.due.Format(stamp))
			return
		}
	}
	if l.clean {
		l.idleLanes(g, topic, lites, since)
	}
}

// missed reports whether the message could have been delivered since then.
func (l *ledger) missed(g consumers, sn *sent, at place, f *fate, since time.Time) bool {
	for _, m := range l.moves[moveKey{g.ID, at.topic, at.queue}] {
		if !m.ok || m.when.After(since) {
			return false // it may have been moved a moment ago
		}
	}
	// One that was delivered about when the group was moved may be leased still.
	return (f == nil || f.attempt == 0 && f.open == 0 && f.under == 0 && f.loose.IsZero() && f.born[0].IsZero()) && l.owes(g, sn, at)
}

// idleLanes judges that nothing is at the head of a message group, or of a lite topic, that
// could have been delivered. Only where nothing has failed is it known what comes first.
func (l *ledger) idleLanes(g consumers, topic *mq.Topic, lites map[string]bool, since time.Time) {
	for key, lane := range l.lanes {
		if key.topic != topic.ID || len(l.moves[moveKey{g.ID, key.topic, key.queue}]) > 0 {
			continue
		}
		for _, m := range lane {
			sn, f := l.msgs[m.id], l.fates[fateKey{g.ID, m.id}]
			if !g.ordered(sn) || !g.wants(sn) || sn.kind == mq.Lite && !lites[sn.lite] || !l.owes(g, sn, sn.at[m.id]) {
				break
			}
			if f != nil && f.acked && f.when.Before(since) {
				continue
			}
			if (f == nil || f.attempt == 0 && f.open == 0 && f.under == 0) && sn.when.Before(since) && sn.born == l.life {
				l.fault(&l.counts.stuck, "group %d waited and got nothing while %s was the first one of its lane", g.ID, m.id)
			}
			break
		}
	}
}

// notAsked judges that one who has waited for questions had none to get. first is how long
// after it was stored a half message is asked about.
func (l *ledger) notAsked(life int, first time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if life != l.life || l.served.IsZero() || l.slow > 0 || l.counts.misreads > 0 {
		return
	}
	since := time.Now().Add(-idleSlack - first)
	for id, w := range l.waiting {
		sn := l.msgs[id]
		if sn.kind == mq.Transaction && sn.acked && sn.born == l.life && sn.when.Before(since) && w.asked == 0 && !w.commit.begun && !w.rollback.begun {
			l.fault(&l.counts.stuck, "nobody asks about the half message %s, which was stored at %v", id, sn.when.Format(stamp))
			return
		}
	}
}

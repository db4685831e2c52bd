package main

import (
	"slices"
	"time"

	"github.com/perigee-mq/perigee/mq"
)

// What the ledger knows of the places of groups: where they were moved to, which lite
// topics they have subscribed to, and which messages must come one after the other.

type moveKey struct {
	group mq.GroupID
	topic mq.TopicID
	queue mq.QueueID
}

// A move sets the place of a group in a queue. What lies behind comes again, or for the
// first time; what lies before does not come any more, but without drop for what was
// under delivery.
type move struct {
	to    mq.QueueOffset
	drop  bool
	began time.Time
	life  int
	ok    bool
	when  time.Time
}

// ends reports whether the move ends deliveries of an offset.
func (m *move) ends(offset mq.QueueOffset) bool { return m.drop || offset >= m.to }

// beginMove notes one that is about to be asked for.
func (l *ledger) beginMove(key moveKey, m *move) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m.began, m.life = time.Now(), l.life
	l.moves[key] = append(l.moves[key], m)
	l.eachFate(key, func(at place, k fateKey, f *fate) {
		if m.ends(at.offset) {
			f.loose, f.until, f.due = always, time.Time{}, time.Time{}
			f.excused = f.excused || at.offset < m.to
		}
	})
}

// startMoving reports whether nobody else moves the group at present: of two moves at a
// time nobody knows which came last.
func (l *ledger) startMoving(moving map[mq.GroupID]bool, group mq.GroupID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := moving[group]
	moving[group] = true
	return !was
}

func (l *ledger) stopMoving(moving map[mq.GroupID]bool, group mq.GroupID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	moving[group] = false
}

// offsetAt judges the answer to which offset of a queue is the first one at or after a time.
func (l *ledger) offsetAt(life int, key moveKey, at time.Time, first mq.QueueOffset) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p, stored := range l.stored {
		if life == l.life && p.topic == key.topic && p.queue == key.queue && stored.Before(at) != (p.offset < first) {
			l.fault(&l.counts.other, "offset %d was stored at %v, and the first one from %v on is said to be %d", p.offset, stored.Format(stamp), at.Format(stamp), first)
		}
	}
}

// timeOf returns when one of the messages of a queue was stored, which pick chooses; the
// fallback when none is known.
func (l *ledger) timeOf(key moveKey, pick func(n int) int, fallback time.Time) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []place
	for p := range l.stored {
		if p.topic == key.topic && p.queue == key.queue {
			all = append(all, p)
		}
	}
	if len(all) == 0 {
		return fallback
	}
	slices.SortFunc(all, func(a, b place) int { return int(a.offset - b.offset) })
	return l.stored[all[pick(len(all))]]
}

// eachFate calls fn for everything that the group has seen of a queue.
func (l *ledger) eachFate(key moveKey, fn func(at place, k fateKey, f *fate)) {
	for k, f := range l.fates {
		if k.group == key.group && f.at.topic == key.topic && f.at.queue == key.queue {
			fn(f.at, k, f)
		}
	}
}

// endMove notes that it was answered OK.
func (l *ledger) endMove(life int, key moveKey, m *move) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if life != l.life {
		return
	}
	m.ok, m.when = true, time.Now()
	trace("moved %+v to %d, drop: %t", key, m.to, m.drop)
	l.counts.resets++
	l.eachFate(key, func(at place, k fateKey, f *fate) {
		if !m.ends(at.offset) {
			return
		}
		again := &fate{at: at, born: [2]time.Time{m.began, m.when.Add(slack)}, when: m.when, excused: at.offset < m.to}
		if f.under > 0 || !f.asked.Before(m.began) {
			// It was asked for before the group was moved, or after.
			again.open, again.forwarded, again.loose = 1, true, m.when.Add(slack)
		}
		l.fates[k] = again
	})
}

// afterSync judges that a group that has never been moved got nothing of a lite topic from
// before it subscribed.
func (l *ledger) afterSync(group mq.GroupID, sn *sent, at place, id string) {
	s := l.synced[liteKey{group, at.topic, sn.lite}]
	switch {
	case sn.kind != mq.Lite || l.anyMove(group, at):
	case s == nil:
		l.fault(&l.counts.other, "group %d got %s of the lite topic %s, to which it has not subscribed", group, id, sn.lite)
	case sn.answered > 0 && sn.answered < s.first:
		l.fault(&l.counts.other, "group %d got %s of the lite topic %s, which was sent before it subscribed", group, id, sn.lite)
	}
}

// afterMove judges a delivery by the moves of the group, and reports whether anything
// follows from it.
func (l *ledger) afterMove(group mq.GroupID, at place, d mq.Delivery) bool {
	list := l.moves[moveKey{group, at.topic, at.queue}]
	if len(list) == 0 {
		return true
	}
	popped := time.Unix(0, int64(d.Lease.PopID))
	last := list[len(list)-1]
	f := l.fate(group, d.ID)
	f.at = at
	if last.ok && last.drop && at.offset < last.to && popped.After(last.when.Add(slack)) {
		l.fault(&l.counts.other, "group %d got %s from %+v after its place had been moved to %d", group, d.ID, at, last.to)
	}
	for _, m := range list {
		switch {
		case !m.ends(at.offset):
		case m.ok && popped.Before(m.began):
			return false // it is over
		case m.ok && !popped.After(m.when.Add(slack)):
			f.loose = m.when.Add(slack)
			return false
		case !m.ok && m.life == l.life && f.loose.IsZero():
			f.loose, f.excused = always, at.offset < m.to // it has just been asked for, or this is the first time
		}
	}
	return true
}

func (l *ledger) forgetMoves(since time.Time) {
	for _, list := range l.moves {
		for _, m := range list {
			m.ok = m.ok && !m.when.After(since)
		}
	}
	for _, f := range l.fates {
		if f.born[1].After(since) {
			f.loose, f.excused = time.Now().Add(slack), true
		}
	}
	for _, s := range l.synced {
		s.ok = s.ok && !s.when.After(since)
	}
}

// owes reports whether the group must get a message that it has not got yet.
func (l *ledger) owes(g consumers, sn *sent, at place) bool {
	owed := g.wants(sn)
	if s := l.synced[liteKey{g.ID, at.topic, sn.lite}]; sn.kind == mq.Lite {
		owed = s != nil && s.ok && s.seq < sn.began
	}
	for _, m := range l.moves[moveKey{g.ID, at.topic, at.queue}] {
		switch {
		case m.ok:
			owed = at.offset >= m.to && g.wants(sn)
		case at.offset < m.to:
			owed = false
		}
	}
	return owed
}

type liteKey struct {
	group mq.GroupID
	topic mq.TopicID
	name  string
}

// syncing is a subscription, since it was answered OK for the first time.
type syncing struct {
	first int // when it was asked for for the first time
	ok    bool
	seq   int
	when  time.Time
}

// beginSync notes subscriptions that are about to be asked for.
func (l *ledger) beginSync(group mq.GroupID, topic mq.TopicID, names []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range names {
		key := liteKey{group, topic, name}
		if l.synced[key] == nil {
			l.synced[key] = &syncing{first: l.next()}
		}
	}
}

// endSync notes that subscriptions were answered OK.
func (l *ledger) endSync(life int, group mq.GroupID, topic mq.TopicID, names []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if life != l.life {
		return
	}
	l.counts.syncs++
	for _, name := range names {
		key := liteKey{group, topic, name}
		if s := l.synced[key]; !s.ok {
			s.ok, s.seq, s.when = true, l.next(), time.Now()
		}
	}
}

// liteQueue returns the queue of a lite topic and an offset in it, of a message whose
// answer pick chooses; false when there is none.
func (l *ledger) liteQueue(topic mq.TopicID, name string, pick func(n int) int) (at place, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []place
	for _, sn := range l.sends {
		if sn.acked && sn.topic == topic && sn.lite == name {
			all = append(all, sn.at[sn.ids[0]])
		}
	}
	if len(all) == 0 {
		return at, false
	}
	return all[pick(len(all))], true
}

type laneKey struct {
	topic mq.TopicID
	queue mq.QueueID
	name  string
}

type inLane struct {
	offset mq.QueueOffset
	id     string
}

func (sn *sent) laneOf(id string) (laneKey, bool) {
	at, known := sn.at[id]
	return laneKey{at.topic, at.queue, sn.lane}, known && (sn.lane != "" || sn.kind == mq.Lite)
}

func compareOffset(a inLane, offset mq.QueueOffset) int { return int(a.offset - offset) }

func (l *ledger) enterLane(sn *sent) {
	for _, id := range sn.ids {
		if key, ok := sn.laneOf(id); ok {
			offset := sn.at[id].offset
			i, _ := slices.BinarySearchFunc(l.lanes[key], offset, compareOffset)
			l.lanes[key] = slices.Insert(l.lanes[key], i, inLane{offset, id})
		}
	}
}

func (l *ledger) leaveLane(sn *sent) {
	for _, id := range sn.ids {
		if key, ok := sn.laneOf(id); ok {
			l.lanes[key] = slices.DeleteFunc(l.lanes[key], func(m inLane) bool { return m.id == id })
		}
	}
}

// inOrder judges that what a group got comes behind everything before it in its lane, or
// with it. It goes by what happened in this life of the store only: in the one before, an
// earlier message may have been used up by receives that were cut off.
func (l *ledger) inOrder(g consumers, sn *sent, d mq.Delivery, got []mq.Delivery, now time.Time) {
	if !g.ordered(sn) {
		return
	}
	for _, before := range l.lanes[laneKey{d.Lease.Topic, d.Lease.Queue, sn.lane}] {
		if before.offset >= d.Lease.Offset {
			return
		}
		other := l.msgs[before.id]
		f := l.fates[fateKey{g.ID, before.id}]
		if slices.ContainsFunc(got, func(o mq.Delivery) bool { return o.ID == before.id }) {
			continue
		}
		if f != nil && f.surelyLeased(d.Lease.PopID, now) {
			l.fault(&l.counts.order, "group %d got %s while %s, which is before it, was leased", g.ID, d.ID, before.id)
		}
		if other.life != l.life {
			continue
		}
		if f == nil || f.attempt == 0 {
			if (f == nil || f.open == 0 && f.born[0].IsZero()) && l.limits[g.ID] > l.unseen() && l.owes(g, other, other.at[before.id]) && len(l.moves[moveKey{g.ID, d.Lease.Topic, d.Lease.Queue}]) == 0 {
				l.fault(&l.counts.order, "group %d got %s and never %s, which is before it", g.ID, d.ID, before.id)
			}
			continue
		}
		settled := f.acked || f.open > 0 || !f.loose.IsZero() || f.excused || f.attempt+l.unseen() > l.limits[g.ID]
		if !settled && f.life == l.life && f.pop < d.Lease.PopID {
			l.fault(&l.counts.order, "group %d got %s while %s, which is before it, was not settled", g.ID, d.ID, before.id)
		}
	}
}

// unseen returns how many attempts a message may have had of which no client knows.
func (l *ledger) unseen() mq.Attempt {
	if l.counts.misreads > 0 {
		return 1 + mostMisreads
	}
	return 1
}

// mostMisreads is how much is read wrongly in one life of the store at most.
const mostMisreads = 2

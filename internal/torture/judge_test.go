package main

import (
	"slices"

	"github.com/perigee-mq/perigee/mq"
)

// stored is everything that could be read at the end.
type stored struct {
	queues map[queueKey][]string         // ids in the order of their offsets
	dead   map[mq.GroupID]map[string]int // copies in the dead-letter topics
}

type queueKey struct {
	topic mq.TopicID
	queue mq.QueueID
}

// judge checks what must hold when everything has been received.
func (l *ledger) judge(groups []consumers, s stored) {
	l.mu.Lock()
	defer l.mu.Unlock()
	present := map[string]place{}
	for queue, ids := range s.queues {
		for offset, id := range ids {
			_, twice := present[id]
			switch {
			case l.msgs[id] == nil:
				l.fault(&l.counts.other, "queue %+v holds %s, which was never sent", queue, id)
			case twice:
				l.fault(&l.counts.duplicates, "%s is stored twice", id)
			}
			present[id] = place{queue.topic, queue.queue, mq.QueueOffset(offset)}
		}
	}
	for _, sn := range l.sends {
		if l.waiting[sn.ids[0]] != nil {
			l.judgeWaiting(sn, present)
		} else {
			l.judgeSend(sn, s, present)
		}
	}
	for id, at := range present {
		sn := l.msgs[id]
		if sn == nil {
			continue
		}
		for _, g := range groups {
			f := l.fate(g.ID, id)
			if !g.wants(sn) {
				if f.attempt > 0 && l.counts.misreads == 0 { // what a filter cannot read counts as wanted
					l.fault(&l.counts.other, "group %d got %s, whose tag it does not want", g.ID, id)
				}
				continue
			}
			l.judgeFate(g, sn, id, at, f, s.dead[g.ID][id])
		}
	}
}

// judgeSend: an acknowledged send is there, any other wholly there or wholly absent.
func (l *ledger) judgeSend(sn *sent, s stored, present map[string]place) {
	there := 0
	for _, id := range sn.ids {
		if _, ok := present[id]; ok {
			there++
		}
	}
	first, ok := present[sn.ids[0]]
	ids := s.queues[queueKey{first.topic, first.queue}][first.offset:]
	switch {
	case there == 0 && sn.acked:
		l.fault(&l.counts.lost, "send of %v was answered OK and is gone", sn.ids)
	case there == 0:
		l.counts.unknown += len(sn.ids)
	case !ok || there != len(sn.ids) || !slices.Equal(ids[:min(len(sn.ids), len(ids))], sn.ids):
		l.fault(&l.counts.lost, "of the send %v only %d are in their place", sn.ids, there)
	case first.topic != sn.topic || sn.kind != mq.Lite && !slices.Contains(sn.queues, first.queue):
		l.fault(&l.counts.other, "send of %v to queues %v of topic %d is in %+v", sn.ids, sn.queues, sn.topic, first)
	case sn.acked && first != sn.at[sn.ids[0]]:
		l.fault(&l.counts.other, "send of %v was answered with %+v and is at %+v", sn.ids, sn.at[sn.ids[0]], first)
	}
}

// judgeWaiting: what waited is there when its time has come, or its transaction was
// committed, and nothing else is.
func (l *ledger) judgeWaiting(sn *sent, present map[string]place) {
	there, open := 0, 0
	for _, id := range sn.ids {
		w := l.waiting[id]
		_, is := present[id]
		if is {
			there++
		}
		var must, mustNot bool
		switch sn.kind {
		case mq.Delay:
			mustNot = w.recall.ok
			must = !mustNot && (!w.recall.begun || w.recall.refused)
		default:
			must = w.commit.ok
			mustNot = w.rollback.ok || !w.commit.begun
			if !w.commit.begun && !w.rollback.begun && sn.acked {
				l.fault(&l.counts.lost, "the half message %s was answered OK, nobody has ended its transaction, and it is not listed", id)
			}
		}
		if !must && !mustNot {
			open++
		}
		at, direct := sn.at[id]
		switch {
		case mustNot && is:
			l.fault(&l.counts.visible, "%s is stored in %+v and must never be seen: %+v", id, present[id], *w)
		case sn.acked && must && !is:
			l.fault(&l.counts.lost, "%s was answered OK and is gone: %+v", id, *w)
		case sn.acked && direct && is && present[id] != at:
			l.fault(&l.counts.other, "%s was answered with %+v and is at %+v", id, at, present[id])
		}
	}
	switch {
	case sn.acked:
	case there == 0:
		l.counts.unknown += len(sn.ids)
	case sn.kind == mq.Delay && open == 0 && there != len(sn.ids) && !l.anyRecalled(sn):
		l.fault(&l.counts.lost, "of the send %v only %d are there", sn.ids, there)
	}
}

func (l *ledger) anyRecalled(sn *sent) bool {
	return slices.ContainsFunc(sn.ids, func(id string) bool { return l.waiting[id].recall.begun })
}

func (l *ledger) judgeFate(g consumers, sn *sent, id string, at place, f *fate, dead int) {
	switch {
	case dead > 1 && f.born[0].IsZero() && f.loose.IsZero() && !l.anyMove(g.ID, at):
		l.fault(&l.counts.duplicates, "%s has %d dead-letter copies of group %d", id, dead, g.ID)
	case dead == 1 && f.acked && !f.forwarded && !l.anyMove(g.ID, at):
		l.fault(&l.counts.afterAck, "%s was dead-lettered by group %d after its ack had been answered OK", id, g.ID)
	case l.clean && dead > 0 && !f.forwarded && f.loose.IsZero() && !f.excused && f.attempt < l.limits[g.ID] && !l.anyMove(g.ID, at):
		l.fault(&l.counts.other, "%s was dead-lettered by group %d after attempt %d of %d", id, g.ID, f.attempt, l.limits[g.ID])
	case dead > 0 || f.acked || f.open > 0 || f.excused:
	case f.attempt == 0 && !l.owes(g, sn, at):
	default:
		l.fault(&l.counts.stuck, "%s at %+v was neither delivered to group %d nor dead-lettered: %+v", id, at, g.ID, *f)
	}
}

// anyMove reports whether the group was moved in the queue: a message may then have come
// to its end more than once.
func (l *ledger) anyMove(group mq.GroupID, at place) bool {
	return len(l.moves[moveKey{group, at.topic, at.queue}]) > 0
}

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing/synctest"
	"time"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store"
)

// drainTime is beyond the end of every lease that a test takes.
const drainTime = time.Minute

// auditorID is the group that reads everything.
const auditorID mq.GroupID = 99

// A drainer brings everything to its end that a store holds, and lets the ledger judge.
type drainer struct {
	*ledger
	ctx    context.Context
	s      *store.Store
	topics []*mq.Topic
	lites  []string // that there may be
	groups []consumers
}

// drain waits until everything is due and ends every transaction. Then it receives and
// acknowledges everything there is for the groups, and reads everything that is stored
// with a group of its own; what it sees goes into l, which then judges. It returns an error
// only where the store does.
func drain(ctx context.Context, s *store.Store, l *ledger, topics []*mq.Topic, lites []string, groups []consumers) error {
	d := &drainer{ledger: l, ctx: ctx, s: s, topics: topics, lites: lites, groups: groups}
	if err := d.endWaits(); err != nil {
		return err
	}
	for _, t := range topics {
		for _, g := range groups {
			if err := d.drainTopic(t, g); err != nil {
				return err
			}
		}
	}
	synctest.Wait() // dead letters under way
	st := stored{queues: map[queueKey][]string{}, dead: map[mq.GroupID]map[string]int{}}
	auditor := consumers{Group: &mq.Group{ID: auditorID, Resource: mq.Resource{Name: "audit"}, Retry: mq.DefaultRetryPolicy(), DeadLetter: 999, Version: 1}}
	for _, t := range topics {
		if err := d.audit(t, auditor, &st); err != nil {
			return err
		}
	}
	for _, g := range groups {
		st.dead[g.ID] = map[string]int{}
		// It waits for longer than its leases: what cannot be read comes back alone.
		err := d.receive(deadLetterTopic(g.Group), auditor, 2*drainTime, func(_ time.Time, got []mq.Delivery) {
			for _, m := range got {
				d.readsAs(m)
				st.dead[g.ID][m.ID]++
			}
		})
		if err != nil {
			return err
		}
	}
	l.judge(groups, st)
	for _, g := range append(slices.Clone(groups), auditor) {
		backlogs, err := s.Backlogs(ctx, shardName, g.ID)
		if err != nil {
			return err
		}
		if len(g.tags) > 0 && l.counts.misreads > 0 {
			continue // what a filter cannot read counts as wanted, and is not when it comes again
		}
		for _, b := range backlogs {
			if slices.ContainsFunc(topics, func(t *mq.Topic) bool { return t.ID == b.Topic }) && b.Ready+b.InFlight+b.UsedUp+b.Blocked > 0 {
				l.mu.Lock()
				l.fault(&l.counts.stuck, "group %s: %+v", g.Name, b)
				l.mu.Unlock()
			}
		}
	}
	return s.Err()
}

// endWaits waits until every delayed message is due, and ends every transaction.
func (d *drainer) endWaits() error {
	d.opened()
	time.Sleep(max(d.latest().Sub(d.clock.Now()), 0) + 2*lateTimer)
	synctest.Wait()
	for _, t := range d.topics {
		timers, _, err := d.s.Timers(d.ctx, shardName, mq.PendingQuery{Topic: t.ID, Max: 1 << 20})
		if err != nil {
			return err
		}
		d.listedTimers(d.now(), timers)
		for _, stage := range []mq.HalfStage{mq.HalfWaiting, mq.HalfLastAsked, mq.HalfGivenUp} {
			halves, _, err := d.s.Transactions(d.ctx, shardName, mq.PendingQuery{Topic: t.ID, Max: 1 << 20}, stage)
			if err != nil {
				return err
			}
			for i, m := range halves {
				if err := d.endHalf(m, i%2 == 0); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// endHalf ends the transaction of a message that is listed, as an operator does.
func (d *drainer) endHalf(m mq.PendingMessage, commit bool) error {
	d.mu.Lock()
	w := d.waiting[m.MessageID]
	switch {
	case w == nil || d.msgs[m.MessageID].kind != mq.Transaction:
		d.fault(&d.counts.other, "%s is listed as a half message", m.MessageID)
	case w.commit.ok || w.rollback.ok:
		d.fault(&d.counts.visible, "the transaction of %s was ended and its half message is listed", m.MessageID)
	}
	d.mu.Unlock()
	if w == nil {
		return nil
	}
	d.beginEnd(w, commit)
	err := d.s.EndTransaction(d.ctx, mq.PendingHandle{Shard: shardName, ID: m.ID}, commit)
	d.endEnd(d.now(), m.MessageID, w, commit, err)
	return err
}

// drainTopic receives and acknowledges what a group has to get.
func (d *drainer) drainTopic(t *mq.Topic, g consumers) error {
	return d.receive(t, g, drainTime, func(start time.Time, got []mq.Delivery) {
		d.delivered(d.now(), g, start, drainTime, got)
	})
}

// receive receives until there is nothing more, and acknowledges it all.
func (d *drainer) receive(t *mq.Topic, g consumers, wait time.Duration, fn func(start time.Time, got []mq.Delivery)) error {
	r := mq.Receive{Topic: t, Group: g.Group, Wait: wait, Max: 32, Invisible: drainTime}
	if t.Type == mq.TopicLite {
		r.Lite = "drain"
		sync := mq.LiteSync{Topic: t, Group: g.Group, Client: r.Lite, Action: mq.LiteReplace, Names: d.lites}
		if g.ID == auditorID {
			sync.Place = mq.LitePlace{Start: mq.LiteMin, Again: true}
		} else {
			d.beginSync(g.ID, t.ID, d.lites)
		}
		if _, err := syncLite(d.ctx, d.s, sync); err != nil {
			return err
		}
	} else {
		g.choose(&r, true)
	}
	for n := d.mostReceives(); ; n-- {
		start := time.Now()
		got, err := d.s.Receive(d.ctx, shardName, r)
		if err != nil || len(got) == 0 {
			return err
		}
		if n == 0 {
			d.mu.Lock()
			d.fault(&d.counts.stuck, "group %s gets messages of %s without an end, and %s again", g.Name, t.Resource, got[0].ID)
			d.mu.Unlock()
			return nil
		}
		fn(start, got)
		for _, m := range got {
			f := d.beginAck(g.ID, m.ID, m.Lease, false)
			err := errors.Join(d.s.Ack(d.ctx, []mq.Lease{m.Lease})...)
			d.endAck(d.now(), f, m.ID, m.Lease, err)
			if err != nil {
				return fmt.Errorf("ack of %s: %w", m.ID, err)
			}
		}
	}
}

// mostReceives returns how often a group can receive something at most when it acknowledges
// it all: every message comes once, and so does every dead letter, of which each move of the
// group's place may have made another one.
func (d *drainer) mostReceives() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	moves := 0
	for _, list := range d.moves {
		moves += len(list)
	}
	return len(d.msgs)*(1+moves) + 1
}

// readsAs judges that a message, or a dead letter, has the body that was sent.
func (d *drainer) readsAs(m mq.Delivery) {
	if string(m.Body) != body(m.ID) {
		d.wrong("%s of topic %d has the body %q", m.ID, m.Lease.Topic, m.Body)
	}
}

// audit reads everything that a topic holds.
func (d *drainer) audit(t *mq.Topic, auditor consumers, st *stored) error {
	return d.receive(t, auditor, 2*drainTime, func(_ time.Time, got []mq.Delivery) {
		for _, m := range got {
			d.readsAs(m)
			q := queueKey{t.ID, m.Lease.Queue}
			if want := mq.QueueOffset(len(st.queues[q])); m.Lease.Offset != want {
				d.mu.Lock()
				d.fault(&d.counts.lost, "queue %+v goes on with offset %d after %d", q, m.Lease.Offset, want-1)
				d.mu.Unlock()
			}
			st.queues[q] = append(st.queues[q], m.ID)
		}
	})
}

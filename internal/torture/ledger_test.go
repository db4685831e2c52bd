package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/filter"
)

// counts is what a run says about what must hold. All but the first group must be 0.
type counts struct {
	acked, unknown, deliveries, redeliveries, acks int
	crashes, failures, restarts                    int

	lost, stuck, afterAck, duplicates, twoHolders, other int

	late time.Duration // the worst
}

func (c *counts) add(o *counts) {
	c.acked += o.acked
	c.unknown += o.unknown
	c.deliveries += o.deliveries
	c.redeliveries += o.redeliveries
	c.acks += o.acks
	c.crashes += o.crashes
	c.failures += o.failures
	c.restarts += o.restarts
	c.lost += o.lost
	c.stuck += o.stuck
	c.afterAck += o.afterAck
	c.duplicates += o.duplicates
	c.twoHolders += o.twoHolders
	c.other += o.other
	c.late = max(c.late, o.late)
}

// A ledger is what the clients of one topic know: what they asked for and what was
// answered. It knows nothing of how the store works.
//
// Everything is noted before it is asked for, so that what is under way at the moment
// of a crash counts as unknown, and answers from before a crash that come after it
// are void.
type ledger struct {
	mu    sync.Mutex
	life  int
	clean bool // nothing has failed so far: a message comes again only for a reason

	// What was answered after unsafe may not be on the disk: the store has stopped, and
	// was not opened since.
	unsafe time.Time

	sends  []*sent
	msgs   map[string]*sent
	fates  map[fateKey]*fate
	at     map[place]string
	faults []string
	counts counts
}

type fateKey struct {
	group mq.GroupID
	id    string
}

type place struct {
	queue  mq.QueueID
	offset mq.QueueOffset
}

// sent is one send: a single message or a batch.
type sent struct {
	ids    []string
	tag    string
	queue  mq.QueueID
	offset mq.QueueOffset
	acked  bool
	when   time.Time // acked
}

// fate is what a group has seen of a message.
type fate struct {
	acked, ackBegun bool
	forwarded       bool       // a dead letter was asked for
	givenUp         bool       // a change was asked for, so the lease may end at any time
	when            time.Time  // of the latest answer
	attempt         mq.Attempt // of the latest delivery seen
	until           time.Time  // the lease of that delivery does not end before
	due             time.Time  // when it ends; zero when that is not known
}

func newLedger() *ledger {
	return &ledger{clean: true, msgs: map[string]*sent{}, fates: map[fateKey]*fate{}, at: map[place]string{}}
}

// copy returns one that can be judged by itself.
func (l *ledger) copy() *ledger {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := newLedger()
	c.life, c.clean, c.unsafe, c.counts = l.life, l.clean, l.unsafe, l.counts
	c.faults = slices.Clone(l.faults)
	for _, sn := range l.sends {
		again := *sn
		c.sends = append(c.sends, &again)
		for _, id := range again.ids {
			c.msgs[id] = &again
		}
	}
	for key, f := range l.fates {
		again := *f
		c.fates[key] = &again
	}
	maps.Copy(c.at, l.at)
	return c
}

// fault notes that something does not hold.
func (l *ledger) fault(kind *int, format string, args ...any) {
	*kind++
	l.faults = append(l.faults, fmt.Sprintf(format, args...))
}

func (l *ledger) now() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.life
}

// flushInterval is that of the store in async mode: what was answered before it is
// on the disk.
const flushInterval = 200 * time.Millisecond

// ends makes every answer that comes from now on void. lost says that what was
// answered within the last flush interval, up to when the store stopped, may be gone.
func (l *ledger) ends(lost bool, stopped time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.life++
	l.clean = false
	l.forgetDue()
	since := stopped.Add(-flushInterval - slack)
	if !l.unsafe.IsZero() && l.unsafe.Before(since) {
		since = l.unsafe
	}
	l.unsafe = since
	if lost {
		l.forget(since)
	}
}

// closed notes that the store was closed in order.
func (l *ledger) closed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forgetDue()
}

// forgetDue: a receive that got no answer may have leased any message again.
func (l *ledger) forgetDue() {
	for _, f := range l.fates {
		f.due = time.Time{}
	}
}

// opened notes that the store was opened: what it found is on the disk.
func (l *ledger) opened() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unsafe = time.Time{}
}

// forget makes everything uncertain that was answered after since.
func (l *ledger) forget(since time.Time) {
	for _, sn := range l.sends {
		if sn.acked && sn.when.After(since) {
			sn.acked = false
			l.counts.acked -= len(sn.ids)
		}
	}
	for _, f := range l.fates {
		if f.when.After(since) {
			f.acked, f.attempt, f.until = false, 0, time.Time{}
		}
	}
	for at, id := range l.at {
		if !l.msgs[id].acked {
			delete(l.at, at) // the message may be gone and its place taken
		}
	}
}

func (l *ledger) beginSend(queue mq.QueueID, tag string, ids ...string) *sent {
	l.mu.Lock()
	defer l.mu.Unlock()
	sn := &sent{ids: ids, tag: tag, queue: queue}
	l.sends = append(l.sends, sn)
	for _, id := range ids {
		l.msgs[id] = sn
	}
	return sn
}

func (l *ledger) endSend(sn *sent, life int, offset mq.QueueOffset) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if life == l.life {
		sn.acked, sn.offset, sn.when = true, offset, time.Now()
		l.counts.acked += len(sn.ids)
	}
}

const stamp = "04:05.000000000"

// slack is how far apart two commands of the same moment may be.
const slack = time.Millisecond

// delivered judges what a receive that began at start got.
func (l *ledger) delivered(life int, group mq.GroupID, start time.Time, invisible time.Duration, got []mq.Delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if life != l.life {
		return
	}
	now := time.Now()
	for _, d := range got {
		l.counts.deliveries++
		sn := l.msgs[d.ID]
		if sn == nil {
			l.fault(&l.counts.other, "%s was delivered and never sent", d.ID)
			continue
		}
		if string(d.Body) != body(d.ID) {
			l.fault(&l.counts.other, "%s has the body %q", d.ID, d.Body)
		}
		at := place{d.Lease.Queue, d.Lease.Offset}
		if id, ok := l.at[at]; ok && id != d.ID {
			l.fault(&l.counts.other, "%s and %s are both at offset %d of queue %d", id, d.ID, at.offset, at.queue)
		}
		l.at[at] = d.ID
		l.deliver(group, start, now, invisible, d)
	}
}

func (l *ledger) deliver(group mq.GroupID, start, now time.Time, invisible time.Duration, d mq.Delivery) {
	key := fateKey{group, d.ID}
	f := l.fates[key]
	if f == nil {
		f = &fate{}
		l.fates[key] = f
	} else if f.attempt > 0 {
		l.counts.redeliveries++
	}
	early := f.until.Sub(now) > slack
	switch {
	case f.acked:
		l.fault(&l.counts.afterAck, "group %d got %s after its ack had been answered OK", group, d.ID)
	case early:
		l.fault(&l.counts.twoHolders, "group %d got %s %v before the lease of attempt %d ended", group, d.ID, f.until.Sub(now), f.attempt)
	case d.Lease.Attempt <= f.attempt:
		l.fault(&l.counts.other, "group %d got %s as attempt %d after attempt %d", group, d.ID, d.Lease.Attempt, f.attempt)
	}
	if l.clean && (f.acked || early) {
		l.counts.duplicates++
	}
	if !f.due.IsZero() {
		from := f.due
		if start.After(from) {
			from = start
		}
		late := now.Sub(from)
		l.counts.late = max(l.counts.late, late)
		if late > slack {
			l.fault(&l.counts.other, "group %d got %s as attempt %d, which was due at %v, %v late, by a receive that had waited since %v",
				group, d.ID, d.Lease.Attempt, f.due.Format(stamp), late, start.Format(stamp))
		}
	}
	f.attempt, f.givenUp, f.when = d.Lease.Attempt, false, now
	f.until, f.due = now.Add(invisible), now.Add(invisible)
}

func (l *ledger) fate(group mq.GroupID, id string) *fate {
	key := fateKey{group, id}
	if l.fates[key] == nil {
		l.fates[key] = &fate{}
	}
	return l.fates[key]
}

// beginAck notes an acknowledgement, or with forward a dead letter, that is about to
// be asked for.
func (l *ledger) beginAck(group mq.GroupID, id string, forward bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.fate(group, id)
	f.ackBegun = f.ackBegun || !forward
	f.forwarded = f.forwarded || forward
	f.due = time.Time{}
}

func (l *ledger) endAck(life int, group mq.GroupID, id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if life == l.life {
		f := l.fate(group, id)
		f.acked, f.when = true, time.Now()
		l.counts.acks++
	}
}

// beginChange notes that the lease may end at any time; endChange that it ends after d.
func (l *ledger) beginChange(group mq.GroupID, id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.fate(group, id)
	f.until, f.due, f.givenUp = time.Time{}, time.Time{}, true
}

func (l *ledger) endChange(life int, group mq.GroupID, id string, d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if f := l.fate(group, id); life == l.life && f.givenUp {
		f.when = time.Now()
		f.until, f.due = f.when.Add(d), f.when.Add(d)
	}
}

// consumers are a group and the tags that it wants, none for all.
type consumers struct {
	*mq.Group
	tags []string
}

func (c consumers) wants(tag string) bool { return len(c.tags) == 0 || slices.Contains(c.tags, tag) }

// choose makes r want the group's tags: as such, or by an SQL filter.
func (c consumers) choose(r *mq.Receive, sql bool) {
	if r.Tags = c.tags; len(c.tags) == 0 || !sql {
		return
	}
	f, err := filter.Compile("tag IN ('" + strings.Join(c.tags, "', '") + "')")
	if err != nil {
		panic(err) // a mistake of the test
	}
	r.Tags, r.Filter = nil, f
}

// properties returns the pairs of names and values as user properties are stored.
func properties(pairs ...string) (b []byte) {
	for i := 0; i < len(pairs); i += 2 {
		entry := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), pairs[i])
		entry = protowire.AppendString(protowire.AppendTag(entry, 2, protowire.BytesType), pairs[i+1])
		b = protowire.AppendBytes(protowire.AppendTag(b, 2, protowire.BytesType), entry)
	}
	return b
}

// stored is everything that could be read at the end.
type stored struct {
	queues map[mq.QueueID][]string       // ids in the order of their offsets
	dead   map[mq.GroupID]map[string]int // copies in the dead-letter topics
}

// judge checks what must hold when everything has been received.
func (l *ledger) judge(groups []consumers, s stored) {
	l.mu.Lock()
	defer l.mu.Unlock()
	present := map[string]bool{}
	for queue, ids := range s.queues {
		for _, id := range ids {
			switch {
			case l.msgs[id] == nil:
				l.fault(&l.counts.other, "queue %d holds %s, which was never sent", queue, id)
			case present[id]:
				l.fault(&l.counts.duplicates, "%s is stored twice", id)
			}
			present[id] = true
		}
	}
	for _, sn := range l.sends {
		l.judgeSend(sn, s, present)
	}
	for _, sn := range l.sends {
		for _, id := range sn.ids {
			for _, g := range groups {
				switch {
				case g.wants(sn.tag):
					if present[id] {
						l.judgeFate(g.ID, id, s.dead[g.ID][id])
					}
				case l.fate(g.ID, id).attempt > 0:
					l.fault(&l.counts.other, "group %d got %s, whose tag it does not want", g.ID, id)
				}
			}
		}
	}
}

// judgeSend: an acknowledged send is there, any other wholly there or wholly absent.
func (l *ledger) judgeSend(sn *sent, s stored, present map[string]bool) {
	ids := s.queues[sn.queue]
	at := slices.Index(ids, sn.ids[0])
	there := 0
	for _, id := range sn.ids {
		if present[id] {
			there++
		}
	}
	switch {
	case there == 0 && sn.acked:
		l.fault(&l.counts.lost, "send of %v was answered OK and is gone", sn.ids)
	case there == 0:
		l.counts.unknown += len(sn.ids)
	case at < 0 || there != len(sn.ids) || !slices.Equal(ids[at:min(at+len(sn.ids), len(ids))], sn.ids):
		l.fault(&l.counts.lost, "of the send %v only %d are in their place", sn.ids, there)
	case sn.acked && mq.QueueOffset(at) != sn.offset:
		l.fault(&l.counts.other, "send of %v was answered with offset %d and is at %d", sn.ids, sn.offset, at)
	}
}

func (l *ledger) judgeFate(group mq.GroupID, id string, dead int) {
	f := l.fate(group, id)
	switch {
	case dead > 1:
		l.fault(&l.counts.duplicates, "%s has %d dead-letter copies of group %d", id, dead, group)
	case dead == 1 && f.acked && !f.forwarded:
		l.fault(&l.counts.afterAck, "%s was dead-lettered by group %d after its ack had been answered OK", id, group)
	case dead == 0 && !f.ackBegun:
		l.fault(&l.counts.stuck, "%s was neither delivered to group %d nor dead-lettered", id, group)
	}
}

// body is what the message with this id carries.
func body(id string) string { return "body of " + id }

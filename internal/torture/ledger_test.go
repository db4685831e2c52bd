package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/filter"
)

// counts is what a run says about what must hold. All of the last group must be 0.
type counts struct {
	acked, unknown, deliveries, redeliveries, acks int
	crashes, failures, restarts                    int
	delays, steps, misreads                        int                  // of operations of the disk, of the wall clock, and of the disk again
	came                                           [endings]int         // lives that ended so
	lived                                          time.Duration        // of the bubbles' time, with clients at work
	kinds                                          [mq.Priority + 1]int // acknowledged, by type
	recalls, ends, checks, resets, repeats, syncs  int                  // answered OK

	lost, stuck, afterAck, duplicates, twoHolders, early, visible, order, other int

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
	c.delays += o.delays
	c.lived += o.lived
	c.steps += o.steps
	c.misreads += o.misreads
	for i, n := range o.came {
		c.came[i] += n
	}
	for i, n := range o.kinds {
		c.kinds[i] += n
	}
	c.recalls += o.recalls
	c.ends += o.ends
	c.checks += o.checks
	c.resets += o.resets
	c.repeats += o.repeats
	c.syncs += o.syncs
	c.lost += o.lost
	c.stuck += o.stuck
	c.afterAck += o.afterAck
	c.duplicates += o.duplicates
	c.twoHolders += o.twoHolders
	c.early += o.early
	c.visible += o.visible
	c.order += o.order
	c.other += o.other
	c.late = max(c.late, o.late)
}

// A ledger is what the clients of some topics know: what they asked for and what was
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
	served time.Time // since when the store is open; zero when it is not, or closes

	clock   *wallClock
	shift   time.Duration // of the clock, when the store was opened last
	steps   int           // likewise
	misread bool          // some of what is read in this life is wrong, and said to be
	dropped func() bool   // whether what was written is gone, and may be read by who comes before the store stops
	slow    time.Duration // how late things may be on a disk that takes its time; 0: it does not
	crowd   time.Duration // how late leases may end besides

	sends  []*sent
	msgs   map[string]*sent
	fates  map[fateKey]*fate
	at     map[place]string
	seq    int // of what began and was answered, to order it
	faults []string
	counts counts

	waiting map[string]*waiting       // by message id
	moves   map[moveKey][]*move       // of the places of groups in queues, in order
	synced  map[liteKey]*syncing      // what groups have subscribed to
	stored  map[place]time.Time       // when messages were stored
	lanes   map[laneKey][]inLane      // messages that keep an order, by their offsets
	limits  map[mq.GroupID]mq.Attempt // of attempts
	named   map[queueKey]string       // the lite topics of queues
}

type fateKey struct {
	group mq.GroupID
	id    string
}

type place struct {
	topic  mq.TopicID
	queue  mq.QueueID
	offset mq.QueueOffset
}

// sent is one send: a single message or a batch.
type sent struct {
	ids      []string
	tag      string
	topic    mq.TopicID
	kind     mq.MessageType // of all of them
	queues   []mq.QueueID   // asked for, each time
	lite     string         // the lite topic, if it is for one
	lane     string         // the message group, if it has one
	filling  int            // bytes that its messages have beside
	began    int            // a number of ledger.seq
	born     int            // the life in which it was asked for first
	answered int            // likewise; 0: not yet, or the answer was lost
	acked    bool
	when     time.Time        // acked
	life     int              // acked
	at       map[string]place // answered, of those that went into a queue at once
}

// fate is what a group has seen of a message.
type fate struct {
	acked     bool
	open      int        // acknowledgements that were asked for and not refused
	under     int        // requests of any kind under way
	asked     time.Time  // when the last of them began
	forwarded bool       // a dead letter was asked for
	givenUp   bool       // a change was asked for, so the lease may end at any time
	when      time.Time  // of the latest answer
	attempt   mq.Attempt // of the latest delivery seen
	at        place      // of it
	life      int        // in which that was
	pop       mq.PopID   // of it
	until     time.Time  // the lease of that delivery does not end before
	due       time.Time  // when it ends; zero when that is not known

	born    [2]time.Time // when the place of the group was moved last: between these two
	loose   time.Time    // not zero: what came before may have been undone, up to then
	excused bool         // it may never come again
}

func newLedger() *ledger {
	return &ledger{
		clean: true, clock: &wallClock{}, msgs: map[string]*sent{}, fates: map[fateKey]*fate{}, at: map[place]string{},
		waiting: map[string]*waiting{}, moves: map[moveKey][]*move{}, synced: map[liteKey]*syncing{},
		stored: map[place]time.Time{}, lanes: map[laneKey][]inLane{}, limits: map[mq.GroupID]mq.Attempt{}, named: map[queueKey]string{},
	}
}

// copy returns one that can be judged by itself.
func (l *ledger) copy() *ledger {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := newLedger()
	c.life, c.clean, c.unsafe, c.counts, c.seq, c.clock, c.slow, c.crowd = l.life, l.clean, l.unsafe, l.counts, l.seq, l.clock, l.slow, l.crowd
	c.faults = slices.Clone(l.faults)
	for _, sn := range l.sends {
		again := *sn
		again.at = maps.Clone(sn.at)
		c.sends = append(c.sends, &again)
		for _, id := range again.ids {
			c.msgs[id] = &again
		}
	}
	for key, f := range l.fates {
		again := *f
		c.fates[key] = &again
	}
	for id, w := range l.waiting {
		again := *w
		again.times = slices.Clone(w.times)
		c.waiting[id] = &again
	}
	for key, list := range l.moves {
		for _, m := range list {
			again := *m
			c.moves[key] = append(c.moves[key], &again)
		}
	}
	for key, s := range l.synced {
		again := *s
		c.synced[key] = &again
	}
	for key, list := range l.lanes {
		c.lanes[key] = slices.Clone(list)
	}
	maps.Copy(c.at, l.at)
	maps.Copy(c.stored, l.stored)
	maps.Copy(c.limits, l.limits)
	maps.Copy(c.named, l.named)
	return c
}

// violations is how often something did not hold.
func (c *counts) violations() int {
	return c.lost + c.stuck + c.afterAck + c.duplicates + c.twoHolders + c.early + c.visible + c.order + c.other
}

// fault notes that something does not hold.
func (l *ledger) fault(kind *int, format string, args ...any) {
	*kind++
	l.faults = append(l.faults, fmt.Sprintf(format, args...))
}

// wrong notes something that does not hold and has no name of its own.
func (l *ledger) wrong(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fault(&l.counts.other, format, args...)
}

func (l *ledger) now() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.life
}

// next orders events.
func (l *ledger) next() int {
	l.seq++
	return l.seq
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
	trace("life %d begins, last answers lost: %t", l.life, lost)
	l.settleLife()
	since := stopped.Add(-flushInterval - slack)
	if !l.unsafe.IsZero() && l.unsafe.Before(since) {
		since = l.unsafe
	}
	l.unsafe = since
	if lost {
		l.forget(since)
	}
}

// delayed notes that an operation of the disk takes its time.
func (l *ledger) delayed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts.delays++
}

// startMisreading notes that some of what is read from now on is wrong. What cannot be read is
// leased and reaches nobody.
func (l *ledger) startMisreading() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.misread, l.clean = true, false
}

// readWrong counts what is read wrongly.
func (l *ledger) readWrong(path string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts.misreads++
	trace("a read of %s is wrong", path)
}

// says reports whether the error is that of something that was read wrongly, and says
// where that lies.
func (l *ledger) says(err error) bool {
	return l.readsWrong() && errors.Is(err, command.ErrCorrupt) && strings.Contains(err.Error(), "/log/")
}

// readsWrong reports whether some of what is read is not what was written.
func (l *ledger) readsWrong() bool { return l.misread || l.dropped != nil && l.dropped() }

// drops notes when what was written may be gone, in this life.
func (l *ledger) drops(fired func() bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropped = fired
}

func (l *ledger) misreadSays(err error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.says(err)
}

// closed notes that the store was closed in order.
func (l *ledger) closed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settleLife()
}

// settleLife: a receive that got no answer may have leased any message again, and what
// got none has happened by now or never will.
func (l *ledger) settleLife() {
	for _, f := range l.fates {
		f.due = time.Time{}
		if f.loose.Equal(always) {
			f.loose = time.Now().Add(slack)
		}
	}
}

// opened notes that the store was opened: what it found is on the disk.
func (l *ledger) opened() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unsafe, l.served, l.misread = time.Time{}, time.Now(), false
	was := l.shift
	l.shift, l.steps = l.clock.shifted()
	for _, f := range l.fates {
		if l.shift > was {
			f.until = time.Time{} // by the store's time it ends sooner
		}
	}
}

// closing notes that the store is about to be closed.
func (l *ledger) closing() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.served = time.Time{}
}

// forget makes everything uncertain that was answered after since.
func (l *ledger) forget(since time.Time) {
	for _, sn := range l.sends {
		if sn.acked && sn.when.After(since) {
			sn.acked, sn.answered = false, 0
			l.counts.acked -= len(sn.ids)
			l.counts.kinds[sn.kind] -= len(sn.ids)
			l.leaveLane(sn)
		}
	}
	for _, f := range l.fates {
		if f.when.After(since) {
			f.acked, f.attempt, f.pop, f.until = false, 0, 0, time.Time{}
		}
	}
	for at, id := range l.at {
		sn := l.msgs[id]
		if _, direct := sn.at[id]; !sn.acked || !direct {
			delete(l.at, at) // the message may be gone, or wait again, and its place taken
		}
	}
	clear(l.stored)
	clear(l.named)
	l.forgetWaiting(since)
	l.forgetMoves(since)
}

func (l *ledger) beginSend(sn *sent) *sent {
	l.mu.Lock()
	defer l.mu.Unlock()
	sn.began, sn.born = l.next(), l.life
	l.sends = append(l.sends, sn)
	for _, id := range sn.ids {
		l.msgs[id] = sn
	}
	return sn
}

// endSend notes an answer, the first one or another one.
func (l *ledger) endSend(sn *sent, life int, answer []mq.Appended) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if life != l.life {
		return
	}
	trace("sent %v (%s) to topic %d, again: %t: %+v", sn.ids, sn.kind, sn.topic, sn.acked, answer)
	if sn.acked {
		l.counts.repeats++
		for i, id := range sn.ids {
			at, direct := sn.at[id]
			switch got := (place{sn.topic, answer[i].Queue, answer[i].Offset}); {
			case direct && (answer[i].Pending != 0 || got != at):
				l.fault(&l.counts.duplicates, "%s was answered with %+v and, sent again, with %+v", id, at, answer[i])
			case !direct && answer[i].Pending != l.waiting[id].handle.ID:
				l.fault(&l.counts.duplicates, "%s was answered with the handle %d and, sent again, with %+v", id, l.waiting[id].handle.ID, answer[i])
			}
		}
		return
	}
	sn.answered = l.next()
	sn.acked, sn.when, sn.life, sn.at = true, time.Now(), life, map[string]place{}
	l.counts.acked += len(sn.ids)
	l.counts.kinds[sn.kind] += len(sn.ids)
	for i, id := range sn.ids {
		if answer[i].Pending != 0 {
			l.startWaiting(sn, id, answer[i].Pending)
			continue
		}
		sn.at[id] = place{sn.topic, answer[i].Queue, answer[i].Offset}
		l.stored[sn.at[id]] = answer[i].StoreTime
	}
	l.enterLane(sn)
}

const stamp = "04:05.000000000"

// slack is how far apart two commands of the same moment may be.
const slack = time.Millisecond

// lookPause is how long a receive that has looked in vain rests before it looks again.
const lookPause = 5 * time.Millisecond

// always is behind the end of every test.
var always = time.Unix(1<<40, 0)

// delivered judges what a receive that began at start got.
func (l *ledger) delivered(life int, g consumers, start time.Time, invisible time.Duration, got []mq.Delivery) {
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
		if string(d.Body) != body(d.ID) || d.Tag != sn.tag || d.Group != sn.lane || d.Type != sn.kind || d.Lease.Topic != sn.topic {
			l.fault(&l.counts.other, "%s of topic %d has the tag %q, the message group %q, the type %s and the body %q", d.ID, d.Lease.Topic, d.Tag, d.Group, d.Type, d.Body)
		}
		if key := (queueKey{d.Lease.Topic, d.Lease.Queue}); sn.kind == mq.Lite {
			if name, ok := l.named[key]; ok && name != sn.lite {
				l.fault(&l.counts.other, "%s of the lite topic %s came from a queue of %s", d.ID, sn.lite, name)
			}
			l.named[key] = sn.lite
		}
		at := place{d.Lease.Topic, d.Lease.Queue, d.Lease.Offset}
		trace("group %d got %s from %+v, attempt %d, popped at %v for %v", g.ID, d.ID, at, d.Lease.Attempt, time.Unix(0, int64(d.Lease.PopID)).Format(stamp), invisible)
		if id, ok := l.at[at]; ok && id != d.ID {
			l.fault(&l.counts.other, "%s and %s are both at %+v", id, d.ID, at)
		}
		l.at[at] = d.ID
		l.mayBeSeen(d.ID, now)
		l.afterSync(g.ID, sn, at, d.ID)
		if l.afterMove(g.ID, at, d) {
			l.inOrder(g, sn, d, got, now)
			l.deliver(g, sn, start, now, invisible, d)
		}
	}
}

func (l *ledger) deliver(g consumers, sn *sent, start, now time.Time, invisible time.Duration, d mq.Delivery) {
	f := l.fate(g.ID, d.ID)
	if f.attempt > 0 {
		l.counts.redeliveries++
	}
	popped := time.Unix(0, int64(d.Lease.PopID))
	f.at = place{d.Lease.Topic, d.Lease.Queue, d.Lease.Offset}
	if !f.loose.IsZero() && !popped.After(f.loose) {
		return // nothing follows from it
	}
	if !f.loose.IsZero() {
		// It is known again. Should the move be undone, what came before it holds.
		*f = fate{at: f.at, born: f.born, under: f.under}
	}
	leased := now
	if l.slow > 0 {
		leased = popped // the answer has taken its time
	}
	if l.slow > 0 && d.Lease.PopID < f.pop {
		return // it has been delivered again meanwhile
	}
	early := f.until.Sub(leased) > slack
	switch {
	case f.acked:
		l.fault(&l.counts.afterAck, "group %d got %s after its ack had been answered OK", g.ID, d.ID)
	case early:
		l.fault(&l.counts.twoHolders, "group %d got %s %v before the lease of attempt %d ended", g.ID, d.ID, f.until.Sub(now), f.attempt)
	case l.limits[g.ID] > 0 && d.Lease.Attempt > l.limits[g.ID]:
		l.fault(&l.counts.other, "group %d got %s as attempt %d and wants %d", g.ID, d.ID, d.Lease.Attempt, l.limits[g.ID])
	case d.Lease.Attempt <= f.attempt:
		l.fault(&l.counts.other, "group %d got %s as attempt %d after attempt %d", g.ID, d.ID, d.Lease.Attempt, f.attempt)
	}
	if l.clean && (f.acked || early) {
		l.counts.duplicates++
	}
	if !f.due.IsZero() && !g.ordered(sn) {
		from := f.due
		if start.After(from) {
			from = start
		}
		late := now.Sub(from)
		if l.slow == 0 {
			l.counts.late = max(l.counts.late, late)
		}
		if late > slack+lookPause+l.slow+l.crowd && !l.misread {
			l.fault(&l.counts.other, "group %d got %s as attempt %d, which was due at %v, %v late, by a receive that had waited since %v",
				g.ID, d.ID, d.Lease.Attempt, f.due.Format(stamp), late, start.Format(stamp))
		}
	}
	f.attempt, f.pop, f.life, f.givenUp, f.when = d.Lease.Attempt, d.Lease.PopID, l.life, false, now
	f.until, f.due = leased.Add(invisible), leased.Add(invisible)
}

func (l *ledger) fate(group mq.GroupID, id string) *fate {
	key := fateKey{group, id}
	if l.fates[key] == nil {
		l.fates[key] = &fate{}
	}
	return l.fates[key]
}

// beginAck notes an acknowledgement, or with forward a dead letter, that is about to
// be asked for with the lease.
func (l *ledger) beginAck(group mq.GroupID, id string, lease mq.Lease, forward bool) *fate {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.fate(group, id)
	f.under, f.asked = f.under+1, time.Now()
	if !f.endedBefore(lease) {
		f.open++
		f.forwarded = f.forwarded || forward
		f.due = time.Time{}
	}
	return f
}

// endedBefore reports whether the lease had ended when the place of the group was moved.
func (f *fate) endedBefore(lease mq.Lease) bool {
	return time.Unix(0, int64(lease.PopID)).Before(f.born[0])
}

// endAck notes the answer.
func (l *ledger) endAck(life int, f *fate, id string, lease mq.Lease, refusal error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f.under--
	trace("ack or forward of %s by group %d: %v", id, lease.Group, refusal)
	switch {
	case life != l.life:
	case refusal == nil && f.endedBefore(lease):
		l.fault(&l.counts.other, "a receipt of %s from before the group's place was moved was taken", id)
	case refusal == nil:
		if f.life == l.life && f.loose.IsZero() && f.pop > lease.PopID {
			l.fault(&l.counts.other, "a receipt of %s by group %d was taken although the message had been delivered again", id, lease.Group)
		}
		f.acked, f.when = true, time.Now()
		l.counts.acks++
	case isRefusal(refusal) && f.open > 0 && !f.endedBefore(lease):
		f.open--
	}
}

// A changing is a change of a lease that was asked for.
type changing struct {
	*fate
	old   bool // the message had been delivered again
	began time.Time
}

// beginChange notes that the lease may end at any time; endChange that it ends after d.
func (l *ledger) beginChange(group mq.GroupID, id string, lease mq.Lease) changing {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.fate(group, id)
	c := changing{f, f.life == l.life && f.loose.IsZero() && f.pop > lease.PopID, time.Now()}
	f.under, f.asked = f.under+1, time.Now()
	f.until, f.due, f.givenUp = time.Time{}, time.Time{}, true
	return c
}

func (l *ledger) endChange(life int, f changing, id string, lease mq.Lease, d time.Duration, refusal error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f.under--
	trace("change of %s by group %d to %v: %v", id, lease.Group, d, refusal)
	switch {
	case life != l.life || refusal != nil:
	case f.endedBefore(lease):
		l.fault(&l.counts.other, "a receipt of %s from before the group's place was moved changed its lease", id)
	case f.old:
		l.fault(&l.counts.other, "a receipt of %s by group %d changed its lease although the message had been delivered again", id, lease.Group)
	case f.givenUp && f.under == 0:
		f.when = time.Now()
		f.until, f.due = f.began.Add(d), f.when.Add(d)
	}
}

// consumers are a group and the tags that it wants, none for all.
type consumers struct {
	*mq.Group
	tags []string
}

// wants reports whether the group's filter lets it have the messages of a send.
func (c consumers) wants(sn *sent) bool {
	return sn.kind == mq.Lite || len(c.tags) == 0 || slices.Contains(c.tags, sn.tag)
}

// ordered reports whether the group gets the messages of the send in an order.
func (c consumers) ordered(sn *sent) bool { return sn.kind == mq.Lite || c.FIFO && sn.lane != "" }

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

// body is what the message with this id carries.
func body(id string) string { return "body of " + id }

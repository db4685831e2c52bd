package shard

import (
	"context"
	"errors"
	"time"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/commitlog"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/machine"
)

// Bounds of the work on the way at one time, so that neither the loop nor the memory is
// taken by it.
const (
	trimQueues  = 512  // of one command, and of the topics of those that wait together
	trimPage    = 4096 // queues that are looked at together
	trimSettles = 1000 // deliveries given up by one command
)

// A message that nobody comes for again is given up after having been seen to wait for a
// while: its consumer may be on its way back. Of each topic so many are remembered; the
// others have to wait longer.
const (
	longestWait = 10 * time.Minute
	mostWaits   = 1 << 16
)

// fits returns how many parts of a size one command may have, at most n: segments may be
// small.
func (r *retainer) fits(n, size int) int {
	return min(n, int(r.s.log.MaxPayload()-commandNumbers)/size)
}

// A trimming is the work on one topic.
type trimming struct {
	*retained
	queues []keyspace.Ends
	// soft and hard have, for each queue, the first offset that is not below the cut,
	// and the first that is not below its hard part.
	soft, hard []mq.QueueOffset
	// kept has the first offset of each queue whose entry is to stay.
	kept  []mq.QueueOffset
	trims []command.QueueTrim
}

// trim takes what is past its time, or below the cut, out of the topics. First the
// beginnings of the queues move. After that no delivery below them can come into being,
// so what the deliveries of that moment need is all that any will.
func (r *retainer) trim(due []*retained, now int64, cut cut) error {
	for len(due) > 0 {
		var page []*trimming
		for queues := 0; len(due) > 0 && queues < trimPage; due = due[1:] {
			page = append(page, &trimming{retained: due[0]})
			queues += int(due[0].queues)
		}
		if err := r.stopped(); err != nil {
			return err
		}
		if err := r.trimPage(page, now, cut); err != nil {
			return err
		}
	}
	return nil
}

func (r *retainer) trimPage(page []*trimming, now int64, cut cut) error {
	evicted := uint64(0)
	err := r.view(func(v *machine.View) error {
		for _, t := range page {
			n, err := t.findBeginnings(v, now, cut)
			if err != nil {
				return err
			}
			evicted += n
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := r.apply(page); err != nil {
		return err
	}
	for _, t := range page {
		if err := r.trimLites(t, now, cut); err != nil {
			return err
		}
	}
	r.s.stats.evicted.Add(evicted)
	err = r.view(func(v *machine.View) error {
		over, err := r.findKept(v, page, now)
		if err != nil {
			return err
		}
		if err := r.giveUp(over, page); err != nil {
			return err
		}
		for _, t := range page {
			if err := t.settle(v, now); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return r.apply(page)
}

// findBeginnings notes where the queues of the topic are to begin, and returns how many
// of the messages that go are not past their age.
func (t *trimming) findBeginnings(v *machine.View, now int64, cut cut) (evicted uint64, err error) {
	if t.queues, err = v.Queues(t.id); err != nil {
		return 0, err
	}
	t.next = t.expiry(now)
	t.soft, t.hard = make([]mq.QueueOffset, len(t.queues)), make([]mq.QueueOffset, len(t.queues))
	for i, q := range t.queues {
		id := keyspace.Queue{Topic: t.id, Queue: mq.QueueID(i)}
		begin, first, err := v.Search(id, q.Min, q.Next, func(e *keyspace.Entry) bool { return t.passed(e.StoreTime, now) })
		if err != nil {
			return 0, err
		}
		if cut.pos > 0 {
			if t.soft[i], t.hard[i], err = belowCut(v, id, q, cut); err != nil {
				return 0, err
			}
			if t.soft[i] > begin {
				evicted += uint64(t.soft[i] - begin)
				if begin = t.soft[i]; begin < q.Next {
					if first, err = v.Entry(id, begin); err != nil {
						return 0, err
					}
				}
			}
		}
		if begin < q.Next {
			t.next = min(t.next, t.expiry(first.StoreTime))
		}
		if begin > q.Min {
			t.trims = append(t.trims, command.QueueTrim{Queue: id.Queue, Min: begin})
		}
	}
	return evicted, nil
}

// belowCut returns the first offsets of the queue that are not below the cut.
func belowCut(v *machine.View, id keyspace.Queue, q keyspace.Ends, cut cut) (soft, hard mq.QueueOffset, err error) {
	if cut.hard > 0 {
		hard, _, err = v.Search(id, q.Kept, q.Next, func(e *keyspace.Entry) bool { return e.Pos < uint64(cut.hard) })
		if err != nil {
			return 0, 0, err
		}
	}
	soft, _, err = v.Search(id, max(q.Kept, hard), q.Next, func(e *keyspace.Entry) bool { return e.Pos < uint64(cut.pos) })
	return soft, hard, err
}

// given are deliveries that are given up.
type given struct {
	by []settlement
	// lost of them needed the message; the others had been left by everybody.
	lost, abandoned uint64
	most            int // deliveries of one command
}

// A settlement has deliveries of one topic to one group.
type settlement struct {
	sub  keyspace.Sub
	refs []command.LeaseRef
	lost uint64 // of them needed the message
}

// add adds a delivery, and returns where.
func (g *given) add(ref keyspace.Ref, id mq.PopID) *settlement {
	n := len(g.by)
	if n == 0 || g.by[n-1].sub != ref.Sub || len(g.by[n-1].refs) == g.most {
		g.by = append(g.by, settlement{sub: ref.Sub})
		n++
	}
	g.by[n-1].refs = append(g.by[n-1].refs, command.LeaseRef{Queue: ref.Queue, Offset: ref.Offset, PopID: id})
	return &g.by[n-1]
}

// findKept notes from where on the queues keep entries: from their beginnings on, or
// from the first message before it that is under delivery. It returns the deliveries
// that keep nothing.
func (r *retainer) findKept(v *machine.View, page []*trimming, now int64) (over given, err error) {
	over.most = r.fits(trimSettles, leaseRefSize)
	waiting := map[mq.TopicID][]machine.Range{}
	for _, t := range page {
		if t.queues, err = v.Queues(t.id); err != nil {
			return over, err
		}
		t.kept = make([]mq.QueueOffset, len(t.queues))
		for i, q := range t.queues {
			t.kept[i] = q.Min
			if q.Kept < q.Min {
				waiting[t.id] = append(waiting[t.id], machine.Range{Queue: mq.QueueID(i), Low: q.Kept, High: q.Min})
			}
		}
	}
	if len(waiting) == 0 {
		return over, nil
	}
	groups, err := v.Subscribers(func(id mq.TopicID) bool { return waiting[id] != nil })
	if err != nil {
		return over, err
	}
	for _, t := range page {
		before := t.abandoned
		t.abandoned = nil
		for _, group := range groups[t.id] {
			err := v.Deliveries(keyspace.Sub{Group: group, Topic: t.id}, waiting[t.id], func(ref keyspace.Ref, l keyspace.Lease) error {
				switch t.judge(ref, l, before[ref], now) {
				case keeps:
					t.keep(ref)
				case loses:
					over.lost++
					over.add(ref, l.PopID).lost++
				case leaves:
					over.abandoned++
					over.add(ref, l.PopID)
				}
				return nil
			})
			if err != nil {
				return over, err
			}
		}
	}
	return over, nil
}

func (t *trimming) keep(ref keyspace.Ref) {
	t.kept[ref.Queue] = min(t.kept[ref.Queue], ref.Offset)
}

// What becomes of a delivery whose message is below the beginning of its queue.
type verdict int

const (
	keeps  verdict = iota // it keeps the message
	loses                 // it is over, for want of room
	leaves                // it is over: nobody came for the message again
)

// judge decides on one delivery. A consumer that has the message keeps it, and so does a
// dead letter that is to be made. A message that waits to be delivered again is kept for
// as long after its latest delivery as messages are kept at all: a group that nobody
// works for any more must not hold the log for ever. before is its wait as seen earlier.
func (t *trimming) judge(ref keyspace.Ref, l keyspace.Lease, before wait, now int64) verdict {
	waits := l.State == keyspace.Ready || l.State == keyspace.Parked
	cut := int(ref.Queue) < len(t.hard) // the queue was there when it was found
	if cut && (ref.Offset < t.hard[ref.Queue] || waits && ref.Offset < t.soft[ref.Queue]) {
		return loses
	}
	if l.PopID == 0 {
		return leaves // never delivered, it goes as others do that were not passed
	}
	if !waits || !t.passed(int64(l.PopID), now) {
		return keeps
	}
	if before.after != l.PopID {
		before = wait{after: l.PopID, since: now}
	}
	if now-before.since >= min(t.age, int64(longestWait)) {
		return leaves
	}
	if t.abandoned == nil {
		t.abandoned = map[keyspace.Ref]wait{}
	}
	if len(t.abandoned) < mostWaits {
		t.abandoned[ref] = before
	}
	return keeps
}

// settle notes the trims that remain to be made, and what the topic has after them.
func (t *trimming) settle(v *machine.View, now int64) error {
	t.trims = t.trims[:0]
	t.looked, t.pending = now, false
	for i, q := range t.queues {
		if t.kept[i] > q.Kept {
			t.trims = append(t.trims, command.QueueTrim{Queue: mq.QueueID(i), Min: q.Min, Kept: t.kept[i]})
		}
		t.pending = t.pending || t.kept[i] < q.Min
	}
	return t.findFloor(v, t.queues, t.kept, now)
}

// findFloor notes the position of the first entry that the queues keep.
func (t *retained) findFloor(v *machine.View, queues []keyspace.Ends, kept []mq.QueueOffset, now int64) error {
	t.floor, t.held, t.floored = commitlog.Pos(v.State.Pos), false, now
	lite, err := v.LiteOldest(t.id, t.liteLow)
	if err != nil {
		return err
	}
	if lite.Found {
		t.liteLow = lite.Pos
	}
	if lite.Found && commitlog.Pos(lite.Pos) < t.floor {
		t.floor, t.held = commitlog.Pos(lite.Pos), true
	}
	for i, q := range queues {
		if kept[i] == q.Next {
			continue
		}
		e, err := v.Entry(keyspace.Queue{Topic: t.id, Queue: mq.QueueID(i)}, kept[i])
		if err != nil {
			return err
		}
		if pos := commitlog.Pos(e.Pos); pos < t.floor {
			t.floor, t.held = pos, true
		}
	}
	return nil
}

// giveUp ends deliveries that keep nothing, before what they need is removed. One that
// was made again meanwhile keeps its message after all.
func (r *retainer) giveUp(over given, page []*trimming) error {
	if len(over.by) == 0 {
		return nil
	}
	topics := map[mq.TopicID]*trimming{}
	for _, t := range page {
		topics[t.id] = t
	}
	for _, g := range over.by {
		req := r.s.newRequest(command.KindAck)
		req.internal = true
		req.ack = command.Ack{Topic: g.sub.Topic, Group: g.sub.Group, Leases: g.refs}
		if err := r.s.do(context.Background(), req); err != nil {
			return err
		}
		for i, err := range req.res.Settled {
			if errors.Is(err, mq.ErrLeaseSuperseded) {
				topics[g.sub.Topic].keep(keyspace.Ref{Queue: g.refs[i].Queue, Offset: g.refs[i].Offset})
			}
		}
		r.s.release(req)
		if g.lost > 0 {
			r.s.stats.dropped(g.sub, g.lost)
		}
	}
	r.s.stats.abandoned.Add(over.abandoned)
	if over.lost > 0 {
		r.s.logger.Warn("deliveries ended for want of disk space", "messages", over.lost)
	}
	if over.abandoned > 0 {
		r.s.logger.Info("redeliveries ended whose messages are past their age", "messages", over.abandoned)
	}
	return nil
}

// apply lets the loop carry out the trims of the page.
func (r *retainer) apply(page []*trimming) error {
	var reqs []*request
	queues, most := 0, r.fits(trimQueues, queueTrimSize)
	for _, t := range page {
		for trims := t.trims; len(trims) > 0; {
			n := min(len(trims), most)
			req := r.s.newRequest(command.KindTrim)
			req.trim = command.Trim{Topic: t.id, Queues: trims[:n]}
			trims = trims[n:]
			reqs = append(reqs, req)
			// The loop reads all queues of a topic that it has not read yet: that takes
			// longer than the trims, and everybody else waits for the round.
			if queues += len(t.queues); queues >= trimQueues {
				if err := r.doAll(reqs); err != nil {
					return err
				}
				reqs, queues = reqs[:0], 0
			}
		}
	}
	return r.doAll(reqs)
}

// doAll hands the requests to the loop, which takes them in few rounds, and waits for
// all. A topic that was deleted meanwhile is no error.
func (r *retainer) doAll(reqs []*request) error {
	var err error
	sent := 0
	for _, req := range reqs {
		if err = r.s.send(context.Background(), req); err != nil {
			break
		}
		sent++
	}
	for _, req := range reqs[:sent] {
		<-req.done
		if req.err != nil && req.res.Err == nil && err == nil {
			err = req.err
		}
		r.s.release(req)
	}
	return err
}

package shard

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/machine"
)

// Bounds of what a filter's receives judge and remember.
const (
	// keptLooks is how many looks are kept that no receive uses.
	keptLooks = 256
	// wantedAhead is how many messages of one queue are judged to be wanted before they
	// are asked for, and offered how many one pop is offered.
	wantedAhead = 512
	offered     = 1024
	// readyKept is how many redeliveries are judged before they are asked for.
	readyKept = 8192
	// moveAfter is how many messages are passed before the group is carried past them,
	// and moveTime after how long it is.
	moveAfter = 16 << 10
	moveTime  = time.Second
	// fillSlices is for how many slices a receive looks on that has found less than it
	// takes.
	fillSlices = 8
	// lookPause lies between two looks at new messages that find nothing.
	lookPause = 5 * time.Millisecond
	// fewRanges is how many queues a pop may name that have nothing wanted.
	fewRanges = 64
)

// looks are those of the receives with a filter that is not tags.
type looks struct {
	mu   sync.Mutex
	by   map[listKey]*look
	of   map[keyspace.Sub][]*look
	turn uint64
}

// A look is what the receives of one group, topic and filter share: what they have
// judged. It is a cache; what a message is does not change, so nothing in it is ever
// wrong, but it may be of no use any more.
type look struct {
	key    listKey
	filter mq.Filter
	users  int    // of looks.mu
	used   uint64 // of looks.mu

	// looking has room for one token: of who looks at messages.
	looking chan struct{}
	// called says that a receive was woken for new messages and has not asked yet where
	// the group stands.
	called atomic.Bool
	// urgent has a token, of capacity 1, when there are redeliveries that nobody has
	// looked for.
	urgent chan struct{}

	mu      sync.Mutex
	version uint64 // of the group
	queues  []judgedQueue
	// ready are the redeliveries behind after that were judged.
	ready map[keyspace.Ref]judgement
	after uint64
	// asked counts the outlooks asked for, judged the slices, pops what popped was told.
	asked, judged, pops uint64
	readyLast           uint64 // of the outlook
	// unsent is how many unwanted messages no pop has been told of, since when is sent.
	unsent int
	sent   time.Time

	// Of who looks. readyMore: there are redeliveries that were not looked at, readyLevel
	// that there were none.
	readyMore, readyLevel bool
	outlook               machine.Outlook
	first                 int       // the queue to begin with
	fruitless             time.Time // when a look at new messages ended that found none wanted
}

// A judgement is what was found of a redelivery.
type judgement struct {
	wanted  bool
	grouped bool // it is of a message group
}

// blocks reports whether the redelivery is not wanted and keeps others waiting for it,
// which is so in a group that is FIFO. A pop that is told so settles it.
func (v judgement) blocks(fifo bool) bool { return fifo && v.grouped && !v.wanted }

// A judgedQueue is the part of a queue that was judged.
type judgedQueue struct {
	from, to mq.QueueOffset
	wanted   []mq.QueueOffset
}

// enter returns the look for the filter, and what a receive with it waits for.
func (ls *looks) enter(sub keyspace.Sub, filter mq.Filter) wish {
	key := listKey{sub: sub, filter: filter.String(), sql: true}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := ls.by[key]
	if l == nil {
		if ls.by == nil {
			ls.by, ls.of = map[listKey]*look{}, map[keyspace.Sub][]*look{}
		}
		l = &look{key: key, filter: filter, looking: make(chan struct{}, 1), ready: map[keyspace.Ref]judgement{}, urgent: make(chan struct{}, 1), sent: time.Now()}
		ls.by[key], ls.of[sub] = l, append(ls.of[sub], l)
	}
	l.users++
	return wish{key: key, look: l}
}

// leave ends a use. Of what nobody uses, what was used last is kept.
func (ls *looks) leave(l *look) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.turn++
	l.used = ls.turn
	if l.users--; l.users > 0 || len(ls.by) <= keptLooks {
		return
	}
	var oldest *look
	for _, other := range ls.by {
		if other.users == 0 && (oldest == nil || other.used < oldest.used) {
			oldest = other
		}
	}
	delete(ls.by, oldest.key)
	sub := oldest.key.sub
	ls.of[sub] = slices.DeleteFunc(ls.of[sub], func(l *look) bool { return l == oldest })
	if len(ls.of[sub]) == 0 {
		delete(ls.of, sub)
	}
}

// hurry ends the pauses of those who look for groups that have redeliveries: they are
// not to be late.
func (ls *looks) hurry(list []machine.Readied) {
	if len(list) == 0 {
		return
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, r := range list {
		for _, l := range ls.of[r.Sub] {
			signal(l.urgent)
		}
	}
}

// isCalled reports whether new messages wait for somebody to look at them.
func (l *look) isCalled() bool { return l != nil && l.called.Load() }

// owes reports whether the group is to be carried past messages.
func (l *look) owes() bool {
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.queues {
		if q := &l.queues[i]; q.from < q.passable() {
			return true
		}
	}
	return false
}

// passable returns up to where nothing of the queue is wanted.
func (q *judgedQueue) passable() mq.QueueOffset {
	if len(q.wanted) > 0 {
		return q.wanted[0]
	}
	return q.to
}

// An offer is a choice that a pop is to be made with.
type offer struct {
	after  uint64
	judged []command.JudgedRange
}

// offer returns what is to be popped, if it is time to: there are enough messages, or
// with few any, or many to be passed.
func (l *look) offer(r *mq.Receive, few bool) (o offer, due bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	wanted, ranges := 0, 0
	for i := range l.queues {
		q := &l.queues[i]
		wanted += len(q.wanted)
		if len(q.wanted) > 0 {
			ranges++
		}
	}
	for _, v := range l.ready {
		if v.wanted || v.blocks(r.Group.FIFO) {
			wanted++
		}
	}
	move := l.unsent >= moveAfter || l.unsent > 0 && time.Since(l.sent) >= moveTime
	if l.version != r.Group.Version {
		// With a lower limit of attempts some are used up, wanted or not.
		l.version, l.after, move = r.Group.Version, 0, true
	}
	if !move && wanted < r.Max && (wanted == 0 || !few) {
		return o, false
	}
	l.unsent, l.sent = 0, time.Now()
	o.after = l.after
	most := max(offered/max(ranges, 1), r.Max)
	for i := range l.queues {
		q := &l.queues[i]
		if q.from == q.to || len(q.wanted) == 0 && !move && len(l.queues) > fewRanges {
			continue
		}
		j := command.JudgedRange{Queue: mq.QueueID(i), From: q.from, To: q.to, Wanted: q.wanted}
		if len(j.Wanted) > most {
			j.To, j.Wanted = j.Wanted[most], j.Wanted[:most]
		}
		j.Wanted = slices.Clone(j.Wanted)
		o.judged = append(o.judged, j)
	}
	for ref, v := range l.ready {
		if v.blocks(r.Group.FIFO) {
			delete(l.ready, ref) // what the pop leaves of them is looked at again
		}
		if q := &l.queues[ref.Queue]; ref.Offset >= q.from && ref.Offset < q.to {
			continue // judged there
		}
		j := command.JudgedRange{Queue: ref.Queue, From: ref.Offset, To: ref.Offset + 1}
		if v.wanted {
			j.Wanted = []mq.QueueOffset{ref.Offset}
		}
		o.judged = append(o.judged, j)
	}
	slices.SortFunc(o.judged, func(a, b command.JudgedRange) int {
		return cmp.Or(cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.From, b.From))
	})
	return o, true
}

// passing returns what carries the group past messages without delivering any, if there
// are some and it was not done for so long.
func (l *look) passing(pause time.Duration) (o offer, due bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.sent) < pause {
		return o, false
	}
	for i := range l.queues {
		q := &l.queues[i]
		if to := q.passable(); q.from < to {
			o.judged = append(o.judged, command.JudgedRange{Queue: mq.QueueID(i), From: q.from, To: to})
		}
	}
	o.after = l.readyLast
	return o, len(o.judged) > 0
}

// nothing returns an offer of no message.
func (l *look) nothing() offer {
	l.mu.Lock()
	defer l.mu.Unlock()
	return offer{after: l.readyLast}
}

// passed forgets what the group was carried past.
func (l *look) passed(o offer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unsent, l.sent = 0, time.Now()
	for _, j := range o.judged {
		if q := &l.queues[j.Queue]; q.from == j.From && j.To <= q.to {
			q.begin(j.To)
		}
	}
}

// popped forgets what was delivered. What was delivered once or more often is not new,
// and neither is what lies before it in its queue.
func (l *look) popped(list []machine.Popped) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pops++
	for _, p := range list {
		delete(l.ready, keyspace.Ref{Sub: l.key.sub, Queue: p.Queue, Offset: p.Offset})
		if int(p.Queue) < len(l.queues) {
			if q := &l.queues[p.Queue]; p.Offset >= q.from && p.Offset < q.to {
				q.begin(p.Offset + 1)
			}
		}
	}
}

// begin forgets what lies before the offset.
func (q *judgedQueue) begin(offset mq.QueueOffset) {
	if offset < q.from || offset > q.to { // moved back, or past all of it
		*q = judgedQueue{from: offset, to: offset, wanted: q.wanted[:0]}
		return
	}
	at, _ := slices.BinarySearch(q.wanted, offset)
	q.from, q.wanted = offset, slices.Delete(q.wanted, 0, at)
}

// stands notes where the group stands. pops is as of before it was asked.
func (l *look) stands(pops uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.readyLast = l.outlook.ReadyLast
	for len(l.queues) < len(l.outlook.Queues) {
		l.queues = append(l.queues, judgedQueue{})
	}
	for i, r := range l.outlook.Queues {
		q := &l.queues[i]
		if r.Low < q.from && pops != l.pops {
			continue // popped since, most likely
		}
		q.begin(r.Low)
	}
}

// moment returns how often it was asked where the group stands.
func (l *look) moment() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.asked
}

// popJudged asks for messages that the filter wants until there are some, everything was
// looked at, or the time is over.
func (s *Shard) popJudged(ctx context.Context, r mq.Receive, l *look, end time.Time) (haul, error) {
	if r.Group.FIFO && r.Attempt != "" {
		// What is left of an earlier delivery needs no judging.
		if got, _, err := s.choose(ctx, r, l.nothing()); err != nil || len(got.popped) > 0 {
			return got, err
		}
	}
	since, full, all := l.moment(), false, false
	// By priority, what was judged ahead may come behind what nobody has looked at yet.
	byPriority := orderOf(&r) == command.PriorityOrder
	for slices := 0; ; slices++ {
		few := all || slices >= fillSlices
		var o offer
		due := false
		if few || !byPriority {
			o, due = l.offer(&r, few)
		}
		if due {
			got, unjudged, err := s.choose(ctx, r, o)
			l.popped(got.popped)
			full = full || got.full
			if err != nil || len(got.popped) > 0 {
				got.more = got.more || unjudged
				return got, err
			}
			if all && unjudged && !full {
				// Others were faster, or something is new.
				since, all = l.moment(), false
			}
		}
		if all {
			return haul{full: full}, nil
		}
		if ctx.Err() != nil || !time.Now().Before(end) {
			return haul{more: true, full: full}, nil
		}
		var err error
		if all, err = s.judge(ctx, r, l, since); err != nil {
			return haul{}, err
		}
	}
}

// choose makes one pop, or as many as it takes to look at all redeliveries.
func (s *Shard) choose(ctx context.Context, r mq.Receive, o offer) (got haul, unjudged bool, err error) {
	for {
		req := s.newRequest(command.KindPopSelect)
		req.topic, req.group = r.Topic, r.Group
		req.pop = command.SelectPop{Chosen: true, Judged: o.judged, Order: orderOf(&r)}
		if r.Group.FIFO {
			req.pop.Attempt = r.Attempt
		}
		req.pop.InFlight = int32(r.InFlight)
		req.pop.LimitedPop.Pop = command.Pop{
			Topic: r.Topic.ID, Group: r.Group.ID, Max: int32(r.Max), Bytes: popBytes,
			Invisible: int64(r.Invisible), Scan: popScan, After: o.after,
		}
		if err := s.send(ctx, req); err != nil {
			return haul{}, false, err
		}
		<-req.done // also when ctx ends: what it leases must be given back
		got.popped, got.popID = append([]machine.Popped(nil), req.res.Popped...), req.res.PopID
		got.more, got.left, got.full = req.res.More, req.res.Left, got.full || req.res.Full
		unjudged, err = unjudged || req.res.Unjudged, req.err
		o.after = req.res.After
		s.release(req)
		if err != nil || len(got.popped) > 0 || !got.more || ctx.Err() != nil {
			return got, unjudged, err
		}
	}
}

// moveOn carries the group past messages that were judged and are not wanted, unless
// that was done within the pause.
func (s *Shard) moveOn(ctx context.Context, r mq.Receive, l *look, pause time.Duration) error {
	if l == nil {
		return nil
	}
	o, due := l.passing(pause)
	if !due {
		return nil
	}
	r.Attempt = "" // nobody waits for messages
	_, _, err := s.choose(ctx, r, o)
	if err == nil {
		l.passed(o)
	}
	return err
}

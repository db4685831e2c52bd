package machine_test

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
)

// model is the queue in plain slices and maps: what the machine must answer,
// without indexes, caches, batches or a disk.
type model struct {
	topics map[mq.TopicID][][]modelMessage // by queue
	begins map[keyspace.Queue]modelBegin   // absent: 0
	groups map[mq.GroupID]*command.Group
	subs   map[keyspace.Sub]*modelSub
	seq    uint64
	sent   []modelSent // what was sent lately, in that order

	goneTopics map[mq.TopicID]bool
	goneGroups map[mq.GroupID]bool
}

// modelBegin is where a queue begins: min for deliveries, kept for what is stored.
type modelBegin struct{ min, kept int }

type modelMessage struct {
	id, tag, group string
	time           int64
	size           int
}

type modelSub struct {
	progress []int // -1: none
	// unstarted: it was made by an offset that was set, and no pop came since.
	unstarted bool
	leases    map[keyspace.Ref]*keyspace.Lease
	// turn is there once it has received by priority.
	turn *keyspace.Turn
}

func newModel() *model {
	return &model{
		topics: map[mq.TopicID][][]modelMessage{},
		begins: map[keyspace.Queue]modelBegin{},
		groups: map[mq.GroupID]*command.Group{},
		subs:   map[keyspace.Sub]*modelSub{},

		goneTopics: map[mq.TopicID]bool{},
		goneGroups: map[mq.GroupID]bool{},
	}
}

func (m *model) topic(c *command.Topic) {
	if m.goneTopics[c.ID] {
		return
	}
	queues := m.topics[c.ID]
	for len(queues) < int(c.Queues) {
		queues = append(queues, nil)
	}
	m.topics[c.ID] = queues
}

func (m *model) begin(topic mq.TopicID, queue int) modelBegin {
	return m.begins[keyspace.Queue{Topic: topic, Queue: mq.QueueID(queue)}]
}

// trim reports how many messages are no longer delivered, -1 without the topic.
func (m *model) trim(c *command.Trim) int {
	queues, ok := m.topics[c.Topic]
	if !ok {
		return -1
	}
	trims := c.Queues
	if c.Purge {
		for i, q := range queues {
			end := mq.QueueOffset(len(q))
			trims = append(trims, command.QueueTrim{Queue: mq.QueueID(i), Min: end, Kept: end})
		}
		for sub, s := range m.subs {
			if sub.Topic == c.Topic {
				clear(s.leases)
			}
		}
	}
	sum := 0
	for _, trim := range trims {
		if trim.Queue < 0 || int(trim.Queue) >= len(queues) {
			continue
		}
		key := keyspace.Queue{Topic: c.Topic, Queue: trim.Queue}
		b := m.begins[key]
		before := b.min
		b.min = min(max(b.min, int(trim.Min)), len(queues[trim.Queue]))
		b.kept = min(max(b.kept, int(trim.Kept)), b.min)
		m.begins[key] = b
		sum += b.min - before
	}
	return sum
}

// held returns the smallest offset of the queue that is under delivery, or -1.
func (m *model) held(q keyspace.Queue) int {
	least := -1
	for _, s := range m.subs {
		for ref := range s.leases {
			if ref.Topic == q.Topic && ref.Queue == q.Queue && (least < 0 || int(ref.Offset) < least) {
				least = int(ref.Offset)
			}
		}
	}
	return least
}

func (m *model) deleteTopic(id mq.TopicID) {
	delete(m.topics, id)
	m.goneTopics[id] = true
	m.sent = slices.DeleteFunc(m.sent, func(s modelSent) bool { return s.topic == id })
	for q := range m.begins {
		if q.Topic == id {
			delete(m.begins, q)
		}
	}
	for sub := range m.subs {
		if sub.Topic == id {
			delete(m.subs, sub)
		}
	}
}

func (m *model) deleteGroup(id mq.GroupID) {
	delete(m.groups, id)
	m.goneGroups[id] = true
	for sub := range m.subs {
		if sub.Group == id {
			delete(m.subs, sub)
		}
	}
}

// append returns the first offset, or -1 when the queue does not exist.
func (m *model) append(topic mq.TopicID, queue mq.QueueID, now int64, msgs ...*mq.Message) mq.QueueOffset {
	queues := m.topics[topic]
	if int(queue) >= len(queues) {
		return -1
	}
	first := len(queues[queue])
	for _, msg := range msgs {
		parkFor := m.upToDate(topic, queue, msg.Group)
		queues[queue] = append(queues[queue], modelMessage{msg.ID, msg.Tag, msg.Group, now, len(command.AppendMessage(nil, msg))})
		for _, id := range parkFor {
			m.park(id, queue)
		}
	}
	return mq.QueueOffset(first)
}

func (m *model) sub(g *command.Group, topic mq.TopicID) *modelSub {
	s := m.placed(keyspace.Sub{Group: g.ID, Topic: topic})
	if s.unstarted {
		s.unstarted = false
		for i, q := range m.topics[topic] {
			if s.progress[i] >= 0 {
				continue
			}
			start := m.begin(topic, i).min
			switch g.Start {
			case mq.StartLatest:
				start = len(q)
			case mq.StartTimestamp:
				for start < len(q) && q[start].time < g.StartTime {
					start++
				}
			}
			s.progress[i] = start
		}
	}
	return s
}

// placed returns the sub, with a place for every queue that there is: none in those that
// it has not started in, the beginning in those that were added since it started.
func (m *model) placed(id keyspace.Sub) *modelSub {
	s := m.subs[id]
	if s == nil {
		s = &modelSub{leases: map[keyspace.Ref]*keyspace.Lease{}, unstarted: true}
		m.subs[id] = s
	}
	for len(s.progress) < len(m.topics[id.Topic]) {
		at := 0
		if s.unstarted {
			at = -1
		}
		s.progress = append(s.progress, at)
	}
	return s
}

// setOffset returns how many deliveries it ended, or -1 when it is refused.
func (m *model) setOffset(c *command.SetOffset) int {
	queues, ok := m.topics[c.Topic]
	if !ok || m.groups[c.Group] == nil {
		return -1
	}
	for _, q := range c.Queues {
		if q.Queue < 0 || int(q.Queue) >= len(queues) || int(q.Offset) < m.begin(c.Topic, int(q.Queue)).min || int(q.Offset) > len(queues[q.Queue]) {
			return -1
		}
	}
	s := m.placed(keyspace.Sub{Group: c.Group, Topic: c.Topic})
	dropped := 0
	for _, q := range c.Queues {
		s.progress[q.Queue] = int(q.Offset)
		for ref := range s.leases {
			if ref.Queue == q.Queue && (c.Drop || ref.Offset >= q.Offset) {
				delete(s.leases, ref)
				dropped++
			}
		}
	}
	return dropped
}

// endDeliveries returns which deliveries end, the last first.
func (m *model) endDeliveries(c *command.EndDeliveries) (refs []keyspace.Ref) {
	sub := keyspace.Sub{Group: c.Group, Topic: c.Topic}
	if m.subs[sub] == nil || int(c.Queue) >= len(m.topics[c.Topic]) {
		return nil
	}
	s := m.placed(sub)
	if c.Back && int64(c.To) < int64(s.progress[c.Queue]) {
		return nil
	}
	for ref := range s.leases {
		if ref.Queue == c.Queue && ref.Offset >= c.From && ref.Offset < c.To {
			refs = append(refs, ref)
		}
	}
	slices.SortFunc(refs, func(a, b keyspace.Ref) int { return compareRefs(b, a) })
	refs = refs[:min(len(refs), int(c.Limit))]
	for _, ref := range refs {
		m.settle(ref)
		if c.Back {
			s.progress[c.Queue] = min(s.progress[c.Queue], int(ref.Offset))
		}
	}
	return refs
}

// positions returns what Positions must.
func (m *model) positions(id keyspace.Sub) []mq.Position {
	var list []mq.Position
	for i, q := range m.topics[id.Topic] {
		p := mq.Position{QueueRange: mq.QueueRange{
			Queue: mq.QueueID(i), Min: mq.QueueOffset(m.begin(id.Topic, i).min), Next: mq.QueueOffset(len(q)),
		}}
		if m.subs[id] != nil {
			s := m.placed(id)
			if p.Known = s.progress[i] >= 0; p.Known {
				p.Offset = max(mq.QueueOffset(s.progress[i]), p.Min)
			}
			for ref, l := range s.leases {
				switch {
				case int(ref.Queue) != i:
				case l.State == keyspace.Leased:
					p.InFlight++
				case l.State == keyspace.Ready:
					p.Retrying++
				case l.State == keyspace.Parked:
					p.Blocked++
				default:
					p.UsedUp++
				}
			}
		}
		list = append(list, p)
	}
	return list
}

// modelVisibleAt: no lease ends before it begins, and none beyond the last time
// but one that 64 bits can tell.
func modelVisibleAt(now, invisible int64) uint64 {
	return min(uint64(now)+uint64(max(invisible, 0)), math.MaxInt64-1)
}

type modelPopped struct {
	id      string
	queue   mq.QueueID
	offset  mq.QueueOffset
	attempt mq.Attempt
}

// A modelPop is what a pop comes to.
type modelPop struct {
	popped []modelPopped
	id     mq.PopID
	more   bool
	full   bool // a queue at its in-flight limit has messages that are wanted
}

// leased counts the messages of a queue that consumers have.
func (s *modelSub) leased(queue mq.QueueID) (n int32) {
	for ref, l := range s.leases {
		if ref.Queue == queue && l.State == keyspace.Leased {
			n++
		}
	}
	return n
}

// A modelPopping is a pop on its way.
type modelPopping struct {
	command.SelectPop
	m      *model
	g      *command.Group
	s      *modelSub
	queues [][]modelMessage
	// ready are the redeliveries that there were when it began, oldest first.
	ready []keyspace.Ref
	had   []keyspace.Ref // delivered by this pop, of lanes
	scan  int32
	bytes int
	res   modelPop
	// unjudged: it met a message that was not looked at before.
	unjudged bool
}

func (m *model) pop(c command.SelectPop, index uint64) (res modelPop, ok bool) {
	res, _, ok = m.popChosen(c, index)
	return res, ok
}

// popChosen says as well whether the pop met messages that were not looked at before it.
func (m *model) popChosen(c command.SelectPop, index uint64) (res modelPop, unjudged, ok bool) {
	g, queues := m.groups[c.Group], m.topics[c.Topic]
	if g == nil || queues == nil {
		return modelPop{}, false, false
	}
	s := m.sub(g, c.Topic)
	// What moves up while messages of an earlier pop turn out to be gone waits for the next pop.
	ready := s.in(keyspace.Ready)
	if again := m.popAgain(c, s); len(again.popped) > 0 {
		return again, false, true
	}
	p := &modelPopping{SelectPop: c, m: m, g: g, s: s, queues: queues, ready: ready, scan: c.Scan}
	p.res.id = mq.PopID(c.Time)
	if c.Order == command.PriorityOrder && !g.FIFO {
		p.byPriority()
		return p.res, p.unjudged, true
	}
	p.bySequence()
	for i := range queues {
		if p.full() || p.newOf((int(modelTurn(index)%uint64(len(queues)))+i)%len(queues)) {
			break
		}
	}
	return p.res, p.unjudged, true
}

// judge returns whether the message is wanted, and whether that is known.
func (p *modelPopping) judge(queue mq.QueueID, offset int) (wanted, known bool) {
	if !p.Chosen {
		return len(p.Tags) == 0 || slices.Contains(p.Tags, p.queues[queue][offset].tag), true
	}
	for _, j := range p.Judged {
		if j.Queue == queue && offset >= int(j.From) && offset < int(j.To) {
			return slices.Contains(j.Wanted, mq.QueueOffset(offset)), true
		}
	}
	return false, false
}

func (p *modelPopping) deliver(ref keyspace.Ref, l *keyspace.Lease) {
	msg := p.queues[ref.Queue][ref.Offset]
	l.Attempt++
	l.State, l.PopID, l.When = keyspace.Leased, mq.PopID(p.Time), modelVisibleAt(p.Time, p.Invisible)
	l.Nacked, l.Try = false, 0
	if p.g.FIFO {
		l.Try = modelTry(p.Attempt)
	}
	p.s.leases[ref] = l
	p.bytes += msg.size
	p.res.popped = append(p.res.popped, modelPopped{msg.id, ref.Queue, ref.Offset, l.Attempt})
}

func (p *modelPopping) full() bool {
	return len(p.res.popped) >= int(p.Max) || p.Bytes > 0 && p.bytes >= int(p.Bytes)
}

func (p *modelPopping) atLimit(queue mq.QueueID) bool {
	return p.InFlight > 0 && p.s.leased(queue) >= p.InFlight
}

// bySequence delivers again what became ready first.
func (p *modelPopping) bySequence() {
	for _, ref := range p.ready {
		if l := p.s.leases[ref]; l != nil && l.State == keyspace.Ready && l.When <= p.After {
			continue
		}
		if p.full() {
			return
		}
		if p.scan <= 0 {
			p.res.more = true
			return
		}
		p.scan--
		p.redeliver(ref)
	}
}

// redeliver reports whether the message is no longer ready.
func (p *modelPopping) redeliver(ref keyspace.Ref) bool {
	l := p.s.leases[ref]
	switch {
	case p.res.full && p.atLimit(ref.Queue):
		return false
	case l == nil || l.State != keyspace.Ready:
		return true
	case p.m.inLane(ref):
		p.alongLane(ref)
		return l.State != keyspace.Ready
	case l.Attempt >= p.g.MaxAttempts:
		l.State, l.When = keyspace.UsedUp, 0
		return true
	case int(ref.Offset) < p.m.begin(p.Topic, int(ref.Queue)).kept:
		delete(p.s.leases, ref) // lost
		return true
	}
	switch wanted, known := p.judge(ref.Queue, int(ref.Offset)); {
	case !wanted:
		p.unjudged = p.unjudged || !known
		return false
	case p.atLimit(ref.Queue):
		p.res.full = true
		return false
	}
	p.deliver(ref, l)
	return true
}

// alongLane delivers what the pop does not have of a lane, from the first one on.
func (p *modelPopping) alongLane(ref keyspace.Ref) {
	for first := true; ; first = false {
		lane := p.m.lane(ref)
		at := slices.IndexFunc(lane, func(r keyspace.Ref) bool { return !slices.Contains(p.had, r) })
		if at < 0 || p.full() || p.s.leases[lane[at]].State == keyspace.Leased {
			return
		}
		next := lane[at]
		l := p.s.leases[next]
		if !first {
			if p.scan <= 0 {
				p.res.more = p.res.more || l.State == keyspace.Ready
				return
			}
			p.scan--
		}
		wanted, known := p.judge(next.Queue, int(next.Offset))
		lost := int(next.Offset) < p.m.begin(p.Topic, int(next.Queue)).kept
		switch {
		case l.Attempt >= p.g.MaxAttempts:
			p.m.useUp(next)
		case !lost && !known:
			p.unjudged = true
			return
		case lost, !wanted:
			p.m.settle(next)
		case p.atLimit(next.Queue):
			p.res.full = true
			return
		default:
			p.deliver(next, l)
			p.had = append(p.had, next)
		}
	}
}

// newOf delivers messages of a queue for the first time, and reports whether the pop is at
// its end.
func (p *modelPopping) newOf(q int) bool {
	s, queue := p.s, mq.QueueID(q)
	s.progress[q] = max(s.progress[q], p.m.begin(p.Topic, q).min)
	if s.progress[q] >= len(p.queues[q]) {
		return false
	}
	if p.scan <= 0 {
		p.res.more = true
		return true
	}
	if !p.Chosen && len(p.Tags) == 0 && p.atLimit(queue) {
		p.res.full = true
		return false
	}
	p.pass(q)
	for s.progress[q] < len(p.queues[q]) && !p.full() {
		if p.scan <= 0 {
			p.res.more = true
			return true
		}
		p.scan--
		wanted, known := p.judge(queue, s.progress[q])
		if !known {
			p.unjudged = true
			break
		}
		if !wanted {
			s.progress[q]++
			continue
		}
		ref := keyspace.Ref{Sub: keyspace.Sub{Group: p.Group, Topic: p.Topic}, Queue: queue, Offset: mq.QueueOffset(s.progress[q])}
		if slices.ContainsFunc(p.m.lane(ref), func(r keyspace.Ref) bool { return !slices.Contains(p.had, r) }) {
			s.leases[ref] = &keyspace.Lease{State: keyspace.Parked}
			s.progress[q]++
			continue
		}
		if p.atLimit(queue) {
			p.res.full = true
			break
		}
		s.progress[q]++
		p.had = append(p.had, ref)
		p.deliver(ref, &keyspace.Lease{First: p.Time})
		p.pass(q)
	}
	return p.full()
}

// pass goes past what was judged before the pop and is not wanted: it need not be read.
func (p *modelPopping) pass(q int) {
	for p.Chosen && p.s.progress[q] < len(p.queues[q]) {
		if wanted, known := p.judge(mq.QueueID(q), p.s.progress[q]); wanted || !known {
			return
		}
		p.s.progress[q]++
	}
}

// skipped says whether a pop that begins behind the redelivery `after` leaves out
// one behind its own After that is for it, or that is used up.
func (m *model) skipped(c command.SelectPop, after uint64) bool {
	s := m.subs[keyspace.Sub{Group: c.Group, Topic: c.Topic}]
	if s == nil {
		return false
	}
	for _, ref := range s.in(keyspace.Ready) {
		l, tag := s.leases[ref], m.topics[c.Topic][ref.Queue][ref.Offset].tag
		if l.When > c.After && l.When <= after && (len(c.Tags) == 0 || slices.Contains(c.Tags, tag) || l.Attempt >= m.groups[c.Group].MaxAttempts) {
			return true
		}
		if l.When > c.After && l.When <= after && m.inLane(ref) {
			return true // wanted or not
		}
	}
	return false
}

// state is everything of a sub, for comparison.
func (m *model) state(c command.SelectPop) string {
	s := m.subs[keyspace.Sub{Group: c.Group, Topic: c.Topic}]
	if s == nil {
		return "none"
	}
	leases := map[keyspace.Ref]keyspace.Lease{}
	for ref, l := range s.leases {
		leases[ref] = *l
	}
	progress := make([]int, len(m.topics[c.Topic]))
	for i := range progress {
		progress[i] = m.begin(c.Topic, i).min // not recorded before something is delivered
		if i < len(s.progress) {
			progress[i] = max(progress[i], s.progress[i])
		}
	}
	for len(progress) > 0 && progress[len(progress)-1] == 0 {
		progress = progress[:len(progress)-1] // of queues that were added, maybe
	}
	return fmt.Sprint(progress, leases) // in the order of their keys
}

// modelTurn is the finalizer of SplitMix64: part of what records mean.
func modelTurn(index uint64) uint64 {
	index = (index ^ index>>30) * 0xbf58476d1ce4e5b9
	index = (index ^ index>>27) * 0x94d049bb133111eb
	return index ^ index>>31
}

// in lists the messages in a state, oldest first.
func (s *modelSub) in(state keyspace.LeaseState) []keyspace.Ref {
	var refs []keyspace.Ref
	for ref, l := range s.leases {
		if l.State == state {
			refs = append(refs, ref)
		}
	}
	slices.SortFunc(refs, func(a, b keyspace.Ref) int {
		return cmp.Or(cmp.Compare(s.leases[a].When, s.leases[b].When), compareRefs(a, b))
	})
	return refs
}

func compareRefs(a, b keyspace.Ref) int {
	return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Topic, b.Topic),
		cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.Offset, b.Offset))
}

func (m *model) lease(sub keyspace.Sub, r command.LeaseRef) (*modelSub, keyspace.Ref, *keyspace.Lease) {
	ref := keyspace.Ref{Sub: sub, Queue: r.Queue, Offset: r.Offset}
	s := m.subs[sub]
	if s == nil || s.leases[ref] == nil || s.leases[ref].PopID != r.PopID {
		return nil, ref, nil
	}
	return s, ref, s.leases[ref]
}

func (m *model) ack(sub keyspace.Sub, r command.LeaseRef) bool {
	_, ref, l := m.lease(sub, r)
	if l == nil {
		return false
	}
	m.settle(ref)
	return true
}

func (m *model) end(ref keyspace.Ref, l *keyspace.Lease) {
	l.Try = 0
	if l.Attempt >= m.groups[ref.Group].MaxAttempts {
		m.useUp(ref)
		return
	}
	m.rest(ref, l)
}

func (m *model) change(sub keyspace.Sub, c command.LeaseChange, now int64) bool {
	_, ref, l := m.lease(sub, c.LeaseRef)
	if l == nil || l.State == keyspace.UsedUp || l.Nacked && c.Reason == mq.Renew {
		return false
	}
	if c.Reason == mq.GiveBack && l.Nacked {
		return true
	}
	if c.Reason == mq.Suspend && !l.Nacked {
		l.Attempt--
	}
	l.Nacked = l.Nacked || c.Reason == mq.Nack || c.Reason == mq.GiveBack || c.Reason == mq.Suspend
	limit := m.groups[sub.Group].MaxAttempts
	switch {
	case c.Reason == mq.GiveBack:
		l.Attempt--
		l.Try = 0
		m.rest(ref, l)
	case c.Invisible <= 0, c.Reason == mq.Nack && l.Attempt >= limit:
		m.end(ref, l)
	default:
		if l.Nacked {
			l.Try = 0
		}
		l.State, l.When = keyspace.Leased, modelVisibleAt(now, c.Invisible)
	}
	return true
}

func (m *model) expire(now int64, limit int) {
	type dueLease struct {
		ref keyspace.Ref
		l   *keyspace.Lease
	}
	var due []dueLease
	for _, s := range m.subs {
		for ref, l := range s.leases {
			if l.State == keyspace.Leased && l.When <= uint64(now) {
				due = append(due, dueLease{ref, l})
			}
		}
	}
	slices.SortFunc(due, func(a, b dueLease) int {
		return cmp.Or(cmp.Compare(a.l.When, b.l.When), compareRefs(a.ref, b.ref))
	})
	for _, d := range due[:min(len(due), limit)] {
		m.end(d.ref, d.l)
	}
}

// nextDue returns when the next lease ends, or -1.
func (m *model) nextDue() int64 {
	next := int64(-1)
	for _, s := range m.subs {
		for _, l := range s.leases {
			if l.State == keyspace.Leased && (next < 0 || int64(l.When) < next) {
				next = int64(l.When)
			}
		}
	}
	return next
}

// usedUp lists what waits for a dead-letter copy, in the order of the keys.
func (m *model) usedUp() (refs []keyspace.Ref) {
	for _, s := range m.subs {
		refs = append(refs, s.in(keyspace.UsedUp)...)
	}
	slices.SortFunc(refs, compareRefs)
	return refs
}

// backlogs returns what mq.Backlogs must.
func (m *model) backlogs(group mq.GroupID) []mq.Backlog {
	var list []mq.Backlog
	for sub, s := range m.subs {
		if sub.Group != group {
			continue
		}
		b := mq.Backlog{Topic: sub.Topic}
		for _, l := range s.leases {
			switch l.State {
			case keyspace.Leased:
				b.InFlight++
			case keyspace.Ready:
				b.Ready++
			case keyspace.UsedUp:
				b.UsedUp++
			case keyspace.Parked:
				b.Blocked++
			}
		}
		for i, q := range m.topics[sub.Topic] {
			progress := m.placed(sub).progress[i]
			if progress < 0 {
				continue
			}
			b.Ready += int64(len(q) - max(progress, m.begin(sub.Topic, i).min))
		}
		list = append(list, b)
	}
	slices.SortFunc(list, func(a, b mq.Backlog) int { return cmp.Compare(a.Topic, b.Topic) })
	return list
}

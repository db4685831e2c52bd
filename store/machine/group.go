package machine

import (
	"fmt"
	"slices"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
)

// A sub is what one group does with one topic.
type sub struct {
	id keyspace.Sub
	// progress is the next offset of each queue to deliver: loaded on first
	// use. Queues that were added since begin at their beginning.
	progress []mq.QueueOffset
	loaded   bool
	// unstarted: the group has only set offsets. Where it did not, its progress is
	// noProgress until it receives.
	unstarted bool

	// turn is there when the group receives by priority: then its redeliveries are
	// ordered by queue, too, and there are none of a queue below the sequence in
	// firstReady, where it is known; missing is 0.
	turn       *keyspace.Turn
	firstReady []uint64

	leased, ready, usedUp       int64
	parked                      int64
	lanes                       map[laneID]*lane      // of a group that is FIFO, and of lite topics
	tries                       map[uint64]*try       // by the hash of the attempt id; likewise
	leasedIn, readyIn, parkedIn []int32               // leased, ready and parked by queue; missing is 0
	usedUpIn                    map[mq.QueueID]usedUp // of the queues that have any
	usedUpQueues                []mq.QueueID          // the same queues, in order: there may be as many as lite topics
	// readyLow is not above the sequence of any redelivery, and readyLast not
	// below: the keys before are tombstones that no seek should have to step over.
	readyLow, readyLast uint64
	// passed says for a filter up to which sequence no redelivery is wanted. A
	// filter that is missing begins at the first.
	passed map[string]uint64
	// heldUp: a look or a pop left messages in a queue at its in-flight limit,
	// and no delivery has ended since.
	heldUp bool
}

// usedUp is how many used-up messages a queue has, and an offset below which it
// has none.
type usedUp struct {
	n   int64
	low mq.QueueOffset
}

// countUsedUp counts one more or one less.
func (m *Machine) countUsedUp(s *sub, queue mq.QueueID, offset mq.QueueOffset, n int64) {
	u, ok := s.usedUpIn[queue]
	switch {
	case !ok || n > 0 && offset < u.low:
		u.low = offset
	case n < 0 && offset == u.low:
		u.low++
	}
	u.n += n
	if u.n > 0 {
		if s.usedUpIn == nil {
			s.usedUpIn = map[mq.QueueID]usedUp{}
		}
		s.usedUpIn[queue] = u
		m.withUsedUp[s.id] = s
		if at, found := slices.BinarySearch(s.usedUpQueues, queue); !found {
			s.usedUpQueues = slices.Insert(s.usedUpQueues, at, queue)
		}
		return
	}
	if at, found := slices.BinarySearch(s.usedUpQueues, queue); found {
		s.usedUpQueues = slices.Delete(s.usedUpQueues, at, at+1)
	}
	if delete(s.usedUpIn, queue); len(s.usedUpIn) == 0 {
		delete(m.withUsedUp, s.id)
	}
}

// passedFilters bounds how many filters a sub remembers.
const passedFilters = 64

// pass notes that no redelivery up to seq is wanted by the filter.
func (s *sub) pass(filter []byte, seq uint64) {
	if _, ok := s.passed[string(filter)]; !ok {
		if s.passed == nil || len(s.passed) >= passedFilters {
			s.passed = map[string]uint64{}
		}
	}
	s.passed[string(filter)] = seq
}

// leasedOf returns how many messages of the queue are leased.
func (s *sub) leasedOf(queue mq.QueueID) int32 {
	if int(queue) < len(s.leasedIn) {
		return s.leasedIn[queue]
	}
	return 0
}

// allAtLimit reports whether every one of the topic's queues is at the limit.
func (s *sub) allAtLimit(limit int32, queues int) bool {
	if limit == 0 || len(s.leasedIn) < queues {
		return false
	}
	for _, n := range s.leasedIn {
		if n < limit {
			return false
		}
	}
	return true
}

// count counts n more records in a state: one more, or one less.
func (m *Machine) count(s *sub, state keyspace.LeaseState, ref keyspace.Ref, n int64) {
	queue := ref.Queue
	switch state {
	case keyspace.Leased:
		s.leased += n
		if queue.IsLite() {
			return
		}
		s.leasedIn = addIn(s.leasedIn, queue, n)
	case keyspace.Ready:
		s.ready += n
		if queue.IsLite() {
			return
		}
		s.readyIn = addIn(s.readyIn, queue, n)
	case keyspace.Parked:
		s.parked += n
		if queue.IsLite() {
			return
		}
		s.parkedIn = addIn(s.parkedIn, queue, n)
	case keyspace.UsedUp:
		s.usedUp += n
		m.countUsedUp(s, queue, ref.Offset, n)
	}
}

// addIn adds n to what there is of a queue.
func addIn(in []int32, queue mq.QueueID, n int64) []int32 {
	if missing := int(queue) + 1 - len(in); missing > 0 {
		in = append(in, make([]int32, missing)...)
	}
	in[queue] += int32(n)
	return in
}

// GroupVersion returns the version of the group that the shard knows; 0: none.
func (m *Machine) GroupVersion(id mq.GroupID) uint64 {
	if g := m.groups[id]; g != nil {
		return g.Version
	}
	return 0
}

// GroupName returns the name of the group that the shard knows by an id.
func (m *Machine) GroupName(id mq.GroupID) (name mq.Resource, known bool) {
	if g := m.groups[id]; g != nil {
		return g.Name, true
	}
	return mq.Resource{}, false
}

// GroupGone reports whether the group was deleted. Its id never comes back. It is
// called after Commit.
func (m *Machine) GroupGone(id mq.GroupID) (bool, error) {
	_, found, err := get(m.db, keyspace.AppendGoneGroupKey(nil, id), exists)
	return found, err
}

func groupNotFound(id mq.GroupID) error {
	return fmt.Errorf("group id %d: %w", id, mq.ErrGroupNotFound)
}

func (m *Machine) applyGroup(rec Record) error {
	c, err := command.DecodeGroup(rec.Payload)
	if err != nil {
		return err
	}
	if g := m.groups[c.ID]; g == nil {
		if err := m.Commit(); err != nil { // as in applyTopic
			return err
		}
		if gone, err := m.GroupGone(c.ID); gone || err != nil {
			return err
		}
	} else if g.Version >= c.Version {
		return nil
	}
	changed := m.ordered(c.ID) != c.FIFO
	for _, s := range m.byGroup[c.ID] {
		s.passed = nil // with a lower limit some are used up, wanted or not
	}
	m.groups[c.ID] = &c
	if changed {
		if err := m.setOrdered(&c); err != nil {
			return err
		}
	}
	m.key, m.val = keyspace.AppendGroupKey(m.key[:0], c.ID), c.Append(m.val[:0])
	return m.set(m.key, m.val)
}

func (m *Machine) applyGroupDelete(rec Record, res *Result) error {
	c, err := command.DecodeGroupDelete(rec.Payload)
	if err != nil {
		return err
	}
	m.key = keyspace.AppendGoneGroupKey(m.key[:0], c.ID)
	if err := m.set(m.key, nil); err != nil {
		return err
	}
	if m.groups[c.ID] == nil {
		res.Err = groupNotFound(c.ID)
		return nil
	}
	m.key = keyspace.AppendGroupKey(m.key[:0], c.ID)
	if err := m.del(m.key); err != nil {
		return err
	}
	delete(m.groups, c.ID)
	m.Effects.Gone = true
	return m.dropSubs(func(s keyspace.Sub) bool { return s.Group == c.ID })
}

// addSub makes room for what the group does with the topic.
func (m *Machine) addSub(id keyspace.Sub) *sub {
	s := &sub{id: id, readyLow: 1}
	m.subs[id] = s
	m.byGroup[id.Group] = append(m.byGroup[id.Group], s)
	m.byTopic[id.Topic] = append(m.byTopic[id.Topic], s)
	if m.ordered(id.Group) {
		m.fifo[id.Topic] = append(m.fifo[id.Topic], s)
	}
	return s
}

// removeSub undoes addSub.
func (m *Machine) removeSub(id keyspace.Sub) {
	delete(m.subs, id)
	delete(m.withUsedUp, id)
	list := slices.DeleteFunc(m.byGroup[id.Group], func(s *sub) bool { return s.id == id })
	if m.byGroup[id.Group] = list; len(list) == 0 {
		delete(m.byGroup, id.Group)
	}
	list = slices.DeleteFunc(m.byTopic[id.Topic], func(s *sub) bool { return s.id == id })
	if m.byTopic[id.Topic] = list; len(list) == 0 {
		delete(m.byTopic, id.Topic)
	}
	fifo := slices.DeleteFunc(m.fifo[id.Topic], func(s *sub) bool { return s.id == id })
	if m.fifo[id.Topic] = fifo; len(fifo) == 0 {
		delete(m.fifo, id.Topic)
	}
}

// sub returns what the group does with the topic, and fixes where it starts on
// the queues that exist when it asks for the first time.
func (m *Machine) sub(g *command.Group, t *topic) (*sub, error) {
	if err := m.loadQueues(t); err != nil {
		return nil, err
	}
	id := keyspace.Sub{Group: g.ID, Topic: t.ID}
	if s := m.subs[id]; s != nil {
		if err := m.loadProgress(s, t); err != nil || !s.unstarted {
			return s, err
		}
		return s, m.startRest(s, g, t)
	}
	// All starts are looked up before the first effect: the look-up commits what
	// went before, and a commit must never hold half a command.
	starts := make([]mq.QueueOffset, len(t.queues))
	for i := range starts {
		start, err := m.start(g, t, mq.QueueID(i))
		if err != nil {
			return nil, err
		}
		starts[i] = start
	}
	s := m.addSub(id)
	s.loaded, s.progress = true, make([]mq.QueueOffset, len(starts))
	m.key = keyspace.AppendSubKey(m.key[:0], id)
	if err := m.set(m.key, nil); err != nil {
		return nil, err
	}
	for i, start := range starts {
		if start == 0 {
			continue
		}
		if err := m.setProgress(s, mq.QueueID(i), start); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (m *Machine) loadProgress(s *sub, t *topic) error {
	if !s.loaded {
		s.progress = make([]mq.QueueOffset, len(t.queues))
		for i := range s.progress {
			m.key = keyspace.AppendProgressKey(m.key[:0], s.id, mq.QueueID(i))
			offset, found, err := get(m.db, m.key, keyspace.DecodeOffset)
			if err != nil {
				return err
			}
			if !found && s.unstarted {
				offset = noProgress
			}
			s.progress[i] = offset
		}
		s.loaded = true
	}
	for len(s.progress) < len(t.queues) {
		added := mq.QueueOffset(0)
		if s.unstarted {
			added = noProgress
		}
		s.progress = append(s.progress, added)
	}
	return nil
}

func (m *Machine) setProgress(s *sub, queue mq.QueueID, offset mq.QueueOffset) error {
	s.progress[queue] = offset
	m.key = keyspace.AppendProgressKey(m.key[:0], s.id, queue)
	m.val = keyspace.AppendOffset(m.val[:0], offset)
	return m.set(m.key, m.val)
}

// start returns where a new group begins to read the queue.
func (m *Machine) start(g *command.Group, t *topic, queue mq.QueueID) (mq.QueueOffset, error) {
	q := t.queues[queue]
	switch g.Start {
	case mq.StartLatest:
		return q.next, nil
	case mq.StartTimestamp:
		return m.offsetAt(keyspace.Queue{Topic: t.ID, Queue: queue}, q, g.StartTime)
	}
	return q.min, nil
}

// offsetAt returns the first offset stored at or after the time. Store times
// never decrease along a queue, so it halves the range.
func (m *Machine) offsetAt(id keyspace.Queue, q queue, at int64) (mq.QueueOffset, error) {
	if err := m.Commit(); err != nil {
		return 0, err
	}
	low, high := q.min, q.next
	for low < high {
		mid := low + (high-low)/2
		e, found, err := m.entry(id, mid)
		if err != nil {
			return 0, err
		}
		if !found {
			return 0, missingEntry(id, mid)
		}
		if e.StoreTime < at {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return low, nil
}

// entry reads one ConsumeQueue entry of what was committed. Its Tag is a copy.
func (m *Machine) entry(id keyspace.Queue, offset mq.QueueOffset) (keyspace.Entry, bool, error) {
	return entry(m.db, id, offset)
}

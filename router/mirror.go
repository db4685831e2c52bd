package router

import (
	"errors"
	"fmt"

	"github.com/perigee-mq/perigee/mq"
)

// Why a Mirror does not take what it is given. It is unchanged then.
var (
	// ErrOtherLife: it is of other metadata than what the mirror has.
	ErrOtherLife = errors.New("metadata of another life")
	// ErrOlder: it is older than what the mirror has.
	ErrOlder = errors.New("metadata older than what is known")
	// ErrNotNext: the changes do not begin where the mirror ends, or do not fit it. The
	// whole state does.
	ErrNotNext = errors.New("changes that do not follow what is known")
)

// A State is all of the metadata at one revision. Dead-letter topics follow from their
// groups and are not among the topics.
type State struct {
	Life      string
	Revision  uint64
	LastTopic mq.TopicID
	LastGroup mq.GroupID
	Shards    []Shard
	Topics    []*mq.Topic
	Groups    []*mq.Group
}

// A Delta leads from one revision of the metadata to a later one. The other fields are
// those of the later one, as far as they are other than in the earlier one. What came and
// went in between is not named: it follows from the last ids.
type Delta struct {
	From, To   uint64
	LastTopic  mq.TopicID
	LastGroup  mq.GroupID
	Shards     []Shard
	Topics     []*mq.Topic
	Groups     []*mq.Group
	GoneTopics []mq.TopicID // of dead-letter topics: follow from the groups
	GoneGroups []mq.GroupID
}

// A Snapshot is what a view knew at one revision.
type Snapshot struct{ s *snapshot }

// Snapshot returns what the view knows now.
func (v *View) Snapshot() Snapshot { return Snapshot{v.current.Load()} }

// Closed returns a channel that is closed when there will be no other snapshot.
func (v *View) Closed() <-chan struct{} { return v.closed }

// Life is as in View.
func (p Snapshot) Life() string { return p.s.life }

// Revision is as in View.
func (p Snapshot) Revision() uint64 { return p.s.revision }

// LastIDs is as in View.
func (p Snapshot) LastIDs() (mq.TopicID, mq.GroupID) { return p.s.lastTopic, p.s.lastGroup }

// Superseded returns a channel that is closed when the view has the next snapshot.
func (p Snapshot) Superseded() <-chan struct{} { return p.s.superseded }

// State returns everything, in no order of topics and groups.
func (p Snapshot) State() State {
	s := State{
		Life: p.s.life, Revision: p.s.revision, LastTopic: p.s.lastTopic, LastGroup: p.s.lastGroup, Shards: p.s.shards,
		Topics: make([]*mq.Topic, 0, p.s.topics.size-p.s.groups.size), Groups: make([]*mq.Group, 0, p.s.groups.size),
	}
	for r, t := range p.s.topics.all() {
		if !isDeadLetter(r) {
			s.Topics = append(s.Topics, t)
		}
	}
	for _, g := range p.s.groups.all() {
		s.Groups = append(s.Groups, g)
	}
	return s
}

// Since returns what leads here from an earlier snapshot of the same view.
func (p Snapshot) Since(old Snapshot) Delta {
	d := Delta{From: old.s.revision, To: p.s.revision, LastTopic: p.s.lastTopic, LastGroup: p.s.lastGroup}
	for _, c := range p.s.shardsSince(old.s) {
		d.Shards = append(d.Shards, *c.Shard)
	}
	for id, t := range p.s.topicIDs.differences(old.s.topicIDs) {
		switch {
		case t == nil && !isDeadLetter(old.s.topicIDs.get(id).Resource):
			d.GoneTopics = append(d.GoneTopics, id)
		case t != nil && !isDeadLetter(t.Resource):
			d.Topics = append(d.Topics, t)
		}
	}
	for id, g := range p.s.groupIDs.differences(old.s.groupIDs) {
		if g == nil {
			d.GoneGroups = append(d.GoneGroups, id)
		} else {
			d.Groups = append(d.Groups, g)
		}
	}
	return d
}

// A Mirror is a View that is fed with what a router elsewhere knows. It only ever shows
// what that router has shown, and never goes back. One goroutine at a time may feed it.
type Mirror struct{ View }

// NewMirror returns a mirror that knows nothing: its revision is 0.
func NewMirror() *Mirror {
	m := &Mirror{View: View{closed: make(chan struct{})}}
	m.current.Store(newSnapshot())
	return m
}

// Close ends the watches. The mirror must not be fed any more.
func (m *Mirror) Close() { close(m.closed) }

// Fits returns nil when metadata of that life and revision may be taken: ErrOtherLife or
// ErrOlder when not.
func (m *Mirror) Fits(life string, revision uint64) error {
	now := m.current.Load()
	switch {
	case now.revision > 0 && life != now.life:
		return fmt.Errorf("%w: %s, and %s is known", ErrOtherLife, life, now.life)
	case revision < now.revision:
		return fmt.Errorf("%w: revision %d, and %d is known", ErrOlder, revision, now.revision)
	}
	return nil
}

// Replace shows a state in place of what is known.
func (m *Mirror) Replace(state State) error {
	if err := m.Fits(state.Life, state.Revision); err != nil {
		return err
	}
	now := m.current.Load()
	if state.Revision == now.revision {
		return nil
	}
	next, err := now.replacement(state)
	if err != nil {
		return err
	}
	return m.show(now, next)
}

// replacement returns a snapshot of the state as a later version of s.
func (s *snapshot) replacement(state State) (*snapshot, error) {
	next := &s.edit().next
	next.life, next.revision, next.lastTopic, next.lastGroup = state.Life, state.Revision, state.LastTopic, state.LastGroup
	next.topics, next.topicIDs = s.topics.empty(), s.topicIDs.empty()
	next.groups, next.groupIDs = s.groups.empty(), s.groupIDs.empty()
	next.shards = nil
	for _, shard := range state.Shards {
		next.shards = withShard(next.shards, shard)
	}
	for _, t := range state.Topics {
		// What has not changed stays the same value, so that no watch reports it.
		if old := s.topicIDs.get(t.ID); old != nil && old.Version == t.Version {
			t = old
		}
		if err := next.addMirrored(t); err != nil {
			return nil, err
		}
	}
	for _, g := range state.Groups {
		deadLetter := deadLetterTopic(g)
		if old := s.groupIDs.get(g.ID); old != nil && old.Version == g.Version {
			g, deadLetter = old, s.topicIDs.get(old.DeadLetter)
		}
		if next.groupIDs.get(g.ID) != nil || next.groups.get(g.Resource) != nil {
			return nil, fmt.Errorf("%w: group %s comes twice", ErrNotNext, g.Resource)
		}
		next.groups.add(g.Resource, g)
		next.groupIDs.add(g.ID, g)
		if err := next.addMirrored(deadLetter); err != nil {
			return nil, err
		}
	}
	return next, nil
}

func (s *snapshot) addMirrored(t *mq.Topic) error {
	if s.topicIDs.get(t.ID) != nil || s.topics.get(t.Resource) != nil {
		return fmt.Errorf("%w: topic %s comes twice", ErrNotNext, t.Resource)
	}
	s.topics.add(t.Resource, t)
	s.topicIDs.add(t.ID, t)
	return nil
}

// Apply shows what changes lead to.
func (m *Mirror) Apply(d Delta) error {
	now := m.current.Load()
	if d.From != now.revision || d.To <= d.From || d.LastTopic < now.lastTopic || d.LastGroup < now.lastGroup {
		return fmt.Errorf("%w: from revision %d to %d, and %d is known", ErrNotNext, d.From, d.To, now.revision)
	}
	e := now.edit()
	e.next.revision, e.next.lastTopic, e.next.lastGroup = d.To, d.LastTopic, d.LastGroup
	for _, s := range d.Shards {
		e.next.shards = withShard(e.next.shards, s)
	}
	for _, id := range d.GoneTopics {
		t := e.next.topicIDs.get(id)
		if t == nil || isDeadLetter(t.Resource) {
			return fmt.Errorf("%w: topic %d is gone, and was not known", ErrNotNext, id)
		}
		e.hideTopic(t.Resource, id)
	}
	for _, id := range d.GoneGroups {
		g := e.next.groupIDs.get(id)
		if g == nil {
			return fmt.Errorf("%w: group %d is gone, and was not known", ErrNotNext, id)
		}
		e.hideGroup(g)
	}
	for _, t := range d.Topics {
		if !e.next.fitsTopic(t) {
			return fmt.Errorf("%w: topic %s, whose id or name is another's", ErrNotNext, t.Resource)
		}
		e.showTopic(t)
	}
	for _, g := range d.Groups {
		before, named := e.next.groupIDs.get(g.ID), e.next.groups.get(g.Resource)
		if before != named || !e.next.fitsTopic(deadLetterTopic(g)) {
			return fmt.Errorf("%w: group %s, whose id or name is another's", ErrNotNext, g.Resource)
		}
		e.showGroup(g)
	}
	return m.show(now, &e.next)
}

// fitsTopic reports whether t is new, or another version of one that is there.
func (s *snapshot) fitsTopic(t *mq.Topic) bool {
	return s.topicIDs.get(t.ID) == s.topics.get(t.Resource)
}

func (m *Mirror) show(now, next *snapshot) error {
	if err := next.checkCounters(); err != nil {
		return fmt.Errorf("%w: %w", ErrNotNext, err)
	}
	m.current.Store(next)
	close(now.superseded)
	return nil
}

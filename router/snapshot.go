package router

import (
	"cmp"
	"slices"
	"strings"

	"github.com/perigee-mq/perigee/mq"
)

// A snapshot is everything the router knows at one revision. It is never
// changed once it is published.
type snapshot struct {
	revision  uint64
	lastTopic mq.TopicID // greatest id ever handed out, dead-letter topics included
	lastGroup mq.GroupID
	life      string  // of the metadata; empty: it was not given one yet
	by        string  // mark of the commit, by which its router knows it; empty with a backend that is not shared
	behind    string  // mark of the commit before it
	shards    []Shard // written down, in the order of their names; never changed in place

	// The topic tables hold the dead-letter topics too. No other topic has a
	// name with mq.DeadLetterPrefix.
	topics   *table[mq.Resource, mq.Topic]
	topicIDs *table[mq.TopicID, mq.Topic]
	groups   *table[mq.Resource, mq.Group]
	groupIDs *table[mq.GroupID, mq.Group]

	// superseded is closed after the next snapshot was published.
	superseded chan struct{}
}

func newSnapshot() *snapshot {
	return &snapshot{
		topics:     newTable[mq.Resource, mq.Topic](),
		topicIDs:   newTable[mq.TopicID, mq.Topic](),
		groups:     newTable[mq.Resource, mq.Group](),
		groupIDs:   newTable[mq.GroupID, mq.Group](),
		superseded: make(chan struct{}),
	}
}

// deadLetterTopic derives the topic that takes the used-up messages of g.
func deadLetterTopic(g *mq.Group) *mq.Topic {
	return &mq.Topic{
		ID:         g.DeadLetter,
		Resource:   g.Resource.DeadLetterTopic(),
		Type:       mq.TopicNormal,
		Permission: mq.PermReadWrite,
		Shards:     []mq.ShardQueues{{Shard: g.DeadLetterShard, Read: 1, Write: 1}},
		Version:    g.Version,
	}
}

// everywhere returns a dead-letter topic on every shard there is: used-up messages are
// copied where they died. Other topics, and nil, are returned as they are.
func (s *snapshot) everywhere(t *mq.Topic) *mq.Topic {
	if t == nil || !isDeadLetter(t.Resource) || len(s.shards) == 0 {
		return t
	}
	all := *t
	for _, sh := range s.shards {
		if _, err := t.On(sh.Name); err != nil && sh.State != ShardRemoved {
			all.Shards = append(slices.Clip(all.Shards), mq.ShardQueues{Shard: sh.Name, Read: 1, Write: 1})
		}
	}
	if len(all.Shards) == len(t.Shards) {
		return t
	}
	slices.SortFunc(all.Shards, func(a, b mq.ShardQueues) int { return strings.Compare(a.Shard, b.Shard) })
	return &all
}

// A Selection says what to list: one namespace or all, and with Prefix only
// what begins with it.
type Selection struct {
	Namespace     string // ignored with AllNamespaces; empty is the default one
	AllNamespaces bool
	Prefix        string // of the name
	DeadLetters   bool   // list the dead-letter topics of groups too
	SystemGroups  bool   // list the groups of the server itself too
}

func (s Selection) has(r mq.Resource) bool {
	return (s.AllNamespaces || r.Namespace == s.Namespace) && strings.HasPrefix(r.Name, s.Prefix)
}

func compareResources(a, b mq.Resource) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

func isDeadLetter(r mq.Resource) bool {
	return strings.HasPrefix(r.Name, mq.DeadLetterPrefix)
}

func (s *snapshot) listTopics(sel Selection) []*mq.Topic {
	var list []*mq.Topic
	for r, t := range s.topics.all() {
		if sel.has(r) && (sel.DeadLetters || !isDeadLetter(r)) {
			list = append(list, t)
		}
	}
	slices.SortFunc(list, func(a, b *mq.Topic) int { return compareResources(a.Resource, b.Resource) })
	return list
}

func (s *snapshot) listGroups(sel Selection) []*mq.Group {
	var list []*mq.Group
	for r, g := range s.groups.all() {
		if sel.has(r) && (sel.SystemGroups || !isSystemGroup(r)) {
			list = append(list, g)
		}
	}
	slices.SortFunc(list, func(a, b *mq.Group) int { return compareResources(a.Resource, b.Resource) })
	return list
}

// An edit prepares the snapshot behind the published one, and the entries
// that make it durable.
type edit struct {
	next    snapshot
	entries []Entry
}

func (s *snapshot) edit() *edit {
	e := &edit{next: *s}
	e.next.revision++
	e.next.superseded = make(chan struct{})
	return e
}

func (e *edit) putTopic(t *mq.Topic) {
	e.entries = append(e.entries, Entry{Key: topicKey(t.Resource), Value: encodeTopic(t)})
	e.showTopic(t)
}

func (e *edit) showTopic(t *mq.Topic) {
	e.next.topics = e.next.topics.with(t.Resource, t)
	e.next.topicIDs = e.next.topicIDs.with(t.ID, t)
}

func (e *edit) deleteTopic(t *mq.Topic) {
	e.entries = append(e.entries, Entry{Key: topicKey(t.Resource)})
	e.hideTopic(t.Resource, t.ID)
}

func (e *edit) hideTopic(r mq.Resource, id mq.TopicID) {
	e.next.topics = e.next.topics.without(r)
	e.next.topicIDs = e.next.topicIDs.without(id)
}

func (e *edit) putGroup(g *mq.Group) {
	e.entries = append(e.entries, Entry{Key: groupKey(g.Resource), Value: encodeGroup(g)})
	e.showGroup(g)
}

func (e *edit) showGroup(g *mq.Group) {
	e.next.groups = e.next.groups.with(g.Resource, g)
	e.next.groupIDs = e.next.groupIDs.with(g.ID, g)
	e.showTopic(deadLetterTopic(g))
}

func (e *edit) deleteGroup(g *mq.Group) {
	e.entries = append(e.entries, Entry{Key: groupKey(g.Resource)})
	e.hideGroup(g)
}

func (e *edit) hideGroup(g *mq.Group) {
	e.next.groups = e.next.groups.without(g.Resource)
	e.next.groupIDs = e.next.groupIDs.without(g.ID)
	e.hideTopic(g.Resource.DeadLetterTopic(), g.DeadLetter)
}

// batch returns the entries of the edit, the counters among them.
func (e *edit) batch() []Entry {
	return append(e.entries, Entry{Key: countersKey, Value: encodeCounters(&e.next)})
}

package router

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/perigee-mq/perigee/mq"
)

// How the topics of a shard leave it. ADR 12 says why it goes in these steps:
//
//	open     → closing  the router, when the shard is drained
//	closing  → closed   the router, when the shard has said that it refuses sends
//	closed   → none     the router, when the shard is removed
//	closing  → open     the router, when the shard is made active again
//
// Each step of a topic is one version of it, and a commit has some topics at a time: it is
// one transaction of the backend, which bounds those. A call that ends on the way is
// repeated, and goes on where the one before has ended.

// perCommit is how many topics or groups one commit changes at most. etcd takes 128 entries
// by default.
const perCommit = 64

// inCommits calls step, which changes up to perCommit topics or groups and says how many it
// has changed, until it has changed none.
func (r *Router) inCommits(ctx context.Context, step func(now *snapshot, e *edit) (int, error)) error {
	for {
		changed := 0
		err := r.change(ctx, func(now *snapshot, e *edit) (err error) {
			changed, err = step(now, e)
			return err
		})
		if err != nil || changed == 0 {
			return err
		}
	}
}

// placedOn returns up to perCommit topics on a shard for which want returns true, those of
// dead letters aside, in the order of their ids.
func (s *snapshot) placedOn(shard string, want func(*mq.Topic, mq.ShardQueues) bool) []*mq.Topic {
	var list []*mq.Topic
	for r, t := range s.topics.all() {
		if on, err := t.On(shard); err == nil && !isDeadLetter(r) && want(t, on) {
			list = append(list, t)
		}
	}
	slices.SortFunc(list, func(a, b *mq.Topic) int { return cmp.Compare(a.ID, b.ID) })
	return list[:min(len(list), perCommit)]
}

// A successor chooses shards for topics that leave one: of those that take new topics the
// one with the fewest.
type successor map[string]int

func (r *Router) successors(now *snapshot, leaving string) successor {
	names, _ := r.places(now) // there may be none
	topics := successor{}
	for _, name := range names {
		if name != leaving {
			topics[name] = 0
		}
	}
	for r, t := range now.topics.all() {
		if isDeadLetter(r) {
			continue
		}
		for _, s := range t.Shards {
			if _, takes := topics[s.Shard]; takes {
				topics[s.Shard]++
			}
		}
	}
	return topics
}

// of returns a shard that the topic is not on; empty when there is none.
func (s successor) of(t *mq.Topic) string {
	best := ""
	for _, name := range slices.Sorted(maps.Keys(s)) {
		if _, err := t.On(name); err != nil && (best == "" || s[name] < s[best]) {
			best = name
		}
	}
	if best != "" {
		s[best]++
	}
	return best
}

// openShards counts the shards of the topic that are open, but for one.
func openShards(t *mq.Topic, but string) (n int) {
	for _, s := range t.Shards {
		if s.Use == mq.ShardOpen && s.Shard != but {
			n++
		}
	}
	return n
}

// replaced returns the next version of a topic, in which its places are written down when
// their order matters, and which may be changed.
func replaced(t *mq.Topic) *mq.Topic {
	next := new(*t)
	next.Version++
	next.Placed = next.Version
	next.Shards = slices.Clone(t.Shards)
	next.Places = placesOf(t)
	return next
}

// placesOf returns the places of the message groups of a topic; none when it has none.
func placesOf(t *mq.Topic) []mq.Place {
	if len(t.Places) > 0 || !t.Ordered() {
		return slices.Clone(t.Places)
	}
	return openQueues(t)
}

// openQueues returns the writable queues of the open shards, in their order.
func openQueues(t *mq.Topic) []mq.Place {
	var list []mq.Place
	for _, s := range t.Shards {
		for q := range s.Writable() {
			list = append(list, mq.Place{Shard: s.Shard, Queue: mq.QueueID(q)})
		}
	}
	return list
}

// extend gives the topic, which is a new version, queues on another shard.
func extend(t *mq.Topic, shard string, like mq.ShardQueues) {
	t.Shards = append(t.Shards, mq.ShardQueues{Shard: shard, Read: like.Read, Write: like.Write, Since: t.Version})
	slices.SortFunc(t.Shards, func(a, b mq.ShardQueues) int { return strings.Compare(a.Shard, b.Shard) })
}

// use says what the topic, which is a new version, does with a shard from now on.
func use(t *mq.Topic, shard string, u mq.ShardUse) {
	for i := range t.Shards {
		if t.Shards[i].Shard == shard {
			t.Shards[i].Use, t.Shards[i].Since = u, t.Version
		}
	}
}

// vacate gives the message groups that lie on a shard to the open queues that have the
// fewest places. No other one moves.
func vacate(t *mq.Topic, shard string) {
	open := openQueues(t)
	taken := map[mq.Place]int{}
	for _, p := range t.Places {
		taken[p]++
	}
	for i, p := range t.Places {
		if p.Shard != shard || len(open) == 0 {
			continue
		}
		best := open[0]
		for _, q := range open[1:] {
			if taken[q] < taken[best] {
				best = q
			}
		}
		t.Places[i] = best
		taken[best]++
	}
}

// leaveShard makes the topics of a shard go elsewhere, and the groups whose dead letters
// are at home there.
func (r *Router) leaveShard(ctx context.Context, shard string) error {
	stuck := func(t *mq.Topic, s successor) bool { return openShards(t, shard) == 0 && s.of(t) == "" }
	err := r.inCommits(ctx, func(now *snapshot, e *edit) (int, error) {
		if now.shard(shard) != ShardDraining {
			return 0, nil // somebody has made it active meanwhile
		}
		successors := r.successors(now, shard)
		list := now.placedOn(shard, func(t *mq.Topic, on mq.ShardQueues) bool {
			return on.Use == mq.ShardOpen && !stuck(t, maps.Clone(successors))
		})
		for _, t := range list {
			on, _ := t.On(shard)
			next := replaced(t)
			use(next, shard, mq.ShardClosing)
			if other := successors.of(next); other != "" {
				extend(next, other, on)
			}
			e.putTopic(next)
		}
		return len(list), nil
	})
	if err != nil {
		return err
	}
	return r.moveHomes(ctx, shard)
}

// moveHomes gives the groups whose dead letters are at home on a shard another home. What
// is on the shard is read there.
func (r *Router) moveHomes(ctx context.Context, shard string) error {
	return r.inCommits(ctx, func(now *snapshot, e *edit) (int, error) {
		homes, _ := r.places(now)
		homes = slices.DeleteFunc(slices.Clone(homes), func(name string) bool { return name == shard })
		if len(homes) == 0 {
			return 0, nil
		}
		var list []*mq.Group
		for _, g := range now.groups.all() {
			if g.DeadLetterShard == shard {
				list = append(list, g)
			}
		}
		slices.SortFunc(list, func(a, b *mq.Group) int { return cmp.Compare(a.ID, b.ID) })
		list = list[:min(len(list), perCommit)]
		for _, g := range list {
			next := new(*g)
			next.Version++
			next.DeadLetterShard = homes[int(uint64(g.ID)%uint64(len(homes)))]
			e.putGroup(next)
		}
		return len(list), nil
	})
}

// returnTo opens the topics of a shard again that have not left it. One whose message
// groups lie elsewhere by now stays closed: they must not come back before what they have
// left there is settled.
func (r *Router) returnTo(ctx context.Context, shard string) error {
	return r.inCommits(ctx, func(now *snapshot, e *edit) (int, error) {
		if now.shard(shard) != ShardActive {
			return 0, nil // somebody drains it again
		}
		list := now.placedOn(shard, func(t *mq.Topic, on mq.ShardQueues) bool {
			return on.Use == mq.ShardClosing || on.Use == mq.ShardClosed && len(t.Places) == 0
		})
		for _, t := range list {
			next := replaced(t)
			use(next, shard, mq.ShardOpen)
			e.putTopic(next)
		}
		return len(list), nil
	})
}

// A ClosedTopic is a topic of which a shard refuses what is sent by an earlier version than
// Placed, as mq.Topic has it.
type ClosedTopic struct {
	ID     mq.TopicID
	Placed uint64
}

// ShardClosed notes that a shard refuses what is sent to topics that are closing on it, for
// good: what was accepted before lies there. From then on their message groups lie
// elsewhere. A topic that is not closing there any more, or since a later version, is passed over.
// Where the shard is draining, and whoever has drained it was interrupted, it goes on with that.
func (r *Router) ShardClosed(ctx context.Context, shard string, closed []ClosedTopic) error {
	if now := r.current.Load(); now.shard(shard) == ShardDraining && r.Leaving(shard).Open > 0 {
		if err := r.leaveShard(ctx, shard); err != nil {
			return err
		}
	}
	placed := make(map[mq.TopicID]uint64, len(closed))
	for _, c := range closed {
		placed[c.ID] = c.Placed
	}
	return r.inCommits(ctx, func(now *snapshot, e *edit) (int, error) {
		list := now.placedOn(shard, func(t *mq.Topic, on mq.ShardQueues) bool {
			return on.Use == mq.ShardClosing && placed[t.ID] >= on.Since && openShards(t, shard) > 0
		})
		for _, t := range list {
			next := replaced(t)
			use(next, shard, mq.ShardClosed)
			vacate(next, shard)
			e.putTopic(next)
		}
		return len(list), nil
	})
}

// dropShard takes a shard out of the topics that are closed on it; with lose out of all
// others, too, whose message groups lie elsewhere then.
func (r *Router) dropShard(ctx context.Context, shard string, lose bool) error {
	if err := r.current.Load().droppable(r, shard, lose); err != nil {
		return err // nothing is changed
	}
	if err := r.moveHomes(ctx, shard); err != nil {
		return err
	}
	return r.inCommits(ctx, func(now *snapshot, e *edit) (int, error) {
		if err := now.droppable(r, shard, lose); err != nil {
			return 0, err
		}
		successors := r.successors(now, shard)
		list := now.placedOn(shard, func(*mq.Topic, mq.ShardQueues) bool { return true })
		for _, t := range list {
			on, _ := t.On(shard)
			next := replaced(t)
			if on.Use == mq.ShardOpen || openShards(t, shard) == 0 {
				if other := successors.of(next); other != "" {
					extend(next, other, on)
				}
			}
			use(next, shard, mq.ShardClosed)
			vacate(next, shard)
			next.Shards = slices.DeleteFunc(next.Shards, func(s mq.ShardQueues) bool { return s.Shard == shard })
			e.putTopic(next)
		}
		return len(list), nil
	})
}

// droppable returns why a shard cannot be taken out of its topics.
func (s *snapshot) droppable(r *Router, shard string, lose bool) error {
	var first *mq.Topic
	n := 0
	successors := r.successors(s, shard)
	for name, t := range s.topics.all() {
		on, err := t.On(shard)
		if err != nil || isDeadLetter(name) || (on.Use == mq.ShardClosed || lose) && (openShards(t, shard) > 0 || maps.Clone(successors).of(t) != "") {
			continue
		}
		if n++; first == nil || compareResources(name, first.Resource) < 0 {
			first = t
		}
	}
	if n == 0 {
		return nil
	}
	return invalid("shard", shard, fmt.Sprintf("must have no topics to be removed but those that have left it: %d are on it, %s among them; "+
		"drain it first, and its node must be alive", n, first.Resource))
}

// spread gives a topic queues on every shard that takes new topics and that it is not on,
// and reports whether there was one. Message groups stay where they are.
func (r *Router) spread(now *snapshot, t *mq.Topic) (*mq.Topic, bool) {
	names, _ := r.places(now) // none: nothing to add
	var like mq.ShardQueues
	for _, s := range t.Shards {
		if s.Use == mq.ShardOpen || like.Shard == "" {
			like = s
		}
	}
	next := new(*t)
	next.Placed = next.Version
	next.Shards, next.Places = slices.Clone(t.Shards), placesOf(t)
	added := false
	for _, name := range names {
		if _, err := t.On(name); err != nil {
			extend(next, name, like)
			added = true
		}
	}
	if !added {
		return t, false
	}
	return next, true
}

// A Leaving counts the topics on a shard by what they do there, those of dead letters aside.
type Leaving struct {
	Open, Closing, Closed int
}

// Leaving returns how far the topics of a shard have left it.
func (v *View) Leaving(shard string) (l Leaving) {
	for r, t := range v.current.Load().topics.all() {
		on, err := t.On(shard)
		switch {
		case err != nil || isDeadLetter(r):
		case on.Use == mq.ShardOpen:
			l.Open++
		case on.Use == mq.ShardClosing:
			l.Closing++
		default:
			l.Closed++
		}
	}
	return l
}

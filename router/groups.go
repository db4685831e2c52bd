package router

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/perigee-mq/perigee/mq"
)

// A GroupSpec describes a consumer group to create.
type GroupSpec struct {
	mq.Resource
	FIFO  bool
	Retry mq.RetryPolicy // zero: mq.DefaultRetryPolicy
	Start mq.StartPosition
	// As in mq.Group.
	LiteTopic     string
	LiteExclusive bool
	Broadcast     bool
	// Seen is when the client of an instance of a broadcast group was seen; zero for other
	// groups.
	Seen time.Time
}

// A GroupUpdate says what to change of a group; nil leaves a field as it is.
type GroupUpdate struct {
	FIFO  *bool
	Retry *mq.RetryPolicy // zero: mq.DefaultRetryPolicy
	Start *mq.StartPosition
	// LiteTopic binds the group, empty: to none.
	LiteTopic     *string
	LiteExclusive *bool
	Broadcast     *bool
	// Touch gives the group another version, also when nothing else changes: what was asked by
	// an earlier one is refused by a shard that knows of this one, see mq.ErrStale.
	Touch bool
}

// Group returns the consumer group named name. The error matches
// mq.ErrGroupNotFound.
func (v *View) Group(_ context.Context, name mq.Resource) (*mq.Group, error) {
	return v.current.Load().group(name)
}

func (s *snapshot) group(name mq.Resource) (*mq.Group, error) {
	if g := s.groups.get(name); g != nil {
		return g, nil
	}
	if checkGroupName(name) != nil {
		return nil, fmt.Errorf("%w: %q", mq.ErrGroupNotFound, mq.Shorten(name.String()))
	}
	return nil, fmt.Errorf("%w: %q; create it with: perigee group create %s", mq.ErrGroupNotFound, name, commandLine(name))
}

// GroupByID returns the group with that id. The error matches
// mq.ErrGroupNotFound; an id that is gone never comes back.
func (v *View) GroupByID(id mq.GroupID) (*mq.Group, error) {
	if g := v.current.Load().groupIDs.get(id); g != nil {
		return g, nil
	}
	return nil, fmt.Errorf("%w: id %d", mq.ErrGroupNotFound, id)
}

// Group is as View.Group, and otherwise as Topic.
func (r *Router) Group(ctx context.Context, name mq.Resource) (*mq.Group, error) {
	g, err := r.View.Group(ctx, name)
	if err == nil || r.sharing == nil || checkGroupName(name) != nil {
		return g, err
	}
	if err := r.CatchUp(ctx); err != nil {
		return nil, err
	}
	return r.View.Group(ctx, name)
}

// EnsureGroup returns the group like Group does and, where the router may
// create groups by itself, creates a missing one with the defaults: not FIFO,
// the default retry policy, from the earliest message. With as many groups as
// Options.AutoCreateLimit it creates none.
func (r *Router) EnsureGroup(ctx context.Context, name mq.Resource) (*mq.Group, error) {
	g, err := r.View.Group(ctx, name)
	if err == nil {
		return g, nil
	}
	if !r.autoCreateGroups {
		return r.Group(ctx, name)
	}
	spec, err := GroupSpec{Resource: name}.normal()
	if err != nil {
		return nil, err
	}
	return r.ensure(ctx, spec, r.autoCreateLimit)
}

// EnsureSystemGroup returns a group of the server itself and creates it as spec
// says when it is missing. Its name must begin with mq.SystemGroupPrefix. That an instance
// was seen is noted when it is news; then instances go that were not seen for
// mq.InstanceKept.
func (r *Router) EnsureSystemGroup(ctx context.Context, spec GroupSpec) (*mq.Group, error) {
	if !spec.Seen.IsZero() {
		spec.Seen = time.Now().Round(0).UTC() // whoever asks may have another clock
	}
	if g, err := r.View.Group(ctx, spec.Resource); err == nil && !spec.News(g) {
		return g, nil
	}
	if !isSystemGroup(spec.Resource) {
		return nil, invalid("group", spec.Name, "must begin with "+mq.SystemGroupPrefix)
	}
	spec = spec.defaults()
	if err := spec.check(); err != nil {
		return nil, err
	}
	if spec.Seen.IsZero() {
		return r.ensure(ctx, spec, 0)
	}
	return r.see(ctx, spec)
}

// News reports whether the spec says that the group was seen later than is known.
func (spec GroupSpec) News(g *mq.Group) bool {
	return !spec.Seen.IsZero() && spec.Seen.Sub(g.Seen) >= mq.InstanceSeenEvery
}

// InstanceSpec describes the instance by which a client that is there now receives for a
// broadcast group. It begins behind the newest message.
func InstanceSpec(g *mq.Group, client string) GroupSpec {
	return GroupSpec{
		Resource: g.InstanceOf(client), FIFO: g.FIFO, Retry: g.Retry,
		Start: mq.StartPosition{Policy: mq.StartLatest}, Seen: time.Now().Round(0).UTC(),
	}
}

// Instance returns the group by which a client receives for a broadcast group. It is made
// when it is missing, and goes when the client was not seen for mq.InstanceKept, or
// with g.
func (r *Router) Instance(ctx context.Context, g *mq.Group, client string) (*mq.Group, error) {
	return r.EnsureSystemGroup(ctx, InstanceSpec(g, client))
}

// see adds an instance or notes that it was seen, and deletes those that were not.
func (r *Router) see(ctx context.Context, spec GroupSpec) (g *mq.Group, err error) {
	err = r.change(ctx, func(now *snapshot, e *edit) (err error) {
		for name, other := range now.groups.all() {
			if name.IsInstance() && name != spec.Resource && spec.Seen.Sub(other.Seen) > mq.InstanceKept {
				e.deleteGroup(other)
			}
		}
		if g = now.groups.get(spec.Resource); g == nil {
			g, err = r.addGroup(now, e, spec)
			return err
		}
		if spec.News(g) {
			g = new(*g)
			g.Seen, g.Retry, g.FIFO = spec.Seen, spec.Retry, spec.FIFO
			g.Version++
			e.putGroup(g)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return g, nil
}

// ensure returns the group of that name, whatever its configuration, and adds it
// when it is missing and there are fewer than limit; 0: any number.
func (r *Router) ensure(ctx context.Context, spec GroupSpec, limit int) (g *mq.Group, err error) {
	err = r.change(ctx, func(now *snapshot, e *edit) error {
		if g = now.groups.get(spec.Resource); g != nil {
			return nil
		}
		if limit > 0 && now.groups.size >= limit {
			return fmt.Errorf("%w: %q, and with %d groups no more are made on first use (auto_create_limit); create it with: perigee group create %s",
				mq.ErrGroupNotFound, spec.Resource, limit, commandLine(spec.Resource))
		}
		g, err = r.addGroup(now, e, spec)
		return err
	})
	if err != nil {
		return nil, err
	}
	return g, nil
}

// CreateGroup creates a consumer group and its dead-letter topic and reports
// whether it is new. A group of that name with the same configuration is
// returned as it is; with another the error matches mq.ErrGroupExists. Bad
// input is an *mq.InvalidError.
func (r *Router) CreateGroup(ctx context.Context, spec GroupSpec) (g *mq.Group, created bool, err error) {
	spec, err = spec.normal()
	if err != nil {
		return nil, false, err
	}
	err = r.change(ctx, func(now *snapshot, e *edit) (err error) {
		g = now.groups.get(spec.Resource)
		if created = g == nil; !created {
			return spec.matches(g)
		}
		g, err = r.addGroup(now, e, spec)
		return err
	})
	if err != nil {
		return nil, false, err
	}
	return g, created, nil
}

// normal checks the spec of a client's group and returns it with its defaults set.
func (spec GroupSpec) normal() (GroupSpec, error) {
	spec = spec.defaults()
	spec.Seen = time.Time{} // it is no instance
	if err := checkGroupName(spec.Resource); err != nil {
		return spec, err
	}
	return spec, spec.check()
}

// defaults returns the spec with its defaults set, sharing no memory with the
// caller's.
func (spec GroupSpec) defaults() GroupSpec {
	spec.Retry = normalRetry(spec.Retry)
	spec.Start = normalStart(spec.Start)
	return spec
}

func (spec GroupSpec) check() error {
	return checkGroup(&mq.Group{
		ID: 1, Resource: spec.Resource, Retry: spec.Retry, Start: spec.Start, LiteTopic: spec.LiteTopic, DeadLetter: 1, DeadLetterShard: "any", Version: 1,
	})
}

// normalRetry keeps of a policy only what counts, so that equal ones compare equal.
func normalRetry(p mq.RetryPolicy) mq.RetryPolicy {
	if equalRetry(p, mq.RetryPolicy{}) {
		return mq.DefaultRetryPolicy()
	}
	if len(p.Customized) > 0 {
		return mq.RetryPolicy{MaxAttempts: p.MaxAttempts, Customized: slices.Clone(p.Customized)}
	}
	p.Customized = nil
	return p
}

func normalStart(s mq.StartPosition) mq.StartPosition {
	if s.Policy != mq.StartTimestamp {
		s.Time = time.Time{}
		return s
	}
	s.Time = s.Time.Round(0).UTC()
	return s
}

func equalRetry(a, b mq.RetryPolicy) bool {
	return a.MaxAttempts == b.MaxAttempts && slices.Equal(a.Customized, b.Customized) &&
		a.Initial == b.Initial && a.Max == b.Max && a.Multiplier == b.Multiplier
}

func equalStart(a, b mq.StartPosition) bool {
	return a.Policy == b.Policy && a.Time.Equal(b.Time)
}

func (r *Router) addGroup(now *snapshot, e *edit, spec GroupSpec) (*mq.Group, error) {
	shards, err := r.places(now)
	if err = cmp.Or(err, r.admit()); err != nil {
		return nil, fmt.Errorf("group %s: %w", spec.Resource, err)
	}
	id, err := e.newGroupID()
	if err != nil {
		return nil, err
	}
	deadLetter, err := e.newTopicID()
	if err != nil {
		return nil, err
	}
	g := &mq.Group{
		ID: id, Resource: spec.Resource, FIFO: spec.FIFO, Retry: spec.Retry, Start: spec.Start, DeadLetter: deadLetter,
		LiteTopic: spec.LiteTopic, LiteExclusive: spec.LiteExclusive, Broadcast: spec.Broadcast, Seen: spec.Seen,
		DeadLetterShard: shards[int(uint64(id)%uint64(len(shards)))], Version: 1,
	}
	e.putGroup(g)
	return g, nil
}

func (spec GroupSpec) matches(g *mq.Group) error {
	switch {
	case spec.FIFO != g.FIFO:
		return fmt.Errorf("%w: %q with fifo %t, not %t", mq.ErrGroupExists, g.Resource, g.FIFO, spec.FIFO)
	case spec.LiteTopic != g.LiteTopic:
		return fmt.Errorf("%w: %q with lite-topic %q, not %q", mq.ErrGroupExists, g.Resource, g.LiteTopic, spec.LiteTopic)
	case spec.LiteExclusive != g.LiteExclusive:
		return fmt.Errorf("%w: %q with lite-exclusive %t, not %t", mq.ErrGroupExists, g.Resource, g.LiteExclusive, spec.LiteExclusive)
	case spec.Broadcast != g.Broadcast:
		return fmt.Errorf("%w: %q with broadcast %t, not %t", mq.ErrGroupExists, g.Resource, g.Broadcast, spec.Broadcast)
	case !equalRetry(spec.Retry, g.Retry):
		return fmt.Errorf("%w: %q with another retry policy", mq.ErrGroupExists, g.Resource)
	case !equalStart(spec.Start, g.Start):
		return fmt.Errorf("%w: %q with another start position, %s", mq.ErrGroupExists, g.Resource, g.Start.Policy)
	}
	return nil
}

// UpdateGroup changes a group and returns it as it is then. The version, which
// is its dead-letter topic's too, grows unless nothing is other than before.
func (r *Router) UpdateGroup(ctx context.Context, name mq.Resource, update GroupUpdate) (g *mq.Group, err error) {
	if err := checkGroupName(name); err != nil {
		return nil, err
	}
	err = r.change(ctx, func(now *snapshot, e *edit) (err error) {
		if g, err = now.group(name); err != nil {
			return err
		}
		next, changed := update.apply(g)
		if err := checkGroup(next); err != nil {
			return err
		}
		if changed {
			g = next
			e.putGroup(g)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return g, nil
}

func (u GroupUpdate) apply(g *mq.Group) (next *mq.Group, changed bool) {
	next, changed = new(*g), u.Touch
	if u.FIFO != nil && *u.FIFO != g.FIFO {
		next.FIFO, changed = *u.FIFO, true
	}
	if u.Retry != nil {
		if retry := normalRetry(*u.Retry); !equalRetry(retry, g.Retry) {
			next.Retry, changed = retry, true
		}
	}
	if u.Start != nil {
		if start := normalStart(*u.Start); !equalStart(start, g.Start) {
			next.Start, changed = start, true
		}
	}
	if u.LiteTopic != nil && *u.LiteTopic != g.LiteTopic {
		next.LiteTopic, changed = *u.LiteTopic, true
	}
	if u.LiteExclusive != nil && *u.LiteExclusive != g.LiteExclusive {
		next.LiteExclusive, changed = *u.LiteExclusive, true
	}
	if u.Broadcast != nil && *u.Broadcast != g.Broadcast {
		next.Broadcast, changed = *u.Broadcast, true
	}
	next.Version++
	return next, changed
}

// DeleteGroup deletes a group with its dead-letter topic and its instances and returns
// what it was. A group created later under the same name has other ids.
func (r *Router) DeleteGroup(ctx context.Context, name mq.Resource) (g *mq.Group, err error) {
	if err := checkGroupName(name); err != nil {
		return nil, err
	}
	err = r.change(ctx, func(now *snapshot, e *edit) (err error) {
		if g, err = now.group(name); err != nil {
			return err
		}
		e.deleteGroup(g)
		for name, other := range now.groups.all() {
			if g.HasInstance(name) {
				e.deleteGroup(other)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return g, nil
}

// ListGroups returns the selected groups, those of the server itself only where
// the selection says so, in the order of namespace and name.
func (v *View) ListGroups(_ context.Context, sel Selection) []*mq.Group {
	return v.current.Load().listGroups(sel)
}

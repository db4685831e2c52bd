package router

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/perigee-mq/perigee/mq"
)

// A TopicSpec describes a topic to create.
type TopicSpec struct {
	mq.Resource
	Type       mq.TopicType   // 0: NORMAL
	Queues     int32          // on each shard, readable and writable; 0: the router's default
	Permission mq.Permission  // 0: READ_WRITE
	Retention  time.Duration  // 0: the default of the node
	Dedup      *time.Duration // nil: mq.DefaultDedup
	LiteTTL    time.Duration  // 0: lite topics live for ever
}

// A TopicUpdate says what to change of a topic; nil leaves a field as it is.
// Queue numbers count on each shard and may shrink and grow independently.
type TopicUpdate struct {
	Type        *mq.TopicType
	ReadQueues  *int32
	WriteQueues *int32
	Permission  *mq.Permission
	Retention   *time.Duration // 0: the default of the node
	Dedup       *time.Duration // 0: off
	LiteTTL     *time.Duration // 0: for ever
	// Spread gives the topic queues on every shard that takes new topics and that it is not
	// on yet. Message groups and lite topics stay where they are.
	Spread bool
}

// Topic returns the topic named name. "%DLQ%" and the name of a group names
// the group's dead-letter topic, which exists as long as the group. The error
// matches mq.ErrTopicNotFound.
func (v *View) Topic(_ context.Context, name mq.Resource) (*mq.Topic, error) {
	s := v.current.Load()
	t, err := s.topic(name)
	return s.everywhere(t), err
}

func (s *snapshot) topic(name mq.Resource) (*mq.Topic, error) {
	if t := s.topics.get(name); t != nil {
		return t, nil
	}
	if group, ok := name.DeadLetterGroup(); ok {
		return nil, fmt.Errorf("%w: %q exists with group %q, which does not", mq.ErrTopicNotFound,
			mq.Shorten(name.String()), mq.Shorten(group.String()))
	}
	if checkTopicName(name) != nil {
		return nil, fmt.Errorf("%w: %q", mq.ErrTopicNotFound, mq.Shorten(name.String()))
	}
	return nil, fmt.Errorf("%w: %q; create it with: perigee topic create %s", mq.ErrTopicNotFound, name, commandLine(name))
}

// TopicByID returns the topic with that id, be it a dead-letter topic. The
// error matches mq.ErrTopicNotFound; an id that is gone never comes back.
func (v *View) TopicByID(id mq.TopicID) (*mq.Topic, error) {
	s := v.current.Load()
	if t := s.topicIDs.get(id); t != nil {
		return s.everywhere(t), nil
	}
	return nil, fmt.Errorf("%w: id %d", mq.ErrTopicNotFound, id)
}

// Topic is as View.Topic. With a shared backend the topic is missing only when no router
// had made it before the call; when that cannot be known, the error matches
// mq.ErrUnavailable.
func (r *Router) Topic(ctx context.Context, name mq.Resource) (*mq.Topic, error) {
	t, err := r.View.Topic(ctx, name)
	if err == nil || r.sharing == nil {
		return t, err
	}
	if _, deadLetter := name.DeadLetterGroup(); !deadLetter && checkTopicName(name) != nil {
		return nil, err // it cannot exist
	}
	if err := r.CatchUp(ctx); err != nil {
		return nil, err
	}
	return r.View.Topic(ctx, name)
}

// EnsureTopic returns the topic like Topic does and, where the router may
// create topics by itself, creates a missing one with the defaults: NORMAL,
// READ_WRITE. Dead-letter topics are never created this way. With as many topics as
// Options.AutoCreateLimit it creates none.
func (r *Router) EnsureTopic(ctx context.Context, name mq.Resource) (*mq.Topic, error) {
	t, err := r.View.Topic(ctx, name)
	if err == nil {
		return t, nil
	}
	if !r.autoCreateTopics || isDeadLetter(name) {
		return r.Topic(ctx, name)
	}
	spec, err := r.normalTopic(TopicSpec{Resource: name})
	if err != nil {
		return nil, err
	}
	err = r.change(ctx, func(now *snapshot, e *edit) error {
		if t = now.topics.get(name); t != nil {
			return nil
		}
		// Each group has one topic, for its dead letters.
		if limit := r.autoCreateLimit; limit > 0 && now.topics.size-now.groups.size >= limit {
			return fmt.Errorf("%w: %q, and with %d topics no more are made on first use (auto_create_limit); create it with: perigee topic create %s",
				mq.ErrTopicNotFound, name, limit, commandLine(name))
		}
		t, err = r.addTopic(now, e, spec)
		return err
	})
	if err != nil {
		return nil, err
	}
	return t, nil
}

// CreateTopic creates a topic with its queues on every shard that takes new topics and
// reports whether it is new. A topic of that name with the same type,
// permission, retention, dedup and queues is returned as it is; with others the error matches
// mq.ErrTopicExists. Bad input is an *mq.InvalidError.
func (r *Router) CreateTopic(ctx context.Context, spec TopicSpec) (t *mq.Topic, created bool, err error) {
	spec, err = r.normalTopic(spec)
	if err != nil {
		return nil, false, err
	}
	err = r.change(ctx, func(now *snapshot, e *edit) (err error) {
		t = now.topics.get(spec.Resource)
		if created = t == nil; !created {
			return spec.matches(t)
		}
		t, err = r.addTopic(now, e, spec)
		return err
	})
	if err != nil {
		return nil, false, err
	}
	return t, created, nil
}

// normalTopic checks the spec and sets its defaults.
func (r *Router) normalTopic(spec TopicSpec) (TopicSpec, error) {
	if spec.Type == 0 {
		spec.Type = mq.TopicNormal
	}
	if spec.Queues == 0 {
		spec.Queues = r.defaultQueues
	}
	if spec.Permission == 0 {
		spec.Permission = mq.PermReadWrite
	}
	if err := checkQueues("queues", spec.Queues); err != nil {
		return spec, err
	}
	return spec, checkTopic(spec.topic(1, []string{"any"}))
}

// topic returns the topic of the spec with its queues on the shards.
func (spec TopicSpec) topic(id mq.TopicID, shards []string) *mq.Topic {
	t := &mq.Topic{
		ID: id, Resource: spec.Resource, Type: spec.Type, Permission: spec.Permission, Retention: spec.Retention,
		Dedup: spec.dedup(), LiteTTL: spec.LiteTTL, Version: 1,
	}
	for _, shard := range shards {
		t.Shards = append(t.Shards, mq.ShardQueues{Shard: shard, Read: spec.Queues, Write: spec.Queues})
	}
	return t
}

func (r *Router) addTopic(now *snapshot, e *edit, spec TopicSpec) (*mq.Topic, error) {
	shards, err := r.places(now)
	if err = cmp.Or(err, r.admit()); err != nil {
		return nil, fmt.Errorf("topic %s: %w", spec.Resource, err)
	}
	id, err := e.newTopicID()
	if err != nil {
		return nil, err
	}
	t := spec.topic(id, shards)
	e.putTopic(t)
	return t, nil
}

func (spec TopicSpec) dedup() time.Duration {
	if spec.Dedup == nil {
		return mq.DefaultDedup
	}
	return *spec.Dedup
}

func (spec TopicSpec) matches(t *mq.Topic) error {
	if spec.Type != t.Type {
		return fmt.Errorf("%w: %q with type %s, not %s", mq.ErrTopicExists, t.Resource, t.Type, spec.Type)
	}
	if spec.Permission != t.Permission {
		return fmt.Errorf("%w: %q with permission %d, not %d", mq.ErrTopicExists, t.Resource, t.Permission, spec.Permission)
	}
	if spec.Retention != t.Retention {
		return fmt.Errorf("%w: %q with retention %s, not %s", mq.ErrTopicExists, t.Resource, t.Retention, spec.Retention)
	}
	if want := spec.dedup(); want != t.Dedup {
		return fmt.Errorf("%w: %q with dedup %s, not %s", mq.ErrTopicExists, t.Resource, t.Dedup, want)
	}
	if spec.LiteTTL != t.LiteTTL {
		return fmt.Errorf("%w: %q with lite-ttl %s, not %s", mq.ErrTopicExists, t.Resource, t.LiteTTL, spec.LiteTTL)
	}
	for _, s := range t.Shards {
		if s.Read != spec.Queues || s.Write != spec.Queues {
			return fmt.Errorf("%w: %q with %d readable and %d writable queues on shard %q, not %d", mq.ErrTopicExists,
				t.Resource, s.Read, s.Write, s.Shard, spec.Queues)
		}
	}
	return nil
}

// UpdateTopic changes a topic and returns it as it is then. The version grows
// unless nothing is other than before.
func (r *Router) UpdateTopic(ctx context.Context, name mq.Resource, update TopicUpdate) (t *mq.Topic, err error) {
	if err := checkTopicName(name); err != nil {
		return nil, err
	}
	err = r.change(ctx, func(now *snapshot, e *edit) (err error) {
		if t, err = now.topic(name); err != nil {
			return err
		}
		next, changed := update.apply(t)
		if err := checkTopic(next); err != nil {
			return err
		}
		if err := checkPlaces(t, next); err != nil {
			return err
		}
		if next.Placed > 0 {
			next.Places = placesOf(next) // it may be of another type now
		}
		if update.Spread {
			spread, more := r.spread(now, next)
			next, changed = spread, changed || more
		}
		if changed {
			t = next
			e.putTopic(t)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return t, nil
}

// checkPlaces refuses another number of writable queues for a topic of FIFO messages:
// those would go to another queue from then on, and overtake those that lie in
// the one before. Nothing is lost by it: a queue serves all its message groups at a time.
func checkPlaces(t, next *mq.Topic) error {
	if !t.Type.Accepts(mq.FIFO) && t.Type != mq.TopicLite {
		return nil
	}
	for i, s := range next.Shards {
		if s.Write != t.Shards[i].Write {
			return invalid("write_queues", s.Write, fmt.Sprintf(
				"must stay %d: where a message group, or a lite topic, of a %s topic lies follows from it", t.Shards[i].Write, t.Type))
		}
	}
	return nil
}

func (u TopicUpdate) apply(t *mq.Topic) (next *mq.Topic, changed bool) {
	next = new(*t)
	set := func(field *int32, to *int32) {
		if to != nil && *field != *to {
			*field, changed = *to, true
		}
	}
	next.Shards = append([]mq.ShardQueues(nil), t.Shards...)
	for i := range next.Shards {
		set(&next.Shards[i].Read, u.ReadQueues)
		set(&next.Shards[i].Write, u.WriteQueues)
	}
	if u.Type != nil && *u.Type != t.Type {
		next.Type, changed = *u.Type, true
	}
	if u.Permission != nil && *u.Permission != t.Permission {
		next.Permission, changed = *u.Permission, true
	}
	if u.Retention != nil && *u.Retention != t.Retention {
		next.Retention, changed = *u.Retention, true
	}
	if u.Dedup != nil && *u.Dedup != t.Dedup {
		next.Dedup, changed = *u.Dedup, true
	}
	if u.LiteTTL != nil && *u.LiteTTL != t.LiteTTL {
		next.LiteTTL, changed = *u.LiteTTL, true
	}
	next.Version++
	return next, changed
}

// DeleteTopic deletes a topic and returns what it was. A topic created later
// under the same name has another id.
func (r *Router) DeleteTopic(ctx context.Context, name mq.Resource) (t *mq.Topic, err error) {
	if err := checkTopicName(name); err != nil {
		return nil, err
	}
	err = r.change(ctx, func(now *snapshot, e *edit) (err error) {
		if t, err = now.topic(name); err != nil {
			return err
		}
		e.deleteTopic(t)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return t, nil
}

// ListTopics returns the selected topics in the order of namespace and name.
func (v *View) ListTopics(_ context.Context, sel Selection) []*mq.Topic {
	s := v.current.Load()
	list := s.listTopics(sel)
	for i, t := range list {
		list[i] = s.everywhere(t)
	}
	return list
}

package router

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/perigee-mq/perigee/mq"
)

// DefaultQueues is how many queues a topic gets on each shard when nobody asks
// for another number.
const DefaultQueues = 8

// Options configure a Router.
type Options struct {
	// FS and Dir say where the embedded database lies; nil is the disk. A
	// missing directory is made.
	FS  vfs.FS
	Dir string
	// Backend replaces the embedded database; FS and Dir are then unused. The
	// router closes it, also when Open fails. One that is a SharedBackend is used as such.
	Backend Backend
	// Shards are where new topics and dead-letter topics are placed. None: on the shards
	// that AddShard has written down and that are active.
	Shards []string
	// AutoCreateTopics and AutoCreateGroups let EnsureTopic and EnsureGroup
	// create what is missing.
	AutoCreateTopics bool
	AutoCreateGroups bool
	// AutoCreateLimit is with how many topics, or groups, they create no more of them,
	// however those were made; 0: they always do. Dead-letter topics do not count.
	AutoCreateLimit int
	// DefaultQueues is the number of queues on each shard of a topic that asks
	// for none; 0 is the constant of that name.
	DefaultQueues int32
	// Admit, when not nil, is asked before a topic or group is created; its error
	// refuses that, and nothing else. It must not call the router.
	Admit func() error
	// OnFailure is called once when a write fails, with Err set: the router makes
	// no change any more. The write may be one in the background. It must not call
	// the router.
	OnFailure func()
	// Logger gets the messages of the embedded database; nil drops them.
	Logger *slog.Logger
}

// A Router knows the topics and groups. All methods may be called at any time
// from any goroutine. What it returns is shared and must not be changed.
type Router struct {
	View

	logger           *slog.Logger
	onFailure        func() // acts once
	admit            func() error
	backend          Backend
	sharing          *sharing // nil: the backend is for this router alone
	shards           []string // sorted, without duplicates; none: those written down
	autoCreateTopics bool
	autoCreateGroups bool
	autoCreateLimit  int
	defaultQueues    int32

	// turn is full while a change is checked, made durable and shown, so that each change
	// sees the one before. Readers never take it. It is a channel because with a shared
	// backend a change may wait for long, and those behind it have deadlines.
	turn chan struct{}
	over bool // Close was called; guarded by turn
	// showing is held while a snapshot is made out of the newest one that is shown, and
	// shown. With a shared backend changes of other routers come beside those made under mu.
	showing sync.Mutex
	failed  atomic.Pointer[error] // set once
}

// Open reads the metadata and returns a router of it. Damage is a *DamageError
// or Pebble's error, metadata of a later version a *VersionError; either names
// the directory or file, and nothing is deleted or repaired.
func Open(opts Options) (*Router, error) {
	r, err := open(opts)
	if err == nil {
		return r, nil
	}
	if opts.Backend != nil {
		err = errors.Join(err, opts.Backend.Close())
	}
	return nil, err
}

func open(opts Options) (*Router, error) {
	if opts.DefaultQueues == 0 {
		opts.DefaultQueues = DefaultQueues
	}
	if err := checkQueues("default-queues", opts.DefaultQueues); err != nil {
		return nil, err
	}
	shards := slices.Compact(slices.Sorted(slices.Values(opts.Shards)))
	if len(shards) > 0 && shards[0] == "" {
		return nil, invalid("shards", strings.Join(opts.Shards, ","), "must name no empty one")
	}
	r := &Router{
		View:             View{closed: make(chan struct{})},
		turn:             make(chan struct{}, 1),
		logger:           cmp.Or(opts.Logger, slog.New(slog.DiscardHandler)),
		onFailure:        func() {},
		admit:            func() error { return nil },
		backend:          opts.Backend,
		shards:           shards,
		autoCreateTopics: opts.AutoCreateTopics,
		autoCreateGroups: opts.AutoCreateGroups,
		autoCreateLimit:  opts.AutoCreateLimit,
		defaultQueues:    opts.DefaultQueues,
	}
	if opts.Admit != nil {
		r.admit = opts.Admit
	}
	if opts.OnFailure != nil {
		r.onFailure = sync.OnceFunc(opts.OnFailure)
	}
	if r.backend != nil {
		return r, r.openGiven()
	}
	if opts.Dir == "" {
		return nil, invalid("dir", opts.Dir, "must not be empty")
	}
	if opts.FS == nil {
		opts.FS = vfs.Default
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	db, err := openEmbedded(opts.FS, opts.Dir, opts.Logger, r.onFailure)
	if err != nil {
		return nil, located(err, "open", opts.Dir)
	}
	r.backend = db
	if err := r.load(opts.Dir); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return r, nil
}

// load reads the backend into the first snapshot. A backend without any entry
// is a new one and gets its counters.
func (r *Router) load(file string) error {
	ctx := context.Background()
	for tries := 1; ; tries++ {
		s, err := loadSnapshot(ctx, r.backend)
		if err != nil {
			return located(err, "read", file)
		}
		if s.revision > 0 {
			r.current.Store(s)
			return nil
		}
		first := s.edit()
		first.next.life = newMark()
		err = r.backend.Commit(ctx, first.batch())
		if errors.Is(err, ErrConflict) && tries < maxTries {
			continue // another router has begun them
		}
		if err != nil {
			return fmt.Errorf("create metadata in %s: %w", file, err)
		}
		r.current.Store(&first.next)
		return nil
	}
}

// openGiven reads the backend of Options.
func (r *Router) openGiven() error {
	name := "backend"
	if b, ok := r.backend.(fmt.Stringer); ok {
		name = b.String()
	}
	if err := r.load(name); err != nil {
		return err
	}
	if shared, ok := r.backend.(SharedBackend); ok {
		r.share(shared, name)
	}
	return nil
}

// located returns err, met by the verb, with the file it is about.
func located(err error, verb, file string) error {
	var damage *DamageError
	var version *VersionError
	switch {
	case errors.As(err, &damage):
		damage.File = cmp.Or(damage.File, file)
		return damage
	case errors.As(err, &version):
		version.File = cmp.Or(version.File, file)
		return version
	case pebble.ExtractDataCorruptionInfo(err) != nil:
		return damageIn(*pebble.ExtractDataCorruptionInfo(err))
	default:
		return fmt.Errorf("%s metadata in %s: %w", verb, file, err)
	}
}

func loadSnapshot(ctx context.Context, backend Backend) (*snapshot, error) {
	s := newSnapshot()
	entries := 0
	err := backend.Load(ctx, func(e Entry) error {
		entries++
		return s.load(e)
	})
	if err != nil {
		return nil, err
	}
	if entries > 0 && s.revision == 0 {
		return nil, &DamageError{Entry: countersKey, Reason: "is missing"}
	}
	return s, s.checkCounters()
}

func (s *snapshot) addTopic(key string, t *mq.Topic) error {
	if other := s.topicIDs.get(t.ID); other != nil {
		return &DamageError{Entry: key, Reason: fmt.Sprintf("id %d is that of topic %q too", t.ID, other.Resource)}
	}
	s.topics.add(t.Resource, t)
	s.topicIDs.add(t.ID, t)
	return nil
}

func (s *snapshot) addGroup(key string, g *mq.Group) error {
	if other := s.groupIDs.get(g.ID); other != nil {
		return &DamageError{Entry: key, Reason: fmt.Sprintf("id %d is that of group %q too", g.ID, other.Resource)}
	}
	s.groups.add(g.Resource, g)
	s.groupIDs.add(g.ID, g)
	return s.addTopic(key, deadLetterTopic(g))
}

// checkCounters makes sure that no id in use will be handed out again.
func (s *snapshot) checkCounters() error {
	for _, t := range s.topicIDs.all() {
		if t.ID > s.lastTopic {
			return &DamageError{Entry: countersKey, Reason: fmt.Sprintf("lastTopic is %d, but a topic has id %d", s.lastTopic, t.ID)}
		}
	}
	for _, g := range s.groupIDs.all() {
		if g.ID > s.lastGroup {
			return &DamageError{Entry: countersKey, Reason: fmt.Sprintf("lastGroup is %d, but a group has id %d", s.lastGroup, g.ID)}
		}
	}
	return nil
}

// Close ends the router: changes fail with mq.ErrStopped from then on, and
// watches end. It waits for a change that is being made.
func (r *Router) Close() error {
	if r.sharing != nil {
		r.sharing.end() // what a change waits for
	}
	r.turn <- struct{}{}
	defer func() { <-r.turn }()
	if r.over {
		return nil
	}
	r.over = true
	if r.sharing != nil {
		r.sharing.background.Wait()
	}
	close(r.closed)
	return r.backend.Close()
}

// Err returns what stopped the router from making changes for good: a write
// that failed. It is nil while all is well, and after a mere Close.
func (r *Router) Err() error {
	if failed := r.failed.Load(); failed != nil {
		return *failed
	}
	return r.backend.Err()
}

// change lets prepare look at the newest snapshot and edit it, makes the edit
// durable and then visible. A prepare without edits changes nothing. Where another
// router was first, prepare is called again with what that has left.
func (r *Router) change(ctx context.Context, prepare func(*snapshot, *edit) error) error {
	if err := r.CatchUp(ctx); err != nil {
		return err
	}
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-r.turn }()
	for tries := 1; ; tries++ {
		if r.over {
			return fmt.Errorf("router closed: %w", mq.ErrStopped)
		}
		if failed := r.failed.Load(); failed != nil {
			return *failed
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		now := r.current.Load()
		e := now.edit()
		if err := prepare(now, e); err != nil {
			return err
		}
		if len(e.entries) == 0 && e.next.life == now.life {
			return nil
		}
		if r.sharing == nil {
			return r.commit(ctx, e)
		}
		err := r.commitShared(ctx, e)
		if !errors.Is(err, ErrConflict) {
			return err
		}
		if tries == maxTries {
			return fmt.Errorf("%w: %w, %d times in a row", mq.ErrUnavailable, err, tries)
		}
		if err := giveWay(ctx, tries); err != nil {
			return err
		}
	}
}

// commit makes an edit durable and shows it.
func (r *Router) commit(ctx context.Context, e *edit) error {
	// A commit that has begun is not given up: its outcome must be known.
	if err := r.backend.Commit(context.WithoutCancel(ctx), e.batch()); err != nil {
		return r.fail(fmt.Errorf("%w: write metadata: %w", mq.ErrStopped, err))
	}
	r.showing.Lock()
	defer r.showing.Unlock()
	r.showLocked(&e.next)
	return nil
}

// fail ends the changes for good, and returns why they have ended.
func (r *Router) fail(err error) error {
	if r.failed.CompareAndSwap(nil, &err) {
		r.logger.Error("metadata can no longer be changed", "error", err)
		r.onFailure()
	}
	return *r.failed.Load()
}

// showLocked makes a snapshot the newest one, unless one as new is shown already.
func (r *Router) showLocked(next *snapshot) {
	now := r.current.Load()
	if next.revision <= now.revision {
		return
	}
	r.current.Store(next)
	close(now.superseded)
}

func (e *edit) newTopicID() (mq.TopicID, error) {
	if e.next.lastTopic == math.MaxUint32 {
		return 0, fmt.Errorf("topic ids are used up: %w", mq.ErrBusy)
	}
	e.next.lastTopic++
	return e.next.lastTopic, nil
}

func (e *edit) newGroupID() (mq.GroupID, error) {
	if e.next.lastGroup == math.MaxUint32 {
		return 0, fmt.Errorf("group ids are used up: %w", mq.ErrBusy)
	}
	e.next.lastGroup++
	return e.next.lastGroup, nil
}

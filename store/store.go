// Package store is a store node: the shards of one data directory, and the calls
// the other tiers make to them. It owns the messages and all consumption state.
//
// It routes calls to shards and joins their answers; what a shard does is in
// store/shard and below. It knows nothing of the public protocol.
package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/perigee-mq/perigee/internal/durable"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/commitlog"
	"github.com/perigee-mq/perigee/store/shard"
)

// Options configure Open. Zero values mean the documented defaults.
type Options struct {
	// FS holds the files; vfs.Default when nil.
	FS vfs.FS
	// Dir is the node's data directory, created when missing. A lock file keeps
	// a second process out.
	Dir string
	// Shards are the names of the shards the node serves.
	Shards []string
	// The rest is as in shard.Options.
	Flush         shard.FlushMode
	FlushInterval time.Duration
	SegmentSize   int64
	ZeroFill      int64
	CacheSize     int64
	MemTableSize  int64
	QueueBytes    int64
	KnownBytes    int64 // of each shard
	MaxWaiting    int
	Retention     shard.Retention
	Transactions  shard.Transactions
	LiteTopics    int
	LiteTTL       func(mq.TopicID) time.Duration
	LiteInterval  time.Duration
	Interrupt     <-chan struct{}
	MaxSeries     int
	Wall          func() time.Time
	Logger        *slog.Logger
	OnFailure     func()
}

// Names in the data directory.
const (
	lockFile  = "LOCK"
	shardsDir = "shards"
)

// Store is an open store node. Its methods may be called from any goroutine.
type Store struct {
	lock    io.Closer
	shards  map[string]*shard.Shard
	names   []string
	holders *holders
}

// Open recovers every shard of the node. Damage in any of them is an error.
func Open(opts Options) (*Store, error) {
	if opts.FS == nil {
		opts.FS = vfs.Default
	}
	if opts.Dir == "" || len(opts.Shards) == 0 {
		return nil, fmt.Errorf("store: %w: a directory and a shard are required", mq.ErrInvalid)
	}
	if err := durable.MakeDir(opts.FS, opts.Dir); err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	lock, err := opts.FS.Lock(opts.FS.PathJoin(opts.Dir, lockFile))
	if err != nil {
		return nil, fmt.Errorf("store: data directory %s is in use by another process: %w", opts.Dir, err)
	}
	s := &Store{lock: lock, shards: map[string]*shard.Shard{}, names: slices.Sorted(slices.Values(opts.Shards)), holders: newHolders()}
	for _, name := range s.names {
		sh, err := shard.Open(shard.Options{
			Name: name, FS: opts.FS, Dir: opts.FS.PathJoin(opts.Dir, shardsDir, name),
			Flush: opts.Flush, FlushInterval: opts.FlushInterval,
			SegmentSize: opts.SegmentSize, ZeroFill: opts.ZeroFill, CacheSize: opts.CacheSize,
			MemTableSize: opts.MemTableSize, QueueBytes: opts.QueueBytes, KnownBytes: opts.KnownBytes, MaxWaiting: opts.MaxWaiting,
			Retention: opts.Retention, Transactions: opts.Transactions, Interrupt: opts.Interrupt, MaxSeries: opts.MaxSeries,
			LiteTopics: opts.LiteTopics, LiteTTL: opts.LiteTTL, LiteInterval: opts.LiteInterval,
			Wall: opts.Wall, Logger: opts.Logger, OnFailure: opts.OnFailure,
		})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("store: %w", err), s.Close())
		}
		s.shards[name] = sh
	}
	return s, nil
}

// HasShard reports whether the store in dir has the log of the named shard: whether the
// directory of its log, which it returns, holds a segment. Nothing of dir needs to be.
func HasShard(fsys vfs.FS, dir, name string) (logDir string, has bool, err error) {
	logDir = shard.LogDir(fsys, fsys.PathJoin(dir, shardsDir, name))
	has, err = commitlog.Exists(fsys, logDir)
	return logDir, has, err
}

// Shards returns the directories of the shards that the store in dir has anything of, by
// their names: a segment of a log, or views. Nothing of dir needs to be.
func Shards(fsys vfs.FS, dir string) (map[string]string, error) {
	shards := map[string]string{}
	names, err := listIfThere(fsys, fsys.PathJoin(dir, shardsDir))
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		shardDir := fsys.PathJoin(dir, shardsDir, name)
		if info, err := fsys.Stat(shardDir); err != nil {
			return nil, err
		} else if !info.IsDir() {
			continue
		}
		_, has, err := HasShard(fsys, dir, name)
		if err != nil {
			return nil, err
		}
		views, err := listIfThere(fsys, shard.ViewsDir(fsys, shardDir))
		if err != nil {
			return nil, err
		}
		if has || len(views) > 0 {
			shards[name] = shardDir
		}
	}
	return shards, nil
}

// listIfThere lists dir; one that is not there holds nothing.
func listIfThere(fsys vfs.FS, dir string) ([]string, error) {
	names, err := fsys.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", dir, err)
	}
	return names, nil
}

// Close closes every shard, see shard.Close, and gives up the lock.
func (s *Store) Close() error {
	var errs []error
	for _, name := range s.names {
		if sh := s.shards[name]; sh != nil {
			errs = append(errs, sh.Close())
		}
	}
	return errors.Join(append(errs, s.lock.Close())...)
}

// Err returns why a shard has stopped for good, or nil when all are well.
func (s *Store) Err() error {
	var errs []error
	for _, name := range s.names {
		errs = append(errs, s.shards[name].Err())
	}
	return errors.Join(errs...)
}

// AdmitNew returns why no topic or group may be created for want of disk space, or nil;
// see shard.AdmitNew.
func (s *Store) AdmitNew() error {
	for _, name := range s.names {
		if err := s.shards[name].AdmitNew(); err != nil {
			return err
		}
	}
	return nil
}

// Stats returns the counters of every shard by its name.
func (s *Store) Stats() map[string]shard.Stats {
	stats := make(map[string]shard.Stats, len(s.shards))
	for name, sh := range s.shards {
		stats[name] = sh.Stats()
	}
	return stats
}

// Views returns what the views of the named shard take; see shard.Views.
func (s *Store) Views(name string) (shard.Views, error) {
	sh, err := s.shard(name)
	if err != nil {
		return shard.Views{}, err
	}
	return sh.Views()
}

// Survey returns what the topics and groups of the named shard are at; see
// shard.Survey.
func (s *Store) Survey(ctx context.Context, name string) (shard.Survey, error) {
	sh, err := s.shard(name)
	if err != nil {
		return shard.Survey{}, err
	}
	return sh.Survey(ctx)
}

func (s *Store) shard(name string) (*shard.Shard, error) {
	if sh := s.shards[name]; sh != nil {
		return sh, nil
	}
	return nil, fmt.Errorf("shard %q: %w", name, mq.ErrShardNotFound)
}

// Append stores the messages in one queue of the topic on the named shard, all
// of them or none, at consecutive offsets, and returns where each is; see shard.Append.
// When it returns they are as durable as the flush mode says. The messages
// belong to the store from now on. When ctx ends first the outcome is unknown.
func (s *Store) Append(ctx context.Context, shard string, topic *mq.Topic, queue mq.QueueID, msgs []*mq.Message) ([]mq.Appended, error) {
	sh, err := s.shard(shard)
	if err != nil {
		return nil, err
	}
	return sh.Append(ctx, topic, queue, msgs)
}

// Receive leases up to r.Max messages of the topic's queues on the named shard:
// redeliveries first, then new ones. It returns none when r.Wait passes without
// any. When ctx ends, what was leased meanwhile is given back uncounted.
func (s *Store) Receive(ctx context.Context, shard string, r mq.Receive) ([]mq.Delivery, error) {
	sh, err := s.shard(shard)
	if err != nil {
		return nil, err
	}
	got, err := sh.Receive(ctx, r)
	s.redelivered(&r, got)
	return got, err
}

// Ack settles deliveries. It answers for each: nil, or an error that wraps
// mq.ErrLeaseEnded when that delivery is over already, or why its shard could
// not tell.
func (s *Store) Ack(ctx context.Context, leases []mq.Lease) []error {
	results := s.settle(leases, func(sh *shard.Shard, first mq.Lease, which []int) ([]error, error) {
		refs := make([]command.LeaseRef, len(which))
		for i, j := range which {
			refs[i] = leaseRef(leases[j])
		}
		return sh.Ack(ctx, first.Topic, first.Group, refs)
	})
	s.settled(leases, results)
	return results
}

func (s *Store) change(ctx context.Context, changes []mq.LeaseChange) []error {
	leases := make([]mq.Lease, len(changes))
	for i := range changes {
		leases[i] = changes[i].Lease
	}
	return s.settle(leases, func(sh *shard.Shard, first mq.Lease, which []int) ([]error, error) {
		list := make([]command.LeaseChange, len(which))
		for i, j := range which {
			list[i] = command.LeaseChange{
				LeaseRef: leaseRef(leases[j]), Invisible: int64(changes[j].Invisible), Reason: changes[j].Reason,
			}
		}
		return sh.Change(ctx, first.Topic, first.Group, list)
	})
}

func leaseRef(l mq.Lease) command.LeaseRef {
	return command.LeaseRef{Queue: l.Queue, Offset: l.Offset, PopID: l.PopID}
}

// settle calls fn once for each shard, topic and group among the leases, and
// puts the answers into the order of the leases.
func (s *Store) settle(leases []mq.Lease, fn func(sh *shard.Shard, first mq.Lease, which []int) ([]error, error)) []error {
	type target struct {
		shard string
		topic mq.TopicID
		group mq.GroupID
	}
	of := func(l mq.Lease) target { return target{l.Shard, l.Topic, l.Group} }
	results := make([]error, len(leases))
	done := make([]bool, len(leases))
	for i, first := range leases {
		if done[i] {
			continue
		}
		var which []int
		for j := i; j < len(leases); j++ {
			if !done[j] && of(leases[j]) == of(first) {
				done[j] = true
				which = append(which, j)
			}
		}
		sh, err := s.shard(first.Shard)
		var answers []error
		if err == nil {
			answers, err = fn(sh, first, which)
		}
		for n, j := range which {
			if err != nil {
				results[j] = err
			} else {
				results[j] = answers[n]
			}
		}
	}
	return results
}

// DeadLetter moves a delivery to the dead-letter topic of its group: the copy is
// stored and the original settled in one step. An error that wraps
// mq.ErrLeaseEnded says that the delivery is over already.
func (s *Store) DeadLetter(ctx context.Context, lease mq.Lease) error {
	sh, err := s.shard(lease.Shard)
	if err != nil {
		return err
	}
	err = sh.DeadLetter(ctx, lease)
	s.settled([]mq.Lease{lease}, []error{err})
	return err
}

// UpdateGroup makes a changed group known to the shards that serve it.
func (s *Store) UpdateGroup(ctx context.Context, group *mq.Group) error {
	return s.each(func(sh *shard.Shard) error { return sh.UpdateGroup(ctx, group) })
}

// DeleteTopic ends the life of a topic. Deleting what a shard never knew is no error.
func (s *Store) DeleteTopic(ctx context.Context, id mq.TopicID) error {
	return s.each(func(sh *shard.Shard) error { return ignore(sh.DeleteTopic(ctx, id), mq.ErrTopicNotFound) })
}

// DeleteGroup ends the life of a group. Deleting what a shard never knew is no error.
func (s *Store) DeleteGroup(ctx context.Context, id mq.GroupID) error {
	return s.each(func(sh *shard.Shard) error { return ignore(sh.DeleteGroup(ctx, id), mq.ErrGroupNotFound) })
}

func ignore(err, target error) error {
	if errors.Is(err, target) {
		return nil
	}
	return err
}

func (s *Store) each(fn func(*shard.Shard) error) error {
	var errs []error
	for _, name := range s.names {
		errs = append(errs, fn(s.shards[name]))
	}
	return errors.Join(errs...)
}

// Queues returns which offsets the topic's queues on the named shard hold.
func (s *Store) Queues(ctx context.Context, shard string, id mq.TopicID) ([]mq.QueueRange, error) {
	sh, err := s.shard(shard)
	if err != nil {
		return nil, err
	}
	return sh.Queues(ctx, id)
}

// Backlogs returns how far a group is with each topic it has received from, on
// the named shard.
func (s *Store) Backlogs(ctx context.Context, shard string, group mq.GroupID) ([]mq.Backlog, error) {
	sh, err := s.shard(shard)
	if err != nil {
		return nil, err
	}
	return sh.Backlogs(ctx, group)
}

// Gone returns the greatest ids of topics and groups that were deleted, 0 without any.
// They are never used again.
func (s *Store) Gone(ctx context.Context) (topic mq.TopicID, group mq.GroupID, err error) {
	err = s.each(func(sh *shard.Shard) error {
		t, g, err := sh.Gone(ctx)
		topic, group = max(topic, t), max(group, g)
		return err
	})
	return topic, group, err
}

// Registered returns the ids of all topics and groups that a shard knows. Some
// may have been deleted from the router while the store was not there to hear
// of it.
func (s *Store) Registered(ctx context.Context) (topics []mq.TopicID, groups []mq.GroupID, err error) {
	err = s.each(func(sh *shard.Shard) error {
		t, g, err := sh.Registered(ctx)
		topics, groups = append(topics, t...), append(groups, g...)
		return err
	})
	slices.Sort(topics)
	slices.Sort(groups)
	return slices.Compact(topics), slices.Compact(groups), err
}

// Place makes the named shard know where the topic lies by this version of it; see
// shard.Place.
func (s *Store) Place(ctx context.Context, shard string, topic *mq.Topic) error {
	sh, err := s.shard(shard)
	if err != nil {
		return err
	}
	return sh.Place(ctx, topic)
}

// Owed reports whether a group has anything of a topic left to settle on the named shard, or
// may have because it has no place in its queues yet.
func (s *Store) Owed(ctx context.Context, shard string, topic mq.TopicID, group mq.GroupID) (bool, error) {
	sh, err := s.shard(shard)
	if err != nil {
		return false, err
	}
	return sh.Owed(ctx, topic, group)
}

// Remains counts what is left on the named shard; see shard.Remains.
func (s *Store) Remains(ctx context.Context, shard string) (mq.Remains, error) {
	sh, err := s.shard(shard)
	if err != nil {
		return mq.Remains{}, err
	}
	return sh.Remains(ctx)
}

// Named returns the names by which the shards know topics and groups.
func (s *Store) Named(ctx context.Context) (topics map[mq.TopicID]mq.Resource, groups map[mq.GroupID]mq.Resource, err error) {
	topics, groups = map[mq.TopicID]mq.Resource{}, map[mq.GroupID]mq.Resource{}
	err = s.each(func(sh *shard.Shard) error {
		t, g, err := sh.Named(ctx)
		maps.Copy(topics, t)
		maps.Copy(groups, g)
		return err
	})
	return topics, groups, err
}

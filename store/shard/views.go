package shard

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/perigee-mq/perigee/internal/durable"
	"github.com/perigee-mq/perigee/internal/failstop"
	"github.com/perigee-mq/perigee/internal/readonly"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/commitlog"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/machine"
)

// Bounds of what the views may have on its way to disk: memtables, and tables on
// top of each other. Beyond them the loop waits, see room. Pebble would wait by
// itself, but for ever when the disk fails. Opts.MemTableSize bounds what a restart
// has to replay, beside checkpointBytes.
const (
	viewsMemTables = 4
	viewsSublevels = 12
	noViewsBound   = 1 << 20
	// The bounds are looked at four times for each memtable.
	viewsLooks = 4
)

func openViews(s *Shard) (*pebble.DB, error) {
	// Pebble takes the memory of memtables off its cache. One is being filled and
	// one written most of the time: without room for them there would be no cache.
	cache := pebble.NewCache(s.opts.CacheSize + 2*s.opts.MemTableSize)
	defer cache.Unref() // the database keeps its own reference
	s.viewsFS = failstop.New(s.opts.FS, func(err error) { s.fail(fmt.Errorf("views: %w", err)) })
	opts := &pebble.Options{
		FS: spareFS{
			FS: orderedFS{FS: s.viewsFS, shard: s}, plain: s.opts.FS, dir: s.opts.FS.PathJoin(s.opts.Dir, spareDir),
		},
		Cache:                       cache,
		DisableWAL:                  true, // the commit log is the only one
		MemTableSize:                uint64(s.opts.MemTableSize),
		MemTableStopWritesThreshold: noViewsBound,
		L0StopWritesThreshold:       noViewsBound,
		FormatMajorVersion:          pebble.FormatNewest,
		Logger:                      viewsLogger{s},
		EventListener: &pebble.EventListener{
			BackgroundError: func(err error) { s.fail(fmt.Errorf("views: %w", err)) },
			DataCorruption:  s.viewsDamaged,
			FlushEnd:        func(pebble.FlushInfo) { signal(s.viewsMoved) },
			CompactionEnd:   func(pebble.CompactionInfo) { signal(s.viewsMoved) },
		},
	}
	compactions := failstop.NewCompactions(func() bool { return s.Err() != nil })
	opts.Experimental.CompactionScheduler = compactions
	// Most look-ups find something, and what has lain for long in the last level:
	// there a filter tells nothing, and takes the cache from what is read.
	for i := range len(opts.Levels) - 1 {
		opts.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	db, err := pebble.Open(ViewsDir(s.opts.FS, s.opts.Dir), opts)
	if failure := s.Err(); failure != nil {
		// Pebble was told that all went well; what it says then follows from that.
		if db != nil {
			_ = db.Close()
		}
		return nil, failure
	}
	if err != nil {
		return nil, err
	}
	compactions.Allow()
	return db, nil
}

// A Reach says what the views on disk of a shard have applied, and where they let the
// log begin. The zero Reach is that of views that are not there.
type Reach struct {
	State keyspace.State
	Begin keyspace.Begin
}

// ReadReach returns the reach of the views of the shard in dir. Nobody may have the
// shard open. A log that ends before State.Pos has lost durable records: its end must
// not be taken for a torn tail and cut. One that begins after Begin has lost segments.
func ReadReach(fsys vfs.FS, dir string) (r Reach, err error) {
	if _, err := fsys.Stat(ViewsDir(fsys, dir)); errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	db, err := ReadViews(fsys, dir)
	if errors.Is(err, pebble.ErrDBDoesNotExist) {
		return r, nil
	}
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return reachOf(db)
}

func reachOf(db *pebble.DB) (r Reach, err error) {
	if r.State, err = machine.ReadState(db); err == nil {
		r.Begin, err = machine.ReadBegin(db)
	}
	return r, err
}

// Applied returns the log position that the views on disk of the shard in dir have
// applied, 0 without views, see ReadReach.
func Applied(fsys vfs.FS, dir string) (commitlog.Pos, error) {
	r, err := ReadReach(fsys, dir)
	return commitlog.Pos(r.State.Pos), err
}

// CheckBegin returns an error when the log, whose oldest segment is first, has lost
// segments at its beginning.
func (r Reach) CheckBegin(first commitlog.SegmentInfo) error {
	if first.FirstIndex <= max(r.Begin.Index, 1) {
		return nil
	}
	missing := "the segments before it are missing"
	if r.Begin.Index > 0 {
		missing = fmt.Sprintf("the log was dropped up to record %d only: the segments between are missing", r.Begin.Index)
	}
	return &commitlog.CorruptionError{
		File: first.File, Reason: fmt.Sprintf("it is the oldest segment and begins with record %d: %s", first.FirstIndex, missing),
	}
}

// checkRebuild returns an error when the views in dir are not there, or have fallen
// behind, and the log, whose oldest segment is first, does not reach back far enough.
func (r Reach) checkRebuild(views string, first commitlog.SegmentInfo) error {
	if r.State.Index+1 >= first.FirstIndex {
		return nil
	}
	have := "are missing or empty"
	if r.State.Index > 0 {
		have = fmt.Sprintf("have applied records up to %d", r.State.Index)
	}
	return fmt.Errorf("the views in %s %s, and the log, whose oldest segment is %s, begins with record %d: "+
		"views cannot be rebuilt from a log that was trimmed; %s", views, have, first.File, first.FirstIndex, restoreHint)
}

// restoreHint says what helps against missing and damaged views.
const restoreHint = "perigee restore-views puts their base in their place"

// viewsError says which views could not be opened.
func viewsError(dir string, err error) error {
	if errors.Is(err, mq.ErrStopped) { // it is the disk
		return fmt.Errorf("views in %s: %w", dir, err)
	}
	if info := pebble.ExtractDataCorruptionInfo(err); info != nil {
		return damaged(*info)
	}
	return fmt.Errorf("views in %s: %w (if they are damaged, %s)", dir, err, restoreHint)
}

// ReadViews opens the views of the shard in dir for reading only; the caller closes
// them. Nobody may have the shard open. Views whose manifest is damaged are refused.
func ReadViews(fsys vfs.FS, dir string) (*pebble.DB, error) {
	return ReadViewsIn(fsys, ViewsDir(fsys, dir))
}

// ReadViewsIn is ReadViews for the folder of the views itself, or of a base of them.
func ReadViewsIn(fsys vfs.FS, path string) (*pebble.DB, error) {
	db, err := pebble.Open(path, &pebble.Options{FS: fsys, ReadOnly: true, ErrorIfNotExists: true, Logger: silent{}})
	if err != nil {
		return nil, err
	}
	if err := readonly.CheckManifest(db, fsys, path); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// silent drops what Pebble says while it only reads; errors are returned as well.
type silent struct{}

// Infof implements pebble.Logger.
func (silent) Infof(string, ...any) {}

// Errorf implements pebble.Logger.
func (silent) Errorf(string, ...any) {}

// Fatalf implements pebble.Logger.
func (silent) Fatalf(string, ...any) {}

// room waits until the views may grow, or the shard fails. The loop calls it when
// everything is committed.
func (s *Shard) room() error {
	if s.machine.Written-s.viewsSeen < uint64(s.opts.MemTableSize)/viewsLooks && !s.crowded {
		return nil
	}
	for {
		m := s.db.Metrics()
		inMemory := viewsMemTables * uint64(s.opts.MemTableSize)
		s.crowded = m.MemTable.Size > inMemory/2 || m.Levels[0].Sublevels > viewsSublevels/2
		if m.MemTable.Size <= inMemory && m.Levels[0].Sublevels <= viewsSublevels {
			s.viewsSeen = s.machine.Written
			return nil
		}
		select {
		case <-s.viewsMoved:
		case <-s.failed:
			return s.Err()
		}
	}
}

// orderedFS keeps the views from getting ahead of the durable log: before a
// table of the views is created, the log is synced. Everything in a memtable
// was appended to the log before its flush began, so no table ever holds the
// effect of a record that a power cut can take back. In sync mode the log is
// ahead anyway and the sync costs nothing.
type orderedFS struct {
	*failstop.FS
	shard *Shard
}

// Create implements vfs.FS.
func (o orderedFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if strings.HasSuffix(name, ".sst") || strings.HasSuffix(name, ".blob") {
		if err := o.shard.log.Sync(); err != nil {
			o.shard.fail(err) // nothing of the views reaches the disk any more
		}
	}
	if strings.HasPrefix(o.PathBase(name), "marker.") {
		// A marker names a file that was created just before. A power cut must
		// not keep the one directory entry and lose the other.
		if err := durable.SyncDir(o.FS, o.PathDir(name)); err != nil {
			return nil, err
		}
	}
	return o.FS.Create(name, category)
}

// GetDiskUsage implements vfs.FS. Pebble asks in order to pace its deletions, and would
// report an error here like a failed write; it goes without.
func (o orderedFS) GetDiskUsage(path string) (vfs.DiskUsage, error) {
	usage, err := o.FS.GetDiskUsage(path)
	if err != nil {
		err = vfs.ErrUnsupported
	}
	return usage, err
}

// Unwrap implements vfs.FS.
func (o orderedFS) Unwrap() vfs.FS { return o.FS }

// viewsLogger passes on what Pebble complains about. Its chatter about normal
// work is dropped.
type viewsLogger struct{ shard *Shard }

// Infof implements pebble.Logger.
func (l viewsLogger) Infof(string, ...any) {}

// Errorf implements pebble.Logger.
func (l viewsLogger) Errorf(format string, args ...any) {
	l.shard.logger.Error("views", "error", fmt.Sprintf(format, args...))
}

// Fatalf implements pebble.Logger. Pebble calls it when it cannot write its own
// files and would end the process. The shard stops instead: the views can be
// rebuilt from the log, and other shards may be well.
func (l viewsLogger) Fatalf(format string, args ...any) {
	l.shard.fail(fmt.Errorf("views: "+format, args...))
}

// viewsDamaged ends the shard when a table of the views is not what was written. Left
// to itself, Pebble words this with the stacks of all its callers.
func (s *Shard) viewsDamaged(info pebble.DataCorruptionInfo) {
	s.fail(damaged(info))
}

// damaged says which table of the views is damaged, and where, in one line.
func damaged(info pebble.DataCorruptionInfo) error {
	return fmt.Errorf("views: %s: %w (%s)", info.Path, info.Details, restoreHint)
}

// viewsHint says what helps when err is that the views are damaged.
func (s *Shard) viewsHint(err error) error {
	if errors.Is(err, keyspace.ErrCorrupt) {
		return fmt.Errorf("views in %s: %w (%s)", ViewsDir(s.opts.FS, s.opts.Dir), err, restoreHint)
	}
	return err
}

// replay applies what the log has and the views have not.
func (s *Shard) replay() error {
	state := s.machine.State()
	from := commitlog.Pos(state.Pos)
	if first := s.log.Segments()[0]; state.Index+1 == first.FirstIndex {
		from = first.First // also when the record before was the last of a dropped segment
	}
	if from > s.log.Appended() || state.Index > s.log.LastIndex() {
		return &commitlog.CorruptionError{
			File: LogDir(s.opts.FS, s.opts.Dir), Offset: int64(s.log.Appended()),
			Reason: fmt.Sprintf("the views have applied record %d at position %d, the log ends with record %d at %d",
				state.Index, from, s.log.LastIndex(), s.log.Appended()),
		}
	}
	var res machine.Result
	n := 0
	err := s.log.Scan(from, func(rec commitlog.Record) error {
		n++
		s.machine.Effects.Reset()
		if err := s.machine.Apply(recordOf(rec), &res); err != nil {
			return s.viewsHint(err)
		}
		if n%256 != 0 {
			return nil
		}
		if err := s.machine.Commit(); err != nil {
			return err
		}
		if err := errors.Join(s.Err(), s.interrupted()); err != nil {
			return err
		}
		return s.room()
	})
	if err != nil {
		return err
	}
	if n > 0 {
		s.logger.Info("log replayed", "records", n)
	}
	s.machine.Effects.Reset()
	return s.machine.Commit()
}

func recordOf(rec commitlog.Record) machine.Record {
	return machine.Record{
		Kind: command.Kind(rec.Kind), Payload: rec.Payload,
		PayloadPos: uint64(rec.PayloadPos), Next: uint64(rec.Next), Index: rec.Index,
	}
}

package shard

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/commitlog"
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
	opened := make(chan struct{})
	opts := &pebble.Options{
		FS:                          orderedFS{FS: s.opts.FS, shard: s},
		Cache:                       cache,
		DisableWAL:                  true, // the commit log is the only one
		MemTableSize:                uint64(s.opts.MemTableSize),
		MemTableStopWritesThreshold: noViewsBound,
		L0StopWritesThreshold:       noViewsBound,
		FormatMajorVersion:          pebble.FormatNewest,
		Logger:                      viewsLogger{s},
		// A flush that failed is tried again at once and for ever: the shard
		// stops, and orderedFS holds the next try.
		EventListener: &pebble.EventListener{
			BackgroundError: func(err error) {
				s.fail(fmt.Errorf("views: %w", err))
				<-opened
			},
			FlushEnd:      func(pebble.FlushInfo) { signal(s.viewsMoved) },
			CompactionEnd: func(pebble.CompactionInfo) { signal(s.viewsMoved) },
		},
	}
	compactions := newCompactions(s)
	opts.Experimental.CompactionScheduler = compactions
	// Most look-ups find something, and what has lain for long in the last level:
	// there a filter tells nothing, and takes the cache from what is read.
	for i := range len(opts.Levels) - 1 {
		opts.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	type result struct {
		db  *pebble.DB
		err error
	}
	done := make(chan result, 1)
	go func() {
		db, err := pebble.Open(ViewsDir(s.opts.FS, s.opts.Dir), opts)
		done <- result{db, err}
	}()
	select {
	case r := <-done:
		close(opened)
		compactions.allowed.Store(true)
		return r.db, r.err
	case <-s.failed:
		// Pebble waits in Open for a flush that it would try for ever. That
		// goroutine cannot be ended: it is held where it is, and the process is
		// expected to give up.
		return nil, s.Err()
	}
}

// Applied returns the log position that the views on disk of the shard in dir have
// applied, 0 without views. Nobody may have the shard open. A log that ends earlier
// has lost durable records: its end must not be taken for a torn tail and cut.
func Applied(fsys vfs.FS, dir string) (commitlog.Pos, error) {
	if _, err := fsys.Stat(ViewsDir(fsys, dir)); errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	db, err := ReadViews(fsys, dir)
	if errors.Is(err, pebble.ErrDBDoesNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	state, err := machine.ReadState(db)
	return commitlog.Pos(state.Pos), errors.Join(err, db.Close())
}

// ReadViews opens the views of the shard in dir for reading only; the caller closes
// them. Nobody may have the shard open.
func ReadViews(fsys vfs.FS, dir string) (*pebble.DB, error) {
	return pebble.Open(ViewsDir(fsys, dir), &pebble.Options{FS: fsys, ReadOnly: true, ErrorIfNotExists: true, Logger: silent{}})
}

// silent drops what Pebble says while it only reads; errors are returned as well.
type silent struct{}

// Infof implements pebble.Logger.
func (silent) Infof(string, ...any) {}

// Errorf implements pebble.Logger.
func (silent) Errorf(string, ...any) {}

// Fatalf implements pebble.Logger.
func (silent) Fatalf(string, ...any) {}

// compactions is Pebble's scheduler of them, without its ticker: nothing wakes an
// idle shard ten times a second, and no goroutine is left behind by an open that
// fails. Flushes and ends of compactions look for more work anyway. None starts
// while the views are being opened, where one that fails would be waited for for
// ever, and none once the shard has failed, when each would fail and be tried
// again at once.
type compactions struct {
	*pebble.ConcurrencyLimitScheduler
	shard   *Shard
	allowed atomic.Bool
}

func newCompactions(s *Shard) *compactions {
	return &compactions{
		ConcurrencyLimitScheduler: pebble.NewConcurrencyLimitSchedulerWithNoPeriodicGrantingForTest(),
		shard:                     s,
	}
}

// TrySchedule implements pebble.CompactionScheduler.
func (c *compactions) TrySchedule() (bool, pebble.CompactionGrantHandle) {
	if !c.allowed.Load() || c.shard.Err() != nil {
		return false, nil
	}
	return c.ConcurrencyLimitScheduler.TrySchedule()
}

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
	vfs.FS
	shard *Shard
}

// Create implements vfs.FS.
func (o orderedFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if strings.HasSuffix(name, ".sst") || strings.HasSuffix(name, ".blob") {
		err := o.shard.log.Sync()
		if err != nil {
			o.shard.fail(err)
			err = fmt.Errorf("log not durable: %w", err)
		} else {
			err = o.shard.Err()
		}
		if err != nil {
			// Pebble tries a failed flush again at once; hold it until the end.
			<-o.shard.closing
			return nil, err
		}
	}
	if strings.HasPrefix(o.PathBase(name), "marker.") {
		// A marker names a file that was created just before. A power cut must
		// not keep the one directory entry and lose the other.
		if err := syncDir(o.FS, o.PathDir(name)); err != nil {
			return nil, err
		}
	}
	return o.FS.Create(name, category)
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

// replay applies what the log has and the views have not.
func (s *Shard) replay() error {
	// Nothing drops segments: a log that does not begin with the first record
	// has lost some.
	if first := s.log.Segments()[0]; first.FirstIndex != 1 {
		return &commitlog.CorruptionError{
			File:   first.File,
			Reason: fmt.Sprintf("it is the oldest segment and begins with record %d: the segments before it are missing", first.FirstIndex),
		}
	}
	state := s.machine.State()
	from := commitlog.Pos(state.Pos)
	if state.Index == 0 {
		from = s.log.First()
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
			return err
		}
		if n%256 != 0 {
			return nil
		}
		if err := s.machine.Commit(); err != nil {
			return err
		}
		if err := s.Err(); err != nil {
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

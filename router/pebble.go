package router

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/perigee-mq/perigee/internal/durable"
	"github.com/perigee-mq/perigee/internal/failstop"
	"github.com/perigee-mq/perigee/internal/readonly"
)

// An embedded backend keeps the entries in a Pebble database of their own,
// whose write-ahead log is synced with every commit.
type embedded struct {
	dir    string
	fs     vfs.FS
	lock   *pebble.Lock // of dir; nil: Pebble takes it itself
	db     *pebble.DB
	guard  *guard // nil until Load
	logger *pebbleLogger
}

// ErrInUse says that another process has opened the metadata.
var ErrInUse = errors.New("in use by another process")

// openEmbedded opens the database in dir, and makes a new one when dir is
// missing or empty. onFailure is called once when it has stopped for good.
func openEmbedded(fs vfs.FS, dir string, log *slog.Logger, onFailure func()) (_ *embedded, err error) {
	if err := checkFiles(fs, dir); err != nil {
		return nil, err
	}
	if err := durable.MakeDir(fs, dir); err != nil {
		return nil, err
	}
	e := &embedded{dir: dir, fs: fs, logger: &pebbleLogger{log: log, onFailure: onFailure}}
	if e.lock, err = pebble.LockDirectory(dir, fs); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInUse, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.lock.Close())
		}
	}()
	if err := e.checkRevision(); err != nil {
		return nil, err
	}
	return e, e.open()
}

// open opens the database for writing.
func (e *embedded) open() error {
	compactions := failstop.NewCompactions(func() bool { return e.logger.failure() != nil })
	opts := &pebble.Options{
		FS:            failstop.New(e.fs, e.logger.fail),
		EventListener: &pebble.EventListener{BackgroundError: e.logger.fail, DataCorruption: e.logger.damaged},
	}
	opts.Experimental.CompactionScheduler = compactions
	db, err := e.openDB(opts)
	if failure := e.Err(); failure != nil {
		// Pebble was told that all went well; what it says then follows from that.
		if db != nil {
			_ = db.Close()
		}
		return failure
	}
	if err != nil {
		return err
	}
	compactions.Allow()
	e.db = db
	return nil
}

// openDB opens the database with what is always so, beside opts.
func (e *embedded) openDB(opts *pebble.Options) (db *pebble.DB, err error) {
	opts.FormatMajorVersion = pebble.FormatWALSyncChunks
	opts.CacheSize, opts.MemTableSize = 1<<20, 1<<20
	opts.Logger, opts.Lock = e.logger, e.lock
	err = catchPanic(func() (err error) {
		db, err = pebble.Open(e.dir, opts)
		return err
	})
	return db, err
}

// openReadOnly opens a database that is there and changes nothing. One whose manifest
// is damaged is refused.
func (e *embedded) openReadOnly() (*pebble.DB, error) {
	db, err := e.openDB(&pebble.Options{FS: e.fs, ReadOnly: true, EventListener: &pebble.EventListener{
		DataCorruption: func(pebble.DataCorruptionInfo) {}, // whoever reads gets it as an error
	}})
	if err != nil {
		return nil, err
	}
	if err := readonly.CheckManifest(db, e.fs, e.dir); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// checkRevision refuses a database that ends before the revision its guard
// remembers, while nothing has been written: opening it for writing deletes the
// log that Pebble could not read to its end, and with it what a repair needs.
func (e *embedded) checkRevision() error {
	known, guardErr := readGuard(e.fs, e.fs.PathJoin(e.dir, guardName))
	if !e.exists() {
		return guardOfNew(e.dir, known, guardErr)
	}
	db, err := e.openReadOnly()
	if err != nil {
		return err
	}
	revision, err := lastRevision(db)
	if err := errors.Join(err, db.Close()); err != nil {
		return err
	}
	if revision == 0 {
		return guardOfNew(e.dir, known, guardErr)
	}
	return errors.Join(guardErr, compareRevisions(e.dir, known, revision))
}

// exists reports whether there is a database: a file that names its manifest.
func (e *embedded) exists() bool {
	names, err := e.fs.List(e.dir)
	return err == nil && slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(name, manifestMarker) })
}

// guardOfNew judges the guard of a database without entries: it may lack one, but
// none says that there were any.
func guardOfNew(dir string, known uint64, err error) error {
	if err != nil {
		return nil
	}
	return compareRevisions(dir, known, 0)
}

func lastRevision(db *pebble.DB) (uint64, error) {
	value, closer, err := db.Get([]byte(countersKey))
	if errors.Is(err, pebble.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	entry := Entry{Key: countersKey, Value: slices.Clone(value)}
	if err := closer.Close(); err != nil {
		return 0, err
	}
	return RevisionOf([]Entry{entry})
}

func compareRevisions(dir string, known, revision uint64) error {
	if known <= revision {
		return nil
	}
	return &DamageError{File: dir, Entry: countersKey, Reason: fmt.Sprintf("%s says that revision %d was written, the database ends at %d", guardName, known, revision)}
}

// catchPanic runs f and turns a panic with which Pebble reports what it finds in its
// files into an error. Panics that mean a defect go on.
func catchPanic(f func() error) (err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case runtime.Error:
			panic(p)
		case error:
			err = p
		default:
			panic(p)
		}
	}()
	return f()
}

// manifestMarker begins the name of the file that says which manifest counts.
const manifestMarker = "marker.manifest."

// checkFiles refuses a directory that lost the files which name all others.
// Pebble takes such a directory for a new one, and what is left for rubbish.
func checkFiles(fs vfs.FS, dir string) error {
	names, err := fs.List(dir)
	if err != nil {
		if _, statErr := fs.Stat(dir); statErr != nil {
			return nil // Pebble makes it, or says why not
		}
		return fmt.Errorf("list %s: %w", dir, err)
	}
	var manifest, format, table, log string
	for _, name := range names {
		switch {
		case strings.HasPrefix(name, manifestMarker):
			manifest = name
		case strings.HasPrefix(name, "marker.format-version."):
			format = name
		case strings.HasSuffix(name, ".sst"):
			table = name
		case strings.HasSuffix(name, ".log"):
			log = name
		}
	}
	if manifest == "" {
		for _, left := range []string{format, table, log} {
			if left != "" {
				return &DamageError{File: dir, Reason: "holds " + left + " but no marker.manifest file"}
			}
		}
	}
	// Pebble writes the format marker behind its first log, and has one ever after.
	if format != "" && log == "" {
		return &DamageError{File: dir, Reason: "holds " + format + " but no .log file"}
	}
	return nil
}

func (e *embedded) Load(ctx context.Context, yield func(Entry) error) error {
	isNew := true
	var revision uint64
	err := e.each(ctx, func(entry Entry) error {
		isNew = false
		err := yield(entry)
		if err == nil && entry.Key == countersKey {
			revision, err = RevisionOf([]Entry{entry})
		}
		return err
	})
	if err != nil {
		return err
	}
	var known uint64
	if e.guard, known, err = openGuard(e.fs, e.dir, isNew); err != nil {
		return err
	}
	return compareRevisions(e.dir, known, revision)
}

// each calls yield for every entry of the database.
func (e *embedded) each(ctx context.Context, yield func(Entry) error) (err error) {
	it, err := e.db.NewIterWithContext(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for ok := it.First(); ok; ok = it.Next() {
		value, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		if err := yield(Entry{Key: string(it.Key()), Value: append([]byte{}, value...)}); err != nil {
			return err
		}
	}
	return it.Error()
}

func (e *embedded) Commit(_ context.Context, entries []Entry) error {
	if err := e.Err(); err != nil {
		return err
	}
	if err := e.commit(entries); err != nil {
		e.logger.fail(err)
		return e.Err()
	}
	return nil
}

func (e *embedded) commit(entries []Entry) error {
	batch := e.db.NewBatch()
	for _, entry := range entries {
		var err error
		if entry.Value == nil {
			err = batch.Delete([]byte(entry.Key), nil)
		} else {
			err = batch.Set([]byte(entry.Key), entry.Value, nil)
		}
		if err != nil {
			return errors.Join(err, batch.Close())
		}
	}
	if err := batch.Commit(pebble.Sync); err != nil {
		return err
	}
	if err := e.Err(); err != nil { // Pebble is told that all goes well
		return err
	}
	revision, err := RevisionOf(entries)
	return errors.Join(err, batch.Close(), e.guard.write(revision))
}

func (e *embedded) Err() error {
	if err := e.logger.failure(); err != nil {
		return fmt.Errorf("metadata in %s: %w", e.dir, err)
	}
	return nil
}

func (e *embedded) Close() error {
	var err error
	if e.guard != nil {
		err = e.guard.close()
	}
	err = errors.Join(err, e.db.Close())
	if e.lock != nil {
		err = errors.Join(err, e.lock.Close())
	}
	return err
}

// A pebbleLogger passes Pebble's messages on and remembers the first one that
// Pebble holds to be fatal. Pebble expects Fatalf to end the process; here it
// ends the backend, which checks for it before and after every commit.
type pebbleLogger struct {
	log       *slog.Logger
	onFailure func() // may be nil
	mu        struct {
		sync.Mutex
		err error // first failure
	}
}

func (l *pebbleLogger) Infof(format string, args ...any) {
	l.log.Debug("metadata database", "message", fmt.Sprintf(format, args...))
}

func (l *pebbleLogger) Errorf(format string, args ...any) {
	l.log.Error("metadata database", "message", fmt.Sprintf(format, args...))
}

func (l *pebbleLogger) Fatalf(format string, args ...any) {
	l.log.Error("metadata database stopped", "message", fmt.Sprintf(format, args...))
	for _, arg := range args {
		if err, ok := arg.(error); ok {
			l.fail(err)
			return
		}
	}
	l.fail(fmt.Errorf(format, args...))
}

// damaged ends the backend when a table is not what was written. Left to itself,
// Pebble words this with the stacks of all its callers.
func (l *pebbleLogger) damaged(info pebble.DataCorruptionInfo) {
	err := damageIn(info)
	l.log.Error("metadata database is damaged", "error", err)
	l.fail(err)
}

// damageIn says which table is damaged, and where, in one line.
func damageIn(info pebble.DataCorruptionInfo) *DamageError {
	return &DamageError{File: info.Path, Reason: oneLine(info.Details)}
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

func (l *pebbleLogger) fail(err error) {
	l.mu.Lock()
	first := l.mu.err == nil
	if first {
		l.mu.err = err
	}
	l.mu.Unlock()
	if first && l.onFailure != nil {
		l.onFailure()
	}
}

func (l *pebbleLogger) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.err
}

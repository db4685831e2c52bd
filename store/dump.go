package store

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/perigee-mq/perigee/internal/readonly"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/commitlog"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/shard"
)

// A Line is one record or key of a stopped store, described for a person.
type Line struct {
	Shard string
	What  string // kind of the command or key
	Attrs []slog.Attr
}

// DumpLog calls fn for every record of the log of every shard in dir, and
// verifies each of them. The store must be stopped; nothing is changed. An
// error about damage names the file and the offset.
func DumpLog(fs vfs.FS, dir string, fn func(Line) error) error {
	fs = readonly.New(fs)
	return eachStopped(fs, dir, func(name, shardDir string) error {
		logDir := shard.LogDir(fs, shardDir)
		reach, err := shard.ReadReach(fs, shardDir)
		if err != nil {
			return fmt.Errorf("views of shard %s: %w", name, err)
		}
		var last commitlog.Record
		err = commitlog.Verify(fs, logDir, func(rec commitlog.Record) error {
			if begin := max(reach.Begin.Index, 1); last.Index == 0 && rec.Index > begin {
				return fmt.Errorf("log %s begins with record %d, and may begin with record %d: the segments between are missing, or the views that would say so",
					logDir, rec.Index, begin)
			}
			last = commitlog.Record{Index: rec.Index, Next: rec.Next}
			attrs, err := command.Describe(command.Kind(rec.Kind), rec.Payload)
			if err != nil {
				return fmt.Errorf("record %d at position %d: %w", rec.Index, rec.Pos, err)
			}
			attrs = append([]slog.Attr{
				slog.Uint64("position", uint64(rec.Pos)), slog.Uint64("index", rec.Index), slog.Uint64("term", rec.Term),
			}, attrs...)
			return fn(Line{Shard: name, What: command.Kind(rec.Kind).String(), Attrs: attrs})
		})
		if err == nil && last.Next < commitlog.Pos(reach.State.Pos) {
			err = fmt.Errorf("log %s ends with record %d at position %d, but the views have applied records up to %d: records are missing or damaged",
				logDir, last.Index, last.Next, reach.State.Pos)
		}
		return err
	})
}

// DumpKeys calls fn for every key of the views of every shard in dir. The store
// must be stopped; nothing is changed.
func DumpKeys(fs vfs.FS, dir string, fn func(Line) error) error {
	fs = readonly.New(fs)
	return eachStopped(fs, dir, func(name, shardDir string) (err error) {
		db, err := shard.ReadViews(fs, shardDir)
		if err != nil {
			return fmt.Errorf("views of shard %s: %w", name, err)
		}
		defer func() { err = errors.Join(err, db.Close()) }()
		it, err := db.NewIter(nil)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, it.Close()) }()
		for ok := it.First(); ok; ok = it.Next() {
			val, err := it.ValueAndErr()
			if err != nil {
				return err
			}
			what, attrs, err := keyspace.Describe(it.Key(), val)
			if err != nil {
				return fmt.Errorf("views of shard %s: key %x: %w", name, it.Key(), err)
			}
			if err := fn(Line{Shard: name, What: what, Attrs: attrs}); err != nil {
				return err
			}
		}
		return it.Error()
	})
}

// eachStopped calls fn for every shard in dir while no process has the store open.
func eachStopped(fs vfs.FS, dir string, fn func(name, shardDir string) error) error {
	return whileStopped(fs, dir, func(names []string) error {
		for _, name := range names {
			if err := fn(name, fs.PathJoin(dir, shardsDir, name)); err != nil {
				return err
			}
		}
		return nil
	})
}

// whileStopped calls fn with the names of the shards in dir, in order, while no process
// has the store open.
func whileStopped(fs vfs.FS, dir string, fn func(names []string) error) (err error) {
	if _, err := fs.Stat(dir); err != nil {
		return fmt.Errorf("store: %w", err)
	}
	lock, err := fs.Lock(fs.PathJoin(dir, lockFile))
	if err != nil {
		return fmt.Errorf("store: %s is in use, stop the server first: %w", dir, err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	names, err := fs.List(fs.PathJoin(dir, shardsDir))
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	slices.Sort(names)
	return fn(names)
}

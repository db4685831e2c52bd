package store

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/cockroachdb/pebble/v2"

	"github.com/perigee-mq/perigee/internal/readonly"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/machine"
	"github.com/perigee-mq/perigee/store/shard"
)

// A folder is one set of views: those in use, or a base that was put aside.
type folder struct {
	*shardCheck
	dir     string
	missing bool       // there is nothing
	db      *pebble.DB // nil: missing, or not readable
	size    uint64     // on disk
	state   keyspace.State
	begin   keyspace.Begin
	keys    *viewsCheck // nil: not readable as a whole
}

// inViews reports a finding about a key of the views, or with nil about all.
func (f *folder) inViews(key []byte, format string, args ...any) {
	f.found(Finding{File: f.dir, Offset: -1, Key: fmt.Sprintf("%x", key)}, format, args...)
}

func (c *shardCheck) open(dir string) *folder {
	f := &folder{shardCheck: c, dir: dir}
	names, err := c.fs.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		f.missing = true
		return f
	}
	err = errors.Join(err, readonly.Catch(func() (err error) {
		f.db, err = shard.ReadViewsIn(c.fs, dir)
		return err
	}))
	switch {
	case errors.Is(err, pebble.ErrDBDoesNotExist) && len(names) == 0:
		f.missing = true
	case err != nil:
		f.inViews(nil, "cannot be opened: %v", err)
	}
	return f
}

func (f *folder) close() {
	if f.db == nil {
		return
	}
	if err := f.db.Close(); err != nil {
		f.inViews(nil, "close: %v", err)
	}
}

// check verifies the views by themselves. keys stays nil when they cannot be read as a
// whole: what would follow from the part that can is not worth telling.
func (f *folder) check() {
	if f.db == nil {
		return
	}
	whole := true
	var err error
	f.size, err = readonly.Tables(f.db, f.fs, f.dir, func(file string, err error) {
		whole = false
		f.found(Finding{File: file, Offset: -1}, "table of the views: %v", err)
	})
	if err != nil {
		f.inViews(nil, "list of tables: %v", err)
		return
	}
	if f.state, err = machine.ReadState(f.db); err != nil {
		f.inViews(keyspace.StateKey(), "%v", err)
		return
	}
	if f.begin, err = machine.ReadBegin(f.db); err != nil {
		f.inViews(keyspace.BeginKey(), "%v", err)
		return
	}
	if !whole {
		return
	}
	v := newViewsCheck(f)
	if err := readonly.Catch(v.run); err != nil {
		f.inViews(nil, "cannot be read: %v", err)
		return
	}
	f.keys = v
}

// reach says what the views have applied, and where they let the log begin.
func (f *folder) reach() shard.Reach { return shard.Reach{State: f.state, Begin: f.begin} }

package store

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/perigee-mq/perigee/internal/readonly"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/commitlog"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/machine"
	"github.com/perigee-mq/perigee/store/shard"
)

// A Finding is one thing that is wrong in a stopped store.
type Finding struct {
	Shard string
	// File is the file it is in, or the directory of the views for one of their keys.
	File string
	// Offset is where in the file, -1 when it is not at one place.
	Offset int64
	// Key is the key of the views, in hexadecimal; empty when it is not about one.
	Key     string
	Problem string
}

// String returns the finding in one line.
func (f Finding) String() string {
	place := f.File
	if f.Offset >= 0 {
		place = fmt.Sprintf("%s:%d", f.File, f.Offset)
	}
	if f.Key != "" {
		place += ": key " + f.Key
	}
	return place + ": " + f.Problem
}

// CheckOptions configure Check.
type CheckOptions struct {
	// DeriveLimit is how large, in bytes, the views of a shard may be for them to be
	// derived again from the log, in memory, and compared; 0: never.
	DeriveLimit uint64
	// Found is called for every finding.
	Found func(Finding)
}

// A CheckedShard is what Check has seen of a shard.
type CheckedShard struct {
	Shard    string
	Log      commitlog.Checked
	Messages uint64 // in the records of the log
	Keys     uint64 // of the views
	Applied  uint64 // index of the last record that the views have applied
	// AppliedTo is the position behind it: a start replays what the log has from there.
	AppliedTo commitlog.Pos
	// Derived says that the views were derived again from the log and compared;
	// else NotDerived says why not.
	Derived    bool
	NotDerived string
	Findings   uint64
	// Topics and Groups are the ids that the shard knows, in order.
	Topics []mq.TopicID
	Groups []mq.GroupID
}

// Check verifies everything the stopped store in dir holds: every record of every
// log, every block, key and value of the views, that keys and records agree with
// each other, and, where the log is complete, that the views are what it says.
// Nothing is changed. It goes on behind what is wrong where it can. The error says
// why it could not check at all.
func Check(fsys vfs.FS, dir string, opts CheckOptions) ([]CheckedShard, error) {
	var list []CheckedShard
	fsys = readonly.New(fsys)
	err := eachStopped(fsys, dir, func(name, shardDir string) error {
		c := &shardCheck{fs: fsys, name: name, opts: opts, logDir: shard.LogDir(fsys, shardDir), viewsDir: shard.ViewsDir(fsys, shardDir)}
		c.sum.Shard = name
		c.run(shardDir)
		list = append(list, c.sum)
		return nil
	})
	return list, err
}

// perProblem is how many findings of one kind are told one by one: a lost table
// takes millions of keys along.
const perProblem = 100

// told counts the findings of one kind.
type told struct {
	n    int
	last Finding
}

// A shardCheck is the check of one shard.
type shardCheck struct {
	fs               vfs.FS
	name             string
	opts             CheckOptions
	logDir, viewsDir string
	sum              CheckedShard
	told             map[string]*told // by problem, without its numbers

	db    *pebble.DB // nil: no views, or not readable
	size  uint64     // of the views on disk
	state keyspace.State
	views *viewsCheck // nil: not readable as a whole
}

func (c *shardCheck) run(shardDir string) {
	c.told = map[string]*told{}
	c.openViews(shardDir)
	if c.db != nil {
		defer func() {
			if err := c.db.Close(); err != nil {
				c.inViews(nil, "close: %v", err)
			}
		}()
		c.checkViews()
	}
	c.checkLog()
	for _, format := range slices.Sorted(maps.Keys(c.told)) {
		if t := c.told[format]; t.n > perProblem {
			t.last.Problem = fmt.Sprintf("%d more of this kind, the last one: %s", t.n-perProblem, t.last.Problem)
			c.opts.Found(t.last)
		}
	}
}

// found reports a finding. format names its kind.
func (c *shardCheck) found(f Finding, format string, args ...any) {
	c.sum.Findings++
	f.Shard, f.Problem = c.name, strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; ")
	t := c.told[format]
	if t == nil {
		t = &told{}
		c.told[format] = t
	}
	t.n, t.last = t.n+1, f
	if t.n <= perProblem {
		c.opts.Found(f)
	}
}

// inViews reports a finding about a key of the views, or with nil about all.
func (c *shardCheck) inViews(key []byte, format string, args ...any) {
	c.found(Finding{File: c.viewsDir, Offset: -1, Key: fmt.Sprintf("%x", key)}, format, args...)
}

// inLog reports what reading the log has met.
func (c *shardCheck) inLog(err error) {
	f := Finding{File: c.logDir, Offset: -1}
	var corrupt *commitlog.CorruptionError
	if errors.As(err, &corrupt) {
		f.File, f.Offset = corrupt.File, corrupt.Offset
		c.found(f, "%s", corrupt.Reason)
		return
	}
	c.found(f, "%v", err)
}

func (c *shardCheck) openViews(shardDir string) {
	names, err := c.fs.List(c.viewsDir)
	if errors.Is(err, fs.ErrNotExist) {
		c.sum.NotDerived = "there are no views; the next start derives them from the log"
		return
	}
	err = errors.Join(err, readonly.Catch(func() (err error) {
		c.db, err = shard.ReadViews(c.fs, shardDir)
		return err
	}))
	switch {
	case errors.Is(err, pebble.ErrDBDoesNotExist) && len(names) == 0:
		c.sum.NotDerived = "there are no views; the next start derives them from the log"
	case err != nil:
		c.sum.NotDerived = "the views cannot be read"
		c.inViews(nil, "cannot be opened: %v", err)
	}
}

// checkViews verifies the views by themselves. c.views stays nil when they cannot be
// read as a whole: what would follow from the part that can is not worth telling.
func (c *shardCheck) checkViews() {
	c.sum.NotDerived = "the views cannot be read"
	whole := true
	var err error
	c.size, err = readonly.Tables(c.db, c.fs, c.viewsDir, func(file string, err error) {
		whole = false
		c.found(Finding{File: file, Offset: -1}, "table of the views: %v", err)
	})
	if err != nil {
		c.inViews(nil, "list of tables: %v", err)
		return
	}
	if c.state, err = machine.ReadState(c.db); err != nil {
		c.inViews(keyspace.StateKey(), "%v", err)
		return
	}
	c.sum.Applied, c.sum.AppliedTo = c.state.Index, commitlog.Pos(c.state.Pos)
	if !whole {
		return
	}
	v := newViewsCheck(c)
	if err := readonly.Catch(v.run); err != nil {
		c.inViews(nil, "cannot be read: %v", err)
		return
	}
	c.views, c.sum.NotDerived = v, ""
	c.sum.Topics, c.sum.Groups = slices.Sorted(maps.Keys(v.topics)), slices.Sorted(maps.Keys(v.groups))
}

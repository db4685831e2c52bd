package store

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/perigee-mq/perigee/internal/readonly"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/commitlog"
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
	// LogDamaged says that something of the log cannot be read, or is missing. Only a
	// copy of it helps.
	LogDamaged bool
	// Restorable says that the views are damaged, the log is not, and RestoreViews has
	// what they can be derived from.
	Restorable bool
	// Topics and Groups are the ids that the shard knows, in order.
	Topics []mq.TopicID
	Groups []mq.GroupID
}

// Check verifies everything the stopped store in dir holds: every record of every
// log, every block, key and value of the views and of their bases, that keys and records
// agree with each other, and, where the log or a base goes back far enough, that the
// views are what the log says. Nothing is changed. It goes on behind what is wrong where
// it can. The error says why it could not check at all.
func Check(fsys vfs.FS, dir string, opts CheckOptions) ([]CheckedShard, error) {
	var list []CheckedShard
	fsys = readonly.New(fsys)
	err := eachStopped(fsys, dir, func(name, shardDir string) error {
		c := &shardCheck{fs: fsys, name: name, opts: opts, logDir: shard.LogDir(fsys, shardDir)}
		c.sum.Shard = name
		c.run(shardDir)
		list = append(list, c.sum)
		return nil
	})
	return list, err
}

// perProblem is how many findings of one kind are told one by one: a lost table
// takes millions of keys along.
const perProblem = 10

// told counts the findings of one kind.
type told struct {
	n    int
	last Finding
}

// A shardCheck is the check of one shard.
type shardCheck struct {
	fs     vfs.FS
	name   string
	opts   CheckOptions
	logDir string
	sum    CheckedShard
	told   map[string]*told // by problem, without its numbers

	views *folder
	base  *folder // the newest one that is sound; nil: there is none
	// viewsDamaged: there was a finding about the views in use.
	viewsDamaged bool
}

func (c *shardCheck) run(shardDir string) {
	c.told = map[string]*told{}
	c.views = &folder{dir: shard.ViewsDir(c.fs, shardDir)} // for what is found at once
	c.views = c.open(c.views.dir)
	defer c.views.close()
	c.views.check()
	bases, err := shard.Bases(c.fs, shardDir)
	if err != nil {
		c.found(Finding{File: shardDir, Offset: -1}, "cannot be listed: %v", err)
	}
	for _, path := range bases {
		base := c.open(path)
		defer base.close()
		if base.check(); base.keys != nil && c.base == nil {
			c.base = base
		}
	}
	c.summarize()
	c.checkLog()
	c.sum.Restorable = c.viewsDamaged && !c.sum.LogDamaged && (c.sum.Log.First <= 1 || c.base != nil)
	for _, format := range slices.Sorted(maps.Keys(c.told)) {
		if t := c.told[format]; t.n > perProblem {
			t.last.Problem = fmt.Sprintf("and %d more of this kind, the last one: %s", t.n-perProblem, t.last.Problem)
			c.opts.Found(t.last)
		}
	}
}

// summarize says in the summary what was read of the views.
func (c *shardCheck) summarize() {
	v := c.views
	c.sum.Applied, c.sum.AppliedTo = v.state.Index, commitlog.Pos(v.state.Pos)
	switch {
	case v.keys != nil:
		c.sum.Keys = v.keys.n
		c.sum.Topics, c.sum.Groups = slices.Sorted(maps.Keys(v.keys.topics)), slices.Sorted(maps.Keys(v.keys.groups))
	case v.missing:
		c.sum.NotDerived = "there are no views; the next start derives them from the log"
	default:
		c.sum.NotDerived = "the views cannot be read"
	}
}

// found reports a finding. format names its kind.
func (c *shardCheck) found(f Finding, format string, args ...any) {
	c.sum.Findings++
	c.viewsDamaged = c.viewsDamaged || c.views != nil && (f.File == c.views.dir || c.fs.PathDir(f.File) == c.views.dir)
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

// inLog reports what reading the log has met.
func (c *shardCheck) inLog(err error) {
	c.sum.LogDamaged = true
	f := Finding{File: c.logDir, Offset: -1}
	var corrupt *commitlog.CorruptionError
	if errors.As(err, &corrupt) {
		f.File, f.Offset = corrupt.File, corrupt.Offset
		c.found(f, "%s", corrupt.Reason)
		return
	}
	c.found(f, "%v", err)
}

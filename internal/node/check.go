package node

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/perigee-mq/perigee/internal/readonly"
	"github.com/perigee-mq/perigee/router"
	"github.com/perigee-mq/perigee/store"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/commitlog"
	"github.com/perigee-mq/perigee/store/keyspace"
)

// A Finding is one thing that is wrong in the data directory of a stopped node.
type Finding struct {
	// Shard is empty for metadata.
	Shard string
	// File is the file it is in, or the directory of the database.
	File string
	// Offset is where in the file, -1 when it is not at one place.
	Offset int64
	// Key is the key of the views, in hexadecimal, or the entry of the metadata;
	// empty when it is not about one.
	Key     string
	Problem string
}

// String returns the finding in one line.
func (f Finding) String() string { return store.Finding(f).String() }

// CheckOptions configure Check.
type CheckOptions struct {
	// DeriveLimit is as in store.CheckOptions.
	DeriveLimit uint64
	// Found is called for every finding.
	Found func(Finding)
}

// Checked is what Check has seen.
type Checked struct {
	Shards   []store.CheckedShard
	Metadata router.Checked
	// MetadataElsewhere: it is the data directory of a store node of a deployment. Nothing is
	// known then of the metadata, nor whether they belong to the shards.
	MetadataElsewhere bool
	Findings          uint64
}

// routerCache is how the names of the files begin that a node keeps of what routers
// elsewhere have told it; see docs/format/routercache.md.
const routerCache = "router-cache"

// metadataElsewhere reports whether the folder for metadata holds what was known of those of
// a router elsewhere, and nothing else.
func metadataElsewhere(fsys vfs.FS, dir string) bool {
	names, err := fsys.List(dir)
	return err == nil && len(names) > 0 && !slices.ContainsFunc(names, func(name string) bool { return !strings.HasPrefix(name, routerCache) })
}

// Check verifies everything in the data directory of a stopped node: see
// store.Check and router.Check, and that the two belong together. Nothing is
// changed. The error says why it could not check at all.
func Check(fsys vfs.FS, dataDir string, opts CheckOptions) (sum Checked, err error) {
	storeDir, metadataDir := fsys.PathJoin(dataDir, StoreDir), fsys.PathJoin(dataDir, routerDir)
	sum.Shards, err = store.Check(fsys, storeDir, store.CheckOptions{
		DeriveLimit: opts.DeriveLimit, Found: func(f store.Finding) { opts.Found(Finding(f)) },
	})
	if err != nil {
		return sum, err
	}
	for _, s := range sum.Shards {
		sum.Findings += s.Findings
	}
	if sum.MetadataElsewhere = metadataElsewhere(fsys, metadataDir); sum.MetadataElsewhere {
		return sum, nil
	}
	readable := true
	metadata := alike{found: opts.Found}
	found := func(err error) {
		readable = false
		sum.Findings++
		metadata.add(ofMetadata(metadataDir, err))
	}
	sum.Metadata, err = router.Check(fsys, metadataDir, found)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // a store without topics does not need any
	}
	if err != nil {
		return sum, err
	}
	for _, name := range sum.Metadata.Shards {
		logDir, has, err := store.HasShard(fsys, storeDir, name)
		if err != nil {
			return sum, err
		}
		if !has {
			sum.Findings++
			opts.Found(Finding{Shard: name, File: logDir, Offset: -1, Problem: noLog(fsys, logDir) + ", but the metadata places topics on the shard"})
		}
	}
	for _, s := range sum.Shards {
		if readable && unheardOf(s.Topics, s.Groups, sum.Metadata.LastTopic, sum.Metadata.LastGroup) {
			sum.Metadata.Findings++
			found(fmt.Errorf("shard %s: %w", s.Shard, errOlderMetadata))
		}
	}
	metadata.end()
	return sum, nil
}

// perProblem is how many findings of one kind are told one by one.
const perProblem = 10

// alike passes findings on, but not all of one kind: those whose problem begins alike, up
// to the first number or name.
type alike struct {
	found func(Finding)
	kinds []string
	of    map[string]*findings
}

type findings struct {
	n    int
	last Finding
}

func (a *alike) add(f Finding) {
	kind := f.Problem
	if i := strings.IndexAny(kind, "0123456789\"'"); i >= 0 {
		kind = kind[:i]
	}
	all := a.of[kind]
	if all == nil {
		if a.of == nil {
			a.of = map[string]*findings{}
		}
		all = &findings{}
		a.of[kind] = all
		a.kinds = append(a.kinds, kind)
	}
	all.n, all.last = all.n+1, f
	if all.n <= perProblem {
		a.found(f)
	}
}

// end tells how many were left out.
func (a *alike) end() {
	for _, kind := range a.kinds {
		if all := a.of[kind]; all.n > perProblem {
			all.last.Problem = fmt.Sprintf("and %d more of this kind, the last one: %s", all.n-perProblem, all.last.Problem)
			a.found(all.last)
		}
	}
}

// IsDamage reports whether err is about files that are not what was written to them.
func IsDamage(err error) bool {
	var log *commitlog.CorruptionError
	var metadata *router.DamageError
	return errors.As(err, &log) || errors.As(err, &metadata) ||
		errors.Is(err, commitlog.ErrNotALog) || errors.Is(err, keyspace.ErrCorrupt) || errors.Is(err, command.ErrCorrupt) ||
		errors.Is(err, readonly.ErrManifest) || pebble.IsCorruptionError(err)
}

// ofMetadata returns the finding that err describes.
func ofMetadata(dir string, err error) Finding {
	f := Finding{File: dir, Offset: -1, Problem: err.Error()}
	var damage *router.DamageError
	var version *router.VersionError
	switch {
	case errors.As(err, &damage):
		f.File, f.Key, f.Problem = damage.File, damage.Entry, damage.Reason
	case errors.As(err, &version):
		f.File, f.Key = version.File, version.Entry
		f.Problem = fmt.Sprintf("has version %d, this program reads up to %d", version.Found, version.Known)
	}
	return f
}

// RestoreRevision is router.RestoreRevision for the metadata in the data directory of a
// stopped node.
func RestoreRevision(fsys vfs.FS, dataDir string) (router.RestoredRevision, error) {
	return router.RestoreRevision(fsys, fsys.PathJoin(dataDir, routerDir))
}

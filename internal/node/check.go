package node

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/perigee-mq/perigee/internal/backup"
	"github.com/perigee-mq/perigee/internal/readonly"
	"github.com/perigee-mq/perigee/router"
	routerremote "github.com/perigee-mq/perigee/router/remote"
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

// A Folder says what a folder is by what is in it.
type Folder string

// The folders that Check knows.
const (
	FolderStandalone Folder = "server in one process"
	FolderRouter     Folder = "router"
	FolderStore      Folder = "store node"
	FolderProxy      Folder = "proxy"
)

// Checked is what Check has seen.
type Checked struct {
	Folder Folder
	// Backup is the manifest of a backup; nil: it is a data folder.
	Backup   *backup.Manifest
	Shards   []store.CheckedShard
	Metadata router.Checked
	// MetadataElsewhere: the directory is that of a store node or a proxy, whose metadata a
	// router has.
	MetadataElsewhere bool
	// Known is what a proxy knows of them; nil: it is none, or that cannot be read.
	Known    *routerremote.Kept
	Findings uint64
}

// Check verifies everything in the data directory of a stopped node, or in a backup: see
// store.Check and router.Check, that the two belong together where both are there, and that a
// backup is what its manifest says. A router has no store, the metadata of a store node are
// elsewhere, and a proxy has neither. Nothing is changed. The error says why it could not check
// at all.
func Check(fsys vfs.FS, dataDir string, opts CheckOptions) (sum Checked, err error) {
	c := &folderCheck{fs: fsys, dir: dataDir, opts: opts, sum: &sum}
	c.storeDir, c.metadataDir = fsys.PathJoin(dataDir, StoreDir), fsys.PathJoin(dataDir, routerDir)
	if backup.Is(fsys, dataDir) {
		err = c.backup()
	} else {
		err = c.data()
	}
	return sum, err
}

// folderCheck is the check of one folder.
type folderCheck struct {
	fs                    vfs.FS
	dir                   string
	storeDir, metadataDir string
	opts                  CheckOptions
	sum                   *Checked
}

func (c *folderCheck) found(f Finding) {
	c.sum.Findings++
	c.opts.Found(f)
}

// data checks a data folder.
func (c *folderCheck) data() error {
	hasStore, cached := exists(c.fs, c.storeDir), exists(c.fs, c.fs.PathJoin(c.metadataDir, routerremote.CacheFile))
	switch {
	case exists(c.fs, c.fs.PathJoin(c.dir, backup.RestoringName)):
		return fmt.Errorf("%s: a restore has not come to its end; empty the folder and restore again", c.dir)
	case cached && !hasStore:
		c.sum.Folder, c.sum.MetadataElsewhere = FolderProxy, true
		c.cache()
		return nil
	case cached:
		c.sum.Folder, c.sum.MetadataElsewhere = FolderStore, true
		return c.messages()
	case hasStore:
		c.sum.Folder = FolderStandalone
		if err := c.messages(); err != nil {
			return err
		}
		return c.metadata()
	case !exists(c.fs, c.metadataDir):
		return c.messages() // says what is missing
	}
	c.sum.Folder = FolderRouter
	if err := c.metadata(); err != nil {
		return err
	}
	for _, name := range c.sum.Metadata.Shards {
		if !slices.Contains(c.sum.Metadata.Registered, name) {
			c.sum.Folder = FolderStandalone // that has lost its store
			return c.messages()
		}
	}
	return nil
}

// backup checks a backup.
func (c *folderCheck) backup() error {
	m, err := backup.Read(c.fs, c.dir)
	if damage, ok := errors.AsType[*backup.DamageError](err); ok {
		c.found(ofBackup(c.dir, damage))
		m, err = &backup.Manifest{}, nil
	}
	if err != nil {
		return err
	}
	c.sum.Backup = m
	err = backup.Verify(c.fs, c.dir, m, func(err error) { c.found(ofBackup(c.dir, err)) })
	if err != nil {
		return err
	}
	switch {
	case len(m.Shards) > 0 && m.Metadata != nil:
		c.sum.Folder = FolderStandalone
	case len(m.Shards) > 0:
		c.sum.Folder, c.sum.MetadataElsewhere = FolderStore, true
	default:
		c.sum.Folder = FolderRouter
	}
	if len(m.Shards) > 0 {
		if err := c.messages(); err != nil {
			return err
		}
	}
	for _, want := range m.Shards {
		i := slices.IndexFunc(c.sum.Shards, func(s store.CheckedShard) bool { return s.Shard == want.Name })
		if i < 0 {
			continue // its files are missing, which was told
		}
		if end := uint64(c.sum.Shards[i].Log.End); end != want.End {
			c.found(Finding{Shard: want.Name, File: c.storeDir, Offset: -1, Problem: fmt.Sprintf("the log ends at position %d, and was copied up to %d", end, want.End)})
		}
	}
	if m.Metadata == nil {
		return nil
	}
	if err := c.metadata(); err != nil {
		return err
	}
	if r := c.sum.Metadata.Revision; r != m.Metadata.Revision {
		c.found(Finding{File: c.metadataDir, Offset: -1, Problem: fmt.Sprintf("the metadata are at revision %d, and were copied at %d", r, m.Metadata.Revision)})
	}
	return nil
}

// cache checks what a proxy knows.
func (c *folderCheck) cache() {
	kept, err := routerremote.ReadCache(c.fs, c.metadataDir)
	if err != nil {
		c.sum.Metadata.Findings++
		c.found(ofMetadata(c.metadataDir, err))
		return
	}
	c.sum.Known = &kept
}

// messages checks the store.
func (c *folderCheck) messages() (err error) {
	c.sum.Shards, err = store.Check(c.fs, c.storeDir, store.CheckOptions{
		DeriveLimit: c.opts.DeriveLimit, Found: func(f store.Finding) { c.opts.Found(Finding(f)) },
	})
	for _, s := range c.sum.Shards {
		c.sum.Findings += s.Findings
	}
	return err
}

// metadata checks the metadata, and that they belong to the store where there is one.
func (c *folderCheck) metadata() (err error) {
	sum := c.sum
	readable := true
	metadata := alike{found: c.opts.Found}
	found := func(err error) {
		readable = false
		sum.Findings++
		metadata.add(ofMetadata(c.metadataDir, err))
	}
	sum.Metadata, err = router.Check(c.fs, c.metadataDir, found)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // a store without topics does not need any
	}
	if err != nil {
		return err
	}
	for _, name := range sum.Metadata.Shards {
		if sum.Folder == FolderRouter || slices.Contains(sum.Metadata.Registered, name) {
			continue // its store is in another process
		}
		logDir, has, err := store.HasShard(c.fs, c.storeDir, name)
		if err != nil {
			return err
		}
		if !has {
			c.found(Finding{Shard: name, File: logDir, Offset: -1, Problem: noLog(c.fs, logDir) + ", but the metadata places topics on the shard"})
		}
	}
	for _, s := range sum.Shards {
		if readable && unheardOf(s.Topics, s.Groups, sum.Metadata.LastTopic, sum.Metadata.LastGroup) {
			sum.Metadata.Findings++
			found(fmt.Errorf("shard %s: %w", s.Shard, errOlderMetadata))
		}
	}
	metadata.end()
	return nil
}

// ofBackup returns the finding that err describes.
func ofBackup(dir string, err error) Finding {
	f := Finding{File: dir, Offset: -1, Problem: err.Error()}
	if damage, ok := errors.AsType[*backup.DamageError](err); ok {
		f.File, f.Problem = damage.File, damage.Reason
	}
	return f
}

func exists(fsys vfs.FS, path string) bool {
	_, err := fsys.Stat(path)
	return err == nil
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

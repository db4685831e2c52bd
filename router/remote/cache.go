package remote

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"

	routerpb "github.com/perigee-mq/perigee/gen/perigee/router/v1"
	"github.com/perigee-mq/perigee/internal/durable"
	"github.com/perigee-mq/perigee/internal/tierwire"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

// The file that keeps what is known; docs/format/routercache.md is its reference.
//
//	8 bytes  magic "PGROUTER"
//	4 bytes  version, big-endian
//	4 bytes  CRC-32C of the length and the payload
//	8 bytes  length of the payload
//	         payload: the message perigee.router.v1.Cache
const (
	cacheName    = CacheFile
	cacheMagic   = "PGROUTER"
	cacheVersion = 1
	cacheHead    = 24
	maxCache     = 1 << 30
)

// CacheFile is the name of the cache in the directory of a client: a directory with it is not
// that of a router.
const CacheFile = "router-cache"

var cacheTable = crc32.MakeTable(crc32.Castagnoli)

func encodeCache(c *routerpb.Cache) ([]byte, error) {
	data := append(make([]byte, 0, cacheHead+proto.Size(c)), cacheMagic...)
	data = binary.BigEndian.AppendUint32(data, cacheVersion)
	data = binary.BigEndian.AppendUint32(data, 0)
	data = binary.BigEndian.AppendUint64(data, 0)
	data, err := proto.MarshalOptions{}.MarshalAppend(data, c)
	if err != nil {
		return nil, err
	}
	binary.BigEndian.PutUint64(data[16:], uint64(len(data)-cacheHead))
	binary.BigEndian.PutUint32(data[12:], crc32.Checksum(data[16:], cacheTable))
	return data, nil
}

// decodeCache reads a cache. What is not one is a *router.DamageError, one of a later
// version a *router.VersionError, both without the file.
func decodeCache(data []byte) (*routerpb.Cache, error) {
	damaged := func(reason string) error { return &router.DamageError{Reason: reason} }
	if len(data) < cacheHead || string(data[:8]) != cacheMagic {
		return nil, damaged("is no cache of a router")
	}
	switch version := binary.BigEndian.Uint32(data[8:]); {
	case version > cacheVersion:
		return nil, &router.VersionError{Entry: cacheName, Found: int(version), Known: cacheVersion}
	case version < 1:
		return nil, damaged("has no version")
	}
	if length := binary.BigEndian.Uint64(data[16:]); length != uint64(len(data)-cacheHead) {
		return nil, damaged(fmt.Sprintf("says that %d bytes follow, and %d do", length, len(data)-cacheHead))
	}
	if crc32.Checksum(data[16:], cacheTable) != binary.BigEndian.Uint32(data[12:]) {
		return nil, damaged("its checksum is another")
	}
	c := &routerpb.Cache{}
	if err := proto.Unmarshal(data[cacheHead:], c); err != nil {
		return nil, damaged(err.Error())
	}
	return c, nil
}

// A cache is the file of one client. One goroutine at a time uses it.
type cache struct {
	fs    vfs.FS
	dir   string
	saved struct {
		revision uint64
		nodes    *nodeSet
	}
}

func (f *cache) path() string { return f.fs.PathJoin(f.dir, cacheName) }

// read returns what the file holds; nil when there is none.
func (f *cache) read() (*routerpb.Cache, error) {
	info, err := f.fs.Stat(f.path())
	if err != nil {
		return nil, nil
	}
	if info.Size() > maxCache {
		return nil, &router.DamageError{File: f.path(), Reason: fmt.Sprintf("has %d bytes, the limit is %d", info.Size(), maxCache)}
	}
	file, err := f.fs.Open(f.path())
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(file)
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, fmt.Errorf("read %s: %w", f.path(), err)
	}
	c, err := decodeCache(data)
	if damage, ok := errors.AsType[*router.DamageError](err); ok {
		damage.File = f.path()
	}
	if version, ok := errors.AsType[*router.VersionError](err); ok {
		version.File = f.path()
	}
	return c, err
}

// Kept says what a cache knows.
type Kept struct {
	Life           string
	Revision       uint64
	Topics, Groups int
	Nodes          int
}

// ReadCache reads the cache in the directory of a client that is stopped, and changes
// nothing. Damage is a *router.DamageError, a later version a *router.VersionError.
func ReadCache(fsys vfs.FS, dir string) (Kept, error) {
	f := &cache{fs: fsys, dir: dir}
	c, err := f.read()
	if err != nil {
		return Kept{}, err
	}
	// What is in it must mean something.
	state, _, err := stateIn(c)
	if err == nil && c.GetLife() != "" {
		err = router.NewMirror().Replace(state)
	}
	if err != nil {
		return Kept{}, &router.DamageError{File: f.path(), Reason: err.Error()}
	}
	return Kept{
		Life: c.GetLife(), Revision: c.GetRevision(), Topics: len(c.GetTopics()), Groups: len(c.GetGroups()), Nodes: len(c.GetNodes()),
	}, nil
}

// InitCache makes the cache of a client that knows nothing yet, in a directory that has none:
// it says that this is the directory of a client.
func InitCache(fsys vfs.FS, dir string) error {
	if err := durable.MakeDir(fsys, dir); err != nil {
		return err
	}
	return (&cache{fs: fsys, dir: dir}).write(&routerpb.Cache{Identity: newIdentity()})
}

// write replaces the file: a crash leaves the one before or this one.
func (f *cache) write(c *routerpb.Cache) error {
	data, err := encodeCache(c)
	if err != nil {
		return err
	}
	temp := f.path() + ".new"
	file, err := f.fs.Create(temp, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("write %s: %w", temp, err)
	}
	if err := f.fs.Rename(temp, f.path()); err != nil {
		return err
	}
	return durable.SyncDir(f.fs, f.dir)
}

// load opens the cache and shows what it holds. A file that cannot be used is put aside,
// in words: all that it held can be had from a router.
func (c *Client) load(opts ClientOptions) error {
	if opts.Dir == "" {
		c.identity = newIdentity()
		return nil
	}
	f := &cache{fs: opts.FS, dir: opts.Dir}
	if f.fs == nil {
		f.fs = vfs.Default
	}
	if err := durable.MakeDir(f.fs, f.dir); err != nil {
		return err
	}
	c.cache = f
	kept, err := f.read()
	if err == nil && kept.GetLife() != "" {
		err = c.showCached(kept)
	}
	if err != nil {
		aside := f.path() + ".unusable"
		c.logger.Error("cache of the router's metadata not used", "error", err, "aside", aside)
		if err := f.fs.Rename(f.path(), aside); err != nil {
			return err
		}
		kept = nil
	}
	c.identity = kept.GetIdentity()
	if c.identity == "" {
		c.identity = newIdentity()
		return c.save()
	}
	return nil
}

func newIdentity() string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// stateIn returns what a cache holds.
func stateIn(kept *routerpb.Cache) (router.State, []router.Node, error) {
	part, err := partOf(&routerpb.WatchPage{Shards: kept.GetShards(), Topics: kept.GetTopics(), Groups: kept.GetGroups()})
	list, nodesErr := nodes(kept.GetNodes())
	return router.State{
		Life: kept.GetLife(), Revision: kept.GetRevision(), LastTopic: mq.TopicID(kept.GetLastTopic()), LastGroup: mq.GroupID(kept.GetLastGroup()),
		Shards: part.Shards, Topics: part.Topics, Groups: part.Groups,
	}, list, cmp.Or(err, nodesErr)
}

// showCached shows what a cache holds.
func (c *Client) showCached(kept *routerpb.Cache) error {
	state, list, err := stateIn(kept)
	if err != nil {
		return err
	}
	if err := c.mirror.Replace(state); err != nil {
		return err
	}
	c.setNodes(list, true)
	c.cache.saved.revision, c.cache.saved.nodes = kept.GetRevision(), c.nodes.Load()
	c.setReady()
	return nil
}

// saved reports whether the file has what is known.
func (c *Client) saved() bool {
	return c.mirror.Snapshot().Revision() == c.cache.saved.revision && c.nodes.Load() == c.cache.saved.nodes
}

// save writes what is known, unless the file has it.
func (c *Client) save() error {
	now, set := c.mirror.Snapshot(), c.nodes.Load()
	if c.saved() {
		return nil
	}
	state := now.State()
	kept := &routerpb.Cache{
		Identity: c.identity, Life: state.Life, Revision: state.Revision, LastTopic: uint32(state.LastTopic), LastGroup: uint32(state.LastGroup),
		Nodes: fromNodes(set.list),
	}
	for _, s := range state.Shards {
		kept.Shards = append(kept.Shards, fromShard(s))
	}
	for _, t := range state.Topics {
		kept.Topics = append(kept.Topics, tierwire.FromTopic(t))
	}
	for _, g := range state.Groups {
		kept.Groups = append(kept.Groups, tierwire.FromGroup(g))
	}
	if err := c.cache.write(kept); err != nil {
		return err
	}
	c.cache.saved.revision, c.cache.saved.nodes = now.Revision(), set
	return nil
}

// saveInterval is the shortest time between two writes of the cache, and saveRetry that
// after one that failed.
const (
	saveInterval = time.Second
	saveRetry    = 30 * time.Second
)

// keep writes the cache behind every change, until Close, which writes it once more.
func (c *Client) keep() {
	for {
		now, set := c.mirror.Snapshot(), c.nodes.Load()
		began, unchanged := time.Now(), c.saved()
		err := c.save()
		// A large state that changes all the time must not keep the disk busy.
		wait := max(saveInterval, 10*time.Since(began))
		if unchanged || now.Revision() == 0 {
			// The process has just started. What it hears first must not wait: it may be killed soon.
			wait = 0
		}
		if err != nil {
			c.logger.Error("cache of the router's metadata not written", "error", err)
			wait = saveRetry
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-c.ctx.Done():
			timer.Stop()
			return
		}
		if err != nil {
			continue
		}
		select {
		case <-now.Superseded():
		case <-set.superseded:
		case <-c.ctx.Done():
			return
		}
	}
}

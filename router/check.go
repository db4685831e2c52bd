package router

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/perigee-mq/perigee/internal/readonly"
	"github.com/perigee-mq/perigee/mq"
)

// Checked is what Check has seen of the metadata.
type Checked struct {
	Revision uint64
	Topics   []mq.TopicID // in order; without those of dead letters
	Groups   []mq.GroupID // in order
	Shards   []string     // that topics are placed on, in order
	// Registered are those that stores in other processes have registered, in order.
	Registered []string
	// LastTopic and LastGroup are the greatest ids ever handed out.
	LastTopic mq.TopicID
	LastGroup mq.GroupID
	Findings  int
}

// Check verifies the metadata of a stopped router in dir: every block, key and value
// of the database, that ids are unique and below their counters, and that nothing
// of what was acknowledged is missing at its end. Nothing is changed. It calls bad
// for everything it finds, with a *DamageError, a *VersionError or an error that
// names the file, and goes on behind it where it can. The error says why it could
// not check at all.
func Check(fs vfs.FS, dir string, bad func(error)) (sum Checked, err error) {
	fs = readonly.New(fs)
	if _, err := fs.Stat(dir); err != nil {
		return sum, fmt.Errorf("metadata: %w", err)
	}
	lock, err := fs.Lock(fs.PathJoin(dir, "LOCK"))
	if err != nil {
		return sum, fmt.Errorf("metadata: %s is in use, stop the server first: %w", dir, err)
	}
	if err := lock.Close(); err != nil {
		return sum, err
	}
	c := &check{dir: dir, snapshot: newSnapshot(), sum: &sum, bad: bad}
	e := &embedded{dir: dir, fs: fs, logger: &pebbleLogger{log: slog.New(slog.DiscardHandler)}}
	if err := checkFiles(fs, dir); err != nil {
		c.found(err)
		return sum, nil
	}
	if e.db, err = e.openReadOnly(); err != nil {
		c.found(err)
		return sum, nil
	}
	err = readonly.Catch(func() error { return c.run(e) })
	if err = errors.Join(err, e.Err(), e.db.Close()); err != nil {
		c.found(err)
	}
	return sum, nil
}

// check is the check of one database.
type check struct {
	dir      string
	snapshot *snapshot
	sum      *Checked
	bad      func(error)
}

func (c *check) found(err error) {
	c.sum.Findings++
	c.bad(located(err, "read", c.dir))
}

func (c *check) run(e *embedded) error {
	_, err := readonly.Tables(e.db, e.fs, e.dir, func(file string, err error) {
		c.found(&DamageError{File: file, Reason: err.Error()})
	})
	if err != nil {
		return err
	}
	entries := 0
	err = e.each(context.Background(), func(entry Entry) error {
		entries++
		if err := c.snapshot.load(entry); err != nil {
			c.found(err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	s := c.snapshot
	c.sum.Revision, c.sum.LastTopic, c.sum.LastGroup = s.revision, s.lastTopic, s.lastGroup
	shards := map[string]bool{}
	for r, t := range s.topics.all() {
		if !isDeadLetter(r) {
			c.sum.Topics = append(c.sum.Topics, t.ID)
		}
		for _, placed := range t.Shards {
			shards[placed.Shard] = true
		}
	}
	c.sum.Shards = slices.Sorted(maps.Keys(shards))
	for _, registered := range s.shards {
		c.sum.Registered = append(c.sum.Registered, registered.Name)
	}
	for id := range s.groupIDs.all() {
		c.sum.Groups = append(c.sum.Groups, id)
	}
	slices.Sort(c.sum.Topics)
	slices.Sort(c.sum.Groups)
	switch {
	case entries == 0: // a crash may have come before the first entry
	case s.revision == 0:
		c.found(&DamageError{Entry: countersKey, Reason: "is missing"})
	default:
		if err := s.checkCounters(); err != nil {
			c.found(err)
		}
	}
	known, err := readGuard(e.fs, e.fs.PathJoin(e.dir, guardName))
	switch {
	case err == nil:
		err = compareRevisions(e.dir, known, s.revision)
	case entries == 0:
		err = nil // nor is there one then
	}
	if err != nil {
		c.found(err)
	}
	return nil
}

// load adds what an entry of the database says.
func (s *snapshot) load(e Entry) error {
	if err := decodeVersion(e); err != nil {
		return err
	}
	switch {
	case e.Key == countersKey:
		return decodeCounters(e, s)
	case strings.HasPrefix(e.Key, topicPrefix):
		t, err := decodeTopic(e)
		if err != nil {
			return err
		}
		return s.addTopic(e.Key, t)
	case strings.HasPrefix(e.Key, groupPrefix):
		g, err := decodeGroup(e)
		if err != nil {
			return err
		}
		return s.addGroup(e.Key, g)
	case strings.HasPrefix(e.Key, shardPrefix):
		shard, err := decodeShard(e)
		if err != nil {
			return err
		}
		s.shards = withShard(s.shards, shard)
		return nil
	}
	return &DamageError{Entry: e.Key, Reason: "is of no known kind"}
}

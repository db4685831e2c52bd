package router

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/perigee-mq/perigee/mq"
)

// Saved says which metadata Save has written.
type Saved struct {
	Revision       uint64
	Topics, Groups int
}

// Save writes all metadata of one revision into a new embedded database in dir, durably:
// a copy of what any router had committed before the call, or of something newer. Changes go
// on meanwhile. A router whose backend is shared asks it for the newest commit first; the
// error matches mq.ErrUnavailable when that does not answer.
func (r *Router) Save(ctx context.Context, fs vfs.FS, dir string) (Saved, error) {
	if err := r.CatchUp(ctx); err != nil {
		return Saved{}, err
	}
	s := r.current.Load()
	saved := Saved{Revision: s.revision, Topics: s.topics.size - s.groups.size, Groups: s.groups.size}
	alone := *s
	alone.by, alone.behind = "", "" // those of a shared backend
	return saved, writeEmbedded(ctx, fs, dir, alone.entries())
}

// entries returns all entries of a snapshot in the order of their keys.
func (s *snapshot) entries() []Entry {
	list := []Entry{{Key: countersKey, Value: encodeCounters(s)}}
	for _, sh := range s.shards {
		list = append(list, Entry{Key: shardKey(sh.Name), Value: encodeShard(sh)})
	}
	for r, t := range s.topics.all() {
		if !isDeadLetter(r) {
			list = append(list, Entry{Key: topicKey(r), Value: encodeTopic(t)})
		}
	}
	for r, g := range s.groups.all() {
		list = append(list, Entry{Key: groupKey(r), Value: encodeGroup(g)})
	}
	slices.SortFunc(list, func(a, b Entry) int { return strings.Compare(a.Key, b.Key) })
	return list
}

// writeEmbedded makes a database with these entries in dir.
func writeEmbedded(ctx context.Context, fs vfs.FS, dir string, entries []Entry) error {
	e, err := openEmbedded(fs, dir, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		return located(err, "open", dir)
	}
	err = e.Load(ctx, func(Entry) error { return errors.New("is not empty") })
	if err == nil {
		err = e.Commit(ctx, entries)
	}
	if err := errors.Join(err, e.Close(), e.Err()); err != nil {
		return fmt.Errorf("write metadata in %s: %w", dir, err)
	}
	return nil
}

// Entries calls yield for every entry of the metadata in dir, in the order of their keys;
// no router may have them open. Nothing is changed. The error is as of Open; metadata
// that are missing are fs.ErrNotExist.
func Entries(fsys vfs.FS, dir string, yield func(Entry) error) (err error) {
	if _, err := fsys.Stat(dir); err != nil {
		return fmt.Errorf("metadata: %w", err)
	}
	if err := checkFiles(fsys, dir); err != nil {
		return err
	}
	var bad error
	if _, err := Check(fsys, dir, func(err error) { bad = cmp.Or(bad, err) }); err != nil || bad != nil {
		return cmp.Or(bad, err)
	}
	e := &embedded{dir: dir, fs: fsys, logger: &pebbleLogger{log: slog.New(slog.DiscardHandler)}}
	if e.db, err = e.openReadOnly(); err != nil {
		return located(err, "open", dir)
	}
	if err := errors.Join(e.each(context.Background(), yield), e.db.Close()); err != nil {
		return located(err, "read", dir)
	}
	return nil
}

// What Renew adds. Ids have 32 bits: there is room for thousands of times.
const (
	renewedVersions = 1 << 32
	renewedIDs      = 1 << 20
)

// Renew makes the metadata in dir, which were brought back from an older copy, safe beside
// nodes that have seen newer ones; no router may have them open:
//
//   - They get another life, so that nobody takes them for what he knows, also not when they
//     have come to as many revisions.
//   - Every topic and group gets a version above all that it can have had, so that store
//     nodes take over how it is now.
//   - With giveUp, topics and groups that were made since the copy are given up: their ids
//     are never given out again, and store nodes delete what they have of them. Without it a
//     store node that has any of them refuses to start.
func Renew(fs vfs.FS, dir string, giveUp bool) (err error) {
	r, err := Open(Options{FS: fs, Dir: dir})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	return r.change(context.Background(), func(now *snapshot, e *edit) error {
		e.next.life = newMark()
		if giveUp {
			if now.lastTopic > math.MaxUint32-renewedIDs || now.lastGroup > math.MaxUint32-renewedIDs {
				return fmt.Errorf("metadata in %s: %w: ids up to %d and %d are used up, which leaves no room to pass over those of newer topics and groups", dir, mq.ErrInvalid, now.lastTopic, now.lastGroup)
			}
			e.next.lastTopic += renewedIDs
			e.next.lastGroup += renewedIDs
		}
		for _, t := range now.listTopics(Selection{AllNamespaces: true}) {
			renewed := *t
			renewed.Version += renewedVersions
			e.putTopic(&renewed)
		}
		for _, g := range now.listGroups(Selection{AllNamespaces: true, SystemGroups: true}) {
			renewed := *g
			renewed.Version += renewedVersions
			e.putGroup(&renewed)
		}
		return nil
	})
}

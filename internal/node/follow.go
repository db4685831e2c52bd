package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
	"github.com/perigee-mq/perigee/store"
)

// Reconcile deletes from the store what the router no longer knows: what was
// deleted just before the process ended last time. An id that the router has
// never handed out was not deleted: then the metadata in metadataDir is lost or older
// than the store, and the messages are kept for whoever brings it back.
func Reconcile(ctx context.Context, s *store.Store, r identities, metadataDir string) error {
	topics, groups, err := s.Registered(ctx)
	if err != nil {
		return err
	}
	// One that was deleted since is not registered, and its id must not be given out
	// again: the store would take the new one for it.
	goneTopic, goneGroup, err := s.Gone(ctx)
	if err != nil {
		return err
	}
	lastTopic, lastGroup := r.LastIDs()
	if goneTopic > lastTopic || goneGroup > lastGroup || unheardOf(topics, groups, lastTopic, lastGroup) {
		return fmt.Errorf("metadata in %s: %w; bring back the one that belongs to it", metadataDir, errOlderMetadata)
	}
	if err := sameNames(ctx, s, r); err != nil {
		return fmt.Errorf("metadata in %s: %w; bring back the one that belongs to it", metadataDir, err)
	}
	for _, id := range topics {
		if _, err := r.TopicByID(id); errors.Is(err, mq.ErrTopicNotFound) {
			if err := s.DeleteTopic(ctx, id); err != nil {
				return err
			}
		}
	}
	for _, id := range groups {
		if _, err := r.GroupByID(id); errors.Is(err, mq.ErrGroupNotFound) {
			if err := s.DeleteGroup(ctx, id); err != nil {
				return err
			}
		}
	}
	return nil
}

// sameNames returns an error when an id has another name in the metadata than in the store:
// then it was given out a second time, by metadata that were brought back from an older copy.
func sameNames(ctx context.Context, s *store.Store, r identities) error {
	topics, groups, err := s.Named(ctx)
	if err != nil {
		return err
	}
	for id, name := range topics {
		if t, err := r.TopicByID(id); err == nil && t.Resource != name {
			return fmt.Errorf("%w: id %d is that of topic %s in the store, and of %s in the metadata", errOlderMetadata, id, name, t.Resource)
		}
	}
	for id, name := range groups {
		if g, err := r.GroupByID(id); err == nil && g.Resource != name {
			return fmt.Errorf("%w: id %d is that of group %s in the store, and of %s in the metadata", errOlderMetadata, id, name, g.Resource)
		}
	}
	return nil
}

// identities is what Reconcile asks of a router.
type identities interface {
	LastIDs() (mq.TopicID, mq.GroupID)
	TopicByID(id mq.TopicID) (*mq.Topic, error)
	GroupByID(id mq.GroupID) (*mq.Group, error)
}

// errOlderMetadata is what unheardOf means.
var errOlderMetadata = errors.New("the store holds topics or groups that it has never known: it is missing or older than the store")

// unheardOf reports whether one of the ids has never been handed out.
func unheardOf(topics []mq.TopicID, groups []mq.GroupID, lastTopic mq.TopicID, lastGroup mq.GroupID) bool {
	return slices.ContainsFunc(topics, func(id mq.TopicID) bool { return id > lastTopic }) ||
		slices.ContainsFunc(groups, func(id mq.GroupID) bool { return id > lastGroup })
}

// places is what CheckPlaced asks of a router.
type places interface {
	ListTopics(ctx context.Context, sel router.Selection) []*mq.Topic
}

// CheckPlaced returns an error when the store in dir has nothing of the shard although it
// should, which a store that begins anew would hide: the metadata places topics on it, and
// its files are lost or elsewhere; or there are files of another shard, and this one is
// only a new name for it. So it is when all topics are on another shard. It is called
// before the store is opened, and changes nothing.
func CheckPlaced(fsys vfs.FS, dir string, r places, shard string) error {
	return checkPlaced(fsys, dir, r, shard, true)
}

// checkPlaced is CheckPlaced for a shard that is the only one, or for one of several.
func checkPlaced(fsys vfs.FS, dir string, r places, shard string, only bool) error {
	logDir, has, err := store.HasShard(fsys, dir, shard)
	if err != nil {
		return err
	}
	shards, err := store.Shards(fsys, dir)
	if err != nil {
		return err
	}
	delete(shards, shard)
	var here, elsewhere *mq.Topic
	for _, t := range r.ListTopics(context.Background(), router.Selection{AllNamespaces: true, DeadLetters: true}) {
		if _, err := t.On(shard); err == nil {
			here = cmp.Or(here, t)
		} else {
			elsewhere = cmp.Or(elsewhere, t)
		}
	}
	switch {
	case here != nil && !has:
		return fmt.Errorf("%s %s, but the metadata places topic %s on shard %s: its files are lost or elsewhere; bring them back, or delete the metadata too to begin anew",
			logDir, noLog(fsys, logDir), here.Resource, shard)
	case only && here == nil && elsewhere != nil:
		name := elsewhere.Shards[0].Shard
		found := "there are no files of it in " + dir
		if files, ok := shards[name]; ok {
			found = "its files are in " + files
		}
		return fmt.Errorf("the configuration names shard %s, and the metadata places topic %s on shard %s; %s: a shard keeps its name, set shard to %s again",
			shard, elsewhere.Resource, name, found, name)
	case !has && len(shards) > 0:
		name := slices.Min(slices.Collect(maps.Keys(shards)))
		return fmt.Errorf("the configuration names shard %s, of which there is nothing, but %s has files of shard %s: "+
			"a shard keeps its name, set shard to %s again; or move the folder out of the data directory to begin anew",
			shard, shards[name], name, name)
	}
	return nil
}

// noLog says what is wrong with the directory of a log that is not there.
func noLog(fsys vfs.FS, logDir string) string {
	if _, err := fsys.Stat(logDir); err == nil {
		return "has no segment of a log"
	}
	return "is missing"
}

// follow carries changes of topics and groups into the store, until ctx ends.
func (n *node) follow(ctx context.Context, watch *router.Watch) {
	for {
		changes, err := watch.Next(ctx)
		if err != nil {
			return // ctx has ended, or the router was closed
		}
		n.carry(ctx, changes)
		select {
		case n.changed <- struct{}{}:
		default:
		}
	}
}

func (n *node) carry(ctx context.Context, changes []router.Change) {
	for _, c := range changes {
		var err error
		switch {
		case c.TopicID != 0 && c.Topic == nil:
			if n.store != nil {
				err = n.store.DeleteTopic(ctx, c.TopicID)
			}
		case c.GroupID != 0 && c.Group == nil:
			if n.store != nil {
				err = n.store.DeleteGroup(ctx, c.GroupID)
			}
		case c.GroupID != 0:
			if n.store != nil {
				err = n.store.UpdateGroup(ctx, c.Group)
			}
			if n.proxy != nil {
				n.proxy.GroupChanged(ctx, c.Group)
			}
		}
		if err != nil && ctx.Err() == nil {
			n.logger.Error("change of metadata not carried into the store", "topic_id", c.TopicID, "group_id", c.GroupID, "error", err)
		}
	}
}

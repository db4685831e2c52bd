package node

import (
	"context"
	"errors"
	"fmt"
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
func Reconcile(ctx context.Context, s *store.Store, r *router.Router, metadataDir string) error {
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
		return fmt.Errorf("metadata in %s: %s; bring back the one that belongs to it", metadataDir, olderMetadata)
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

// olderMetadata is what unheardOf means.
const olderMetadata = "the store holds topics or groups that it has never known: it is missing or older than the store"

// unheardOf reports whether one of the ids has never been handed out.
func unheardOf(topics []mq.TopicID, groups []mq.GroupID, lastTopic mq.TopicID, lastGroup mq.GroupID) bool {
	return slices.ContainsFunc(topics, func(id mq.TopicID) bool { return id > lastTopic }) ||
		slices.ContainsFunc(groups, func(id mq.GroupID) bool { return id > lastGroup })
}

// CheckPlaced returns an error when the metadata places topics or groups on a shard
// of which the store in dir has nothing: its files have been lost, or are not where they
// were, and a store that begins anew would hide that. It is called before the store is
// opened.
func CheckPlaced(fsys vfs.FS, dir string, r *router.Router, shard string) error {
	logDir, has, err := store.HasShard(fsys, dir, shard)
	if has || err != nil {
		return err
	}
	for _, t := range r.ListTopics(context.Background(), router.Selection{AllNamespaces: true, DeadLetters: true}) {
		if _, err := t.On(shard); err == nil {
			return fmt.Errorf("%s is missing, but the metadata places topic %s on shard %s: its files are lost or elsewhere; bring them back, or delete the metadata too to begin anew",
				logDir, t.Resource, shard)
		}
	}
	return nil
}

// follow carries changes of topics and groups into the store, until ctx ends.
func (n *node) follow(ctx context.Context, watch *router.Watch) {
	for {
		changes, err := watch.Next(ctx)
		if err != nil {
			return // ctx has ended, or the router was closed
		}
		n.carry(ctx, changes)
	}
}

func (n *node) carry(ctx context.Context, changes []router.Change) {
	for _, c := range changes {
		var err error
		switch {
		case c.TopicID != 0 && c.Topic == nil:
			err = n.store.DeleteTopic(ctx, c.TopicID)
		case c.GroupID != 0 && c.Group == nil:
			err = n.store.DeleteGroup(ctx, c.GroupID)
		case c.GroupID != 0:
			err = n.store.UpdateGroup(ctx, c.Group)
			n.proxy.GroupChanged(ctx, c.Group)
		}
		if err != nil && ctx.Err() == nil {
			n.logger.Error("change of metadata not carried into the store", "topic_id", c.TopicID, "group_id", c.GroupID, "error", err)
		}
	}
}

package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

// reconcile deletes from the store what the router no longer knows: what was
// deleted just before the process ended last time. An id that the router has
// never handed out was not deleted: then the metadata is lost or older than the
// store, and the messages are kept for whoever brings it back.
func (n *node) reconcile(ctx context.Context) error {
	topics, groups, err := n.store.Registered(ctx)
	if err != nil {
		return err
	}
	lastTopic, lastGroup := n.router.LastIDs()
	if unheardOf(topics, groups, lastTopic, lastGroup) {
		dir := filepath.Join(n.cfg.DataDir, routerDir)
		return fmt.Errorf("metadata in %s: %s; bring back the one that belongs to it", dir, olderMetadata)
	}
	for _, id := range topics {
		if _, err := n.router.TopicByID(id); errors.Is(err, mq.ErrTopicNotFound) {
			if err := n.store.DeleteTopic(ctx, id); err != nil {
				return err
			}
		}
	}
	for _, id := range groups {
		if _, err := n.router.GroupByID(id); errors.Is(err, mq.ErrGroupNotFound) {
			if err := n.store.DeleteGroup(ctx, id); err != nil {
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

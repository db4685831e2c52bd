package router

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/perigee-mq/perigee/mq"
)

// A Change says that a topic, a group or a shard is now another than before, or that a
// topic or group is gone. One of TopicID, GroupID and Shard is set. Dead-letter topics
// count as topics. A name that was deleted and created again makes two changes, one of
// each id.
type Change struct {
	TopicID mq.TopicID
	Topic   *mq.Topic // nil: the topic of that id is gone for good
	GroupID mq.GroupID
	Group   *mq.Group // nil: the group of that id is gone for good
	Shard   *Shard
}

// A Watch follows a view for one reader. It holds no queue: it remembers
// the snapshot it last reported and compares, so that a slow reader costs
// nothing and loses only the states in between. No deletion is lost: an id
// that came and went between two calls is reported as gone.
//
// A Watch may be used by one goroutine at a time, and needs no closing.
type Watch struct {
	view *View
	seen *snapshot
}

// Watch returns a watch whose first Next reports all that exists.
//
// That first report does not name what was deleted before: whoever kept state
// of an id across a restart asks TopicByID or GroupByID about it.
func (v *View) Watch() *Watch { return &Watch{view: v} }

// Revision returns the revision of the snapshot the watch last reported.
func (w *Watch) Revision() uint64 {
	if w.seen == nil {
		return 0
	}
	return w.seen.revision
}

// Next waits until something is newer than what it last reported and returns
// what changed: shards in the order of their names, then topics, then groups, each in the
// order of their ids. The changes are durable and every lookup sees them. The list is empty only when
// the first call finds an empty router. The error is the context's, or
// mq.ErrStopped after the router was closed.
func (w *Watch) Next(ctx context.Context) ([]Change, error) {
	for {
		// The channel belongs to the snapshot that was looked at, so a change
		// made in between has closed it already.
		now := w.view.current.Load()
		if w.seen == nil || now != w.seen {
			changes := now.changesSince(w.seen)
			w.seen = now
			return changes, nil
		}
		select {
		case <-now.superseded:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-w.view.closed:
			return nil, fmt.Errorf("watch metadata: %w", mq.ErrStopped)
		}
	}
}

func (s *snapshot) changesSince(old *snapshot) []Change {
	changes := s.shardsSince(old)
	if old == nil {
		old = &snapshot{lastTopic: s.lastTopic, lastGroup: s.lastGroup}
	}
	for id, t := range s.topicIDs.differences(old.topicIDs) {
		changes = append(changes, Change{TopicID: id, Topic: t})
	}
	for id := old.lastTopic + 1; id <= s.lastTopic && id > old.lastTopic; id++ {
		if s.topicIDs.get(id) == nil {
			changes = append(changes, Change{TopicID: id})
		}
	}
	for id, g := range s.groupIDs.differences(old.groupIDs) {
		changes = append(changes, Change{GroupID: id, Group: g})
	}
	for id := old.lastGroup + 1; id <= s.lastGroup && id > old.lastGroup; id++ {
		if s.groupIDs.get(id) == nil {
			changes = append(changes, Change{GroupID: id})
		}
	}
	slices.SortStableFunc(changes, func(a, b Change) int {
		return cmp.Or(cmp.Compare(a.GroupID, b.GroupID), cmp.Compare(a.TopicID, b.TopicID))
	})
	return changes
}

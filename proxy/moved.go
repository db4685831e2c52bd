package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
)

// What a proxy does while a topic leaves a shard, see ADR 12: it sends nothing there, holds
// messages whose place is between the old and the new one, and lets a FIFO group read the
// old place before the new one.

const (
	// heldTime is how long a call waits at most for a newer version of a topic or a group.
	heldTime = 3 * time.Second
	// The pauses between two looks at what the routers have told this process.
	minLook = 5 * time.Millisecond
	maxLook = 100 * time.Millisecond
	// owedTurn is how long a receive waits at a closed shard before it asks again whether
	// the group has anything left there.
	owedTurn = time.Second
)

// storeIn stores the messages in a queue of the topic. It returns the topic by which they were
// sent, and the shard.
func (s *Server) storeIn(ctx context.Context, topic *mq.Topic, msgs []*rmqpb.Message, converted []*mq.Message) (stored []mq.Appended, shard string, err error) {
	end := time.Now().Add(min(heldTime, room(ctx)))
	others := topic
	var tried error
	for {
		shard, queue, none := s.place(others, msgs)
		switch on, _ := topic.On(shard); {
		case none != nil && !errors.Is(tried, mq.ErrStale):
			return nil, "", cmp.Or(tried, none)
		case none != nil:
			err = tried // there may be a shard that is not known here yet
		case on.Use != mq.ShardOpen:
			err = fmt.Errorf("%w: topic %q: what has this message group, or lite topic, is about to leave shard %s", mq.ErrUnavailable, topic.Resource, shard)
		default:
			if stored, err = s.store.Append(ctx, shard, topic, queue, converted); err == nil {
				return stored, shard, nil
			}
			if refusedThere(err) && anywhere(topic, msgs) {
				// Nothing was done there, and the messages may go to any shard.
				others, tried = others.Without(shard), err
				continue
			}
			if !errors.Is(err, mq.ErrStale) {
				return nil, "", err
			}
		}
		newer := s.newerTopic(ctx, topic, end)
		if newer == nil {
			return nil, "", err
		}
		topic, others, tried = newer, newer, nil
	}
}

// refusedThere reports whether err says that nothing was done, and is about the shard alone:
// another one may do it.
func refusedThere(err error) bool {
	if errors.Is(err, mq.ErrOutcomeUnknown) {
		return false
	}
	return errors.Is(err, mq.ErrUnavailable) || errors.Is(err, mq.ErrNotServing) || errors.Is(err, mq.ErrStoreFull)
}

// newerTopic waits until this process knows a later version of a topic; nil: it does not by
// the end, or there is none.
func (s *Server) newerTopic(ctx context.Context, t *mq.Topic, end time.Time) *mq.Topic {
	var newer *mq.Topic
	s.lookUntil(ctx, end, func() bool {
		next, err := s.router.TopicByID(t.ID)
		if err == nil && next.Version > t.Version {
			newer = next
		}
		return newer != nil || errors.Is(err, mq.ErrTopicNotFound)
	})
	return newer
}

// lookUntil calls look, with pauses, until it returns true, the end comes or ctx ends.
func (s *Server) lookUntil(ctx context.Context, end time.Time, look func() bool) {
	for wait := minLook; !look(); wait = min(2*wait, maxLook) {
		if left := time.Until(end); left <= 0 || !pause(ctx, min(wait, left)) {
			return
		}
	}
}

// receiveInOrder receives for a FIFO group from the shard of the receive, and from no other but
// one that the topic has left: the group gets nothing from a shard before it has settled what
// it has on those that the topic has left earlier, for what lies there is older. Then it gets
// that. The receive goes by a later version of its topic and group when it has to, for which it
// waits until held.
func (s *Server) receiveInOrder(ctx context.Context, r *receive, held time.Time) ([]mq.Delivery, error) {
	if r.Lite != "" || !r.Topic.Type.Accepts(mq.FIFO) {
		return s.store.Receive(ctx, r.shard, r.Receive)
	}
	end := time.Now().Add(r.Wait)
	for {
		shard, owed, err := s.inOrder(ctx, r)
		if err != nil {
			return nil, err
		}
		part := r.Receive
		if part.Wait = max(time.Until(end), 0); owed {
			part.Wait = min(part.Wait, owedTurn)
		}
		got, err := s.store.Receive(ctx, shard, part)
		switch {
		case errors.Is(err, mq.ErrStale):
			if !s.refresh(ctx, r, held) {
				return nil, err
			}
		case err != nil || len(got) > 0 || !owed || ctx.Err() != nil:
			return got, err
		case !time.Now().Before(end):
			return nil, nil
		}
	}
}

// inOrder returns the shard to receive from, and whether it is one that the topic has left
// and that owes the group something.
func (s *Server) inOrder(ctx context.Context, r *receive) (shard string, owed bool, err error) {
	for _, closed := range before(r.Topic, r.shard) {
		owed, err := s.store.Owed(ctx, closed, r.Topic.ID, r.Group.ID)
		if err != nil {
			return "", false, fmt.Errorf("what group %s has left on shard %s, which topic %s has left, comes first: %w", r.Group.Resource, closed, r.Topic.Resource, err)
		}
		if owed {
			return closed, true, nil
		}
	}
	return r.shard, false, nil
}

// before returns the shards that the topic had left before it gave their message groups to
// the shard, the first one first.
func before(t *mq.Topic, shard string) []string {
	to, _ := t.On(shard)
	var closed []mq.ShardQueues
	for _, s := range t.Shards {
		if s.Use == mq.ShardClosed && s.Shard != shard && (to.Use != mq.ShardClosed || s.Since < to.Since) {
			closed = append(closed, s)
		}
	}
	slices.SortFunc(closed, func(a, b mq.ShardQueues) int { return cmp.Compare(a.Since, b.Since) })
	names := make([]string, len(closed))
	for i, s := range closed {
		names[i] = s.Shard
	}
	return names
}

// refresh makes the receive go by a later version of its topic or group, and reports false
// when this process does not hear of one by the end.
func (s *Server) refresh(ctx context.Context, r *receive, end time.Time) (fresh bool) {
	s.lookUntil(ctx, end, func() bool {
		t, err := s.router.TopicByID(r.Topic.ID)
		if err != nil {
			return true
		}
		g, err := s.router.GroupByID(r.Group.ID)
		if err != nil {
			return true
		}
		if fresh = t.Version > r.Topic.Version || g.Version > r.Group.Version; fresh {
			r.Topic, r.Group = t, g
			if _, gone := t.On(r.shard); gone != nil && len(t.Shards) > 0 {
				r.shard = t.Shards[0].Shard
			}
		}
		return fresh
	})
	return fresh
}

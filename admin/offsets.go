package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

// ListPositions answers how far a consumer group is with each queue.
func (s *Server) ListPositions(ctx context.Context, req *adminpb.ListPositionsRequest) (*adminpb.ListPositionsResponse, error) {
	g, err := s.router.Group(ctx, mq.Resource{Namespace: req.GetNamespace(), Name: req.GetGroup()})
	if err != nil {
		return nil, s.refusal(ctx, err)
	}
	missing := absent{}
	topics, err := s.placesOf(ctx, g, mq.Resource{Namespace: req.GetNamespace(), Name: req.GetTopic()}, missing)
	if err != nil {
		return nil, s.refusal(ctx, err)
	}
	resp := &adminpb.ListPositionsResponse{}
	for _, t := range topics {
		of := &adminpb.TopicPositions{Namespace: t.Namespace, Topic: t.Name}
		places, err := s.positions(ctx, t, g, missing)
		if err != nil {
			return nil, s.refusal(ctx, err)
		}
		for _, p := range places {
			of.Queues = append(of.Queues, p.proto())
		}
		resp.Topics = append(resp.Topics, of)
	}
	resp.UnreachableShards = missing.names()
	return resp, nil
}

// placesOf returns the topics that the group has a place in on a shard that can be asked,
// ordered by name; or the one that is named, whether it has or not.
func (s *Server) placesOf(ctx context.Context, g *mq.Group, name mq.Resource, missing absent) ([]*mq.Topic, error) {
	if name.Name != "" {
		t, err := s.router.Topic(ctx, name)
		return []*mq.Topic{t}, err
	}
	seen := map[mq.TopicID]bool{}
	var topics []*mq.Topic
	for _, shard := range s.shards() {
		backlogs, err := s.store.Backlogs(ctx, shard, g.ID)
		if missing.note(shard, err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, b := range backlogs {
			if seen[b.Topic] {
				continue
			}
			seen[b.Topic] = true
			t, err := s.router.TopicByID(b.Topic)
			if errors.Is(err, mq.ErrTopicNotFound) {
				continue // deleted meanwhile
			}
			if err != nil {
				return nil, err
			}
			topics = append(topics, t)
		}
	}
	slices.SortFunc(topics, func(a, b *mq.Topic) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return topics, nil
}

// A place is where a group is in a queue of a shard.
type place struct {
	shard string
	mq.Position
}

func (p place) proto() *adminpb.QueuePosition {
	q := &adminpb.QueuePosition{
		Shard: p.shard, Queue: int32(p.Queue), MinOffset: int64(p.Min), MaxOffset: int64(p.Next),
		Ready: p.Ready(), InFlight: p.InFlight, Blocked: p.Blocked, UsedUp: p.UsedUp,
	}
	if p.Known {
		q.Offset = new(int64(p.Offset))
	}
	return q
}

// positions returns where the group is in the queues of the topic, ordered by shard and
// number. Shards that cannot be asked are noted and left out; without missing they are an
// error.
func (s *Server) positions(ctx context.Context, t *mq.Topic, g *mq.Group, missing absent) ([]place, error) {
	var places []place
	for _, on := range t.Shards {
		list, err := s.store.Positions(ctx, on.Shard, t.ID, g.ID)
		if missing != nil && missing.note(on.Shard, err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for queue := len(list); queue < int(on.Queues()); queue++ {
			list = append(list, mq.Position{QueueRange: mq.QueueRange{Queue: mq.QueueID(queue)}}) // the shard has not heard of it
		}
		for _, p := range list {
			places = append(places, place{on.Shard, p})
		}
	}
	return places, nil
}

// ResetOffset sets where a consumer group goes on.
func (s *Server) ResetOffset(ctx context.Context, req *adminpb.ResetOffsetRequest) (*adminpb.ResetOffsetResponse, error) {
	resp, err := s.resetOffset(ctx, req)
	if err != nil {
		return nil, s.refusal(ctx, err)
	}
	return resp, nil
}

func (s *Server) resetOffset(ctx context.Context, req *adminpb.ResetOffsetRequest) (*adminpb.ResetOffsetResponse, error) {
	if err := validateTarget(req); err != nil {
		return nil, err
	}
	if err := mq.ValidateGroup(req.GetGroup()); err != nil { // not one of the server's own
		return nil, err
	}
	g, err := s.router.Group(ctx, mq.Resource{Namespace: req.GetNamespace(), Name: req.GetGroup()})
	if err != nil {
		return nil, err
	}
	t, err := s.router.Topic(ctx, mq.Resource{Namespace: req.GetNamespace(), Name: req.GetTopic()})
	if err != nil {
		return nil, err
	}
	if t.Type == mq.TopicLite {
		return nil, invalid("topic", t.Resource.String(), "is of type LITE, with offsets in each of its lite topics: clients set them with the offset option of SyncLiteSubscription")
	}
	places, err := s.positions(ctx, t, g, nil)
	if err != nil {
		return nil, err
	}
	if places, err = chosen(places, t, req); err != nil {
		return nil, err
	}
	if places, err = s.oldestFirst(places, t, g); err != nil {
		return nil, err
	}
	resp, touched := &adminpb.ResetOffsetResponse{}, !g.FIFO || !leaves(t) || req.GetDryRun()
	for len(places) > 0 {
		if on, _ := t.On(places[0].shard); !touched && on.Use == mq.ShardOpen {
			// What waits at the other shards was judged before the group owed anything at the
			// closed ones: it is refused from now on, and judged again.
			touched = true
			if g, err = s.router.UpdateGroup(ctx, g.Resource, router.GroupUpdate{Touch: true}); err != nil {
				return nil, err
			}
		}
		n := slices.IndexFunc(places, func(p place) bool { return p.shard != places[0].shard })
		if n < 0 {
			n = len(places)
		}
		resets, err := s.resetShard(ctx, req, t, g, places[:n])
		if err != nil {
			return nil, err
		}
		resp.Queues, places = append(resp.Queues, resets...), places[n:]
	}
	return resp, nil
}

// oldestFirst puts the queues into the order in which a FIFO group reads their shards. It
// refuses a part of them that would let the group read what is younger first.
func (s *Server) oldestFirst(places []place, t *mq.Topic, g *mq.Group) ([]place, error) {
	if !g.FIFO || !leaves(t) {
		return places, nil
	}
	since := func(p place) uint64 {
		on, _ := t.On(p.shard)
		if on.Use == mq.ShardOpen {
			return math.MaxUint64
		}
		return on.Since
	}
	all := 0
	for _, on := range t.Shards {
		all += int(on.Queues())
	}
	old := slices.IndexFunc(places, func(p place) bool { return since(p) != math.MaxUint64 })
	if old >= 0 && len(places) < all {
		return nil, invalid("shard", places[old].shard, fmt.Sprintf(
			"is one that topic %s leaves: a FIFO group is set in all queues of all shards at a time, so that it reads what is older first", t.Resource))
	}
	slices.SortStableFunc(places, func(a, b place) int { return cmp.Compare(since(a), since(b)) })
	return places, nil
}

// leaves reports whether the topic leaves one of its shards.
func leaves(t *mq.Topic) bool {
	return slices.ContainsFunc(t.Shards, func(s mq.ShardQueues) bool { return s.Use != mq.ShardOpen })
}

func validateTarget(req *adminpb.ResetOffsetRequest) error {
	switch target := req.GetTarget().(type) {
	case *adminpb.ResetOffsetRequest_End_:
		if target.End != adminpb.ResetOffsetRequest_END_EARLIEST && target.End != adminpb.ResetOffsetRequest_END_LATEST {
			return invalid("end", strconv.Itoa(int(target.End)), "must be END_EARLIEST or END_LATEST")
		}
	case *adminpb.ResetOffsetRequest_Time:
		if !storable(target.Time) {
			return invalid("time", fmt.Sprintf("%d s", target.Time.GetSeconds()), "must lie between the years 1970 and 2262")
		}
	case *adminpb.ResetOffsetRequest_Offset:
		if req.Queue == nil {
			return invalid("offset", strconv.FormatInt(target.Offset, 10), "is of one queue: queue is required with it")
		}
	default:
		return invalid("target", "", "one of end, time and offset is required")
	}
	return nil
}

// chosen returns the queues that the request is about.
func chosen(places []place, t *mq.Topic, req *adminpb.ResetOffsetRequest) ([]place, error) {
	if _, err := t.On(req.GetShard()); req.GetShard() != "" && err != nil {
		return nil, fmt.Errorf("shard %q: topic %s: %w", mq.Shorten(req.GetShard()), t.Resource, mq.ErrQueueNotFound)
	}
	if _, one := req.GetTarget().(*adminpb.ResetOffsetRequest_Offset); one && req.GetShard() == "" && len(t.Shards) > 1 {
		return nil, invalid("shard", "", fmt.Sprintf("is required with offset: the topic is on %d shards", len(t.Shards)))
	}
	places = slices.DeleteFunc(places, func(p place) bool {
		return req.GetShard() != "" && p.shard != req.GetShard() || req.Queue != nil && int32(p.Queue) != req.GetQueue()
	})
	if len(places) == 0 {
		return nil, fmt.Errorf("topic %s, queue %d: %w", t.Resource, req.GetQueue(), mq.ErrQueueNotFound)
	}
	return places, nil
}

// resetTries is how often the offsets of a reset are looked up: between the look and
// the reset a queue may have been trimmed.
const resetTries = 3

// resetShard sets the group in queues of one shard, unless it is only asked.
func (s *Server) resetShard(ctx context.Context, req *adminpb.ResetOffsetRequest, t *mq.Topic, g *mq.Group, places []place) ([]*adminpb.QueueReset, error) {
	shard := places[0].shard
	for try := 1; ; try++ {
		set := mq.OffsetSet{Topic: t, Group: g, Drop: true, Offsets: map[mq.QueueID]mq.QueueOffset{}}
		var resets []*adminpb.QueueReset
		for _, p := range places {
			if try > 1 {
				r, err := s.store.Range(ctx, shard, t, p.Queue)
				if err != nil {
					return nil, err
				}
				p.QueueRange = r
			}
			offset, err := s.targetIn(ctx, req, t, p)
			if err != nil {
				return nil, err
			}
			set.Offsets[p.Queue] = offset
			resets = append(resets, &adminpb.QueueReset{Before: p.proto(), Offset: int64(offset)})
		}
		if req.GetDryRun() {
			return resets, nil
		}
		ended, err := s.store.SetOffset(ctx, shard, set)
		if errors.Is(err, mq.ErrIllegalOffset) && try < resetTries {
			if _, fixed := req.GetTarget().(*adminpb.ResetOffsetRequest_Offset); !fixed {
				continue
			}
		}
		if err != nil {
			return nil, err
		}
		s.logger.InfoContext(ctx, "progress of a group was set", "group", g.String(), "topic", t.String(), "shard", shard,
			"queues", len(resets), "deliveries_ended", ended)
		return resets, nil
	}
}

// targetIn returns where the group goes on in a queue.
func (s *Server) targetIn(ctx context.Context, req *adminpb.ResetOffsetRequest, t *mq.Topic, p place) (mq.QueueOffset, error) {
	switch target := req.GetTarget().(type) {
	case *adminpb.ResetOffsetRequest_Time:
		return s.store.OffsetAt(ctx, p.shard, t, p.Queue, target.Time.AsTime())
	case *adminpb.ResetOffsetRequest_Offset:
		offset := mq.QueueOffset(target.Offset)
		if offset < p.Min || offset > p.Next {
			return 0, &mq.OffsetError{Topic: t.Resource, Queue: p.Queue, Offset: offset, Min: p.Min, Next: p.Next}
		}
		return offset, nil
	}
	if req.GetEnd() == adminpb.ResetOffsetRequest_END_LATEST {
		return p.Next, nil
	}
	return p.Min, nil
}

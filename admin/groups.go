package admin

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

// CreateGroup creates a consumer group, or answers the one that exists with the
// same configuration.
func (s *Server) CreateGroup(ctx context.Context, req *adminpb.CreateGroupRequest) (*adminpb.CreateGroupResponse, error) {
	spec := router.GroupSpec{Resource: resource(req), FIFO: req.GetFifo(), LiteTopic: req.GetLiteTopic(), LiteExclusive: req.GetLiteExclusive(), Broadcast: req.GetBroadcast()}
	var err error
	if spec.Retry, err = retryPolicy(req.GetRetry()); err != nil {
		return nil, s.refusal(ctx, err)
	}
	if spec.Start, err = startPosition(req.GetStart()); err != nil {
		return nil, s.refusal(ctx, err)
	}
	g, created, err := s.router.CreateGroup(ctx, spec)
	if err != nil {
		return nil, s.refusal(ctx, err)
	}
	return &adminpb.CreateGroupResponse{Group: groupProto(g), Created: created}, nil
}

// GetGroup answers a consumer group and its progress in each topic it has read.
func (s *Server) GetGroup(ctx context.Context, req *adminpb.GetGroupRequest) (*adminpb.GetGroupResponse, error) {
	g, err := s.router.Group(ctx, resource(req))
	if err != nil {
		return nil, s.refusal(ctx, err)
	}
	missing := absent{}
	topics, err := s.progress(ctx, g, missing)
	if err != nil {
		return nil, s.refusal(ctx, err)
	}
	p := groupProto(g)
	if g.Broadcast {
		p.Instances = s.instances(ctx, g)
	}
	return &adminpb.GetGroupResponse{Group: p, Topics: topics, UnreachableShards: missing.names()}, nil
}

// instances counts those of a broadcast group.
func (s *Server) instances(ctx context.Context, g *mq.Group) (n int32) {
	for _, other := range s.router.ListGroups(ctx, router.Selection{Namespace: g.Namespace, SystemGroups: true}) {
		if g.HasInstance(other.Resource) {
			n++
		}
	}
	return n
}

// progress sums the group's backlogs over all shards that can be asked. Topics that were
// deleted meanwhile are left out.
func (s *Server) progress(ctx context.Context, g *mq.Group, missing absent) ([]*adminpb.GroupTopic, error) {
	type progress struct {
		*adminpb.GroupTopic
		lite bool
	}
	byID := map[mq.TopicID]progress{}
	var list []*adminpb.GroupTopic
	for _, shard := range s.shards() {
		backlogs, err := s.store.Backlogs(ctx, shard, g.ID)
		if missing.note(shard, err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, b := range backlogs {
			p, known := byID[b.Topic]
			if !known {
				t, err := s.router.TopicByID(b.Topic)
				if errors.Is(err, mq.ErrTopicNotFound) {
					continue
				}
				if err != nil {
					return nil, err
				}
				p = progress{&adminpb.GroupTopic{Namespace: t.Namespace, Name: t.Name}, t.Type == mq.TopicLite}
				byID[b.Topic] = p
				list = append(list, p.GroupTopic)
			}
			if p.lite {
				if err := s.addLites(ctx, shard, g.ID, b.Topic, p.GroupTopic); err != nil && !missing.note(shard, err) {
					return nil, err
				}
			}
			p.Ready += b.Ready
			p.InFlight += b.InFlight
			p.UsedUp += b.UsedUp
			p.Blocked += b.Blocked
		}
	}
	slices.SortFunc(list, func(a, b *adminpb.GroupTopic) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return list, nil
}

// addLites adds what waits for the group in lite topics of one shard.
func (s *Server) addLites(ctx context.Context, shard string, group mq.GroupID, topic mq.TopicID, p *adminpb.GroupTopic) error {
	stock, err := s.store.LiteStock(ctx, shard, topic)
	if err != nil {
		return err
	}
	w := stock.Groups[group]
	p.Ready += w.Messages
	p.LiteTopics += w.Topics
	if w.Topics > 0 {
		p.LiteOldestAge = durationpb.New(max(p.GetLiteOldestAge().AsDuration(), time.Duration(w.Age)))
	}
	return nil
}

// ListGroups answers the consumer groups of a namespace in the order of their names.
func (s *Server) ListGroups(ctx context.Context, req *adminpb.ListGroupsRequest) (*adminpb.ListGroupsResponse, error) {
	if err := mq.ValidateNamespace(req.GetNamespace()); err != nil {
		return nil, s.refusal(ctx, err)
	}
	resp := &adminpb.ListGroupsResponse{}
	for _, g := range s.router.ListGroups(ctx, router.Selection{Namespace: req.GetNamespace()}) {
		resp.Groups = append(resp.Groups, groupProto(g))
	}
	return resp, nil
}

// UpdateGroup changes how a consumer group retries, where it starts and whether it is FIFO.
func (s *Server) UpdateGroup(ctx context.Context, req *adminpb.UpdateGroupRequest) (*adminpb.UpdateGroupResponse, error) {
	update := router.GroupUpdate{FIFO: req.Fifo, LiteTopic: req.LiteTopic, LiteExclusive: req.LiteExclusive, Broadcast: req.Broadcast}
	if req.Retry != nil {
		p, err := retryPolicy(req.Retry)
		if err != nil {
			return nil, s.refusal(ctx, err)
		}
		update.Retry = &p
	}
	if req.Start != nil {
		p, err := startPosition(req.Start)
		if err != nil {
			return nil, s.refusal(ctx, err)
		}
		update.Start = &p
	}
	g, err := s.router.UpdateGroup(ctx, resource(req), update)
	if err != nil {
		return nil, s.refusal(ctx, err)
	}
	return &adminpb.UpdateGroupResponse{Group: groupProto(g)}, nil
}

// DeleteGroup removes a consumer group.
func (s *Server) DeleteGroup(ctx context.Context, req *adminpb.DeleteGroupRequest) (*adminpb.DeleteGroupResponse, error) {
	if _, err := s.router.DeleteGroup(ctx, resource(req)); err != nil {
		return nil, s.refusal(ctx, err)
	}
	return &adminpb.DeleteGroupResponse{}, nil
}

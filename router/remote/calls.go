package remote

import (
	"context"

	routerpb "github.com/perigee-mq/perigee/gen/perigee/router/v1"
	"github.com/perigee-mq/perigee/internal/tiererr"
	"github.com/perigee-mq/perigee/internal/tierwire"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

// The unary calls: each refuses callers that know more than this router, converts, makes
// one call, and answers with a revision that shows what was done.

// FindTopic answers NOT_FOUND when there is no such topic.
func (s *service) FindTopic(ctx context.Context, req *routerpb.FindTopicRequest) (*routerpb.FindTopicResponse, error) {
	if err := s.fits(ctx, req.GetKnown()); err != nil {
		return nil, tiererr.Status(err)
	}
	var t *mq.Topic
	var err error
	switch name := tierwire.Resource(req.GetName()); {
	case name == mq.Resource{}:
		t, err = s.topicByID(ctx, mq.TopicID(req.GetId()))
	case req.GetEnsure():
		t, err = s.router.EnsureTopic(ctx, name)
	default:
		t, err = s.router.Topic(ctx, name)
	}
	if err != nil {
		return nil, tiererr.Status(err)
	}
	return &routerpb.FindTopicResponse{Topic: tierwire.FromTopic(t), Revision: s.router.Revision()}, nil
}

// FindGroup answers NOT_FOUND when there is no such group.
func (s *service) FindGroup(ctx context.Context, req *routerpb.FindGroupRequest) (*routerpb.FindGroupResponse, error) {
	if err := s.fits(ctx, req.GetKnown()); err != nil {
		return nil, tiererr.Status(err)
	}
	var g *mq.Group
	var err error
	switch name := tierwire.Resource(req.GetName()); {
	case req.GetSystem() != nil:
		var spec router.GroupSpec
		if spec, err = groupSpec(req.GetSystem()); err == nil {
			g, err = s.router.EnsureSystemGroup(ctx, spec)
		}
	case name == mq.Resource{}:
		g, err = s.groupByID(ctx, mq.GroupID(req.GetId()))
	case req.GetEnsure():
		g, err = s.router.EnsureGroup(ctx, name)
	default:
		g, err = s.router.Group(ctx, name)
	}
	if err != nil {
		return nil, tiererr.Status(err)
	}
	return &routerpb.FindGroupResponse{Group: tierwire.FromGroup(g), Revision: s.router.Revision()}, nil
}

// topicByID returns a topic, or says that there is none of that id. Of one above the last
// id it says that another router may know it.
func (s *Server) topicByID(ctx context.Context, id mq.TopicID) (*mq.Topic, error) {
	if last, _ := s.router.LastIDs(); id > last {
		if err := s.router.CatchUp(ctx); err != nil {
			return nil, err
		}
	}
	if last, _ := s.router.LastIDs(); id > last {
		return nil, tooNew("topic", uint32(id))
	}
	return s.router.TopicByID(id)
}

// groupByID is as topicByID.
func (s *Server) groupByID(ctx context.Context, id mq.GroupID) (*mq.Group, error) {
	if _, last := s.router.LastIDs(); id > last {
		if err := s.router.CatchUp(ctx); err != nil {
			return nil, err
		}
	}
	if _, last := s.router.LastIDs(); id > last {
		return nil, tooNew("group", uint32(id))
	}
	return s.router.GroupByID(id)
}

// CreateTopic is as in router.Router.
func (s *service) CreateTopic(ctx context.Context, req *routerpb.CreateTopicRequest) (*routerpb.CreateTopicResponse, error) {
	if err := s.fits(ctx, req.GetKnown()); err != nil {
		return nil, tiererr.Status(err)
	}
	spec, err := topicSpec(req.GetSpec())
	if err != nil {
		return nil, tiererr.Status(err)
	}
	t, created, err := s.router.CreateTopic(ctx, spec)
	if err != nil {
		return nil, tiererr.Status(err)
	}
	return &routerpb.CreateTopicResponse{Topic: tierwire.FromTopic(t), Created: created, Revision: s.router.Revision()}, nil
}

// UpdateTopic is as in router.Router.
func (s *service) UpdateTopic(ctx context.Context, req *routerpb.UpdateTopicRequest) (*routerpb.UpdateTopicResponse, error) {
	if err := s.fits(ctx, req.GetKnown()); err != nil {
		return nil, tiererr.Status(err)
	}
	update, err := topicUpdate(req)
	if err != nil {
		return nil, tiererr.Status(err)
	}
	t, err := s.router.UpdateTopic(ctx, tierwire.Resource(req.GetName()), update)
	if err != nil {
		return nil, tiererr.Status(err)
	}
	return &routerpb.UpdateTopicResponse{Topic: tierwire.FromTopic(t), Revision: s.router.Revision()}, nil
}

// DeleteTopic is as in router.Router.
func (s *service) DeleteTopic(ctx context.Context, req *routerpb.DeleteTopicRequest) (*routerpb.DeleteTopicResponse, error) {
	if err := s.fits(ctx, req.GetKnown()); err != nil {
		return nil, tiererr.Status(err)
	}
	t, err := s.router.DeleteTopic(ctx, tierwire.Resource(req.GetName()))
	if err != nil {
		return nil, tiererr.Status(err)
	}
	return &routerpb.DeleteTopicResponse{Topic: tierwire.FromTopic(t), Revision: s.router.Revision()}, nil
}

// CreateGroup is as in router.Router.
func (s *service) CreateGroup(ctx context.Context, req *routerpb.CreateGroupRequest) (*routerpb.CreateGroupResponse, error) {
	if err := s.fits(ctx, req.GetKnown()); err != nil {
		return nil, tiererr.Status(err)
	}
	spec, err := groupSpec(req.GetSpec())
	if err != nil {
		return nil, tiererr.Status(err)
	}
	g, created, err := s.router.CreateGroup(ctx, spec)
	if err != nil {
		return nil, tiererr.Status(err)
	}
	return &routerpb.CreateGroupResponse{Group: tierwire.FromGroup(g), Created: created, Revision: s.router.Revision()}, nil
}

// UpdateGroup is as in router.Router.
func (s *service) UpdateGroup(ctx context.Context, req *routerpb.UpdateGroupRequest) (*routerpb.UpdateGroupResponse, error) {
	if err := s.fits(ctx, req.GetKnown()); err != nil {
		return nil, tiererr.Status(err)
	}
	update, err := groupUpdate(req)
	if err != nil {
		return nil, tiererr.Status(err)
	}
	g, err := s.router.UpdateGroup(ctx, tierwire.Resource(req.GetName()), update)
	if err != nil {
		return nil, tiererr.Status(err)
	}
	return &routerpb.UpdateGroupResponse{Group: tierwire.FromGroup(g), Revision: s.router.Revision()}, nil
}

// DeleteGroup is as in router.Router.
func (s *service) DeleteGroup(ctx context.Context, req *routerpb.DeleteGroupRequest) (*routerpb.DeleteGroupResponse, error) {
	if err := s.fits(ctx, req.GetKnown()); err != nil {
		return nil, tiererr.Status(err)
	}
	g, err := s.router.DeleteGroup(ctx, tierwire.Resource(req.GetName()))
	if err != nil {
		return nil, tiererr.Status(err)
	}
	return &routerpb.DeleteGroupResponse{Group: tierwire.FromGroup(g), Revision: s.router.Revision()}, nil
}

// ListNodes answers what this router knows; another may know others.
func (s *service) ListNodes(context.Context, *routerpb.ListNodesRequest) (*routerpb.ListNodesResponse, error) {
	known := s.registry.Nodes()
	return &routerpb.ListNodesResponse{Nodes: fromNodes(known.List), Settled: known.Settled}, nil
}

// ListShards counts the topics of each shard.
func (s *service) ListShards(context.Context, *routerpb.ListShardsRequest) (*routerpb.ListShardsResponse, error) {
	resp := &routerpb.ListShardsResponse{}
	for _, shard := range s.router.Shards() {
		resp.Shards = append(resp.Shards, &routerpb.PlacedShard{Shard: fromShard(shard), Topics: int64(s.router.TopicsOn(shard.Name))})
	}
	return resp, nil
}

// SetShard is as in router.Router.
func (s *service) SetShard(ctx context.Context, req *routerpb.SetShardRequest) (*routerpb.SetShardResponse, error) {
	if err := s.fits(ctx, req.GetKnown()); err != nil {
		return nil, tiererr.Status(err)
	}
	state, err := small[router.ShardState]("state", req.GetState())
	if err != nil {
		return nil, tiererr.Status(err)
	}
	shard, err := s.router.SetShard(ctx, req.GetName(), state)
	if err != nil {
		return nil, tiererr.Status(err)
	}
	return &routerpb.SetShardResponse{Shard: fromShard(shard), Revision: s.router.Revision()}, nil
}

// RemoveShard is as in router.Router.
func (s *service) RemoveShard(ctx context.Context, req *routerpb.RemoveShardRequest) (*routerpb.RemoveShardResponse, error) {
	if err := s.fits(ctx, req.GetKnown()); err != nil {
		return nil, tiererr.Status(err)
	}
	shard, err := s.router.RemoveShard(ctx, req.GetName(), req.GetLose())
	if err != nil {
		return nil, tiererr.Status(err)
	}
	return &routerpb.RemoveShardResponse{Shard: fromShard(shard), Revision: s.router.Revision()}, nil
}

// CloseShard calls router.Router.ShardClosed.
func (s *service) CloseShard(ctx context.Context, req *routerpb.CloseShardRequest) (*routerpb.CloseShardResponse, error) {
	if err := s.fits(ctx, req.GetKnown()); err != nil {
		return nil, tiererr.Status(err)
	}
	closed := make([]router.ClosedTopic, len(req.GetTopics()))
	for i, t := range req.GetTopics() {
		closed[i] = router.ClosedTopic{ID: mq.TopicID(t.GetId()), Placed: t.GetPlaced()}
	}
	if err := s.router.ShardClosed(ctx, req.GetName(), closed); err != nil {
		return nil, tiererr.Status(err)
	}
	return &routerpb.CloseShardResponse{Revision: s.router.Revision()}, nil
}

package fake

import (
	"context"
	"slices"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
)

// Cluster shows the deployment that it was given, and changes the states of its shards.
type Cluster struct {
	adminpb.UnimplementedClusterServiceServer

	cluster struct {
		sync.Mutex
		is *adminpb.GetClusterResponse
	}
}

// SetCluster says what there is.
func (c *Cluster) SetCluster(is *adminpb.GetClusterResponse) {
	c.cluster.Lock()
	defer c.cluster.Unlock()
	c.cluster.is = is
}

// GetCluster answers what there is.
func (c *Cluster) GetCluster(context.Context, *adminpb.GetClusterRequest) (*adminpb.GetClusterResponse, error) {
	c.cluster.Lock()
	defer c.cluster.Unlock()
	return c.cluster.is, nil
}

// ListShards answers the shards.
func (c *Cluster) ListShards(context.Context, *adminpb.ListShardsRequest) (*adminpb.ListShardsResponse, error) {
	c.cluster.Lock()
	defer c.cluster.Unlock()
	return &adminpb.ListShardsResponse{Shards: c.cluster.is.GetShards()}, nil
}

// SetShard gives a shard any state.
func (c *Cluster) SetShard(_ context.Context, req *adminpb.SetShardRequest) (*adminpb.SetShardResponse, error) {
	shard, err := c.set(req.GetName(), req.GetState())
	return &adminpb.SetShardResponse{Shard: shard}, err
}

// RemoveShard removes a shard that has no topics, unless nobody serves it and what is on it
// is not to be lost.
func (c *Cluster) RemoveShard(_ context.Context, req *adminpb.RemoveShardRequest) (*adminpb.RemoveShardResponse, error) {
	shard, err := c.set(req.GetName(), adminpb.ShardState_SHARD_STATE_REMOVED)
	switch {
	case err != nil:
		return nil, err
	case shard.GetTopics() > 0:
		return nil, status.Error(codes.InvalidArgument, "must have no topics to be removed")
	case shard.GetNode() == "" && !req.GetLoseDeadLetters():
		return nil, status.Error(codes.Unavailable, "unavailable: whether dead letters are on it cannot be asked")
	}
	return &adminpb.RemoveShardResponse{Shard: shard}, nil
}

func (c *Cluster) set(name string, state adminpb.ShardState) (*adminpb.Shard, error) {
	c.cluster.Lock()
	defer c.cluster.Unlock()
	i := slices.IndexFunc(c.cluster.is.GetShards(), func(s *adminpb.Shard) bool { return s.GetName() == name })
	if i < 0 {
		return nil, status.Error(codes.NotFound, "no such shard")
	}
	shard := &adminpb.Shard{Name: name, State: state, Node: c.cluster.is.Shards[i].GetNode(), Topics: c.cluster.is.Shards[i].GetTopics()}
	c.cluster.is.Shards[i] = shard
	return shard, nil
}

package node

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/perigee-mq/perigee/admin"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

// reachTime bounds how long a store node is tried for a list of nodes.
const reachTime = 3 * time.Second

// A cluster answers what the node knows of the deployment, for the administration: of
// other processes by the routers, or of itself when it is all there is. It is asked when
// the node has recovered.
type cluster struct{ n *node }

// Routers implements admin.Cluster.
func (c cluster) Routers(ctx context.Context) []admin.RouterStatus {
	if c.n.routers == nil {
		return nil
	}
	asked := c.n.routers.Routers(ctx)
	list := make([]admin.RouterStatus, len(asked))
	for i, r := range asked {
		list[i] = admin.RouterStatus(r)
	}
	return list
}

// Nodes implements admin.Cluster.
func (c cluster) Nodes(ctx context.Context, reach bool) []admin.NodeStatus {
	if c.n.routers == nil {
		return []admin.NodeStatus{{Node: router.Node{
			Name: c.n.name(), Shards: []string{c.n.cfg.Shard}, Version: c.n.cfg.Version, Started: c.n.metrics.started,
		}}}
	}
	known, _ := c.n.routers.Nodes()
	list := make([]admin.NodeStatus, len(known))
	ctx, cancel := context.WithTimeout(ctx, reachTime)
	defer cancel()
	var reaching sync.WaitGroup
	for i, n := range known {
		list[i].Node = n
		if reach && n.Tier == router.TierStore {
			reaching.Go(func() { list[i].Unreachable = c.n.stores.Reach(ctx, n.Address) })
		}
	}
	reaching.Wait()
	return list
}

// Revision implements admin.Cluster.
func (c cluster) Revision() uint64 {
	if c.n.routers == nil {
		return c.n.ownRouter.Revision()
	}
	return c.n.routers.Revision()
}

// Shards implements admin.Cluster.
func (c cluster) Shards() []router.Shard {
	if c.n.routers == nil {
		return []router.Shard{{Name: c.n.cfg.Shard, State: router.ShardActive}}
	}
	return c.n.routers.Shards()
}

// TopicsOn implements admin.Cluster.
func (c cluster) TopicsOn(shard string) int {
	if c.n.routers == nil {
		return c.n.ownRouter.TopicsOn(shard)
	}
	return c.n.routers.TopicsOn(shard)
}

// Leaving implements admin.Cluster.
func (c cluster) Leaving(shard string) router.Leaving {
	if c.n.routers == nil {
		return c.n.ownRouter.Leaving(shard)
	}
	return c.n.routers.Leaving(shard)
}

// SetShard implements admin.Cluster.
func (c cluster) SetShard(ctx context.Context, name string, state router.ShardState) (router.Shard, error) {
	if c.n.routers == nil {
		return router.Shard{}, c.only(name)
	}
	return c.n.routers.SetShard(ctx, name, state)
}

// RemoveShard implements admin.Cluster.
func (c cluster) RemoveShard(ctx context.Context, name string, lose bool) (router.Shard, error) {
	if c.n.routers == nil {
		return router.Shard{}, c.only(name)
	}
	return c.n.routers.RemoveShard(ctx, name, lose)
}

// only says why the shard of a server in one process cannot be changed.
func (c cluster) only(name string) error {
	if name != c.n.cfg.Shard {
		return fmt.Errorf("%w: %q", mq.ErrShardNotFound, mq.Shorten(name))
	}
	return &mq.InvalidError{
		Kind: mq.ErrInvalid, Field: "name", Value: name,
		Reason: "is the only shard of a server in one process, which always takes new topics: only the shards of several store nodes have states",
	}
}

package admin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

// Cluster is what the service asks about the processes of the deployment.
type Cluster interface {
	// Routers asks every router. A process that has the router itself has none to ask.
	Routers(ctx context.Context) []RouterStatus
	// Nodes returns the nodes that are alive, in the order of their names, and tries to
	// reach the store nodes among them when reach is set.
	Nodes(ctx context.Context, reach bool) []NodeStatus
	// Revision is that of the metadata which this process knows.
	Revision() uint64
	ClusterShards
}

// ClusterShards is the part of Cluster about shards. What has no documentation here is as
// in package router.
type ClusterShards interface {
	// Shards returns the shards in the order of their names.
	Shards() []router.Shard
	TopicsOn(shard string) int
	Leaving(shard string) router.Leaving
	SetShard(ctx context.Context, name string, state router.ShardState) (router.Shard, error)
	RemoveShard(ctx context.Context, name string, lose bool) (router.Shard, error)
}

// A RouterStatus is what one router says when it is asked.
type RouterStatus struct {
	Address  string
	Followed bool // by this process
	Life     string
	Revision uint64
	// Err says why it does not answer, or is not one to follow; nil when neither is so.
	Err error
}

// A NodeStatus is a node and whether this process reaches it. The tier of one that does
// everything is 0.
type NodeStatus struct {
	router.Node
	// Unreachable says why a store node cannot be reached; nil when it can, or was not
	// tried.
	Unreachable error
}

// GetCluster answers all that is known of the deployment.
func (s *Server) GetCluster(ctx context.Context, _ *adminpb.GetClusterRequest) (*adminpb.GetClusterResponse, error) {
	resp := &adminpb.GetClusterResponse{Node: s.node, Revision: s.cluster.Revision()}
	var nodes []NodeStatus
	var asking sync.WaitGroup
	asking.Go(func() {
		for _, r := range s.cluster.Routers(ctx) {
			resp.Routers = append(resp.Routers, routerProto(r))
		}
	})
	asking.Go(func() { nodes = s.cluster.Nodes(ctx, true) })
	asking.Wait()
	resp.Nodes, resp.Shards = nodesProto(nodes), s.shardsProto(ctx, nodes)
	return resp, nil
}

// ListNodes answers the nodes that are alive.
func (s *Server) ListNodes(ctx context.Context, _ *adminpb.ListNodesRequest) (*adminpb.ListNodesResponse, error) {
	return &adminpb.ListNodesResponse{Nodes: nodesProto(s.cluster.Nodes(ctx, true))}, nil
}

// ListShards answers the shards and what is on them.
func (s *Server) ListShards(ctx context.Context, _ *adminpb.ListShardsRequest) (*adminpb.ListShardsResponse, error) {
	return &adminpb.ListShardsResponse{Shards: s.shardsProto(ctx, s.cluster.Nodes(ctx, false))}, nil
}

// SetShard makes a shard active or draining.
func (s *Server) SetShard(ctx context.Context, req *adminpb.SetShardRequest) (*adminpb.SetShardResponse, error) {
	if err := checkShardName(req.GetName()); err != nil {
		return nil, s.refusal(ctx, err)
	}
	var state router.ShardState
	switch req.GetState() {
	case adminpb.ShardState_SHARD_STATE_ACTIVE:
		state = router.ShardActive
	case adminpb.ShardState_SHARD_STATE_DRAINING:
		state = router.ShardDraining
	default:
		return nil, s.refusal(ctx, invalid("state", req.GetState().String(), "must be one of active, draining"))
	}
	shard, err := s.cluster.SetShard(ctx, req.GetName(), state)
	if err != nil {
		return nil, s.refusal(ctx, noShard(req.GetName(), err))
	}
	s.logger.InfoContext(ctx, "state of a shard set", "shard", shard.Name, "state", shard.State.String())
	return &adminpb.SetShardResponse{Shard: s.shardProto(ctx, shard, nodesByShard(s.cluster.Nodes(ctx, false)))}, nil
}

// RemoveShard removes a shard that its topics have left and that holds nothing, or nothing
// that the request does not give up.
func (s *Server) RemoveShard(ctx context.Context, req *adminpb.RemoveShardRequest) (*adminpb.RemoveShardResponse, error) {
	name := req.GetName()
	if err := checkShardName(name); err != nil {
		return nil, s.refusal(ctx, err)
	}
	if err := s.checkEmpty(ctx, req); err != nil {
		return nil, s.refusal(ctx, err)
	}
	shard, err := s.cluster.RemoveShard(ctx, name, req.GetLoseMessages())
	if err != nil {
		return nil, s.refusal(ctx, noShard(name, err))
	}
	s.logger.InfoContext(ctx, "shard removed", "shard", name)
	return &adminpb.RemoveShardResponse{Shard: s.shardProto(ctx, shard, nodesByShard(s.cluster.Nodes(ctx, false)))}, nil
}

// checkShardName is router.CheckShardName about the field of a request.
func checkShardName(name string) error {
	err := router.CheckShardName(name)
	var refused *mq.InvalidError
	if errors.As(err, &refused) {
		return invalid("name", name, refused.Reason)
	}
	return err
}

// errNoShard is a shard that no store has ever registered. To clients, a shard that nobody
// serves now is something else.
var errNoShard = errors.New("no such shard")

// noShard tells the two apart.
func noShard(name string, err error) error {
	if errors.Is(err, mq.ErrShardNotFound) {
		return fmt.Errorf("%w: %q: no store has ever registered a shard of that name", errNoShard, mq.Shorten(name))
	}
	return err
}

// checkEmpty returns why a shard may not be removed: what the router does not know of are its
// messages.
func (s *Server) checkEmpty(ctx context.Context, req *adminpb.RemoveShardRequest) error {
	name := req.GetName()
	shards := s.cluster.Shards()
	i := slices.IndexFunc(shards, func(s router.Shard) bool { return s.Name == name })
	if i < 0 || shards[i].State == router.ShardRemoved || req.GetLoseMessages() {
		return nil // the router says so
	}
	// The router looks again. This comes first so that nobody is asked in vain.
	switch l := s.cluster.Leaving(name); {
	case l.Open > 0:
		return invalid("name", name, fmt.Sprintf("must have no topics to be removed: %d are on it; drain it first", l.Open))
	case l.Closing > 0:
		return invalid("name", name, fmt.Sprintf("must have no topics to be removed: %d are about to leave it, and its store node has not said yet that it refuses what is sent to them", l.Closing))
	}
	if !req.GetLoseDeadLetters() {
		if err := s.noDeadLetters(ctx, name); err != nil {
			return err
		}
	}
	if s.cluster.Leaving(name).Closed == 0 {
		return nil // dead letters aside there is nothing that counts
	}
	left, err := s.store.Remains(ctx, name)
	switch {
	case away(err):
		return fmt.Errorf("%w: what is left on shard %s cannot be asked: %w; with lose_messages it is removed all the same, and that is lost", mq.ErrUnavailable, name, err)
	case err != nil:
		return err
	case left.Pending > 0:
		return invalid("name", name, fmt.Sprintf("must hold nothing to be removed: %d delayed messages or half messages wait on it; "+
			"wait until they are delivered, or remove it with lose_messages", left.Pending))
	case left.Owing > 0:
		return invalid("name", name, fmt.Sprintf("must hold nothing to be removed: group %s has messages of topic %s left to settle on it, as have %d in all; "+
			"wait until they are, delete groups that nobody needs, or remove it with lose_messages", left.OwingGroup, left.OwingTopic, left.Owing))
	case left.Messages > 0 && !req.GetLoseSettled():
		return invalid("name", name, fmt.Sprintf("must hold nothing to be removed: %d messages are in %d queues, which every group has settled; "+
			"wait until their retention is over, purge topic %s and others, or remove it with lose_settled", left.Messages, left.Queues, left.Topic))
	}
	return nil
}

// askedAtOnce bounds the questions under way at one time.
const askedAtOnce = 16

// noDeadLetters returns nil when no dead letter of any group is on the shard.
func (s *Server) noDeadLetters(ctx context.Context, shard string) error {
	asking, ctx := errgroup.WithContext(ctx)
	asking.SetLimit(askedAtOnce)
	for _, g := range s.router.ListGroups(ctx, router.Selection{AllNamespaces: true, SystemGroups: true}) {
		asking.Go(func() error {
			ranges, err := s.store.Queues(ctx, shard, g.DeadLetter)
			if away(err) {
				return fmt.Errorf("%w: whether dead letters are on shard %s cannot be asked: %w; with lose_dead_letters it is removed all the same, and they are lost",
					mq.ErrUnavailable, shard, err)
			}
			if err != nil {
				return err
			}
			if n := held(ranges); n > 0 {
				return invalid("name", shard, fmt.Sprintf("must hold no dead letters to be removed: %d of group %s are on it; "+
					"send them back and purge topic %s, wait until their retention is over, or remove it with lose_dead_letters", n, g.Resource, g.DeadLetterTopic()))
			}
			return nil
		})
	}
	return asking.Wait()
}

// held returns how many messages the queues hold.
func held(ranges []mq.QueueRange) (n int64) {
	for _, r := range ranges {
		n += int64(r.Next - r.Min)
	}
	return n
}

// away reports whether err says that nobody who serves a shard can be reached.
func away(err error) bool {
	return errors.Is(err, mq.ErrUnavailable) || errors.Is(err, mq.ErrShardNotFound)
}

// absent are shards that could not be asked.
type absent map[string]bool

// note reports whether err says that a shard is away, and notes it then.
func (a absent) note(shard string, err error) bool {
	if away(err) {
		a[shard] = true
	}
	return away(err)
}

func (a absent) names() []string { return slices.Sorted(maps.Keys(a)) }

func routerProto(r RouterStatus) *adminpb.Router {
	p := &adminpb.Router{Address: r.Address, Followed: r.Followed, Revision: r.Revision, Life: r.Life}
	if r.Err != nil {
		p.Error = r.Err.Error()
	}
	return p
}

func nodesProto(nodes []NodeStatus) []*adminpb.Node {
	list := make([]*adminpb.Node, len(nodes))
	for i, n := range nodes {
		list[i] = &adminpb.Node{
			Name: n.Name, Tier: tierProto(n.Tier), Address: n.Address, Shards: n.Shards, Version: n.Version, Started: timestamppb.New(n.Started),
		}
		if n.Unreachable != nil {
			list[i].Unreachable = n.Unreachable.Error()
		}
	}
	return list
}

func tierProto(t router.Tier) adminpb.Tier {
	switch t {
	case router.TierStore:
		return adminpb.Tier_TIER_STORE
	case router.TierProxy:
		return adminpb.Tier_TIER_PROXY
	default:
		return adminpb.Tier_TIER_STANDALONE
	}
}

// nodesByShard returns the names of the nodes by the shards that they serve.
func nodesByShard(nodes []NodeStatus) map[string]string {
	by := map[string]string{}
	for _, n := range nodes {
		for _, shard := range n.Shards {
			by[shard] = n.Name
		}
	}
	return by
}

func (s *Server) shardsProto(ctx context.Context, nodes []NodeStatus) []*adminpb.Shard {
	by, shards := nodesByShard(nodes), s.cluster.Shards()
	list := make([]*adminpb.Shard, len(shards))
	var asking errgroup.Group
	asking.SetLimit(askedAtOnce)
	for i, shard := range shards {
		asking.Go(func() error {
			list[i] = s.shardProto(ctx, shard, by)
			return nil
		})
	}
	_ = asking.Wait() // nothing fails
	return list
}

func (s *Server) shardProto(ctx context.Context, shard router.Shard, nodes map[string]string) *adminpb.Shard {
	p := &adminpb.Shard{
		Name: shard.Name, State: adminpb.ShardState(shard.State), // the numbers are the same
		Node: nodes[shard.Name], Topics: int64(s.cluster.TopicsOn(shard.Name)),
	}
	if shard.State == router.ShardDraining {
		p.Leaving = s.leaving(ctx, shard.Name)
	}
	return p
}

// remainsTime bounds how long a store is asked what is left on a shard.
const remainsTime = 5 * time.Second

// leaving returns how far a shard is drained.
func (s *Server) leaving(ctx context.Context, shard string) *adminpb.Leaving {
	ctx, cancel := context.WithTimeout(ctx, remainsTime)
	defer cancel()
	l := s.cluster.Leaving(shard)
	p := &adminpb.Leaving{Open: int64(l.Open), Closing: int64(l.Closing), Closed: int64(l.Closed)}
	left, err := s.store.Remains(ctx, shard)
	if err != nil {
		p.Error = err.Error()
		return p
	}
	p.Queues, p.Messages, p.Pending, p.DeadLetters, p.Owing = left.Queues, left.Messages, left.Pending, left.DeadLetters, left.Owing
	if left.Owing > 0 {
		p.OwingGroup, p.OwingTopic = left.OwingGroup.String(), left.OwingTopic.String()
	}
	return p
}

package remote

import (
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	routerpb "github.com/perigee-mq/perigee/gen/perigee/router/v1"
	"github.com/perigee-mq/perigee/internal/tierwire"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

// What the router is asked for, in both forms. What a message cannot hold, or a router
// would not understand, is refused; all else is the router's to judge.

func invalid(field string, value any, reason string) error {
	return &mq.InvalidError{Kind: mq.ErrInvalid, Field: field, Value: mq.Shorten(fmt.Sprint(value)), Reason: reason}
}

// small returns the number of an enumeration as the vocabulary holds it.
func small[T ~uint8, E ~int32](field string, e E) (T, error) {
	if e < 0 || e > math.MaxUint8 {
		return 0, invalid(field, int32(e), "must lie between 0 and 255")
	}
	return T(e), nil
}

// converted returns v converted by f, nil for nil.
func converted[A, B any](v *A, f func(A) B) *B {
	if v == nil {
		return nil
	}
	return new(f(*v))
}

func nanos(d time.Duration) int64    { return int64(d) }
func duration(n int64) time.Duration { return time.Duration(n) }

func fromTopicSpec(s router.TopicSpec) *routerpb.TopicSpec {
	return &routerpb.TopicSpec{
		Name: tierwire.FromResource(s.Resource), Type: routerpb.TopicType(s.Type), Queues: s.Queues, Permission: routerpb.Permission(s.Permission),
		Retention: int64(s.Retention), Dedup: converted(s.Dedup, nanos), LiteTtl: int64(s.LiteTTL),
	}
}

func topicSpec(p *routerpb.TopicSpec) (s router.TopicSpec, err error) {
	s = router.TopicSpec{
		Resource: tierwire.Resource(p.GetName()), Queues: p.GetQueues(), Retention: time.Duration(p.GetRetention()), LiteTTL: time.Duration(p.GetLiteTtl()),
	}
	if p != nil {
		s.Dedup = converted(p.Dedup, duration)
	}
	if s.Type, err = small[mq.TopicType]("type", p.GetType()); err != nil {
		return s, err
	}
	s.Permission, err = small[mq.Permission]("permission", p.GetPermission())
	return s, err
}

func fromTopicUpdate(name mq.Resource, u router.TopicUpdate) *routerpb.UpdateTopicRequest {
	return &routerpb.UpdateTopicRequest{
		Name: tierwire.FromResource(name), ReadQueues: u.ReadQueues, WriteQueues: u.WriteQueues, Spread: u.Spread,
		Type:       converted(u.Type, func(t mq.TopicType) routerpb.TopicType { return routerpb.TopicType(t) }),
		Permission: converted(u.Permission, func(p mq.Permission) routerpb.Permission { return routerpb.Permission(p) }),
		Retention:  converted(u.Retention, nanos), Dedup: converted(u.Dedup, nanos), LiteTtl: converted(u.LiteTTL, nanos),
	}
}

func topicUpdate(p *routerpb.UpdateTopicRequest) (u router.TopicUpdate, err error) {
	u = router.TopicUpdate{
		ReadQueues: p.ReadQueues, WriteQueues: p.WriteQueues, Spread: p.GetSpread(),
		Retention: converted(p.Retention, duration), Dedup: converted(p.Dedup, duration), LiteTTL: converted(p.LiteTtl, duration),
	}
	if p.Type != nil {
		t, err := small[mq.TopicType]("type", p.GetType())
		if err != nil {
			return u, err
		}
		u.Type = &t
	}
	if p.Permission != nil {
		permission, err := small[mq.Permission]("permission", p.GetPermission())
		if err != nil {
			return u, err
		}
		u.Permission = &permission
	}
	return u, nil
}

func fromGroupSpec(s router.GroupSpec) *routerpb.GroupSpec {
	return &routerpb.GroupSpec{
		Name: tierwire.FromResource(s.Resource), Fifo: s.FIFO, Retry: tierwire.FromRetry(s.Retry), Start: tierwire.FromStart(s.Start),
		LiteTopic: s.LiteTopic, LiteExclusive: s.LiteExclusive, Broadcast: s.Broadcast, Seen: tierwire.FromTime(s.Seen),
	}
}

func groupSpec(p *routerpb.GroupSpec) (s router.GroupSpec, err error) {
	s = router.GroupSpec{
		Resource: tierwire.Resource(p.GetName()), FIFO: p.GetFifo(), Retry: tierwire.Retry(p.GetRetry()),
		LiteTopic: p.GetLiteTopic(), LiteExclusive: p.GetLiteExclusive(), Broadcast: p.GetBroadcast(), Seen: tierwire.Time(p.GetSeen()),
	}
	s.Start, err = tierwire.Start(p.GetStart())
	return s, err
}

func fromGroupUpdate(name mq.Resource, u router.GroupUpdate) *routerpb.UpdateGroupRequest {
	p := &routerpb.UpdateGroupRequest{Name: tierwire.FromResource(name), Fifo: u.FIFO, LiteTopic: u.LiteTopic, LiteExclusive: u.LiteExclusive, Broadcast: u.Broadcast, Touch: u.Touch}
	if u.Retry != nil {
		p.Retry = tierwire.FromRetry(*u.Retry)
	}
	if u.Start != nil {
		p.Start = tierwire.FromStart(*u.Start)
	}
	return p
}

func groupUpdate(p *routerpb.UpdateGroupRequest) (u router.GroupUpdate, err error) {
	u = router.GroupUpdate{FIFO: p.Fifo, LiteTopic: p.LiteTopic, LiteExclusive: p.LiteExclusive, Broadcast: p.Broadcast, Touch: p.GetTouch()}
	if p.Retry != nil {
		u.Retry = new(tierwire.Retry(p.GetRetry()))
	}
	if p.Start != nil {
		start, err := tierwire.Start(p.GetStart())
		if err != nil {
			return u, err
		}
		u.Start = &start
	}
	return u, nil
}

func fromNode(n router.Node) *routerpb.Node {
	p := &routerpb.Node{
		Name: n.Name, Tier: routerpb.Tier(n.Tier), Address: n.Address, Shards: n.Shards, Version: n.Version, Identity: n.Identity,
	}
	if !n.Started.IsZero() {
		p.Started = timestamppb.New(n.Started)
	}
	return p
}

func node(p *routerpb.Node) (n router.Node, err error) {
	n = router.Node{Name: p.GetName(), Address: p.GetAddress(), Shards: p.GetShards(), Version: p.GetVersion(), Identity: p.GetIdentity()}
	if p.GetStarted() != nil {
		if err := p.GetStarted().CheckValid(); err != nil {
			return n, invalid("started", p.GetStarted().GetSeconds(), "is no time: "+err.Error())
		}
		n.Started = p.GetStarted().AsTime()
	}
	n.Tier, err = small[router.Tier]("tier", p.GetTier())
	return n, err
}

// fromNodes leaves the identities out: they are for the router alone.
func fromNodes(list []router.Node) []*routerpb.Node {
	nodes := make([]*routerpb.Node, 0, len(list))
	for _, n := range list {
		n.Identity = ""
		nodes = append(nodes, fromNode(n))
	}
	return nodes
}

func nodes(list []*routerpb.Node) ([]router.Node, error) {
	var all []router.Node
	for _, p := range list {
		n, err := node(p)
		if err != nil {
			return nil, err
		}
		all = append(all, n)
	}
	return all, nil
}

func fromShard(s router.Shard) *routerpb.Shard {
	return &routerpb.Shard{Name: s.Name, State: routerpb.ShardState(s.State)}
}

func shard(p *routerpb.Shard) (router.Shard, error) {
	state, err := small[router.ShardState]("state", p.GetState())
	return router.Shard{Name: p.GetName(), State: state}, err
}

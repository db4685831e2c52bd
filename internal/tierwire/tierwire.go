// Package tierwire converts topics and consumer groups to the messages in which tiers
// tell each other of them, and back. Nothing of them is lost on the way.
//
// It is called by both ends of the services between tiers. It does not judge what a
// topic or group may be: the router did, and a peer of a later version may allow more. A
// message that cannot be one, or that this version cannot hold, is an
// *mq.InvalidError.
package tierwire

import (
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	routerpb "github.com/perigee-mq/perigee/gen/perigee/router/v1"
	"github.com/perigee-mq/perigee/mq"
)

// FromResource returns the message for r.
func FromResource(r mq.Resource) *routerpb.Resource {
	return &routerpb.Resource{Namespace: r.Namespace, Name: r.Name}
}

// Resource returns the name in p, the zero Resource for nil.
func Resource(p *routerpb.Resource) mq.Resource {
	return mq.Resource{Namespace: p.GetNamespace(), Name: p.GetName()}
}

// FromTopic returns the message for t, nil for nil.
func FromTopic(t *mq.Topic) *routerpb.Topic {
	if t == nil {
		return nil
	}
	p := &routerpb.Topic{
		Id: uint32(t.ID), Name: FromResource(t.Resource), Type: routerpb.TopicType(t.Type), Permission: routerpb.Permission(t.Permission),
		Retention: int64(t.Retention), Dedup: int64(t.Dedup), LiteTtl: int64(t.LiteTTL), Version: t.Version,
		Placed: t.Placed,
	}
	for _, s := range t.Shards {
		p.Shards = append(p.Shards, &routerpb.ShardQueues{Shard: s.Shard, Read: s.Read, Write: s.Write, Use: routerpb.ShardUse(s.Use), Since: s.Since})
	}
	for i, place := range t.Places {
		if i > 0 && t.Places[i-1].Shard == place.Shard && t.Places[i-1].Queue+1 == place.Queue {
			p.Places[len(p.Places)-1].Count++
			continue
		}
		p.Places = append(p.Places, &routerpb.PlaceRun{Shard: place.Shard, Queue: int32(place.Queue), Count: 1})
	}
	return p
}

// maxPlaces bounds the places of one topic.
const maxPlaces = 1 << 20

func places(runs []*routerpb.PlaceRun) ([]mq.Place, error) {
	var list []mq.Place
	for i, r := range runs {
		if r.GetQueue() < 0 || r.GetCount() < 1 || int64(r.GetQueue())+int64(r.GetCount()) > mq.MaxQueues || len(list) > maxPlaces {
			return nil, invalid(fmt.Sprintf("topic.places[%d]", i), fmt.Sprintf("%d, %d", r.GetQueue(), r.GetCount()),
				fmt.Sprintf("must be queues from 0 to %d, and at most %d in all", mq.MaxQueues-1, maxPlaces))
		}
		for q := range r.GetCount() {
			list = append(list, mq.Place{Shard: r.GetShard(), Queue: mq.QueueID(r.GetQueue() + q)})
		}
	}
	return list, nil
}

// Topic returns the topic in p. It shares no memory with p but strings.
func Topic(p *routerpb.Topic) (*mq.Topic, error) {
	switch {
	case p.GetId() == 0:
		return nil, invalid("topic.id", p.GetId(), "must be above 0")
	case p.GetName().GetName() == "":
		return nil, invalid("topic.name", "", "must not be empty")
	case p.GetType() < 0 || p.GetType() > math.MaxUint8:
		return nil, invalid("topic.type", int32(p.GetType()), "must lie between 0 and 255")
	case p.GetPermission() < 0 || p.GetPermission() > math.MaxUint8:
		return nil, invalid("topic.permission", int32(p.GetPermission()), "must lie between 0 and 255")
	}
	t := &mq.Topic{
		ID: mq.TopicID(p.GetId()), Resource: Resource(p.GetName()), Type: mq.TopicType(p.GetType()), Permission: mq.Permission(p.GetPermission()),
		Retention: time.Duration(p.GetRetention()), Dedup: time.Duration(p.GetDedup()), LiteTTL: time.Duration(p.GetLiteTtl()), Version: p.GetVersion(),
		Placed: p.GetPlaced(),
	}
	for i, s := range p.GetShards() {
		if s.GetRead() < 0 || s.GetRead() > mq.MaxQueues || s.GetWrite() < 0 || s.GetWrite() > mq.MaxQueues {
			return nil, invalid(fmt.Sprintf("topic.shards[%d]", i), fmt.Sprintf("%d, %d", s.GetRead(), s.GetWrite()),
				fmt.Sprintf("each must lie between 0 and %d", mq.MaxQueues))
		}
		if s.GetUse() < 0 || s.GetUse() > math.MaxUint8 {
			return nil, invalid(fmt.Sprintf("topic.shards[%d].use", i), int32(s.GetUse()), "must lie between 0 and 255")
		}
		t.Shards = append(t.Shards, mq.ShardQueues{
			Shard: s.GetShard(), Read: s.GetRead(), Write: s.GetWrite(), Use: mq.ShardUse(s.GetUse()), Since: s.GetSince(),
		})
	}
	var err error
	if t.Places, err = places(p.GetPlaces()); err != nil {
		return nil, err
	}
	return t, nil
}

// FromGroup returns the message for g, nil for nil.
func FromGroup(g *mq.Group) *routerpb.Group {
	if g == nil {
		return nil
	}
	return &routerpb.Group{
		Id: uint32(g.ID), Name: FromResource(g.Resource), Fifo: g.FIFO, Retry: FromRetry(g.Retry), Start: FromStart(g.Start),
		LiteTopic: g.LiteTopic, LiteExclusive: g.LiteExclusive, Broadcast: g.Broadcast, Seen: FromTime(g.Seen),
		DeadLetter: uint32(g.DeadLetter), DeadLetterShard: g.DeadLetterShard, Version: g.Version,
	}
}

// Group returns the group in p. It shares no memory with p but strings.
func Group(p *routerpb.Group) (*mq.Group, error) {
	switch {
	case p.GetId() == 0:
		return nil, invalid("group.id", p.GetId(), "must be above 0")
	case p.GetName().GetName() == "":
		return nil, invalid("group.name", "", "must not be empty")
	}
	start, err := Start(p.GetStart())
	if err != nil {
		return nil, err
	}
	return &mq.Group{
		ID: mq.GroupID(p.GetId()), Resource: Resource(p.GetName()), FIFO: p.GetFifo(), Retry: Retry(p.GetRetry()), Start: start,
		LiteTopic: p.GetLiteTopic(), LiteExclusive: p.GetLiteExclusive(), Broadcast: p.GetBroadcast(), Seen: Time(p.GetSeen()),
		DeadLetter: mq.TopicID(p.GetDeadLetter()), DeadLetterShard: p.GetDeadLetterShard(), Version: p.GetVersion(),
	}, nil
}

// FromTime returns the message for a time, nil for the zero time.
func FromTime(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// Time returns the time in p.
func Time(p *timestamppb.Timestamp) time.Time {
	if p == nil {
		return time.Time{}
	}
	return p.AsTime()
}

// FromRetry returns the message for a policy.
func FromRetry(r mq.RetryPolicy) *routerpb.RetryPolicy {
	p := &routerpb.RetryPolicy{MaxAttempts: int32(r.MaxAttempts), Initial: int64(r.Initial), Max: int64(r.Max), Multiplier: r.Multiplier}
	for _, d := range r.Customized {
		p.Customized = append(p.Customized, int64(d))
	}
	return p
}

// Retry returns the policy in p, the zero policy for nil.
func Retry(p *routerpb.RetryPolicy) mq.RetryPolicy {
	r := mq.RetryPolicy{
		MaxAttempts: mq.Attempt(p.GetMaxAttempts()), Initial: time.Duration(p.GetInitial()), Max: time.Duration(p.GetMax()), Multiplier: p.GetMultiplier(),
	}
	for _, d := range p.GetCustomized() {
		r.Customized = append(r.Customized, time.Duration(d))
	}
	return r
}

// FromStart returns the message for a position.
func FromStart(s mq.StartPosition) *routerpb.StartPosition {
	p := &routerpb.StartPosition{Policy: routerpb.StartPolicy(s.Policy) + routerpb.StartPolicy_START_POLICY_EARLIEST}
	if !s.Time.IsZero() {
		p.Time = timestamppb.New(s.Time)
	}
	return p
}

// Start returns the position in p, the earliest for nil. Its time is in UTC.
func Start(p *routerpb.StartPosition) (mq.StartPosition, error) {
	var s mq.StartPosition
	if n := p.GetPolicy() - routerpb.StartPolicy_START_POLICY_EARLIEST; n > 0 {
		if n > math.MaxUint8 {
			return s, invalid("start.policy", int32(p.GetPolicy()), "is not a start policy")
		}
		s.Policy = mq.StartPolicy(n)
	}
	if p.GetTime() != nil {
		if err := p.GetTime().CheckValid(); err != nil {
			return s, invalid("start.time", p.GetTime().GetSeconds(), "is no time: "+err.Error())
		}
		s.Time = p.GetTime().AsTime()
	}
	return s, nil
}

func invalid(field string, value any, reason string) error {
	return &mq.InvalidError{Kind: mq.ErrInvalid, Field: field, Value: mq.Shorten(fmt.Sprint(value)), Reason: reason}
}

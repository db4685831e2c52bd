package admin

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

// CreateTopic creates a topic, or answers the one that exists with the same
// configuration.
func (s *Server) CreateTopic(ctx context.Context, req *adminpb.CreateTopicRequest) (*adminpb.CreateTopicResponse, error) {
	typ, err := topicType(req.GetType())
	if err != nil {
		return nil, s.refusal(ctx, err)
	}
	perm, err := permission(req.GetPermission())
	if err != nil {
		return nil, s.refusal(ctx, err)
	}
	keep, err := duration("retention", req.GetRetention())
	if err != nil {
		return nil, s.refusal(ctx, err)
	}
	dedup, err := optional("dedup", req.GetDedup())
	if err != nil {
		return nil, s.refusal(ctx, err)
	}
	ttl, err := duration("lite_ttl", req.GetLiteTtl())
	if err != nil {
		return nil, s.refusal(ctx, err)
	}
	t, created, err := s.router.CreateTopic(ctx, router.TopicSpec{
		Resource: resource(req), Type: typ, Queues: req.GetQueues(), Permission: perm, Retention: keep, Dedup: dedup, LiteTTL: ttl,
	})
	if err != nil {
		return nil, s.refusal(ctx, err)
	}
	return &adminpb.CreateTopicResponse{Topic: topicProto(t), Created: created}, nil
}

// GetTopic answers a topic and the offsets of its queues, as far as the shards can be
// asked.
func (s *Server) GetTopic(ctx context.Context, req *adminpb.GetTopicRequest) (*adminpb.GetTopicResponse, error) {
	t, err := s.router.Topic(ctx, resource(req))
	if err != nil {
		return nil, s.refusal(ctx, err)
	}
	resp := &adminpb.GetTopicResponse{Topic: topicProto(t)}
	missing, there := absent{}, *t
	there.Shards = nil
	for _, sq := range t.Shards {
		queues, err := s.queuesOn(ctx, t, sq)
		if missing.note(sq.Shard, err) {
			continue
		}
		if err != nil {
			return nil, s.refusal(ctx, err)
		}
		resp.Queues, there.Shards = append(resp.Queues, queues...), append(there.Shards, sq)
	}
	if resp.LiteTopics, resp.LiteMessages, err = s.liteStock(ctx, &there); err != nil {
		return nil, s.refusal(ctx, err)
	}
	resp.UnreachableShards = missing.names()
	return resp, nil
}

// liteStock returns how many lite topics the topic has, and how many messages they hold.
func (s *Server) liteStock(ctx context.Context, t *mq.Topic) (topics, messages int64, err error) {
	if t.Type != mq.TopicLite {
		return 0, 0, nil
	}
	for _, sq := range t.Shards {
		stock, err := s.store.LiteStock(ctx, sq.Shard, t.ID)
		if err != nil {
			return 0, 0, err
		}
		topics += stock.Topics
		messages += stock.Messages
	}
	return topics, messages, nil
}

// queues returns the queues of the topic, ordered by shard and number.
func (s *Server) queues(ctx context.Context, t *mq.Topic) (all []*adminpb.QueueStatus, err error) {
	for _, sq := range t.Shards {
		queues, err := s.queuesOn(ctx, t, sq)
		if err != nil {
			return nil, err
		}
		all = append(all, queues...)
	}
	return all, nil
}

// queuesOn returns the queues of the topic on one shard. The store knows a queue
// only from its first message on; until then it is empty.
func (s *Server) queuesOn(ctx context.Context, t *mq.Topic, sq mq.ShardQueues) ([]*adminpb.QueueStatus, error) {
	ranges, err := s.store.Queues(ctx, sq.Shard, t.ID)
	if err != nil {
		return nil, err
	}
	n := int(sq.Queues())
	for _, r := range ranges {
		n = max(n, int(r.Queue)+1)
	}
	list := make([]*adminpb.QueueStatus, n)
	for i := range list {
		list[i] = &adminpb.QueueStatus{Shard: sq.Shard, Queue: int32(i)}
	}
	for _, r := range ranges {
		list[r.Queue].MinOffset, list[r.Queue].MaxOffset = int64(r.Min), int64(r.Next)
	}
	return list, nil
}

// ListTopics answers the topics of a namespace in the order of their names.
func (s *Server) ListTopics(ctx context.Context, req *adminpb.ListTopicsRequest) (*adminpb.ListTopicsResponse, error) {
	if err := mq.ValidateNamespace(req.GetNamespace()); err != nil {
		return nil, s.refusal(ctx, err)
	}
	resp := &adminpb.ListTopicsResponse{}
	for _, t := range s.router.ListTopics(ctx, router.Selection{Namespace: req.GetNamespace(), DeadLetters: req.GetIncludeSystem()}) {
		resp.Topics = append(resp.Topics, topicProto(t))
	}
	return resp, nil
}

// UpdateTopic changes the permission, the number of queues, the retention or the dedup of a
// topic, or gives it queues on further shards.
func (s *Server) UpdateTopic(ctx context.Context, req *adminpb.UpdateTopicRequest) (*adminpb.UpdateTopicResponse, error) {
	update := router.TopicUpdate{ReadQueues: req.ReadQueues, WriteQueues: req.WriteQueues, Spread: req.GetSpread()}
	if req.Permission != nil {
		perm, err := permission(req.GetPermission())
		if err == nil && perm == 0 {
			err = invalid("permission", req.GetPermission().String(), "must be one of NONE, READ, WRITE, READ_WRITE when it is set")
		}
		if err != nil {
			return nil, s.refusal(ctx, err)
		}
		update.Permission = &perm
	}
	var err error
	if update.Retention, err = optional("retention", req.GetRetention()); err != nil {
		return nil, s.refusal(ctx, err)
	}
	if update.Dedup, err = optional("dedup", req.GetDedup()); err != nil {
		return nil, s.refusal(ctx, err)
	}
	if update.LiteTTL, err = optional("lite_ttl", req.GetLiteTtl()); err != nil {
		return nil, s.refusal(ctx, err)
	}
	t, err := s.router.UpdateTopic(ctx, resource(req), update)
	if err != nil {
		return nil, s.refusal(ctx, err)
	}
	return &adminpb.UpdateTopicResponse{Topic: topicProto(t)}, nil
}

// PurgeTopic removes all messages of a topic that are stored when it is called,
// those under delivery included, and the lite topics with theirs. What is sent after it
// has returned is kept.
func (s *Server) PurgeTopic(ctx context.Context, req *adminpb.PurgeTopicRequest) (*adminpb.PurgeTopicResponse, error) {
	t, err := s.router.Topic(ctx, resource(req))
	if err != nil {
		return nil, s.refusal(ctx, err)
	}
	before, err := s.queues(ctx, t)
	if err != nil {
		return nil, s.refusal(ctx, err)
	}
	_, lite, err := s.liteStock(ctx, t)
	if err != nil {
		return nil, s.refusal(ctx, err)
	}
	if err := s.store.PurgeTopic(ctx, t.ID); err != nil {
		return nil, s.refusal(ctx, err)
	}
	after, err := s.queues(ctx, t)
	if err != nil {
		return nil, s.refusal(ctx, err)
	}
	// Of lite topics as they were counted before: what is sent to them meanwhile counts
	// neither as purged nor as kept.
	resp := &adminpb.PurgeTopicResponse{Queues: after, Purged: lite}
	for _, q := range after {
		resp.Purged += q.MinOffset
	}
	for _, q := range before { // queues may become more, not fewer
		resp.Purged -= q.MinOffset
	}
	return resp, nil
}

// DeleteTopic removes a topic.
func (s *Server) DeleteTopic(ctx context.Context, req *adminpb.DeleteTopicRequest) (*adminpb.DeleteTopicResponse, error) {
	if _, err := s.router.DeleteTopic(ctx, resource(req)); err != nil {
		return nil, s.refusal(ctx, err)
	}
	return &adminpb.DeleteTopicResponse{}, nil
}

// topicType converts a type; none set means NORMAL.
func topicType(t adminpb.TopicType) (mq.TopicType, error) {
	if t == adminpb.TopicType_TOPIC_TYPE_UNSPECIFIED {
		return mq.TopicNormal, nil
	}
	if _, known := adminpb.TopicType_name[int32(t)]; !known {
		return 0, invalid("type", fmt.Sprint(int32(t)), "is not a topic type")
	}
	return mq.TopicType(t), nil // the numbers are the same
}

// permission converts a permission; none set is 0.
func permission(p adminpb.Permission) (mq.Permission, error) {
	if _, known := adminpb.Permission_name[int32(p)]; !known {
		return 0, invalid("permission", fmt.Sprint(int32(p)), "is not a permission")
	}
	return mq.Permission(p), nil // the numbers are the same
}

// duration converts the duration of a field; none set is 0. Its bounds are the router's.
func duration(field string, d *durationpb.Duration) (time.Duration, error) {
	if d == nil {
		return 0, nil
	}
	if err := d.CheckValid(); err != nil {
		return 0, invalid(field, fmt.Sprintf("%d s", d.GetSeconds()), "is not a duration")
	}
	return d.AsDuration(), nil
}

// optional is duration for a field that may be left out.
func optional(field string, d *durationpb.Duration) (*time.Duration, error) {
	if d == nil {
		return nil, nil
	}
	v, err := duration(field, d)
	return &v, err
}

func topicProto(t *mq.Topic) *adminpb.Topic {
	p := &adminpb.Topic{
		Namespace: t.Namespace, Name: t.Name, Type: adminpb.TopicType(t.Type), Id: uint32(t.ID), Version: t.Version,
		Permission: adminpb.Permission(t.Permission), Dedup: durationpb.New(t.Dedup),
	}
	if t.LiteTTL != 0 {
		p.LiteTtl = durationpb.New(t.LiteTTL)
	}
	if t.Retention != 0 {
		p.Retention = durationpb.New(t.Retention)
	}
	for _, sq := range t.Shards {
		p.Shards = append(p.Shards, &adminpb.ShardQueues{Shard: sq.Shard, ReadQueues: sq.Read, WriteQueues: sq.Write, Leaving: sq.Use != mq.ShardOpen})
	}
	return p
}

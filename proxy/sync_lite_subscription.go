package proxy

import (
	"context"
	"fmt"
	"math"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/proxy/session"
)

// SyncLiteSubscription changes or confirms which lite topics a client wants. A lite topic
// that is not there is made.
//
// Fields: topic (the parent, of type LITE), group, action, lite_topic_set (letters, digits, _
// and -, 64 at most), version (a COMPLETE_ADD older than one before changes nothing),
// offset_option: where the group reads lite topics from that are new to the client's set. With
// PARTIAL_ADD MIN, MAX, an offset, tail_n and a timestamp hold also when the group has a place
// in the lite topic already, and what it has of it under delivery ends then; a
// COMPLETE_ADD, which clients repeat, never moves a group. Without one, and with LAST, the
// group goes on where it is, and begins behind the newest message when it has no place.
//
// Behaviour: all of it or nothing, on all shards of the topic; a COMPLETE_ADD, which is repeated,
// leaves out those that cannot be reached. On a shard that the topic leaves, only lite topics
// that are there. In a group with the exclusive
// model (perigee group create --lite-exclusive) a lite topic goes from the client that had it
// to the one that adds it with PARTIAL_ADD, and the former gets NotifyUnsubscribeLiteCommand if
// it is a lite consumer with a Telemetry stream here; one whose stream is at another proxy gets it with
// its next COMPLETE_ADD, which SDKs send every 30 seconds, and no messages of it meanwhile. COMPLETE_ADD takes nothing from anybody: the
// client is not given what another has, and is told so in that way, again with each sync. A
// client that neither syncs nor receives for three minutes, or whose session ends, is forgotten.
//
// Codes: OK, CLIENT_ID_REQUIRED, ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP, ILLEGAL_LITE_TOPIC,
// ILLEGAL_OFFSET, TOPIC_NOT_FOUND, CONSUMER_GROUP_NOT_FOUND, FORBIDDEN, BAD_REQUEST (another
// topic type, an action that is not known), PRECONDITION_FAILED (the group is bound to another topic),
// LITE_SUBSCRIPTION_QUOTA_EXCEEDED, LITE_TOPIC_QUOTA_EXCEEDED.
//
// A COMPLETE_ADD without a version keeps what the client has added within ten seconds before:
// SDKs send it beside PARTIAL_ADD, with the set of before. Node.js begins with an empty one.
//
// Apache's server ignores the timestamp, and does not have the call in every mode.
func (s *Server) SyncLiteSubscription(ctx context.Context, req *rmqpb.SyncLiteSubscriptionRequest) (*rmqpb.SyncLiteSubscriptionResponse, error) {
	return &rmqpb.SyncLiteSubscriptionResponse{Status: s.statusOf(ctx, s.syncLite(ctx, req))}, nil
}

func (s *Server) syncLite(ctx context.Context, req *rmqpb.SyncLiteSubscriptionRequest) error {
	c, err := s.caller(ctx)
	if err != nil {
		return err
	}
	topicName, groupName := c.resource(req.GetTopic()), c.resource(req.GetGroup())
	if err := validateNames(groupName, topicName); err != nil {
		return err
	}
	r := mq.LiteSync{
		Client: c.ID, Version: req.GetVersion(), ClientQuota: s.opts.LiteClientQuota, TotalQuota: s.opts.LiteTotalQuota,
	}
	if r.Action, err = liteAction(req.GetAction()); err != nil {
		return err
	}
	for _, name := range req.GetLiteTopicSet() {
		if err := mq.ValidateLiteTopic(name); err != nil {
			return refuse(rmqpb.Code_ILLEGAL_LITE_TOPIC, "lite_topic_set: %v", err)
		}
	}
	if r.Place, err = litePlace(req); err != nil {
		return err
	}
	if r.Topic, err = s.router.Topic(ctx, topicName); err != nil {
		return err
	}
	if r.Topic.Type != mq.TopicLite {
		return refuse(rmqpb.Code_BAD_REQUEST, "topic %q: is of type %s and has no lite topics", r.Topic.Resource, r.Topic.Type)
	}
	if err := mayReceive(r.Topic); err != nil {
		return err
	}
	if r.Group, err = s.router.EnsureGroup(ctx, groupName); err != nil {
		return err
	}
	if err := mayReceiveLite(r.Topic, r.Group); err != nil {
		return err
	}
	one, err := s.touch(c)
	if err != nil {
		return err
	}
	r.Exclusive = r.Group.LiteExclusive
	return s.syncLiteInTurn(ctx, &one.Lites, r, req.GetLiteTopicSet())
}

// syncLiteInTurn carries out one sync of a client at a time. A whole set without a version
// takes back nothing that was added a moment ago, see session.Lites.
func (s *Server) syncLiteInTurn(ctx context.Context, lites *session.Lites, r mq.LiteSync, names []string) error {
	lites.Turn.Lock()
	defer lites.Turn.Unlock()
	scope := liteScope(r.Topic.ID, r.Group.ID)
	if r.Action == mq.LiteReplace && r.Version == 0 {
		names = lites.WithAdded(scope, names)
	}
	if err := s.syncLiteOn(ctx, r, names); err != nil {
		return err
	}
	switch r.Action {
	case mq.LiteAdd:
		lites.Added(scope, names)
	case mq.LiteRemove:
		if len(names) > 0 {
			lites.Removed(scope, names...)
		}
	case mq.LiteLeave:
		lites.Removed(scope)
	}
	return nil
}

func liteScope(topic mq.TopicID, group mq.GroupID) string { return fmt.Sprint(topic, "/", group) }

// syncLiteOn gives each shard of the topic the names that lie there.
func (s *Server) syncLiteOn(ctx context.Context, r mq.LiteSync, names []string) error {
	of := map[string][]string{}
	for _, name := range names {
		shard, _, ok := r.Topic.QueueOf(name)
		if !ok {
			return noWritableQueue(r.Topic)
		}
		of[shard] = append(of[shard], name)
		// What was sent before the lite topic went elsewhere lies on one of these.
		for _, closed := range r.Topic.Closed() {
			of[closed] = append(of[closed], name)
		}
	}
	lost, err := s.store.SyncLite(ctx, r, of)
	for _, l := range lost {
		s.liteLost(l)
	}
	return err
}

// liteLost tells a client that it has lost a lite topic. Only lite consumers are told: the Go
// SDK's others panic.
func (s *Server) liteLost(l mq.LiteLoss) {
	client := s.sessions.Get(l.Client)
	if client == nil {
		return
	}
	client.Lites.Removed(liteScope(l.Topic, l.Group), l.Name)
	if !isLite(client.Settings()) {
		return
	}
	client.Send(&rmqpb.TelemetryCommand{Status: ok(), Command: &rmqpb.TelemetryCommand_NotifyUnsubscribeLiteCommand{
		NotifyUnsubscribeLiteCommand: &rmqpb.NotifyUnsubscribeLiteCommand{LiteTopic: l.Name},
	}})
}

// isLite reports whether the settings are those of a lite consumer.
func isLite(settings *rmqpb.Settings) bool {
	t := settings.GetClientType()
	return t == rmqpb.ClientType_LITE_PUSH_CONSUMER || t == rmqpb.ClientType_LITE_SIMPLE_CONSUMER
}

// mayReceiveLite refuses a group that is bound to another parent.
func mayReceiveLite(t *mq.Topic, g *mq.Group) error {
	if g.LiteTopic != "" && g.LiteTopic != t.Name {
		return refuse(rmqpb.Code_PRECONDITION_FAILED, "group %q: is bound to the lite topics of %q, not of %q", g.Resource, g.LiteTopic, t.Name)
	}
	return nil
}

// checkLiteReceive refuses a client that can have no lite topics, as far as that is known.
func (s *Server) checkLiteReceive(c client, t *mq.Topic, g *mq.Group) error {
	if session := s.sessions.Get(c.ID); session != nil && session.Settings() != nil && !isLite(session.Settings()) {
		return refuse(rmqpb.Code_BAD_REQUEST, "topic %q: is of type LITE, from which LITE_PUSH_CONSUMER and LITE_SIMPLE_CONSUMER receive, not %s",
			t.Resource, session.Settings().GetClientType())
	}
	return mayReceiveLite(t, g)
}

func liteAction(a rmqpb.LiteSubscriptionAction) (mq.LiteAction, error) {
	if _, known := rmqpb.LiteSubscriptionAction_name[int32(a)]; !known {
		return 0, refuse(rmqpb.Code_BAD_REQUEST, "action %d: is no action", a)
	}
	return mq.LiteAction(a), nil
}

// litePlace returns where new lite topics are read from.
func litePlace(req *rmqpb.SyncLiteSubscriptionRequest) (p mq.LitePlace, err error) {
	again := req.GetAction() == rmqpb.LiteSubscriptionAction_PARTIAL_ADD
	negative := func(field string, v int64) error {
		if v < 0 {
			return refuse(rmqpb.Code_ILLEGAL_OFFSET, "offset_option.%s %d: must not be negative", field, v)
		}
		return nil
	}
	switch o := req.GetOffsetOption().GetOffsetType().(type) {
	case *rmqpb.OffsetOption_Policy_:
		switch o.Policy {
		case rmqpb.OffsetOption_LAST:
			return p, nil
		case rmqpb.OffsetOption_MIN:
			return mq.LitePlace{Start: mq.LiteMin, Again: again}, nil
		case rmqpb.OffsetOption_MAX:
			return mq.LitePlace{Start: mq.LiteMax, Again: again}, nil
		}
		return p, refuse(rmqpb.Code_BAD_REQUEST, "offset_option.policy %d: is no policy", o.Policy)
	case *rmqpb.OffsetOption_Offset:
		return mq.LitePlace{Start: mq.LiteOffset, Value: o.Offset, Again: again}, negative("offset", o.Offset)
	case *rmqpb.OffsetOption_TailN:
		return mq.LitePlace{Start: mq.LiteTail, Value: o.TailN, Again: again}, negative("tail_n", o.TailN)
	case *rmqpb.OffsetOption_Timestamp:
		at := min(o.Timestamp, math.MaxInt64/1_000_000)
		return mq.LitePlace{Start: mq.LiteTime, Value: at * 1_000_000, Again: again}, negative("timestamp", o.Timestamp)
	}
	return p, nil
}

// placeLite returns where the lite topic of the messages lies. One request is stored in one
// queue, all or nothing.
func placeLite(t *mq.Topic, msgs []*rmqpb.Message) (shard string, queue mq.QueueID, err error) {
	name := msgs[0].GetSystemProperties().GetLiteTopic()
	for i, m := range msgs {
		if other := m.GetSystemProperties().GetLiteTopic(); other != name {
			return "", 0, refuse(rmqpb.Code_ILLEGAL_LITE_TOPIC, "%slite_topic %q: the messages of one request must have one lite topic, the first has %q",
				position(i, len(msgs)), mq.Shorten(other), mq.Shorten(name))
		}
	}
	shard, _, ok := t.QueueOf(name)
	if !ok || !t.Permission.CanWrite() {
		return "", 0, noWritableQueue(t)
	}
	return shard, 0, nil
}

func validateLiteTopic(name string) *codeError {
	if name == "" {
		return nil
	}
	if err := mq.ValidateLiteTopic(name); err != nil {
		return &codeError{rmqpb.Code_ILLEGAL_LITE_TOPIC, fmt.Sprint(err)}
	}
	return nil
}

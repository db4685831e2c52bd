package remote

import (
	"time"

	routerpb "github.com/perigee-mq/perigee/gen/perigee/router/v1"
	storepb "github.com/perigee-mq/perigee/gen/perigee/store/v1"
	"github.com/perigee-mq/perigee/internal/tiererr"
	"github.com/perigee-mq/perigee/internal/tierwire"
	"github.com/perigee-mq/perigee/mq"
)

// each converts all elements of a list.
func each[A, B any](list []A, fn func(A) B) []B {
	if len(list) == 0 {
		return nil
	}
	out := make([]B, len(list))
	for i := range list {
		out[i] = fn(list[i])
	}
	return out
}

// nanos and moment convert times; the zero time is 0.
func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func moment(nanos int64) time.Time {
	if nanos == 0 {
		return time.Time{}
	}
	return time.Unix(0, nanos)
}

func topicAndGroup(t *routerpb.Topic, g *routerpb.Group) (*mq.Topic, *mq.Group, error) {
	topic, err := tierwire.Topic(t)
	if err != nil {
		return nil, nil, err
	}
	group, err := tierwire.Group(g)
	return topic, group, err
}

func leasePB(l mq.Lease) *storepb.Lease {
	return &storepb.Lease{
		Shard: l.Shard, Topic: uint32(l.Topic), Group: uint32(l.Group), Queue: int32(l.Queue), Offset: int64(l.Offset),
		PopId: uint64(l.PopID), Attempt: int32(l.Attempt), AutoRenew: l.AutoRenew,
	}
}

func toLease(l *storepb.Lease) mq.Lease {
	return mq.Lease{
		Shard: l.GetShard(), Topic: mq.TopicID(l.GetTopic()), Group: mq.GroupID(l.GetGroup()), Queue: mq.QueueID(l.GetQueue()),
		Offset: mq.QueueOffset(l.GetOffset()), PopID: mq.PopID(l.GetPopId()), Attempt: mq.Attempt(l.GetAttempt()), AutoRenew: l.GetAutoRenew(),
	}
}

func messagePB(m *mq.Message) *storepb.Message {
	return &storepb.Message{
		Id: m.ID, Tag: m.Tag, Type: uint32(m.Type), Group: m.Group, Properties: m.Properties, System: m.System, Body: m.Body,
		DeliverAt: nanos(m.DeliverAt), Recovery: int64(m.Recovery), Lite: m.Lite, Delay: int64(m.Delay),
	}
}

func toMessage(m *storepb.Message) mq.Message {
	return mq.Message{
		ID: m.GetId(), Tag: m.GetTag(), Type: mq.MessageType(m.GetType()), Group: m.GetGroup(),
		Properties: m.GetProperties(), System: m.GetSystem(), Body: m.GetBody(),
		DeliverAt: moment(m.GetDeliverAt()), Recovery: time.Duration(m.GetRecovery()), Lite: m.GetLite(),
		Delay: time.Duration(m.GetDelay()),
	}
}

func handlePB(h mq.PendingHandle) *storepb.PendingHandle {
	return &storepb.PendingHandle{Shard: h.Shard, Topic: uint32(h.Topic), Id: uint64(h.ID), MessageId: h.MessageID}
}

func toHandle(h *storepb.PendingHandle) mq.PendingHandle {
	return mq.PendingHandle{Shard: h.GetShard(), Topic: mq.TopicID(h.GetTopic()), ID: mq.PendingID(h.GetId()), MessageID: h.GetMessageId()}
}

func markPB(m mq.PendingMark) *storepb.PendingMark {
	if m == (mq.PendingMark{}) {
		return nil
	}
	return &storepb.PendingMark{At: m.At, Id: uint64(m.ID)}
}

func toMark(m *storepb.PendingMark) mq.PendingMark {
	return mq.PendingMark{At: m.GetAt(), ID: mq.PendingID(m.GetId())}
}

func pendingPB(m mq.PendingMessage) *storepb.PendingMessage {
	return &storepb.PendingMessage{
		Handle: handlePB(m.PendingHandle), Queue: int32(m.Queue), Tag: m.Tag, Keys: m.Keys, StoreTime: nanos(m.StoreTime), At: nanos(m.At),
		Checks: int32(m.Checks), BornHost: m.BornHost, Size: int64(m.Size),
	}
}

func toPending(m *storepb.PendingMessage) mq.PendingMessage {
	return mq.PendingMessage{
		PendingHandle: toHandle(m.GetHandle()), Queue: mq.QueueID(m.GetQueue()), Tag: m.GetTag(), Keys: m.GetKeys(),
		StoreTime: moment(m.GetStoreTime()), At: moment(m.GetAt()), Checks: int(m.GetChecks()), BornHost: m.GetBornHost(), Size: int(m.GetSize()),
	}
}

// stages are those of half messages, by their numbers.
var stages = [...]storepb.PendingState{
	mq.HalfWaiting:   storepb.PendingState_PENDING_STATE_WAITING,
	mq.HalfLastAsked: storepb.PendingState_PENDING_STATE_LAST_ASKED,
	mq.HalfGivenUp:   storepb.PendingState_PENDING_STATE_GIVEN_UP,
}

func checkPB(c mq.Check) *storepb.Check {
	return &storepb.Check{
		Handle: handlePB(c.PendingHandle), Message: messagePB(&c.Message), Queue: int32(c.Queue), StoreTime: nanos(c.StoreTime), Checks: int32(c.Checks),
	}
}

func toCheck(c *storepb.Check) mq.Check {
	return mq.Check{
		PendingHandle: toHandle(c.GetHandle()), Message: toMessage(c.GetMessage()), Queue: mq.QueueID(c.GetQueue()),
		StoreTime: moment(c.GetStoreTime()), Checks: int(c.GetChecks()),
	}
}

func rangePB(r mq.QueueRange) *storepb.QueueRange {
	return &storepb.QueueRange{Queue: int32(r.Queue), Min: int64(r.Min), Next: int64(r.Next)}
}

func toRange(r *storepb.QueueRange) mq.QueueRange {
	return mq.QueueRange{Queue: mq.QueueID(r.GetQueue()), Min: mq.QueueOffset(r.GetMin()), Next: mq.QueueOffset(r.GetNext())}
}

func positionPB(p mq.Position) *storepb.Position {
	return &storepb.Position{
		Range: rangePB(p.QueueRange), Known: p.Known, Offset: int64(p.Offset),
		InFlight: p.InFlight, Retrying: p.Retrying, Blocked: p.Blocked, UsedUp: p.UsedUp,
	}
}

func toPosition(p *storepb.Position) mq.Position {
	return mq.Position{
		QueueRange: toRange(p.GetRange()), Known: p.GetKnown(), Offset: mq.QueueOffset(p.GetOffset()),
		InFlight: p.GetInFlight(), Retrying: p.GetRetrying(), Blocked: p.GetBlocked(), UsedUp: p.GetUsedUp(),
	}
}

func backlogPB(b mq.Backlog) *storepb.Backlog {
	return &storepb.Backlog{Topic: uint32(b.Topic), Ready: b.Ready, InFlight: b.InFlight, UsedUp: b.UsedUp, Blocked: b.Blocked}
}

func toBacklog(b *storepb.Backlog) mq.Backlog {
	return mq.Backlog{
		Topic: mq.TopicID(b.GetTopic()), Ready: b.GetReady(), InFlight: b.GetInFlight(), UsedUp: b.GetUsedUp(), Blocked: b.GetBlocked(),
	}
}

func deliveryPB(d mq.Delivery) *storepb.Delivery {
	return &storepb.Delivery{
		Message: messagePB(&d.Message), Queue: int32(d.Lease.Queue), Offset: int64(d.Lease.Offset),
		PopId: uint64(d.Lease.PopID), Attempt: int32(d.Lease.Attempt), StoreTime: nanos(d.StoreTime),
	}
}

func lossPB(l mq.LiteLoss) *storepb.LiteLoss {
	return &storepb.LiteLoss{Client: l.Client, Topic: uint32(l.Topic), Group: uint32(l.Group), Name: l.Name}
}

func toLoss(l *storepb.LiteLoss) mq.LiteLoss {
	return mq.LiteLoss{Client: l.GetClient(), Topic: mq.TopicID(l.GetTopic()), Group: mq.GroupID(l.GetGroup()), Name: l.GetName()}
}

func settledPB(err error) *storepb.Settled { return &storepb.Settled{Error: tiererr.Encode(err)} }

func toSettled(s *storepb.Settled) error { return tiererr.Decode(s.GetError()) }

func stockPB(s mq.LiteStock) *storepb.GetLiteStockResponse {
	p := &storepb.GetLiteStockResponse{Topics: s.Topics, Messages: s.Messages, Groups: map[uint32]*storepb.LiteWaiting{}}
	for id, w := range s.Groups {
		p.Groups[uint32(id)] = &storepb.LiteWaiting{Messages: w.Messages, Topics: w.Topics, Age: w.Age}
	}
	return p
}

func toStock(p *storepb.GetLiteStockResponse) mq.LiteStock {
	s := mq.LiteStock{Topics: p.GetTopics(), Messages: p.GetMessages(), Groups: map[mq.GroupID]mq.LiteWaiting{}}
	for id, w := range p.GetGroups() {
		s.Groups[mq.GroupID(id)] = mq.LiteWaiting{Messages: w.GetMessages(), Topics: w.GetTopics(), Age: w.GetAge()}
	}
	return s
}

func remainsPB(r mq.Remains) *storepb.GetRemainsResponse {
	return &storepb.GetRemainsResponse{
		Topics: r.Topics, Queues: r.Queues, Messages: r.Messages, Pending: r.Pending, Owing: r.Owing, DeadLetters: r.DeadLetters,
		Topic: tierwire.FromResource(r.Topic), OwingGroup: tierwire.FromResource(r.OwingGroup), OwingTopic: tierwire.FromResource(r.OwingTopic),
	}
}

func toRemains(p *storepb.GetRemainsResponse) mq.Remains {
	return mq.Remains{
		Topics: p.GetTopics(), Queues: p.GetQueues(), Messages: p.GetMessages(), Pending: p.GetPending(), Owing: p.GetOwing(), DeadLetters: p.GetDeadLetters(),
		Topic: tierwire.Resource(p.GetTopic()), OwingGroup: tierwire.Resource(p.GetOwingGroup()), OwingTopic: tierwire.Resource(p.GetOwingTopic()),
	}
}

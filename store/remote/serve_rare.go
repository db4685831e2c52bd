package remote

import (
	"context"
	"time"

	storepb "github.com/perigee-mq/perigee/gen/perigee/store/v1"
	"github.com/perigee-mq/perigee/internal/tiererr"
	"github.com/perigee-mq/perigee/internal/tierwire"
	"github.com/perigee-mq/perigee/mq"
)

// Store is what a store node does for other tiers. *store.Store does; what the calls mean
// is said there.
type Store interface {
	Hot
	DeadLetter(ctx context.Context, lease mq.Lease) error
	Recall(ctx context.Context, handles []mq.PendingHandle) []error
	Postpone(ctx context.Context, handles []mq.PendingHandle, at time.Time) []error
	Timers(ctx context.Context, shard string, q mq.PendingQuery) ([]mq.PendingMessage, mq.PendingMark, error)
	TimersOf(ctx context.Context, shard string, id mq.TopicID) (int64, error)
	Transactions(ctx context.Context, shard string, q mq.PendingQuery, stage mq.HalfStage) ([]mq.PendingMessage, mq.PendingMark, error)
	EndTransaction(ctx context.Context, h mq.PendingHandle, commit bool) error
	Checks(ctx context.Context, topics []mq.Resource, limit int) ([]mq.Check, error)
	Unasked(ctx context.Context, checks []mq.Check) error
	CheckAgain(ctx context.Context, handles []mq.PendingHandle) []error
	Pull(ctx context.Context, shard string, p mq.Pull) (mq.Pulled, error)
	Queues(ctx context.Context, shard string, id mq.TopicID) ([]mq.QueueRange, error)
	Range(ctx context.Context, shard string, topic *mq.Topic, queue mq.QueueID) (mq.QueueRange, error)
	OffsetAt(ctx context.Context, shard string, topic *mq.Topic, queue mq.QueueID, at time.Time) (mq.QueueOffset, error)
	Positions(ctx context.Context, shard string, topic mq.TopicID, group mq.GroupID) ([]mq.Position, error)
	Backlogs(ctx context.Context, shard string, group mq.GroupID) ([]mq.Backlog, error)
	SetOffset(ctx context.Context, shard string, set mq.OffsetSet) (dropped int, err error)
	SyncLite(ctx context.Context, r mq.LiteSync, names map[string][]string) ([]mq.LiteLoss, error)
	LeaveLite(client string)
	LiteStock(ctx context.Context, shard string, id mq.TopicID) (mq.LiteStock, error)
	PurgeTopic(ctx context.Context, id mq.TopicID) error
	Owed(ctx context.Context, shard string, topic mq.TopicID, group mq.GroupID) (bool, error)
	Remains(ctx context.Context, shard string) (mq.Remains, error)
	Orphans(ctx context.Context) ([]string, error)
	Adopt(ctx context.Context, a mq.Adoption) ([]mq.Adopted, error)
}

// reply returns what a handler returns.
func reply[T any](resp *T, err error) (*T, error) {
	if err != nil {
		return nil, tiererr.Status(err)
	}
	return resp, nil
}

// DeadLetter calls store.DeadLetter.
func (s *Server) DeadLetter(ctx context.Context, req *storepb.DeadLetterRequest) (*storepb.DeadLetterResponse, error) {
	return reply(&storepb.DeadLetterResponse{}, s.store.DeadLetter(ctx, toLease(req.GetLease())))
}

// Recall calls store.Recall.
func (s *Server) Recall(ctx context.Context, req *storepb.RecallRequest) (*storepb.RecallResponse, error) {
	return &storepb.RecallResponse{Results: each(s.store.Recall(ctx, each(req.GetHandles(), toHandle)), settledPB)}, nil
}

// Postpone calls store.Postpone.
func (s *Server) Postpone(ctx context.Context, req *storepb.PostponeRequest) (*storepb.PostponeResponse, error) {
	results := s.store.Postpone(ctx, each(req.GetHandles(), toHandle), time.Unix(0, req.GetAt()))
	return &storepb.PostponeResponse{Results: each(results, settledPB)}, nil
}

// ListPending calls store.Timers or store.Transactions.
func (s *Server) ListPending(ctx context.Context, req *storepb.ListPendingRequest) (*storepb.ListPendingResponse, error) {
	q := mq.PendingQuery{
		Topic: mq.TopicID(req.GetTopic()), From: toMark(req.GetFrom()), Max: max(int(req.GetMax()), 1), MessageID: req.GetMessageId(),
	}
	if req.GetState() == storepb.PendingState_PENDING_STATE_TIMED {
		list, next, err := s.store.Timers(ctx, req.GetShard(), q)
		return reply(&storepb.ListPendingResponse{Messages: each(list, pendingPB), Next: markPB(next)}, err)
	}
	for stage, state := range stages {
		if state == req.GetState() {
			list, next, err := s.store.Transactions(ctx, req.GetShard(), q, mq.HalfStage(stage))
			return reply(&storepb.ListPendingResponse{Messages: each(list, pendingPB), Next: markPB(next)}, err)
		}
	}
	return nil, tiererr.Status(&mq.InvalidError{
		Kind: mq.ErrInvalid, Field: "state", Value: req.GetState().String(), Reason: "is not known to this node",
	})
}

// CountTimers calls store.TimersOf.
func (s *Server) CountTimers(ctx context.Context, req *storepb.CountTimersRequest) (*storepb.CountTimersResponse, error) {
	n, err := s.store.TimersOf(ctx, req.GetShard(), mq.TopicID(req.GetTopic()))
	return reply(&storepb.CountTimersResponse{Count: n}, err)
}

// EndTransaction calls store.EndTransaction.
func (s *Server) EndTransaction(ctx context.Context, req *storepb.EndTransactionRequest) (*storepb.EndTransactionResponse, error) {
	return reply(&storepb.EndTransactionResponse{}, s.store.EndTransaction(ctx, toHandle(req.GetHandle()), req.GetCommit()))
}

// Checks calls store.Checks. What is found when nobody waits any more is taken back; when
// nothing is, the answer comes before the caller's deadline.
func (s *Server) Checks(ctx context.Context, req *storepb.ChecksRequest) (*storepb.ChecksResponse, error) {
	waiting, cancel := s.untilDrained(ctx)
	defer cancel()
	if end, ok := ctx.Deadline(); ok {
		var inTime context.CancelFunc
		waiting, inTime = context.WithDeadline(waiting, end.Add(-checksMargin))
		defer inTime()
	}
	checks, err := s.store.Checks(waiting, each(req.GetTopics(), tierwire.Resource), int(req.GetLimit()))
	if len(checks) > 0 && ctx.Err() != nil {
		back, cancel := context.WithTimeout(context.Background(), giveBackTime)
		defer cancel()
		if err := s.store.Unasked(back, checks); err != nil {
			s.logger.Warn("questions about half messages that reached no proxy are asked later", "error", err)
		}
		return nil, tiererr.Status(ctx.Err())
	}
	if err != nil && waiting.Err() != nil && ctx.Err() == nil {
		err = nil // draining, or nothing to ask
	}
	return reply(&storepb.ChecksResponse{Checks: each(checks, checkPB)}, err)
}

// untilDrained returns a context that ends when the server drains, too.
func (s *Server) untilDrained(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-s.closing:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// Unasked calls store.Unasked.
func (s *Server) Unasked(ctx context.Context, req *storepb.UnaskedRequest) (*storepb.UnaskedResponse, error) {
	return reply(&storepb.UnaskedResponse{}, s.store.Unasked(ctx, each(req.GetChecks(), toCheck)))
}

// CheckAgain calls store.CheckAgain.
func (s *Server) CheckAgain(ctx context.Context, req *storepb.CheckAgainRequest) (*storepb.CheckAgainResponse, error) {
	return &storepb.CheckAgainResponse{Results: each(s.store.CheckAgain(ctx, each(req.GetHandles(), toHandle)), settledPB)}, nil
}

// Pull calls store.Pull.
func (s *Server) Pull(ctx context.Context, req *storepb.PullRequest) (*storepb.PullResponse, error) {
	topic, err := tierwire.Topic(req.GetTopic())
	if err != nil {
		return nil, tiererr.Status(err)
	}
	var waited time.Duration
	room := s.room()
	defer room.release()
	p := mq.Pull{
		Topic: topic, Queue: mq.QueueID(req.GetQueue()), Offset: mq.QueueOffset(req.GetOffset()), Tags: req.GetTags(),
		Max: max(int(req.GetMax()), 1), Wait: time.Duration(req.GetWait()), Waited: &waited, Reserve: room.reserve,
	}
	if req.GetFilter() != "" {
		if p.Filter, err = s.filter(req.GetFilter()); err != nil {
			return nil, tiererr.Status(err)
		}
	}
	waiting, cancel := s.untilDrained(ctx)
	defer cancel()
	pulled, err := s.store.Pull(waiting, req.GetShard(), p)
	if err != nil && waiting.Err() != nil && ctx.Err() == nil {
		pulled, err = mq.Pulled{Next: p.Offset}, nil // draining
	}
	return reply(&storepb.PullResponse{Deliveries: each(pulled.Messages, deliveryPB), Next: int64(pulled.Next), Waited: int64(waited)}, err)
}

// GetQueues calls store.Queues.
func (s *Server) GetQueues(ctx context.Context, req *storepb.GetQueuesRequest) (*storepb.GetQueuesResponse, error) {
	list, err := s.store.Queues(ctx, req.GetShard(), mq.TopicID(req.GetTopic()))
	return reply(&storepb.GetQueuesResponse{Queues: each(list, rangePB)}, err)
}

// GetRange calls store.Range.
func (s *Server) GetRange(ctx context.Context, req *storepb.GetRangeRequest) (*storepb.GetRangeResponse, error) {
	topic, err := tierwire.Topic(req.GetTopic())
	if err != nil {
		return nil, tiererr.Status(err)
	}
	r, err := s.store.Range(ctx, req.GetShard(), topic, mq.QueueID(req.GetQueue()))
	return reply(&storepb.GetRangeResponse{Range: rangePB(r)}, err)
}

// GetOffsetAt calls store.OffsetAt.
func (s *Server) GetOffsetAt(ctx context.Context, req *storepb.GetOffsetAtRequest) (*storepb.GetOffsetAtResponse, error) {
	topic, err := tierwire.Topic(req.GetTopic())
	if err != nil {
		return nil, tiererr.Status(err)
	}
	offset, err := s.store.OffsetAt(ctx, req.GetShard(), topic, mq.QueueID(req.GetQueue()), time.Unix(0, req.GetAt()))
	return reply(&storepb.GetOffsetAtResponse{Offset: int64(offset)}, err)
}

// GetPositions calls store.Positions.
func (s *Server) GetPositions(ctx context.Context, req *storepb.GetPositionsRequest) (*storepb.GetPositionsResponse, error) {
	list, err := s.store.Positions(ctx, req.GetShard(), mq.TopicID(req.GetTopic()), mq.GroupID(req.GetGroup()))
	return reply(&storepb.GetPositionsResponse{Positions: each(list, positionPB)}, err)
}

// GetBacklogs calls store.Backlogs.
func (s *Server) GetBacklogs(ctx context.Context, req *storepb.GetBacklogsRequest) (*storepb.GetBacklogsResponse, error) {
	list, err := s.store.Backlogs(ctx, req.GetShard(), mq.GroupID(req.GetGroup()))
	return reply(&storepb.GetBacklogsResponse{Backlogs: each(list, backlogPB)}, err)
}

// SetOffset calls store.SetOffset.
func (s *Server) SetOffset(ctx context.Context, req *storepb.SetOffsetRequest) (*storepb.SetOffsetResponse, error) {
	topic, group, err := topicAndGroup(req.GetTopic(), req.GetGroup())
	if err != nil {
		return nil, tiererr.Status(err)
	}
	set := mq.OffsetSet{Topic: topic, Group: group, Drop: req.GetDrop(), Offsets: map[mq.QueueID]mq.QueueOffset{}}
	for q, o := range req.GetOffsets() {
		set.Offsets[mq.QueueID(q)] = mq.QueueOffset(o)
	}
	dropped, err := s.store.SetOffset(ctx, req.GetShard(), set)
	return reply(&storepb.SetOffsetResponse{Dropped: int64(dropped)}, err)
}

// SyncLite calls store.SyncLite.
func (s *Server) SyncLite(ctx context.Context, req *storepb.SyncLiteRequest) (*storepb.SyncLiteResponse, error) {
	topic, group, err := topicAndGroup(req.GetTopic(), req.GetGroup())
	if err != nil {
		return nil, tiererr.Status(err)
	}
	names := make(map[string][]string, len(req.GetNames()))
	for shard, list := range req.GetNames() {
		names[shard] = list.GetNames()
	}
	losses, err := s.store.SyncLite(ctx, mq.LiteSync{
		Topic: topic, Group: group, Client: req.GetClient(), Action: mq.LiteAction(req.GetAction()), Version: req.GetVersion(),
		Place:     mq.LitePlace{Start: mq.LiteStart(req.GetStart()), Value: req.GetValue(), Again: req.GetAgain()},
		Exclusive: req.GetExclusive(), ClientQuota: int(req.GetClientQuota()), TotalQuota: int(req.GetTotalQuota()),
	}, names)
	return reply(&storepb.SyncLiteResponse{Losses: each(losses, lossPB)}, err)
}

// LeaveLite calls store.LeaveLite.
func (s *Server) LeaveLite(_ context.Context, req *storepb.LeaveLiteRequest) (*storepb.LeaveLiteResponse, error) {
	s.store.LeaveLite(req.GetClient())
	return &storepb.LeaveLiteResponse{}, nil
}

// GetLiteStock calls store.LiteStock.
func (s *Server) GetLiteStock(ctx context.Context, req *storepb.GetLiteStockRequest) (*storepb.GetLiteStockResponse, error) {
	stock, err := s.store.LiteStock(ctx, req.GetShard(), mq.TopicID(req.GetTopic()))
	return reply(stockPB(stock), err)
}

// PurgeTopic calls store.PurgeTopic.
func (s *Server) PurgeTopic(ctx context.Context, req *storepb.PurgeTopicRequest) (*storepb.PurgeTopicResponse, error) {
	return reply(&storepb.PurgeTopicResponse{}, s.store.PurgeTopic(ctx, mq.TopicID(req.GetTopic())))
}

// GetOwed calls store.Owed.
func (s *Server) GetOwed(ctx context.Context, req *storepb.GetOwedRequest) (*storepb.GetOwedResponse, error) {
	owed, err := s.store.Owed(ctx, req.GetShard(), mq.TopicID(req.GetTopic()), mq.GroupID(req.GetGroup()))
	return reply(&storepb.GetOwedResponse{Owed: owed}, err)
}

// GetRemains calls store.Remains.
func (s *Server) GetRemains(ctx context.Context, req *storepb.GetRemainsRequest) (*storepb.GetRemainsResponse, error) {
	r, err := s.store.Remains(ctx, req.GetShard())
	return reply(remainsPB(r), err)
}

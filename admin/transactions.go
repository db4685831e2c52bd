package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/receipt"
	"github.com/perigee-mq/perigee/router"
)

// TransactionStore is what the service asks of the store tier about half messages. The
// documentation of the methods is in package store.
type TransactionStore interface {
	Transactions(ctx context.Context, shard string, q mq.PendingQuery, stage mq.HalfStage) ([]mq.PendingMessage, mq.PendingMark, error)
	EndTransaction(ctx context.Context, h mq.PendingHandle, commit bool) error
	CheckAgain(ctx context.Context, handles []mq.PendingHandle) []error
}

// stages are those of half messages, in the order of their numbers.
var stages = [...]adminpb.TransactionStage{
	mq.HalfWaiting:   adminpb.TransactionStage_TRANSACTION_STAGE_WAITING,
	mq.HalfLastAsked: adminpb.TransactionStage_TRANSACTION_STAGE_LAST_ASKED,
	mq.HalfGivenUp:   adminpb.TransactionStage_TRANSACTION_STAGE_GIVEN_UP,
}

// ListTransactions answers half messages, topic by topic, stage by stage and shard by
// shard, the first whose stage ends first.
func (s *Server) ListTransactions(ctx context.Context, req *adminpb.ListTransactionsRequest) (*adminpb.ListTransactionsResponse, error) {
	most, err := pendingPage(req.GetPageSize())
	if err != nil {
		return nil, s.refusal(ctx, err)
	}
	if _, known := adminpb.TransactionStage_name[int32(req.GetStage())]; !known {
		return nil, s.refusal(ctx, invalid("stage", fmt.Sprint(int32(req.GetStage())), "is no stage of a transaction"))
	}
	topics, err := s.transactionTopics(ctx, req)
	if err != nil {
		return nil, s.refusal(ctx, err)
	}
	at, err := decodeTransactionPage(req.GetPageToken())
	if err != nil {
		return nil, s.refusal(ctx, err)
	}
	resp, missing := &adminpb.ListTransactionsResponse{}, absent{}
	for looked := 0; ; looked++ {
		t := at.enter(topics, req.GetStage())
		if t == nil {
			return resp, nil
		}
		if len(resp.Transactions) == most || looked > 0 && req.GetMessageId() != "" {
			resp.NextPageToken = at.encode() // one search is enough for one call
			return resp, nil
		}
		shard := t.Shards[at.shard].Shard
		list, next, err := s.store.Transactions(ctx, shard, mq.PendingQuery{
			Topic: t.ID, From: at.mark, Max: most - len(resp.Transactions), MessageID: req.GetMessageId(),
		}, at.stage)
		if missing.note(shard, err) {
			resp.UnreachableShards = missing.names()
			at.shard, at.mark = at.shard+1, mq.PendingMark{}
			continue
		}
		if err != nil {
			return nil, s.refusal(ctx, err)
		}
		for i := range list {
			resp.Transactions = append(resp.Transactions, transactionProto(t, &list[i], at.stage))
		}
		if at.mark = next; next == (mq.PendingMark{}) {
			at.shard++
		}
	}
}

// transactionTopics returns the topics asked for in the order of their ids.
func (s *Server) transactionTopics(ctx context.Context, req *adminpb.ListTransactionsRequest) ([]*mq.Topic, error) {
	if req.GetTopic() != "" {
		t, err := s.topicOf(ctx, req)
		return []*mq.Topic{t}, err
	}
	if err := mq.ValidateNamespace(req.GetNamespace()); err != nil {
		return nil, err
	}
	topics := slices.DeleteFunc(slices.Clone(s.router.ListTopics(ctx, router.Selection{Namespace: req.GetNamespace()})),
		func(t *mq.Topic) bool { return !t.Type.Accepts(mq.Transaction) })
	slices.SortFunc(topics, func(a, b *mq.Topic) int { return cmp.Compare(a.ID, b.ID) })
	return topics, nil
}

// A transactionPage is where a list of transactions goes on.
type transactionPage struct {
	topic mq.TopicID
	stage mq.HalfStage
	shard int // in the order of the topic's
	mark  mq.PendingMark
}

// enter goes on to the next topic, stage and shard where there may be something, and
// returns the topic; nil at the end.
func (p *transactionPage) enter(topics []*mq.Topic, stage adminpb.TransactionStage) *mq.Topic {
	for _, t := range topics {
		if t.ID < p.topic {
			continue
		}
		if t.ID > p.topic {
			*p = transactionPage{topic: t.ID}
		}
		for int(p.stage) < len(stages) {
			wanted := stage == 0 || stages[p.stage] == stage
			if wanted && p.shard < len(t.Shards) {
				return t
			}
			*p = transactionPage{topic: t.ID, stage: p.stage + 1}
		}
	}
	return nil
}

func (p *transactionPage) encode() string {
	return pageToken(uint64(p.topic), uint64(p.stage), uint64(p.shard), uint64(p.mark.At), uint64(p.mark.ID))
}

func decodeTransactionPage(token string) (p transactionPage, err error) {
	if token == "" {
		return p, nil
	}
	var topic, stage, shard, at, id uint64
	if !readPageToken(token, &topic, &stage, &shard, &at, &id) ||
		topic > math.MaxUint32 || stage > uint64(len(stages)) || shard > math.MaxInt32 || at > math.MaxInt64 {
		return p, invalid("page_token", token, "is not from an answer about transactions")
	}
	return transactionPage{
		topic: mq.TopicID(topic), stage: mq.HalfStage(stage), shard: int(shard), mark: mq.PendingMark{At: int64(at), ID: mq.PendingID(id)},
	}, nil
}

func transactionProto(t *mq.Topic, m *mq.PendingMessage, stage mq.HalfStage) *adminpb.Transaction {
	one := &adminpb.Transaction{
		Id: pendingID(m), MessageId: m.MessageID, Namespace: t.Namespace, Topic: t.Name,
		Stage: stages[stage], Checks: int32(m.Checks), StoredAt: timestamppb.New(m.StoreTime),
		BornHost: m.BornHost, Tag: m.Tag, Keys: m.Keys, Shard: m.Shard, Queue: int32(m.Queue), Size: int64(m.Size),
	}
	if !m.At.IsZero() {
		one.NextCheckAt = timestamppb.New(m.At)
	}
	return one
}

// EndTransactions ends those that can be ended, and answers for each.
func (s *Server) EndTransactions(ctx context.Context, req *adminpb.EndTransactionsRequest) (*adminpb.EndTransactionsResponse, error) {
	ids := req.GetIds()
	if err := checkIDs(ids); err != nil {
		return nil, s.refusal(ctx, err)
	}
	end := req.GetEnd()
	if _, known := adminpb.TransactionEnd_name[int32(end)]; !known || end == adminpb.TransactionEnd_TRANSACTION_END_UNSPECIFIED {
		return nil, s.refusal(ctx, invalid("end", end.String(), "must be commit, rollback or check"))
	}
	resp := &adminpb.EndTransactionsResponse{Results: make([]*adminpb.TransactionResult, len(ids))}
	for i, id := range ids {
		resp.Results[i] = &adminpb.TransactionResult{Id: id}
		h, err := transactionHandle(id)
		if err == nil {
			switch end {
			case adminpb.TransactionEnd_TRANSACTION_END_CHECK:
				err = s.store.CheckAgain(ctx, []mq.PendingHandle{h})[0]
			default:
				err = s.store.EndTransaction(ctx, h, end == adminpb.TransactionEnd_TRANSACTION_END_COMMIT)
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, mq.ErrUnknownTransaction), errors.Is(err, mq.ErrTransactionEnded), errors.Is(err, mq.ErrNotPending),
			errors.Is(err, mq.ErrInvalidHandle), errors.Is(err, mq.ErrTopicNotFound), errors.Is(err, mq.ErrShardNotFound):
			resp.Results[i].Error = err.Error()
		default:
			return nil, s.refusal(ctx, err)
		}
	}
	return resp, nil
}

// transactionHandle returns the half message that an id or a transaction id names.
func transactionHandle(id string) (mq.PendingHandle, error) {
	shard, number, isID, err := parsePendingID(id)
	if !isID {
		return receipt.DecodePending(id)
	}
	if err != nil || shard == "" {
		return mq.PendingHandle{}, fmt.Errorf("%w: %q: must be a shard, a slash and a number, or a transaction id", mq.ErrInvalidHandle, mq.Shorten(id))
	}
	return mq.PendingHandle{Shard: shard, ID: number}, nil
}

package admin

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/receipt"
)

// TimerStore is what the service asks of the store tier about delayed messages. The
// documentation of the methods is in package store.
type TimerStore interface {
	Timers(ctx context.Context, shard string, q mq.PendingQuery) ([]mq.PendingMessage, mq.PendingMark, error)
	TimersOf(ctx context.Context, shard string, id mq.TopicID) (int64, error)
	Recall(ctx context.Context, handles []mq.PendingHandle) []error
	Postpone(ctx context.Context, handles []mq.PendingHandle, at time.Time) []error
}

// ListTimers answers the delayed messages of a topic, shard by shard, the first to be
// delivered first.
func (s *Server) ListTimers(ctx context.Context, req *adminpb.ListTimersRequest) (*adminpb.ListTimersResponse, error) {
	most, err := pendingPage(req.GetPageSize())
	if err != nil {
		return nil, s.refusal(ctx, err)
	}
	t, err := s.topicOf(ctx, req)
	if err != nil {
		return nil, s.refusal(ctx, err)
	}
	at, err := decodePage(req.GetPageToken(), len(t.Shards))
	if err != nil {
		return nil, s.refusal(ctx, err)
	}
	resp, missing := &adminpb.ListTimersResponse{}, absent{}
	for _, sq := range t.Shards {
		pending, err := s.store.TimersOf(ctx, sq.Shard, t.ID)
		if missing.note(sq.Shard, err) {
			continue
		}
		if err != nil {
			return nil, s.refusal(ctx, err)
		}
		resp.Pending += pending
	}
	for at.shard < len(t.Shards) && len(resp.Timers) < most {
		shard := t.Shards[at.shard].Shard
		list, next, err := s.store.Timers(ctx, shard, mq.PendingQuery{
			Topic: t.ID, From: at.mark, Max: most - len(resp.Timers), MessageID: req.GetMessageId(),
		})
		if missing.note(shard, err) {
			at = page{shard: at.shard + 1}
			continue
		}
		if err != nil {
			return nil, s.refusal(ctx, err)
		}
		for i := range list {
			resp.Timers = append(resp.Timers, timerProto(&list[i]))
		}
		if at.mark = next; next == (mq.PendingMark{}) {
			at.shard++
		} else if req.GetMessageId() != "" {
			break // one search is enough for one call
		}
	}
	if at.shard < len(t.Shards) {
		resp.NextPageToken = at.encode()
	}
	resp.UnreachableShards = missing.names()
	return resp, nil
}

// A page is where a list of timers goes on.
type page struct {
	shard int // in the order of the topic's
	mark  mq.PendingMark
}

func (p page) encode() string {
	return pageToken(uint64(p.shard), uint64(p.mark.At), uint64(p.mark.ID))
}

func decodePage(token string, shards int) (p page, err error) {
	if token == "" {
		return p, nil
	}
	var shard, at, id uint64
	if !readPageToken(token, &shard, &at, &id) || shard >= uint64(shards) || at > math.MaxInt64 {
		return p, invalid("page_token", token, "is not from an answer about this topic")
	}
	return page{shard: int(shard), mark: mq.PendingMark{At: int64(at), ID: mq.PendingID(id)}}, nil
}

func timerProto(m *mq.PendingMessage) *adminpb.Timer {
	return &adminpb.Timer{
		Id: pendingID(m), MessageId: m.MessageID, Tag: m.Tag, Keys: m.Keys,
		DeliverAt: timestamppb.New(m.At), StoredAt: timestamppb.New(m.StoreTime),
		Shard: m.Shard, Queue: int32(m.Queue), Size: int64(m.Size),
	}
}

// CancelTimers takes delayed messages back.
func (s *Server) CancelTimers(ctx context.Context, req *adminpb.CancelTimersRequest) (*adminpb.CancelTimersResponse, error) {
	results, err := s.changeTimers(ctx, req, req.GetIds(), s.store.Recall)
	if err != nil {
		return nil, s.refusal(ctx, err)
	}
	return &adminpb.CancelTimersResponse{Results: results}, nil
}

// PostponeTimers gives delayed messages another time of delivery.
func (s *Server) PostponeTimers(ctx context.Context, req *adminpb.PostponeTimersRequest) (*adminpb.PostponeTimersResponse, error) {
	at, err := postponedTo(req)
	if err != nil {
		return nil, s.refusal(ctx, err)
	}
	if at.AsTime().After(time.Now().Add(s.maxDelay)) {
		return nil, s.refusal(ctx, invalid("deliver_at", at.AsTime().Format(time.RFC3339Nano),
			fmt.Sprintf("must not be further ahead of the server's clock than %s (max_delay)", s.maxDelay)))
	}
	results, err := s.changeTimers(ctx, req, req.GetIds(),
		func(ctx context.Context, handles []mq.PendingHandle) []error {
			return s.store.Postpone(ctx, handles, at.AsTime())
		})
	if err != nil {
		return nil, s.refusal(ctx, err)
	}
	return &adminpb.PostponeTimersResponse{Results: results}, nil
}

// postponedTo returns the time of delivery that a request asks for.
func postponedTo(req *adminpb.PostponeTimersRequest) (*timestamppb.Timestamp, error) {
	at, delay := req.GetDeliverAt(), req.GetDelay()
	switch {
	case delay != nil && at != nil:
		return nil, invalid("delay", delay.AsDuration().String(), "must not come with deliver_at")
	case delay != nil && (!delay.IsValid() || delay.AsDuration() < 0):
		return nil, invalid("delay", delay.AsDuration().String(), "must not be negative")
	case delay != nil:
		return timestamppb.New(time.Now().Add(delay.AsDuration())), nil
	case at == nil || !at.IsValid() || at.GetSeconds() < 0:
		return nil, invalid("deliver_at", at.String(), "must be a point in time, not before 1970")
	}
	return at, nil
}

// changeTimers changes those of the topic that can be, and answers for each. An error
// that is not about one message is the answer to the call.
func (s *Server) changeTimers(ctx context.Context, topic ofTopic, ids []string, change func(context.Context, []mq.PendingHandle) []error) ([]*adminpb.TimerResult, error) {
	if err := checkIDs(ids); err != nil {
		return nil, err
	}
	t, err := s.topicOf(ctx, topic)
	if err != nil {
		return nil, err
	}
	results := make([]*adminpb.TimerResult, len(ids))
	handles := make([]mq.PendingHandle, 0, len(ids))
	which := make([]int, 0, len(ids))
	for i, id := range ids {
		results[i] = &adminpb.TimerResult{Id: id}
		h, err := timerHandle(t, id)
		if err != nil {
			results[i].Error = err.Error()
			continue
		}
		handles, which = append(handles, h), append(which, i)
	}
	for n, err := range change(ctx, handles) {
		switch {
		case err == nil:
		case errors.Is(err, mq.ErrNotPending), errors.Is(err, mq.ErrInvalidHandle):
			results[which[n]].Error = err.Error()
		default:
			return nil, err
		}
	}
	return results, nil
}

// timerHandle returns the message that an id or a recall handle names.
func timerHandle(t *mq.Topic, id string) (h mq.PendingHandle, err error) {
	shard, number, isID, err := parsePendingID(id)
	if !isID {
		if h, err = receipt.DecodePending(id); err == nil && h.Topic != t.ID {
			err = fmt.Errorf("%w: it is of another topic", mq.ErrInvalidHandle)
		}
		return h, err
	}
	if err != nil || !slices.ContainsFunc(t.Shards, func(sq mq.ShardQueues) bool { return sq.Shard == shard }) {
		return h, fmt.Errorf("%w: %q: must be a shard of the topic, a slash and a number, or a recall handle", mq.ErrInvalidHandle, mq.Shorten(id))
	}
	return mq.PendingHandle{Shard: shard, Topic: t.ID, ID: number}, nil
}

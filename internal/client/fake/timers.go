package fake

import (
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
)

// Timers keeps delayed messages in memory, two on each page.
type Timers struct {
	adminpb.UnimplementedTimerServiceServer

	timers struct {
		sync.Mutex
		list []*adminpb.Timer
	}
}

// AddTimer adds a delayed message, whatever its topic.
func (t *Timers) AddTimer(one *adminpb.Timer) {
	t.timers.Lock()
	defer t.timers.Unlock()
	t.timers.list = append(t.timers.list, one)
}

// ListTimers looks at the message id and the page only.
func (t *Timers) ListTimers(_ context.Context, req *adminpb.ListTimersRequest) (*adminpb.ListTimersResponse, error) {
	t.timers.Lock()
	defer t.timers.Unlock()
	resp := &adminpb.ListTimersResponse{Pending: int64(len(t.timers.list))}
	behind := req.PageToken == ""
	for _, one := range t.timers.list {
		if !behind {
			behind = one.Id == req.PageToken
			continue
		}
		if len(resp.Timers) == 2 {
			resp.NextPageToken = resp.Timers[1].Id
			break
		}
		if req.MessageId == "" || one.MessageId == req.MessageId {
			resp.Timers = append(resp.Timers, one)
		}
	}
	return resp, nil
}

// CancelTimers removes those that are there.
func (t *Timers) CancelTimers(_ context.Context, req *adminpb.CancelTimersRequest) (*adminpb.CancelTimersResponse, error) {
	return &adminpb.CancelTimersResponse{Results: t.change(req.Ids, nil)}, nil
}

// PostponeTimers sets the time of those that are there.
func (t *Timers) PostponeTimers(_ context.Context, req *adminpb.PostponeTimersRequest) (*adminpb.PostponeTimersResponse, error) {
	at := req.DeliverAt
	if req.Delay != nil {
		at = timestamppb.New(time.Now().Add(req.Delay.AsDuration()))
	}
	return &adminpb.PostponeTimersResponse{Results: t.change(req.Ids, at)}, nil
}

// change removes the messages, or with a time sets it.
func (t *Timers) change(ids []string, at *timestamppb.Timestamp) (results []*adminpb.TimerResult) {
	t.timers.Lock()
	defer t.timers.Unlock()
	for _, id := range ids {
		result := &adminpb.TimerResult{Id: id, Error: "not pending"}
		kept := t.timers.list[:0:0]
		for _, one := range t.timers.list {
			if one.Id == id {
				result.Error = ""
				if one.DeliverAt = at; at == nil {
					continue
				}
			}
			kept = append(kept, one)
		}
		t.timers.list = kept
		results = append(results, result)
	}
	return results
}

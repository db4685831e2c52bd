package remote

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	storepb "github.com/perigee-mq/perigee/gen/perigee/store/v1"
	"github.com/perigee-mq/perigee/internal/tiererr"
	"github.com/perigee-mq/perigee/internal/tierwire"
	"github.com/perigee-mq/perigee/mq"
)

// An rpc is one of the rare calls.
type rpc[Req, Resp any] func(s storepb.StoreServiceClient, ctx context.Context, req *Req, opts ...grpc.CallOption) (*Resp, error)

// on makes a rare call to a node, for whose connection it waits a bit.
func (call rpc[Req, Resp]) on(ctx context.Context, n *node, req *Req) (*Resp, error) {
	if _, err := n.lines[settling].get(ctx, n.addr); err != nil {
		n.counts.unsent.Add(1)
		return nil, err
	}
	resp, err := call(n.store, ctx, req)
	if err != nil {
		return nil, tiererr.FromStatus(err)
	}
	return resp, nil
}

// of makes a rare call to the node of a shard.
func (call rpc[Req, Resp]) of(ctx context.Context, c *Client, shard string, req *Req) (*Resp, error) {
	n, err := c.of(shard)
	if err != nil {
		return nil, err
	}
	return call.on(ctx, n, req)
}

// gather makes a rare call to every node that is alive, all at the same time, and calls take
// for each answer, one at a time. The error is that of those that did not answer.
func (call rpc[Req, Resp]) gather(ctx context.Context, c *Client, req *Req, take func(*Resp)) error {
	addrs := c.opts.Directory.Nodes()
	errs := make([]error, len(addrs))
	var asking sync.WaitGroup
	var taking sync.Mutex
	for i, addr := range addrs {
		asking.Go(func() {
			n, err := c.at(addr)
			if err != nil {
				errs[i] = err
				return
			}
			resp, err := call.on(ctx, n, req)
			if errs[i] = err; err == nil {
				taking.Lock()
				defer taking.Unlock()
				take(resp)
			}
		})
	}
	asking.Wait()
	return errors.Join(errs...)
}

// everywhere makes a rare call whose answer says nothing to every node that is alive.
func (call rpc[Req, Resp]) everywhere(ctx context.Context, c *Client, req *Req) error {
	return call.gather(ctx, c, req, func(*Resp) {})
}

// byNode calls fn once for each node that serves one of count things, with the places of
// those, all at the same time, and returns what it answers in the order of the things.
func (c *Client) byNode(count int, shard func(i int) string, fn func(n *node, places []int) ([]error, error)) []error {
	results := make([]error, count)
	which := map[*node][]int{}
	for i := range count {
		n, err := c.of(shard(i))
		if results[i] = err; err == nil {
			which[n] = append(which[n], i)
		}
	}
	ask := func(n *node, places []int) {
		answers, err := fn(n, places)
		if err == nil && len(answers) != len(places) {
			err = fmt.Errorf("%w: %d answers to %d questions", errFrame, len(answers), len(places))
		}
		for at, i := range places {
			if results[i] = err; err == nil {
				results[i] = answers[at]
			}
		}
	}
	if len(which) == 1 {
		for n, places := range which {
			ask(n, places)
		}
		return results
	}
	var asking sync.WaitGroup
	for n, places := range which {
		asking.Go(func() { ask(n, places) })
	}
	asking.Wait()
	return results
}

// DeadLetter is that of store.Store.
func (c *Client) DeadLetter(ctx context.Context, lease mq.Lease) error {
	_, err := rpc[storepb.DeadLetterRequest, storepb.DeadLetterResponse](storepb.StoreServiceClient.DeadLetter).
		of(ctx, c, lease.Shard, &storepb.DeadLetterRequest{Lease: leasePB(lease)})
	return err
}

// changePending asks about handles of any shards.
func (c *Client) changePending(handles []mq.PendingHandle, fn func(n *node, list []*storepb.PendingHandle) ([]*storepb.Settled, error)) []error {
	return c.byNode(len(handles), func(i int) string { return handles[i].Shard }, func(n *node, places []int) ([]error, error) {
		list, err := fn(n, each(places, func(i int) *storepb.PendingHandle { return handlePB(handles[i]) }))
		return each(list, toSettled), err
	})
}

// Recall is that of store.Store.
func (c *Client) Recall(ctx context.Context, handles []mq.PendingHandle) []error {
	return c.changePending(handles, func(n *node, list []*storepb.PendingHandle) ([]*storepb.Settled, error) {
		resp, err := rpc[storepb.RecallRequest, storepb.RecallResponse](storepb.StoreServiceClient.Recall).
			on(ctx, n, &storepb.RecallRequest{Handles: list})
		return resp.GetResults(), err
	})
}

// Postpone is that of store.Store.
func (c *Client) Postpone(ctx context.Context, handles []mq.PendingHandle, at time.Time) []error {
	return c.changePending(handles, func(n *node, list []*storepb.PendingHandle) ([]*storepb.Settled, error) {
		resp, err := rpc[storepb.PostponeRequest, storepb.PostponeResponse](storepb.StoreServiceClient.Postpone).
			on(ctx, n, &storepb.PostponeRequest{Handles: list, At: at.UnixNano()})
		return resp.GetResults(), err
	})
}

// CheckAgain is that of store.Store.
func (c *Client) CheckAgain(ctx context.Context, handles []mq.PendingHandle) []error {
	return c.changePending(handles, func(n *node, list []*storepb.PendingHandle) ([]*storepb.Settled, error) {
		resp, err := rpc[storepb.CheckAgainRequest, storepb.CheckAgainResponse](storepb.StoreServiceClient.CheckAgain).
			on(ctx, n, &storepb.CheckAgainRequest{Handles: list})
		return resp.GetResults(), err
	})
}

// Timers is that of store.Store.
func (c *Client) Timers(ctx context.Context, shard string, q mq.PendingQuery) ([]mq.PendingMessage, mq.PendingMark, error) {
	return c.pending(ctx, shard, q, storepb.PendingState_PENDING_STATE_TIMED)
}

// Transactions is that of store.Store.
func (c *Client) Transactions(ctx context.Context, shard string, q mq.PendingQuery, stage mq.HalfStage) ([]mq.PendingMessage, mq.PendingMark, error) {
	if int(stage) >= len(stages) {
		return nil, mq.PendingMark{}, fmt.Errorf("%w: stage %d of a half message", mq.ErrInvalid, stage)
	}
	return c.pending(ctx, shard, q, stages[stage])
}

func (c *Client) pending(ctx context.Context, shard string, q mq.PendingQuery, state storepb.PendingState) ([]mq.PendingMessage, mq.PendingMark, error) {
	resp, err := rpc[storepb.ListPendingRequest, storepb.ListPendingResponse](storepb.StoreServiceClient.ListPending).
		of(ctx, c, shard, &storepb.ListPendingRequest{
			Shard: shard, Topic: uint32(q.Topic), State: state, From: markPB(q.From), Max: int32(q.Max), MessageId: q.MessageID,
		})
	return each(resp.GetMessages(), toPending), toMark(resp.GetNext()), err
}

// TimersOf is that of store.Store.
func (c *Client) TimersOf(ctx context.Context, shard string, id mq.TopicID) (int64, error) {
	resp, err := rpc[storepb.CountTimersRequest, storepb.CountTimersResponse](storepb.StoreServiceClient.CountTimers).
		of(ctx, c, shard, &storepb.CountTimersRequest{Shard: shard, Topic: uint32(id)})
	return resp.GetCount(), err
}

// EndTransaction is that of store.Store.
func (c *Client) EndTransaction(ctx context.Context, h mq.PendingHandle, commit bool) error {
	_, err := rpc[storepb.EndTransactionRequest, storepb.EndTransactionResponse](storepb.StoreServiceClient.EndTransaction).
		of(ctx, c, h.Shard, &storepb.EndTransactionRequest{Handle: handlePB(h), Commit: commit})
	return err
}

const (
	// checksTurn is how long nodes are waited for that have nothing to ask. Then those are
	// asked as well that could not be reached, or that there were not.
	checksTurn = 5 * time.Second
	// checksMargin is how much sooner a node answers that than the caller gives up.
	checksMargin = time.Second
)

// Checks is that of store.Store, over all nodes that are alive when it begins. The first
// one with questions ends the wait for the others, whose questions by then are part of
// the answer, or taken back. Without any it returns nothing after a while, and when ctx
// ends; the error is of nodes none of which has answered.
func (c *Client) Checks(ctx context.Context, topics []mq.Resource, limit int) ([]mq.Check, error) {
	req := &storepb.ChecksRequest{Topics: each(topics, tierwire.FromResource), Limit: int32(limit)}
	waiting, cancel := context.WithTimeout(ctx, checksTurn+checksMargin)
	defer cancel()
	var found struct {
		sync.Mutex
		checks   []mq.Check
		errs     []error
		answered bool
	}
	var asking sync.WaitGroup
	for _, addr := range c.opts.Directory.Nodes() {
		asking.Go(func() {
			n, err := c.at(addr)
			var resp *storepb.ChecksResponse
			if err == nil {
				resp, err = rpc[storepb.ChecksRequest, storepb.ChecksResponse](storepb.StoreServiceClient.Checks).on(waiting, n, req)
			}
			found.Lock()
			defer found.Unlock()
			found.checks = append(found.checks, each(resp.GetChecks(), toCheck)...)
			found.errs = append(found.errs, err)
			found.answered = found.answered || err == nil
			if len(resp.GetChecks()) > 0 {
				cancel()
			}
		})
	}
	asking.Wait()
	if len(found.checks) > 0 || found.answered || ctx.Err() != nil {
		return found.checks, nil
	}
	if len(found.errs) == 0 {
		return nil, fmt.Errorf("%w: no store node is alive", mq.ErrUnavailable)
	}
	return nil, errors.Join(found.errs...)
}

// Unasked is that of store.Store.
func (c *Client) Unasked(ctx context.Context, checks []mq.Check) error {
	return errors.Join(c.byNode(len(checks), func(i int) string { return checks[i].Shard }, func(n *node, places []int) ([]error, error) {
		_, err := rpc[storepb.UnaskedRequest, storepb.UnaskedResponse](storepb.StoreServiceClient.Unasked).
			on(ctx, n, &storepb.UnaskedRequest{Checks: each(places, func(i int) *storepb.Check {
				check := checks[i]
				check.Message = mq.Message{}
				return checkPB(check)
			})})
		return make([]error, len(places)), err
	})...)
}

// Pull is that of store.Store.
func (c *Client) Pull(ctx context.Context, shard string, p mq.Pull) (mq.Pulled, error) {
	req := &storepb.PullRequest{
		Shard: shard, Topic: tierwire.FromTopic(p.Topic), Queue: int32(p.Queue), Offset: int64(p.Offset),
		Tags: p.Tags, Max: int32(p.Max), Wait: int64(p.Wait),
	}
	if p.Filter != nil {
		req.Filter = p.Filter.String()
	}
	resp, err := rpc[storepb.PullRequest, storepb.PullResponse](storepb.StoreServiceClient.Pull).of(ctx, c, shard, req)
	if p.Waited != nil {
		*p.Waited += time.Duration(resp.GetWaited())
	}
	if err != nil {
		return mq.Pulled{}, err
	}
	pulled := mq.Pulled{Next: mq.QueueOffset(resp.GetNext())}
	bytes := 0
	for _, d := range resp.GetDeliveries() {
		got := mq.Delivery{
			Message: toMessage(d.GetMessage()), StoreTime: moment(d.GetStoreTime()),
			Lease: mq.Lease{
				Shard: shard, Topic: p.Topic.ID, Queue: mq.QueueID(d.GetQueue()), Offset: mq.QueueOffset(d.GetOffset()),
				PopID: mq.PopID(d.GetPopId()), Attempt: mq.Attempt(d.GetAttempt()),
			},
		}
		bytes += got.Size()
		pulled.Messages = append(pulled.Messages, got)
	}
	if bytes > 0 && p.Reserve != nil {
		if err := p.Reserve(ctx, bytes); err != nil {
			return mq.Pulled{}, err
		}
	}
	return pulled, nil
}

// Queues is that of store.Store.
func (c *Client) Queues(ctx context.Context, shard string, id mq.TopicID) ([]mq.QueueRange, error) {
	resp, err := rpc[storepb.GetQueuesRequest, storepb.GetQueuesResponse](storepb.StoreServiceClient.GetQueues).
		of(ctx, c, shard, &storepb.GetQueuesRequest{Shard: shard, Topic: uint32(id)})
	return each(resp.GetQueues(), toRange), err
}

// Range is that of store.Store.
func (c *Client) Range(ctx context.Context, shard string, topic *mq.Topic, queue mq.QueueID) (mq.QueueRange, error) {
	resp, err := rpc[storepb.GetRangeRequest, storepb.GetRangeResponse](storepb.StoreServiceClient.GetRange).
		of(ctx, c, shard, &storepb.GetRangeRequest{Shard: shard, Topic: tierwire.FromTopic(topic), Queue: int32(queue)})
	return toRange(resp.GetRange()), err
}

// OffsetAt is that of store.Store.
func (c *Client) OffsetAt(ctx context.Context, shard string, topic *mq.Topic, queue mq.QueueID, at time.Time) (mq.QueueOffset, error) {
	resp, err := rpc[storepb.GetOffsetAtRequest, storepb.GetOffsetAtResponse](storepb.StoreServiceClient.GetOffsetAt).
		of(ctx, c, shard, &storepb.GetOffsetAtRequest{Shard: shard, Topic: tierwire.FromTopic(topic), Queue: int32(queue), At: at.UnixNano()})
	return mq.QueueOffset(resp.GetOffset()), err
}

// Positions is that of store.Store.
func (c *Client) Positions(ctx context.Context, shard string, topic mq.TopicID, group mq.GroupID) ([]mq.Position, error) {
	resp, err := rpc[storepb.GetPositionsRequest, storepb.GetPositionsResponse](storepb.StoreServiceClient.GetPositions).
		of(ctx, c, shard, &storepb.GetPositionsRequest{Shard: shard, Topic: uint32(topic), Group: uint32(group)})
	return each(resp.GetPositions(), toPosition), err
}

// Backlogs is that of store.Store.
func (c *Client) Backlogs(ctx context.Context, shard string, group mq.GroupID) ([]mq.Backlog, error) {
	resp, err := rpc[storepb.GetBacklogsRequest, storepb.GetBacklogsResponse](storepb.StoreServiceClient.GetBacklogs).
		of(ctx, c, shard, &storepb.GetBacklogsRequest{Shard: shard, Group: uint32(group)})
	return each(resp.GetBacklogs(), toBacklog), err
}

// SetOffset is that of store.Store.
func (c *Client) SetOffset(ctx context.Context, shard string, set mq.OffsetSet) (dropped int, err error) {
	offsets := make(map[int32]int64, len(set.Offsets))
	for q, o := range set.Offsets {
		offsets[int32(q)] = int64(o)
	}
	resp, err := rpc[storepb.SetOffsetRequest, storepb.SetOffsetResponse](storepb.StoreServiceClient.SetOffset).
		of(ctx, c, shard, &storepb.SetOffsetRequest{
			Shard: shard, Topic: tierwire.FromTopic(set.Topic), Group: tierwire.FromGroup(set.Group), Drop: set.Drop, Offsets: offsets,
		})
	return int(resp.GetDropped()), err
}

// SyncLite is that of store.Store, on each node for its shards: all of them change or none.
// A node that refuses, or cannot be reached, holds up no other one; the error is of all
// that do. A client that gets one says what it wants again. Where names are added or taken
// out, only the nodes that have them are asked: the others may be away. A whole set, which
// clients repeat, is held by the nodes that can be reached; the others get theirs with the next one.
func (c *Client) SyncLite(ctx context.Context, r mq.LiteSync, names map[string][]string) ([]mq.LiteLoss, error) {
	var losses []mq.LiteLoss
	var mu sync.Mutex
	on := r.Topic.Shards
	if len(names) > 0 && (r.Action == mq.LiteAdd || r.Action == mq.LiteRemove) {
		on = slices.DeleteFunc(slices.Clone(on), func(sq mq.ShardQueues) bool { return len(names[sq.Shard]) == 0 })
	}
	errs := c.byNode(len(on), func(i int) string { return on[i].Shard }, func(n *node, places []int) ([]error, error) {
		part := *r.Topic
		part.Shards = each(places, func(i int) mq.ShardQueues { return on[i] })
		req := &storepb.SyncLiteRequest{
			Topic: tierwire.FromTopic(&part), Group: tierwire.FromGroup(r.Group), Client: r.Client,
			Action: uint32(r.Action), Names: map[string]*storepb.LiteNames{}, Version: r.Version,
			Start: uint32(r.Place.Start), Value: r.Place.Value, Again: r.Place.Again,
			Exclusive: r.Exclusive, ClientQuota: int32(r.ClientQuota), TotalQuota: int32(r.TotalQuota),
		}
		for _, sq := range part.Shards {
			if list := names[sq.Shard]; len(list) > 0 {
				req.Names[sq.Shard] = &storepb.LiteNames{Names: list}
			}
		}
		resp, err := rpc[storepb.SyncLiteRequest, storepb.SyncLiteResponse](storepb.StoreServiceClient.SyncLite).on(ctx, n, req)
		mu.Lock()
		defer mu.Unlock()
		losses = append(losses, each(resp.GetLosses(), toLoss)...)
		return make([]error, len(places)), err
	})
	away := func(err error) bool { return err == nil || errors.Is(err, mq.ErrUnavailable) }
	if r.Action == mq.LiteReplace && slices.Contains(errs, nil) && !slices.ContainsFunc(errs, func(err error) bool { return !away(err) }) {
		if err := errors.Join(errs...); err != nil {
			c.logger.Debug("a whole set of lite topics is held without the nodes that are away", "client", mq.Shorten(r.Client), "error", err)
		}
		return losses, nil
	}
	for i, err := range errs { // once for each node
		if slices.ContainsFunc(errs[:i], func(other error) bool { return other == err }) { //nolint:errorlint // the same one
			errs[i] = nil
		}
	}
	return losses, errors.Join(errs...)
}

// leaveTime bounds how long a node is tried to be told that a client has left: it learns of
// it by the silence of the client as well.
const leaveTime = 5 * time.Second

// LeaveLite is that of store.Store. It does not wait.
func (c *Client) LeaveLite(client string) {
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), leaveTime)
		defer cancel()
		err := rpc[storepb.LeaveLiteRequest, storepb.LeaveLiteResponse](storepb.StoreServiceClient.LeaveLite).
			everywhere(ctx, c, &storepb.LeaveLiteRequest{Client: client})
		if err != nil {
			c.logger.Debug("a node was not told that a lite client has left", "client", client, "error", err)
		}
	}()
}

// LiteStock is that of store.Store.
func (c *Client) LiteStock(ctx context.Context, shard string, id mq.TopicID) (mq.LiteStock, error) {
	resp, err := rpc[storepb.GetLiteStockRequest, storepb.GetLiteStockResponse](storepb.StoreServiceClient.GetLiteStock).
		of(ctx, c, shard, &storepb.GetLiteStockRequest{Shard: shard, Topic: uint32(id)})
	if err != nil {
		return mq.LiteStock{}, err
	}
	return toStock(resp), nil
}

// PurgeTopic is that of store.Store, over all nodes that are alive. When one of them does
// not do it, it may be repeated.
func (c *Client) PurgeTopic(ctx context.Context, id mq.TopicID) error {
	return rpc[storepb.PurgeTopicRequest, storepb.PurgeTopicResponse](storepb.StoreServiceClient.PurgeTopic).
		everywhere(ctx, c, &storepb.PurgeTopicRequest{Topic: uint32(id)})
}

// Owed is that of store.Store.
func (c *Client) Owed(ctx context.Context, shard string, topic mq.TopicID, group mq.GroupID) (bool, error) {
	resp, err := rpc[storepb.GetOwedRequest, storepb.GetOwedResponse](storepb.StoreServiceClient.GetOwed).
		of(ctx, c, shard, &storepb.GetOwedRequest{Shard: shard, Topic: uint32(topic), Group: uint32(group)})
	return resp.GetOwed(), err
}

// Remains is that of store.Store.
func (c *Client) Remains(ctx context.Context, shard string) (mq.Remains, error) {
	resp, err := rpc[storepb.GetRemainsRequest, storepb.GetRemainsResponse](storepb.StoreServiceClient.GetRemains).
		of(ctx, c, shard, &storepb.GetRemainsRequest{Shard: shard})
	return toRemains(resp), err
}

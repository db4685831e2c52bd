package shard

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/machine"
)

const (
	// liteTake is how many lite topics one pop looks at, at most.
	liteTake = 64
	// liteSlice is how many lite topics one command subscribes to, at most: what else
	// waits for the loop waits for that many, and not for all of a client's.
	liteSlice = 64
)

// checkLite refuses messages of type LITE that name no lite topic, or several.
func (s *Shard) checkLite(t *mq.Topic, msgs []*mq.Message) error {
	for _, m := range msgs {
		if (m.Type == mq.Lite) != (t.Type == mq.TopicLite) {
			return fmt.Errorf("message of type %s to topic %s of type %s: %w", m.Type, t.Resource, t.Type, mq.ErrInvalid)
		}
		if m.Type != mq.Lite {
			continue
		}
		if err := mq.ValidateLiteTopic(m.Lite); err != nil {
			return err
		}
		if m.Lite != msgs[0].Lite {
			return fmt.Errorf("lite topic %q: the messages of one append must have one, the first has %q: %w", m.Lite, msgs[0].Lite, mq.ErrInvalid)
		}
		m.LiteLimit = uint32(max(s.opts.LiteTopics, 0))
	}
	return nil
}

// A LitePlan is a change of which lite topics a client wants, between its beginning and its
// end: Check, then Make, then Commit, and Abort instead at any place before. It changes
// nothing that anybody sees before Commit, but makes lite topics that are not there.
type LitePlan struct {
	s      *Shard
	r      mq.LiteSync
	plan   *litePlan // nil: there is nothing to add
	queues []mq.QueueID
}

// PlanLite begins a change. The error may wrap mq.ErrLiteSubscriptionQuota or
// mq.ErrIllegalLiteTopic; then there is nothing to end.
func (s *Shard) PlanLite(r mq.LiteSync) (*LitePlan, error) {
	for _, name := range r.Names {
		if err := mq.ValidateLiteTopic(name); err != nil {
			return nil, err
		}
	}
	p := &LitePlan{s: s, r: r}
	switch r.Action {
	case mq.LiteRemove, mq.LiteLeave:
		return p, nil
	case mq.LiteAdd, mq.LiteReplace:
	default:
		return nil, fmt.Errorf("action %d of a lite subscription: %w", r.Action, mq.ErrInvalid)
	}
	var err error
	if on, elsewhere := r.Topic.On(s.opts.Name); elsewhere == nil && on.Use != mq.ShardOpen {
		// None is made any more where nothing is sent: what is there is read.
		if p.r.Names, err = s.litesThere(r.Topic.ID, r.Names); err != nil {
			return nil, err
		}
	}
	p.plan, err = s.lites.plan(p.key(), &p.r, r.Action == mq.LiteReplace, time.Now())
	return p, err
}

func (p *LitePlan) key() liteKey {
	return liteKey{keyspace.Sub{Group: p.r.Group.ID, Topic: p.r.Topic.ID}, p.r.Client}
}

// names are those that are to be made known to the group.
func (p *LitePlan) names() []string {
	if p.plan == nil {
		return nil
	}
	return p.plan.added
}

// Check returns an error that wraps mq.ErrLiteTopicQuota when there is no room for the lite
// topics that are to be made, as far as can be told before.
func (p *LitePlan) Check(ctx context.Context) error {
	names, limit := p.names(), p.s.opts.LiteTopics
	if len(names) == 0 || limit <= 0 {
		return nil
	}
	have, err := p.s.LiteTopics(ctx, p.r.Topic.ID)
	if err != nil || have+len(names) <= limit {
		return err
	}
	missing := 0
	for part := range slices.Chunk(names, liteSlice) {
		err := p.s.look(ctx, func(m *machine.Machine) error {
			n, err := m.LitesMissing(p.r.Topic.ID, part)
			missing += n
			return err
		})
		if err != nil {
			return err
		}
	}
	if missing > 0 && have+missing > limit {
		return fmt.Errorf("topic %s has %d lite topics, %d more would be made, the limit is %d: %w",
			p.r.Topic.Resource, have, missing, limit, mq.ErrLiteTopicQuota)
	}
	return nil
}

// Make makes the lite topics that are not there, and fixes where the group begins. The
// error may wrap mq.ErrLiteTopicQuota.
func (p *LitePlan) Make(ctx context.Context) error {
	for part := range slices.Chunk(p.names(), liteSlice) {
		// Lite topics lie all over the views. What was read here the loop finds in the cache.
		if err := p.s.withViews(func() error { return machine.ReadLites(p.s.db, p.key().sub, part) }); err != nil {
			return err
		}
		queues, err := p.s.subscribeLite(ctx, &p.r, part)
		if err != nil {
			return err
		}
		p.queues = append(p.queues, queues...)
	}
	return nil
}

// Commit carries the change out, and returns what was lost by it: by others, in a group
// with the exclusive model, or by the client itself when another one keeps it.
func (p *LitePlan) Commit() []mq.LiteLoss {
	switch {
	case p.plan != nil:
		return p.s.lites.commit(p.plan, p.queues)
	case p.r.Action == mq.LiteRemove:
		for part := range slices.Chunk(p.r.Names, sweepNames) { // a request may name any number
			p.s.lites.remove(p.key(), part, false)
		}
	case p.r.Action == mq.LiteLeave:
		p.s.lites.remove(p.key(), nil, true)
	}
	return nil
}

// Abort ends the change, of which nothing comes.
func (p *LitePlan) Abort() {
	if p.plan != nil {
		p.s.lites.abort(p.plan)
	}
}

// Adds reports whether the client gets more lite topics by it.
func (p *LitePlan) Adds() bool { return p.plan != nil && p.plan.own > 0 }

// LiteUse returns how many lite topics the client of the plan has on the shard, those that
// it is about to get included, and how many all clients have.
func (p *LitePlan) LiteUse() (client, all int) {
	return p.s.lites.use(p.key())
}

// SyncLite carries a change out as a whole, when no other shard has a part in it. It
// returns what Commit does. The error may wrap mq.ErrLiteSubscriptionQuota,
// mq.ErrLiteTopicQuota or mq.ErrIllegalLiteTopic, and then nothing has changed.
func (s *Shard) SyncLite(ctx context.Context, r mq.LiteSync) ([]mq.LiteLoss, error) {
	p, err := s.PlanLite(r)
	if err != nil {
		return nil, err
	}
	if err = p.Check(ctx); err == nil {
		err = p.Make(ctx)
	}
	if err != nil {
		p.Abort()
		return nil, err
	}
	return p.Commit(), nil
}

func (s *Shard) subscribeLite(ctx context.Context, r *mq.LiteSync, names []string) ([]mq.QueueID, error) {
	req := s.newRequest(command.KindLiteSubscribe)
	req.topic, req.group = r.Topic, r.Group
	req.liteSub = command.LiteSubscribe{
		Topic: r.Topic.ID, Group: r.Group.ID, Place: r.Place, Limit: uint32(max(s.opts.LiteTopics, 0)), Names: names,
	}
	if err := s.do(ctx, req); err != nil {
		return nil, err
	}
	queues := append([]mq.QueueID(nil), req.res.Lites...)
	s.release(req)
	return queues, nil
}

// LeaveLite forgets which lite topics a client wants.
func (s *Shard) LeaveLite(client string) { s.lites.leave(client) }

// LiteTopics returns how many lite topics a topic has.
func (s *Shard) LiteTopics(ctx context.Context, id mq.TopicID) (n int, err error) {
	err = s.look(ctx, func(m *machine.Machine) (err error) {
		n, err = m.LiteCount(id)
		return err
	})
	return n, err
}

// receiveLite is Receive for the lite topics of a client.
func (s *Shard) receiveLite(ctx context.Context, r mq.Receive) ([]mq.Delivery, error) {
	key := liteKey{keyspace.Sub{Group: r.Group.ID, Topic: r.Topic.ID}, r.Lite}
	if !s.waiters.enter(s.opts.MaxWaiting) {
		return nil, fmt.Errorf("shard %s: %d receives wait already: %w", s.opts.Name, s.opts.MaxWaiting, mq.ErrBusy)
	}
	defer s.waiters.leave()
	woken := make(chan struct{}, 1)
	s.lites.wait(key, woken) // before the first look, so that no event is missed
	defer s.lites.unwait(key, woken)
	timer := time.NewTimer(r.Wait)
	defer timer.Stop()
	for {
		got, err := s.popLites(ctx, r, key)
		if err != nil {
			return nil, err
		}
		if len(got.popped) > 0 {
			if ctx.Err() != nil {
				s.giveBack(r, got.popped, got.popID)
				return nil, context.Cause(ctx)
			}
			if r.Reserve != nil {
				if err := s.reserveFor(ctx, r, sizeOf(got.popped)); err != nil {
					s.giveBack(r, got.popped, got.popID)
					return nil, err
				}
			}
			deliveries, err := s.read(r, got.popped, got.popID)
			if len(deliveries) > 0 || err != nil {
				return deliveries, err
			}
			continue // all of it was dropped from the log meanwhile
		}
		if r.Wait <= 0 {
			return nil, nil
		}
		if on, err := s.parkLite(ctx, r, woken, timer); !on || err != nil {
			return nil, err
		}
	}
}

// parkLite waits until the receive is woken, and reports true, or for another reason to end.
func (s *Shard) parkLite(ctx context.Context, r mq.Receive, woken chan struct{}, timer *time.Timer) (bool, error) {
	defer waited(r, time.Now())
	select {
	case <-woken:
		return true, nil
	case <-timer.C:
		return false, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	case <-s.closing:
		return false, nil
	case <-s.failed:
		return false, s.Err()
	}
}

// popLites looks through the client's list until it has messages, or the list is empty. One
// with an attempt id looks for what is left of an earlier attempt first, also without a list.
func (s *Shard) popLites(ctx context.Context, r mq.Receive, key liteKey) (got haul, err error) {
	kind, again := command.KindLitePop, r.Attempt != ""
	if again {
		kind = command.KindLiteAttempt
	}
	for len(got.popped) == 0 && ctx.Err() == nil {
		entries, queues := s.lites.take(key, liteTake)
		if len(queues) == 0 && !again {
			return got, nil
		}
		again = false
		req := s.newRequest(kind)
		req.topic, req.group = r.Topic, r.Group
		req.litePop.Queues, req.litePop.Attempt = queues, r.Attempt
		req.litePop.Pop = command.Pop{
			Topic: r.Topic.ID, Group: r.Group.ID, Max: int32(r.Max), Bytes: popBytes, Invisible: int64(r.Invisible), Scan: popScan,
		}
		if err := s.send(ctx, req); err != nil {
			s.lites.putBack(key, entries, nil, true)
			return got, err
		}
		<-req.done // what it leases must be given back, whatever becomes of ctx
		err := req.err
		s.lites.putBack(key, entries, req.res.Lites, err != nil)
		got.popped, got.popID = append([]machine.Popped(nil), req.res.Popped...), req.res.PopID
		s.release(req)
		if err != nil {
			return haul{}, err
		}
	}
	return got, nil
}

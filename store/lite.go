package store

import (
	"context"
	"fmt"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/shard"
)

// SyncLite changes which lite topics of a topic a client wants, on all of its shards or on
// none; names has those of r by shard. It returns which subscriptions were lost by it, those
// of others or of the client itself, see shard.LitePlan. The error may wrap
// mq.ErrLiteSubscriptionQuota, mq.ErrLiteTopicQuota or mq.ErrIllegalLiteTopic.
//
// Whatever can be refused is looked at on every shard before anything is done on one. Only
// what nobody could foresee then (the last room for lite topics goes to somebody else at this
// moment, a shard stops) may leave lite topics on a shard, and places of the group in
// them, to which nobody has subscribed.
func (s *Store) SyncLite(ctx context.Context, r mq.LiteSync, names map[string][]string) (lost []mq.LiteLoss, err error) {
	var plans []*shard.LitePlan
	defer func() {
		if err != nil {
			for _, p := range plans {
				p.Abort()
			}
		}
	}()
	for _, sq := range r.Topic.Shards {
		sh, err := s.shard(sq.Shard)
		if err != nil {
			return nil, err
		}
		r.Names = names[sq.Shard]
		p, err := sh.PlanLite(r)
		if err != nil {
			return nil, err
		}
		plans = append(plans, p)
	}
	if err := checkLiteUse(&r, plans); err != nil {
		return nil, err
	}
	for _, p := range plans {
		if err := p.Check(ctx); err != nil {
			return nil, err
		}
	}
	for _, p := range plans {
		if err := p.Make(ctx); err != nil {
			return nil, err
		}
	}
	for _, p := range plans {
		lost = append(lost, p.Commit()...)
	}
	return lost, nil
}

// checkLiteUse holds what the client, and what all clients, have on the shards together
// against the quotas.
func checkLiteUse(r *mq.LiteSync, plans []*shard.LitePlan) error {
	if len(plans) < 2 || r.Action != mq.LiteAdd && r.Action != mq.LiteReplace {
		return nil // the shard has done it
	}
	client, all, grows := 0, 0, false
	for _, p := range plans {
		c, a := p.LiteUse()
		client, all, grows = client+c, all+a, grows || p.Adds()
	}
	switch {
	case !grows:
		return nil
	case r.ClientQuota > 0 && client > r.ClientQuota:
		return fmt.Errorf("client %q would have %d lite topics, the limit is %d: %w", mq.Shorten(r.Client), client, r.ClientQuota, mq.ErrLiteSubscriptionQuota)
	case r.TotalQuota > 0 && all > r.TotalQuota:
		return fmt.Errorf("all clients would have %d lite topics, the limit is %d: %w", all, r.TotalQuota, mq.ErrLiteSubscriptionQuota)
	}
	return nil
}

// LeaveLite forgets which lite topics a client wants.
func (s *Store) LeaveLite(client string) {
	for _, name := range s.names {
		s.shards[name].LeaveLite(client)
	}
}

// LiteStock counts what the lite topics of a topic hold on the named shard, see
// shard.LiteStock.
func (s *Store) LiteStock(ctx context.Context, shard string, id mq.TopicID) (mq.LiteStock, error) {
	sh, err := s.shard(shard)
	if err != nil {
		return mq.LiteStock{}, err
	}
	return sh.LiteStock(ctx, id)
}

package node

import (
	"context"
	"time"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

// A store node takes part when topics leave its shard: it makes the shard refuse what is
// sent to them and tells the routers so, until all of it is done.

const (
	// leaveRetry is how long after a step that has failed the next one is tried.
	leaveRetry = 5 * time.Second
	// leavePage is how many topics the routers are told of at a time.
	leavePage = 64
)

// leaving is what the loop does its work with.
type leaving struct {
	shard   string
	routers leaveRouters
	place   func(ctx context.Context, shard string, t *mq.Topic) error
	failed  func(err error)
	placed  bool // the shard knows of all that was closed before
}

// leaveRouters is what it asks of the router tier.
type leaveRouters interface {
	Shards() []router.Shard
	Leaving(shard string) router.Leaving
	ListTopics(ctx context.Context, sel router.Selection) []*mq.Topic
	ShardClosed(ctx context.Context, name string, closed []router.ClosedTopic) error
}

// run makes a step whenever metadata have changed, until ctx ends.
func (l *leaving) run(ctx context.Context, changed <-chan struct{}) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		timer.Stop()
		if err := l.step(ctx); err != nil && ctx.Err() == nil {
			l.failed(err)
			timer.Reset(leaveRetry)
		}
	}
}

// step does all that is to be done now.
func (l *leaving) step(ctx context.Context) error {
	for _, s := range l.routers.Shards() {
		if s.Name != l.shard || s.State != router.ShardDraining || l.routers.Leaving(l.shard).Open == 0 {
			continue
		}
		// Whoever has drained it was interrupted.
		if err := l.routers.ShardClosed(ctx, l.shard, nil); err != nil {
			return err
		}
	}
	var closed []router.ClosedTopic
	tell := func(least int) error {
		if len(closed) == 0 || len(closed) < least {
			return nil
		}
		err := l.routers.ShardClosed(ctx, l.shard, closed)
		closed = nil
		return err
	}
	for _, t := range l.routers.ListTopics(ctx, router.Selection{AllNamespaces: true}) {
		on, err := t.On(l.shard)
		if err != nil || on.Use == mq.ShardOpen || on.Use == mq.ShardClosed && l.placed {
			continue
		}
		if err := l.place(ctx, l.shard, t); err != nil {
			return err
		}
		if on.Use == mq.ShardClosing {
			closed = append(closed, router.ClosedTopic{ID: t.ID, Placed: t.Placed})
		}
		if err := tell(leavePage); err != nil {
			return err
		}
	}
	l.placed = true
	return tell(1)
}

// leave runs what the store node does when topics leave its shard.
func (n *node) leave(ctx context.Context) {
	l := leaving{
		shard: n.cfg.Shard, routers: n.routers, place: n.store.Place,
		failed: func(err error) {
			n.logger.Warn("topics cannot leave the shard now", "shard", n.cfg.Shard, "error", err)
		},
	}
	l.run(ctx, n.changed)
}

package remote

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	routerpb "github.com/perigee-mq/perigee/gen/perigee/router/v1"
	"github.com/perigee-mq/perigee/internal/tiererr"
	"github.com/perigee-mq/perigee/internal/tierwire"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

// An attempt is one try of a call with one router. It returns a revision that shows what
// was done.
type attempt func(ctx context.Context, rpc routerpb.RouterServiceClient, known *routerpb.Known) (revision uint64, err error)

// call makes a call with the first router that answers, the one that is followed first, and
// waits until this client shows what was done. A call that is not repeatable is made with one
// router only, once it was sent: then nobody knows whether it was carried out.
func (c *Client) call(ctx context.Context, repeatable bool, f attempt) error {
	if c.ctx.Err() != nil {
		return fmt.Errorf("router client closed: %w", mq.ErrStopped)
	}
	var reasons []error
	for _, p := range c.inOrder() {
		try, cancel := context.WithTimeout(ctx, callTimeout)
		if !p.reachable(try) {
			cancel()
			if ctx.Err() != nil {
				return errors.Join(context.Cause(ctx), errors.Join(reasons...))
			}
			reasons = append(reasons, fmt.Errorf("router %s cannot be reached", p.address))
			continue
		}
		revision, err := f(try, p.rpc, c.known())
		timedOut := try.Err() != nil
		cancel()
		if err == nil {
			c.shown(ctx, revision)
			return nil
		}
		_, ofCall := status.FromError(err)
		decided, undone := !ofCall || answered(err), refused(status.Code(err))
		err = tiererr.FromStatus(err)
		switch {
		case decided && !repeatable && errors.Is(err, mq.ErrOutcomeUnknown):
			return err
		case decided && !errors.Is(err, mq.ErrUnavailable) && !(repeatable && errors.Is(err, mq.ErrStopped)):
			return err
		case ctx.Err() != nil:
			return err
		case !decided && !undone && !repeatable:
			return fmt.Errorf("%w: router %s has not answered; whether it has done so is not known: %w", mq.ErrUnavailable, p.address, err)
		case timedOut:
			err = fmt.Errorf("no answer within %s", callTimeout)
		}
		reasons = append(reasons, fmt.Errorf("router %s: %w", p.address, err))
	}
	return fmt.Errorf("%w: no router answers: %w", mq.ErrUnavailable, errors.Join(reasons...))
}

// refused reports whether a call that ended with the code never reached its handler.
func refused(code codes.Code) bool {
	return code == codes.Unauthenticated || code == codes.PermissionDenied || code == codes.Unimplemented
}

// answered reports whether the error of a call is what a handler has said.
func answered(err error) bool {
	for _, detail := range status.Convert(err).Details() {
		if _, ok := detail.(*routerpb.Error); ok {
			return true
		}
	}
	return false
}

func (c *Client) inOrder() []*peer {
	followed := c.connected.Load()
	i := slices.Index(c.routers, followed)
	if i <= 0 {
		return c.routers
	}
	return append(slices.Clone(c.routers[i:]), c.routers[:i]...)
}

// shown waits until this client shows a revision, so that who has changed something sees
// it; but not for long: the change is made.
func (c *Client) shown(ctx context.Context, revision uint64) {
	if c.connected.Load() == nil {
		return
	}
	timer := time.NewTimer(showTimeout)
	defer timer.Stop()
	for {
		now := c.mirror.Snapshot()
		if now.Revision() >= revision {
			return
		}
		select {
		case <-now.Superseded():
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		case <-c.ctx.Done():
			return
		}
	}
}

// CreateTopic is as in router.Router. A repeat after a lost answer finds the topic and says
// that it is not new.
func (c *Client) CreateTopic(ctx context.Context, spec router.TopicSpec) (t *mq.Topic, created bool, err error) {
	req := &routerpb.CreateTopicRequest{Spec: fromTopicSpec(spec)}
	err = c.call(ctx, true, func(ctx context.Context, rpc routerpb.RouterServiceClient, known *routerpb.Known) (uint64, error) {
		req.Known = known
		resp, err := rpc.CreateTopic(ctx, req)
		if err != nil {
			return 0, err
		}
		t, err = tierwire.Topic(resp.GetTopic())
		created = resp.GetCreated()
		return resp.GetRevision(), err
	})
	return t, created, err
}

// UpdateTopic is as in router.Router.
func (c *Client) UpdateTopic(ctx context.Context, name mq.Resource, update router.TopicUpdate) (t *mq.Topic, err error) {
	req := fromTopicUpdate(name, update)
	err = c.call(ctx, true, func(ctx context.Context, rpc routerpb.RouterServiceClient, known *routerpb.Known) (uint64, error) {
		req.Known = known
		resp, err := rpc.UpdateTopic(ctx, req)
		if err != nil {
			return 0, err
		}
		t, err = tierwire.Topic(resp.GetTopic())
		return resp.GetRevision(), err
	})
	return t, err
}

// DeleteTopic is as in router.Router. An error that matches mq.ErrUnavailable says whether
// it is not known that the topic was deleted.
func (c *Client) DeleteTopic(ctx context.Context, name mq.Resource) (t *mq.Topic, err error) {
	req := &routerpb.DeleteTopicRequest{Name: tierwire.FromResource(name)}
	err = c.call(ctx, false, func(ctx context.Context, rpc routerpb.RouterServiceClient, known *routerpb.Known) (uint64, error) {
		req.Known = known
		resp, err := rpc.DeleteTopic(ctx, req)
		if err != nil {
			return 0, err
		}
		t, err = tierwire.Topic(resp.GetTopic())
		return resp.GetRevision(), err
	})
	return t, err
}

// CreateGroup is as in router.Router. A repeat after a lost answer finds the group and says
// that it is not new.
func (c *Client) CreateGroup(ctx context.Context, spec router.GroupSpec) (g *mq.Group, created bool, err error) {
	req := &routerpb.CreateGroupRequest{Spec: fromGroupSpec(spec)}
	err = c.call(ctx, true, func(ctx context.Context, rpc routerpb.RouterServiceClient, known *routerpb.Known) (uint64, error) {
		req.Known = known
		resp, err := rpc.CreateGroup(ctx, req)
		if err != nil {
			return 0, err
		}
		g, err = tierwire.Group(resp.GetGroup())
		created = resp.GetCreated()
		return resp.GetRevision(), err
	})
	return g, created, err
}

// UpdateGroup is as in router.Router.
func (c *Client) UpdateGroup(ctx context.Context, name mq.Resource, update router.GroupUpdate) (g *mq.Group, err error) {
	req := fromGroupUpdate(name, update)
	err = c.call(ctx, true, func(ctx context.Context, rpc routerpb.RouterServiceClient, known *routerpb.Known) (uint64, error) {
		req.Known = known
		resp, err := rpc.UpdateGroup(ctx, req)
		if err != nil {
			return 0, err
		}
		g, err = tierwire.Group(resp.GetGroup())
		return resp.GetRevision(), err
	})
	return g, err
}

// DeleteGroup is as in router.Router, and otherwise as DeleteTopic.
func (c *Client) DeleteGroup(ctx context.Context, name mq.Resource) (g *mq.Group, err error) {
	req := &routerpb.DeleteGroupRequest{Name: tierwire.FromResource(name)}
	err = c.call(ctx, false, func(ctx context.Context, rpc routerpb.RouterServiceClient, known *routerpb.Known) (uint64, error) {
		req.Known = known
		resp, err := rpc.DeleteGroup(ctx, req)
		if err != nil {
			return 0, err
		}
		g, err = tierwire.Group(resp.GetGroup())
		return resp.GetRevision(), err
	})
	return g, err
}

// SetShard is as in router.Router.
func (c *Client) SetShard(ctx context.Context, name string, state router.ShardState) (s router.Shard, err error) {
	req := &routerpb.SetShardRequest{Name: name, State: routerpb.ShardState(state)}
	err = c.call(ctx, true, func(ctx context.Context, rpc routerpb.RouterServiceClient, known *routerpb.Known) (uint64, error) {
		req.Known = known
		resp, err := rpc.SetShard(ctx, req)
		if err != nil {
			return 0, err
		}
		s, err = shard(resp.GetShard())
		return resp.GetRevision(), err
	})
	return s, err
}

// RemoveShard is as in router.Router.
func (c *Client) RemoveShard(ctx context.Context, name string, lose bool) (s router.Shard, err error) {
	req := &routerpb.RemoveShardRequest{Name: name, Lose: lose}
	err = c.call(ctx, true, func(ctx context.Context, rpc routerpb.RouterServiceClient, known *routerpb.Known) (uint64, error) {
		req.Known = known
		resp, err := rpc.RemoveShard(ctx, req)
		if err != nil {
			return 0, err
		}
		s, err = shard(resp.GetShard())
		return resp.GetRevision(), err
	})
	return s, err
}

// ShardClosed is as in router.Router.
func (c *Client) ShardClosed(ctx context.Context, name string, closed []router.ClosedTopic) error {
	req := &routerpb.CloseShardRequest{Name: name}
	for _, t := range closed {
		req.Topics = append(req.Topics, &routerpb.ClosedTopic{Id: uint32(t.ID), Placed: t.Placed})
	}
	return c.call(ctx, true, func(ctx context.Context, rpc routerpb.RouterServiceClient, known *routerpb.Known) (uint64, error) {
		req.Known = known
		resp, err := rpc.CloseShard(ctx, req)
		return resp.GetRevision(), err
	})
}

package remote

import (
	"context"
	"errors"
	"fmt"
	"time"

	routerpb "github.com/perigee-mq/perigee/gen/perigee/router/v1"
	"github.com/perigee-mq/perigee/internal/tierwire"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

// The lookups. What is known is answered at once. What is not known is asked for: who
// created it a moment ago, through another process, is answered as everybody else.

// A question is one that a router is asked: by name, or by id.
type question struct {
	name   mq.Resource
	id     uint32
	ensure bool
}

// Topic is as in router.View. When no router answers, the error for a topic that is not
// known matches mq.ErrUnavailable.
func (c *Client) Topic(ctx context.Context, name mq.Resource) (*mq.Topic, error) {
	return c.topic(ctx, name, false)
}

// EnsureTopic is as in router.Router; the router decides whether it creates topics by
// itself.
func (c *Client) EnsureTopic(ctx context.Context, name mq.Resource) (*mq.Topic, error) {
	return c.topic(ctx, name, true)
}

func (c *Client) topic(ctx context.Context, name mq.Resource, ensure bool) (*mq.Topic, error) {
	t, err := c.mirror.Topic(ctx, name)
	if err == nil || mq.ValidateTopic(name.Name) != nil && !isDeadLetter(name) || mq.ValidateNamespace(name.Namespace) != nil {
		return t, err
	}
	return c.askTopic(ctx, question{name: name, ensure: ensure}, err)
}

func isDeadLetter(name mq.Resource) bool {
	_, ok := name.DeadLetterGroup()
	return ok
}

// askTopic asks a router for a topic; missing is what the client itself would say.
func (c *Client) askTopic(ctx context.Context, q question, missing error) (*mq.Topic, error) {
	t, err, asked := c.topics.ask(ctx, q, c.starter(q), func() (found *mq.Topic, err error) {
		req := &routerpb.FindTopicRequest{Id: q.id, Ensure: q.ensure}
		if q.id == 0 {
			req.Name = tierwire.FromResource(q.name)
		}
		err = c.call(c.ctx, true, func(ctx context.Context, rpc routerpb.RouterServiceClient, known *routerpb.Known) (uint64, error) {
			req.Known = known
			resp, err := rpc.FindTopic(ctx, req)
			if err != nil {
				return 0, err
			}
			found, err = tierwire.Topic(resp.GetTopic())
			return resp.GetRevision(), err
		})
		return found, err
	})
	if !asked {
		return nil, c.unasked(missing)
	}
	return t, err
}

// unasked is the error for what is not known when too much is asked for: it does not
// exist while this client follows a router. Without one nobody knows.
func (c *Client) unasked(missing error) error {
	if err := c.Err(); err != nil {
		return err
	}
	return missing
}

// starter returns what runs the question in the background, unless too much was asked, or
// the client is closed.
func (c *Client) starter(q question) func(func()) bool {
	misses := &c.nameMisses
	if q.id != 0 {
		misses = &c.idMisses
	}
	return func(f func()) bool {
		if !misses.take(time.Now()) {
			return false
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.mu.closed {
			return false
		}
		c.background.Go(f)
		return true
	}
}

// TopicByID is as in router.View. An id that is not known because it is too new is asked
// for; when no router answers, the error matches mq.ErrUnavailable.
func (c *Client) TopicByID(id mq.TopicID) (*mq.Topic, error) {
	now := c.mirror.Snapshot()
	t, err := c.mirror.TopicByID(id)
	// One that was handed out by then, and is not there, is gone for good.
	if last, _ := now.LastIDs(); err == nil || id == 0 || id <= last {
		return t, err
	}
	ctx, cancel := context.WithTimeout(c.ctx, callTimeout)
	defer cancel()
	return c.askTopic(ctx, question{id: uint32(id)}, tooNew("topic", uint32(id)))
}

// Group is as in router.View. When no router answers, the error for a group that is not
// known matches mq.ErrUnavailable.
func (c *Client) Group(ctx context.Context, name mq.Resource) (*mq.Group, error) {
	return c.group(ctx, name, false)
}

// EnsureGroup is as in router.Router; the router decides whether it creates groups by
// itself.
func (c *Client) EnsureGroup(ctx context.Context, name mq.Resource) (*mq.Group, error) {
	return c.group(ctx, name, true)
}

func (c *Client) group(ctx context.Context, name mq.Resource, ensure bool) (*mq.Group, error) {
	g, err := c.mirror.Group(ctx, name)
	if err == nil || mq.ValidateGroup(name.Name) != nil || mq.ValidateNamespace(name.Namespace) != nil {
		return g, err
	}
	return c.askGroup(ctx, question{name: name, ensure: ensure}, err)
}

// askGroup asks a router for a group; missing is what the client itself would say.
func (c *Client) askGroup(ctx context.Context, q question, missing error) (*mq.Group, error) {
	g, err, asked := c.groups.ask(ctx, q, c.starter(q), func() (*mq.Group, error) {
		req := &routerpb.FindGroupRequest{Id: q.id, Ensure: q.ensure}
		if q.id == 0 {
			req.Name = tierwire.FromResource(q.name)
		}
		return c.findGroup(c.ctx, req)
	})
	if !asked {
		return nil, c.unasked(missing)
	}
	return g, err
}

func (c *Client) findGroup(ctx context.Context, req *routerpb.FindGroupRequest) (g *mq.Group, err error) {
	err = c.call(ctx, true, func(ctx context.Context, rpc routerpb.RouterServiceClient, known *routerpb.Known) (uint64, error) {
		req.Known = known
		resp, err := rpc.FindGroup(ctx, req)
		if err != nil {
			return 0, err
		}
		g, err = tierwire.Group(resp.GetGroup())
		return resp.GetRevision(), err
	})
	return g, err
}

// GroupByID is as TopicByID.
func (c *Client) GroupByID(id mq.GroupID) (*mq.Group, error) {
	now := c.mirror.Snapshot()
	g, err := c.mirror.GroupByID(id)
	if _, last := now.LastIDs(); err == nil || id == 0 || id <= last {
		return g, err
	}
	ctx, cancel := context.WithTimeout(c.ctx, callTimeout)
	defer cancel()
	return c.askGroup(ctx, question{id: uint32(id)}, tooNew("group", uint32(id)))
}

// EnsureSystemGroup is as in router.Router.
func (c *Client) EnsureSystemGroup(ctx context.Context, spec router.GroupSpec) (*mq.Group, error) {
	known, err := c.mirror.Group(ctx, spec.Resource)
	if err == nil && !spec.News(known) {
		return known, nil
	}
	g, err := c.findGroup(ctx, &routerpb.FindGroupRequest{System: fromGroupSpec(spec)})
	if errors.Is(err, mq.ErrUnavailable) && known != nil {
		return known, nil // when it was seen is told another time
	}
	return g, err
}

// Instance is as in router.Router.
func (c *Client) Instance(ctx context.Context, g *mq.Group, client string) (*mq.Group, error) {
	return c.EnsureSystemGroup(ctx, router.InstanceSpec(g, client))
}

// ListTopics is as in router.View: what this client knows.
func (c *Client) ListTopics(ctx context.Context, sel router.Selection) []*mq.Topic {
	return c.mirror.ListTopics(ctx, sel)
}

// ListGroups is as in router.View: what this client knows.
func (c *Client) ListGroups(ctx context.Context, sel router.Selection) []*mq.Group {
	return c.mirror.ListGroups(ctx, sel)
}

// LastIDs is as in router.View, at the revision that this client knows.
func (c *Client) LastIDs() (mq.TopicID, mq.GroupID) { return c.mirror.LastIDs() }

// Revision is that of the metadata which this client knows; 0: none.
func (c *Client) Revision() uint64 { return c.mirror.Revision() }

// TopicsOn is as in router.View: what this client knows.
func (c *Client) TopicsOn(shard string) int { return c.mirror.TopicsOn(shard) }

// Leaving is as in router.View: what this client knows.
func (c *Client) Leaving(shard string) router.Leaving { return c.mirror.Leaving(shard) }

// Shards returns the shards that are written down, in the order of their names.
func (c *Client) Shards() []router.Shard { return c.mirror.Shards() }

// Watch is as in router.View. It is made when the client is Ready: before, there is
// nothing to see. Whoever kept state of ids takes the first look before it asks about them:
// the client may learn of a deletion in between.
func (c *Client) Watch() *router.Watch { return c.mirror.Watch() }

// tooNew is the error for an id above all that are known. It does not say that there is
// nothing of that id: who hears that deletes what it has of it.
func tooNew(what string, id uint32) error {
	return fmt.Errorf("%w: %s id %d is newer than all that is known here", mq.ErrUnavailable, what, id)
}

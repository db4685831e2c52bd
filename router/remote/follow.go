package remote

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	routerpb "github.com/perigee-mq/perigee/gen/perigee/router/v1"
	"github.com/perigee-mq/perigee/internal/tiererr"
	"github.com/perigee-mq/perigee/internal/tierwire"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

// follow keeps the mirror fed by one of the routers, until Close. It alone feeds it.
func (c *Client) follow() {
	ctx := c.ctx
	failures := 0
	for n := rand.IntN(len(c.routers)); ; n++ {
		p := c.routers[n%len(c.routers)]
		err := c.watch(ctx, p)
		if c.connected.Swap(nil) != nil {
			failures = 0
		}
		if ctx.Err() != nil {
			return
		}
		c.problem(p, err.Error())
		// The others are tried at once, and all of them again after a while.
		failures++
		if round := failures / len(c.routers); round > 0 && !pause(ctx, round) {
			return
		}
	}
}

// watch feeds the mirror by one router until its stream ends, and says why it ended.
func (c *Client) watch(ctx context.Context, p *peer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watchdog := time.AfterFunc(silence, func() { cancel(fmt.Errorf("nothing came for %s", silence)) })
	defer watchdog.Stop()
	known := c.known()
	if c.askWhole {
		known.Revision = 0
	}
	stream, err := p.rpc.Watch(ctx, &routerpb.WatchRequest{Known: known})
	if err != nil {
		return ended(ctx, err)
	}
	f := feed{client: c, peer: p}
	for {
		resp, err := stream.Recv()
		if err != nil {
			return ended(ctx, err)
		}
		watchdog.Reset(silence)
		if err := f.take(resp); err != nil {
			return err
		}
	}
}

// ended returns why a call ended: by its context, or as the router says.
func ended(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, ctx.Err()) {
		return cause
	}
	return tiererr.FromStatus(err)
}

// A feed is what has come of one watch.
type feed struct {
	client *Client
	peer   *peer
	life   string // empty: no hello yet
	target uint64 // the revision at which the client has all that the router had at first
	state  *router.State
	delta  *router.Delta
}

func (f *feed) take(resp *routerpb.WatchResponse) error {
	switch event := resp.GetEvent().(type) {
	case *routerpb.WatchResponse_Hello:
		return f.hello(event.Hello)
	case *routerpb.WatchResponse_Page:
		if f.life == "" {
			return errors.New("a page before the hello")
		}
		return f.page(event.Page)
	case *routerpb.WatchResponse_Nodes:
		list, err := nodes(event.Nodes.GetNodes())
		if err != nil {
			return err
		}
		f.client.setNodes(list, event.Nodes.GetSettled())
	}
	return nil
}

// hello judges whether the router is one to follow.
func (f *feed) hello(h *routerpb.WatchHello) error {
	if h.GetLife() == "" || h.GetRevision() == 0 || f.life != "" {
		return errors.New("a hello without life or revision, or a second one")
	}
	if err := f.client.mirror.Fits(h.GetLife(), h.GetRevision()); err != nil {
		return fmt.Errorf("refused as a source: %w", err)
	}
	f.life, f.target = h.GetLife(), h.GetRevision()
	f.progress()
	return nil
}

// progress says that the router is followed, as soon as its state has come.
func (f *feed) progress() {
	c := f.client
	if c.mirror.Revision() < f.target || c.connected.Load() == f.peer || c.askWhole {
		return
	}
	c.problem(f.peer, "")
	c.connected.Store(f.peer)
	c.setReady()
	c.logger.Info("router followed", "router", f.peer.address, "revision", c.mirror.Revision())
}

func (f *feed) page(p *routerpb.WatchPage) error {
	if (p.GetWhole() && f.delta != nil) || (!p.GetWhole() && f.state != nil) {
		return errors.New("pages of a state and of changes mixed")
	}
	part, err := partOf(p)
	if err != nil {
		return err
	}
	if p.GetWhole() {
		return f.whole(p, part)
	}
	return f.changes(p, part)
}

// partOf returns the entries of a page.
func partOf(p *routerpb.WatchPage) (part router.Delta, err error) {
	for _, s := range p.GetShards() {
		shard, err := shard(s)
		if err != nil {
			return part, err
		}
		part.Shards = append(part.Shards, shard)
	}
	for _, m := range p.GetTopics() {
		t, err := tierwire.Topic(m)
		if err != nil {
			return part, err
		}
		part.Topics = append(part.Topics, t)
	}
	for _, m := range p.GetGroups() {
		g, err := tierwire.Group(m)
		if err != nil {
			return part, err
		}
		part.Groups = append(part.Groups, g)
	}
	for _, id := range p.GetGoneTopics() {
		part.GoneTopics = append(part.GoneTopics, mq.TopicID(id))
	}
	for _, id := range p.GetGoneGroups() {
		part.GoneGroups = append(part.GoneGroups, mq.GroupID(id))
	}
	return part, nil
}

func (f *feed) whole(p *routerpb.WatchPage, part router.Delta) error {
	if f.state == nil {
		f.state = &router.State{
			Life: f.life, Revision: p.GetRevision(), LastTopic: mq.TopicID(p.GetLastTopic()), LastGroup: mq.GroupID(p.GetLastGroup()),
		}
	}
	f.state.Shards = append(f.state.Shards, part.Shards...)
	f.state.Topics = append(f.state.Topics, part.Topics...)
	f.state.Groups = append(f.state.Groups, part.Groups...)
	if !p.GetLast() {
		return nil
	}
	state := f.state
	f.state = nil
	if err := f.client.mirror.Replace(*state); err != nil {
		return err
	}
	f.client.askWhole = false
	f.progress()
	return nil
}

func (f *feed) changes(p *routerpb.WatchPage, part router.Delta) error {
	if f.delta == nil {
		f.delta = &router.Delta{
			From: p.GetFrom(), To: p.GetRevision(), LastTopic: mq.TopicID(p.GetLastTopic()), LastGroup: mq.GroupID(p.GetLastGroup()),
		}
	}
	f.delta.Shards = append(f.delta.Shards, part.Shards...)
	f.delta.Topics = append(f.delta.Topics, part.Topics...)
	f.delta.Groups = append(f.delta.Groups, part.Groups...)
	f.delta.GoneTopics = append(f.delta.GoneTopics, part.GoneTopics...)
	f.delta.GoneGroups = append(f.delta.GoneGroups, part.GoneGroups...)
	if !p.GetLast() {
		return nil
	}
	delta := f.delta
	f.delta = nil
	if err := f.client.mirror.Apply(*delta); err != nil {
		f.client.askWhole = true
		return err
	}
	f.progress()
	return nil
}

package shard

import (
	"fmt"
	"slices"
	"time"

	"github.com/perigee-mq/perigee/mq"
)

// A sync has two steps, so that it changes everything or nothing, on all shards of a topic:
// it plans what it adds, which keeps room within the quotas, and makes the lite topics
// that are not there; only then does it change sets, its client's and those of others.
//
// What comes later wins: a client that leaves meanwhile has left, and a name that is taken
// out meanwhile is not added.

// A litePlan is a sync between its two steps.
type litePlan struct {
	client *liteClient
	number uint64 // of the sync
	fresh  bool   // it made the client known
	r      *mq.LiteSync
	whole  bool
	wanted map[string]int // the names, and where they are in added; -1: not there
	// added are the names that are new to the client, entries their lite topics; nil: it is
	// no longer to be added.
	added   []string
	entries []*liteEntry
	// declined are those that another client of the group has, and keeps.
	declined []string
	// own and more are what it keeps of the client's quota and of that of all.
	own, more int
}

// forgetLocked takes back that the plan is to add the name.
func (l *lites) forgetLocked(p *litePlan, name string) {
	i, named := p.wanted[name]
	if !named || i < 0 || p.entries[i] == nil {
		return
	}
	e := p.entries[i]
	p.entries[i] = nil
	e.plans--
	l.unusedLocked(e)
}

// plan begins to add names to a client's set; with whole the set has no others afterwards. It
// is nil when there is nothing to do because the sync was overtaken by a later one. The
// client is seen.
func (l *lites) plan(key liteKey, r *mq.LiteSync, whole bool, now time.Time) (*litePlan, error) {
	// Before the lock is taken: a request may name any number.
	var names []string
	named := map[string]bool{}
	for _, name := range r.Names {
		if !named[name] {
			named[name] = true
			names = append(names, name)
		}
	}
	if r.ClientQuota > 0 && len(names) > r.ClientQuota {
		return nil, overQuota(key, len(names), r)
	}
	for {
		more := l.sweep(now)
		p, err := l.planOnce(key, &litePlan{r: r, whole: whole, wanted: make(map[string]int, len(names))}, names, now)
		if err == nil || !more {
			return p, err
		}
		// Those who are gone need not stand in its way.
	}
}

func overQuota(key liteKey, n int, r *mq.LiteSync) error {
	return fmt.Errorf("client %q would have %d lite topics, the limit is %d: %w", mq.Shorten(key.client), n, r.ClientQuota, mq.ErrLiteSubscriptionQuota)
}

// planOnce fills in p, and returns it.
func (l *lites) planOnce(key liteKey, p *litePlan, names []string, now time.Time) (*litePlan, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, whole := p.r, p.whole
	p.fresh = l.clients[key] == nil
	c := l.clientLocked(key)
	p.client = c
	l.sawLocked(c, now)
	if whole && r.Version > 0 && r.Version < c.version {
		return nil, nil
	}
	taken := 0
	for _, name := range names {
		p.wanted[name] = -1
		if c.names[name].liteEntry != nil {
			continue
		}
		others := l.othersLocked(c, name)
		switch {
		case r.Exclusive && whole && len(others) > 0:
			p.declined = append(p.declined, name)
			continue
		case r.Exclusive:
			taken += len(others)
		case len(others) >= liteSharers:
			err := fmt.Errorf("lite topic %q has %d clients of the group, the limit is %d: %w", name, len(others), liteSharers, mq.ErrLiteSubscriptionQuota)
			return nil, l.refuseLocked(p, err)
		}
		p.wanted[name] = len(p.added)
		p.added = append(p.added, name)
	}
	p.own = len(p.added)
	if whole {
		for name := range c.names {
			if _, stays := p.wanted[name]; !stays {
				p.own--
			}
		}
	}
	p.more = p.own - taken
	own := 0
	for _, other := range c.plans {
		own += max(other.own, 0)
	}
	if n := len(c.names) + own + p.own; p.own > 0 && r.ClientQuota > 0 && n > r.ClientQuota {
		return nil, l.refuseLocked(p, overQuota(key, n, r))
	}
	if n := l.total + l.planned + p.more; p.more > 0 && r.TotalQuota > 0 && n > r.TotalQuota {
		err := fmt.Errorf("all clients would have %d lite topics, the limit is %d: %w", n, r.TotalQuota, mq.ErrLiteSubscriptionQuota)
		return nil, l.refuseLocked(p, err)
	}
	l.begun++
	p.number = l.begun
	l.planned += max(p.more, 0)
	c.plans = append(c.plans, p)
	for _, name := range p.added {
		e := l.entryLocked(liteName{key.sub.Topic, name})
		e.plans++
		p.entries = append(p.entries, e)
	}
	return p, nil
}

// refuseLocked undoes what a plan that is refused has begun.
func (l *lites) refuseLocked(p *litePlan, err error) error {
	if p.fresh {
		l.dropLocked(p.client)
	}
	return err
}

// othersLocked returns the other clients of the group that have the lite topic.
func (l *lites) othersLocked(c *liteClient, name string) (others []*liteClient) {
	e := l.names[liteName{c.key.sub.Topic, name}]
	if e == nil {
		return nil
	}
	for _, other := range e.clients {
		if other.key.sub == c.key.sub && other != c {
			others = append(others, other)
		}
	}
	return others
}

// abort ends a plan of which nothing comes.
func (l *lites) abort(p *litePlan) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endLocked(p)
	if c := p.client; p.fresh && len(c.names) == 0 && len(c.plans) == 0 && l.clients[c.key] == c {
		l.dropLocked(c)
	}
}

// endLocked gives back what the plan keeps.
func (l *lites) endLocked(p *litePlan) {
	l.planned -= max(p.more, 0)
	p.client.plans = slices.DeleteFunc(p.client.plans, func(other *litePlan) bool { return other == p })
	for _, e := range p.entries {
		if e != nil {
			e.plans--
			l.unusedLocked(e)
		}
	}
}

// commit carries a plan out. queues are those of what it adds. It returns which
// subscriptions were lost by it: those of others that it has taken, and those that the
// client says it has, and another one keeps.
func (l *lites) commit(p *litePlan, queues []mq.QueueID) (lost []mq.LiteLoss) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.endLocked(p) // until then no lite topic of it is forgotten
	c := p.client
	if l.clients[c.key] != c || p.whole && p.r.Version > 0 && p.r.Version < c.version {
		return nil // it has left, or was overtaken
	}
	c.version = max(c.version, p.r.Version)
	if p.whole {
		l.keepLocked(p)
	}
	loss := func(client, name string) {
		lost = append(lost, mq.LiteLoss{Client: client, Topic: c.key.sub.Topic, Group: c.key.sub.Group, Name: name})
	}
	for _, name := range p.declined {
		if len(l.othersLocked(c, name)) > 0 {
			loss(c.key.client, name)
		}
	}
	for i, name := range p.added {
		e := p.entries[i]
		if e == nil {
			continue
		}
		l.foundLocked(e, queues[i])
		if c.names[name].liteEntry == nil {
			others := []*liteClient(nil)
			if p.r.Exclusive {
				others = l.othersLocked(c, name)
			}
			if p.whole && len(others) > 0 { // somebody has taken it meanwhile
				loss(c.key.client, name)
				continue
			}
			for _, other := range others {
				l.removeLocked(other, name)
				loss(other.key.client, name)
			}
			c.names[name] = liteHold{e, p.number}
			e.clients = append(e.clients, c)
			l.total++
		}
		l.markLocked(c, e)
	}
	return lost
}

// keepLocked takes everything out of the client's set that the plan does not name, but what
// came in later.
func (l *lites) keepLocked(p *litePlan) {
	for name, hold := range p.client.names {
		if _, stays := p.wanted[name]; !stays && hold.since < p.number {
			l.removeLocked(p.client, name)
		}
	}
	for _, other := range p.client.plans {
		if other.number >= p.number {
			continue
		}
		for _, name := range other.added {
			if _, stays := p.wanted[name]; !stays {
				l.forgetLocked(other, name)
			}
		}
	}
}

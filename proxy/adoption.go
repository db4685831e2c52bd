package proxy

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/proxy/session"
)

// Handover is what the proxy asks of the store tier about leases that other proxies have
// renewed. The documentation of the methods is in package store.
type Handover interface {
	Orphans(ctx context.Context) (clients []string, err error)
	Adopt(ctx context.Context, a mq.Adoption) ([]mq.Adopted, error)
}

// An adopter takes over from other proxies what they renewed for clients that are here now.
// A proxy tells the store with each renewal whose the lease is; a lease that is not renewed in
// time, or whose proxy has said that it stops, is an orphan there, and one of the proxies that
// hear from its client goes on with it.
//
// A lease is handed over once its client has shown that it has the message: one that was on
// its way when its proxy died would be renewed for a client that does not know of it.
type adopter struct {
	server *Server
	cancel context.CancelFunc
	done   sync.WaitGroup
}

// newAdopter begins to look for orphans, unless there can be none.
func newAdopter(s *Server) *adopter {
	ctx, cancel := context.WithCancel(context.Background())
	a := &adopter{server: s, cancel: cancel}
	if s.opts.Handover != nil {
		a.done.Go(func() { a.run(ctx) })
	}
	return a
}

// close ends it. What it has taken over is among the renewals then.
func (a *adopter) close() {
	a.cancel()
	a.done.Wait()
}

// run looks a few times in what is left of the lease of an orphan, a quarter of a slice.
func (a *adopter) run(ctx context.Context) {
	ticker := time.NewTicker(a.server.opts.RenewSlice / 12)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if a.server.sessions.Len() > 0 && !a.server.streams.isDraining() {
			a.look(ctx)
		}
	}
}

// look takes over the orphans of clients that are here. A store node that does not answer does
// not keep it from those of others in time.
func (a *adopter) look(ctx context.Context) {
	orphans, err := shortly(ctx, a, a.server.opts.Handover.Orphans)
	a.log(err)
	here := map[string]*session.Session{}
	var clients []string
	for _, id := range orphans {
		if one := a.server.hears(id); one != nil && here[id] == nil {
			here[id] = one
			clients = append(clients, id)
		}
	}
	for len(clients) > 0 {
		adopted, err := shortly(ctx, a, func(ctx context.Context) ([]mq.Adopted, error) {
			return a.server.opts.Handover.Adopt(ctx, mq.Adoption{
				Clients: clients, Keeper: a.server.renewals.keeper, Invisible: a.server.opts.RenewSlice,
			})
		})
		a.log(err)
		if len(adopted) == 0 {
			return
		}
		a.take(ctx, here, adopted)
	}
}

func shortly[T any](ctx context.Context, a *adopter, ask func(context.Context) ([]T, error)) ([]T, error) {
	ctx, cancel := context.WithTimeout(ctx, a.server.opts.RenewSlice/20)
	defer cancel()
	return ask(ctx)
}

// log notes that not all store nodes have answered, which they will when asked again. Those of
// the version before do not know the question.
func (a *adopter) log(err error) {
	if err != nil && !errors.Is(err, mq.ErrNotImplemented) {
		a.server.logger.Debug("not every store node was asked for leases that no proxy renews", "error", err)
	}
}

// take goes on renewing leases that were taken over for clients that were here before.
func (a *adopter) take(ctx context.Context, here map[string]*session.Session, adopted []mq.Adopted) {
	s := a.server
	s.renewals.adopt(adopted)
	s.logger.Info("messages of clients are renewed in place of another proxy", "messages", len(adopted))
	looked := map[string]bool{}
	var left []mq.LeaseChange
	for i := range adopted {
		id := adopted[i].Client
		// Only now: a goodbye, or the end of a connection, from here on finds what was added.
		if s.sessions.Get(id) != here[id] {
			left = append(left, mq.LeaseChange{
				Lease: adopted[i].Lease, Invisible: leaveInvisible, Reason: mq.Extend, Keeper: s.renewals.keeper,
			})
		} else if !looked[id] && s.hears(id) == nil {
			s.renewals.suspect(id, lossGrace)
		}
		looked[id] = true
	}
	if len(left) > 0 {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), takeBackTimeout)
		defer cancel()
		s.renewals.dropAll(ctx, left)
		logUnexpected(ctx, s.logger, "messages not taken back", s.store.ChangeInvisible(ctx, left))
	}
}

// hears returns the session of a client that is here: it has a connection or a Telemetry
// stream, or was heard of a moment ago. Nil: it is not.
func (s *Server) hears(client string) *session.Session {
	one := s.sessions.Get(client)
	if one != nil && (one.Connected() || s.links.any(client) || one.Silent() < lossGrace) {
		return one
	}
	return nil
}

// adopt renews leases of other proxies from now on, up to the limit after their deliveries.
func (r *renewals) adopt(adopted []mq.Adopted) {
	groups := map[mq.GroupID]*mq.Group{}
	for i := range adopted {
		id := adopted[i].Lease.Group
		if groups[id] == nil {
			groups[id], _ = r.server.router.GroupByID(id) // without it there is nothing to renew for
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	for _, a := range adopted {
		group := groups[a.Lease.Group]
		if group == nil || r.mu.leases[a.Lease] != nil {
			continue
		}
		e := &renewal{lease: a.Lease, client: a.Client, group: group, arrived: true, limit: now - a.Age + r.server.opts.RenewLimit}
		r.insertLocked(e)
		r.adopted.Add(1)
		due := now + r.ahead()
		if e.limit <= now {
			due = now
		}
		r.scheduleLocked(e, due)
	}
}

// leavesToOthers reports whether the silence of clients means nothing any more: the server
// drains, and they are elsewhere. What they hold is renewed until it closes.
func (r *renewals) leavesToOthers() bool { return r.keeper != 0 && r.server.streams.isDraining() }

// A passage is how a message has come to its client.
type passage struct {
	link      *link // over which; nil: not known
	delivered time.Duration
	arrived   bool // known; a proxy that took it over knows no more
}

func (r *renewals) passageOf(e *renewal) passage {
	return passage{link: e.link, delivered: e.limit - r.server.opts.RenewLimit, arrived: e.arrived}
}

// holder returns the client of a renewal when it is known to have the message, for another
// proxy to go on, and else nobody.
func (r *renewals) holder(e *renewal, p passage, now time.Duration) string {
	switch {
	case r.keeper == 0:
		return ""
	case p.arrived:
		return e.client
	case p.link != nil && p.link.mayBeLost(p.delivered, now):
		return ""
	case p.link != nil:
		return e.client
	}
	if one := r.server.sessions.Get(e.client); one != nil && now-one.Silent() >= p.delivered+arrivalProof {
		return e.client
	}
	return ""
}

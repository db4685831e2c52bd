package remote

import (
	"time"

	"google.golang.org/grpc"

	routerpb "github.com/perigee-mq/perigee/gen/perigee/router/v1"
	"github.com/perigee-mq/perigee/internal/tiererr"
	"github.com/perigee-mq/perigee/internal/tierwire"
	"github.com/perigee-mq/perigee/router"
)

const (
	// pageSize is how many topics, groups, shards and ids a page holds.
	pageSize = 500
	// maxPast is how many snapshots are kept of those that were shown.
	maxPast = 128
)

// remember keeps a snapshot that is shown to somebody.
func (s *Server) remember(shown router.Snapshot) {
	s.past.Lock()
	defer s.past.Unlock()
	if n := len(s.past.list); n > 0 && s.past.list[n-1].Revision() >= shown.Revision() {
		return // it is there, or somebody slow gets it
	}
	if len(s.past.list) == maxPast {
		copy(s.past.list, s.past.list[1:])
		s.past.list = s.past.list[:maxPast-1]
	}
	s.past.list = append(s.past.list, shown)
}

// recall returns the snapshot of a revision that was shown.
func (s *Server) recall(revision uint64) (router.Snapshot, bool) {
	s.past.Lock()
	defer s.past.Unlock()
	for _, shown := range s.past.list {
		if shown.Revision() == revision {
			return shown, true
		}
	}
	return router.Snapshot{}, false
}

// Watch sends what the caller does not know, and from then on what changes. Nothing is
// queued for slow callers: they get what leads from the last they were sent to the newest.
func (s *service) Watch(req *routerpb.WatchRequest, stream grpc.ServerStreamingServer[routerpb.WatchResponse]) error {
	refusal := s.fits(stream.Context(), req.GetKnown())
	now := s.router.Snapshot()
	hello := &routerpb.WatchHello{Life: s.life, Revision: now.Revision()}
	if err := stream.Send(&routerpb.WatchResponse{Event: &routerpb.WatchResponse_Hello{Hello: hello}}); err != nil {
		return err
	}
	if refusal != nil {
		return tiererr.Status(refusal)
	}
	known := req.GetKnown().GetRevision()
	at := now
	old, recalled := s.recall(known)
	var err error
	switch {
	case req.GetKnown().GetLife() != "" && known == now.Revision():
	case req.GetKnown().GetLife() != "" && recalled:
		err = sendDelta(stream, now.Since(old))
	default:
		err = sendState(stream, now.State())
	}
	var told *router.Nodes
	timer := time.NewTimer(quiet)
	defer timer.Stop()
	for err == nil {
		s.remember(at)
		nodes := s.registry.Nodes()
		if nodes != told {
			told = nodes
			err = stream.Send(&routerpb.WatchResponse{Event: &routerpb.WatchResponse_Nodes{
				Nodes: &routerpb.WatchNodes{Nodes: fromNodes(nodes.List), Settled: nodes.Settled},
			}})
			continue
		}
		if now := s.router.Snapshot(); now.Revision() > at.Revision() {
			err = sendDelta(stream, now.Since(at))
			at = now
			continue
		}
		timer.Reset(quiet)
		select {
		case <-at.Superseded():
		case <-nodes.Superseded():
		case <-timer.C:
			err = stream.Send(&routerpb.WatchResponse{})
		case <-s.drained:
			return s.draining()
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
	return err
}

type watchStream = grpc.ServerStreamingServer[routerpb.WatchResponse]

func sendState(stream watchStream, state router.State) error {
	p := pager{stream: stream, head: &routerpb.WatchPage{
		Whole: true, Revision: state.Revision, LastTopic: uint32(state.LastTopic), LastGroup: uint32(state.LastGroup),
	}}
	return p.send(router.Delta{Shards: state.Shards, Topics: state.Topics, Groups: state.Groups})
}

func sendDelta(stream watchStream, d router.Delta) error {
	p := pager{stream: stream, head: &routerpb.WatchPage{
		From: d.From, Revision: d.To, LastTopic: uint32(d.LastTopic), LastGroup: uint32(d.LastGroup),
	}}
	return p.send(d)
}

// A pager cuts what it sends into pages.
type pager struct {
	stream watchStream
	head   *routerpb.WatchPage // what every page has
	page   *routerpb.WatchPage
	room   int
}

func (p *pager) begin() {
	p.page = &routerpb.WatchPage{
		Whole: p.head.Whole, From: p.head.From, Revision: p.head.Revision, LastTopic: p.head.LastTopic, LastGroup: p.head.LastGroup,
	}
	p.room = pageSize
}

// next makes room for one more entry.
func (p *pager) next() error {
	if p.room == 0 {
		if err := p.flush(); err != nil {
			return err
		}
		p.begin()
	}
	p.room--
	return nil
}

func (p *pager) flush() error {
	return p.stream.Send(&routerpb.WatchResponse{Event: &routerpb.WatchResponse_Page{Page: p.page}})
}

func (p *pager) send(d router.Delta) error {
	p.begin()
	for _, s := range d.Shards {
		if err := p.next(); err != nil {
			return err
		}
		p.page.Shards = append(p.page.Shards, fromShard(s))
	}
	for _, id := range d.GoneTopics {
		if err := p.next(); err != nil {
			return err
		}
		p.page.GoneTopics = append(p.page.GoneTopics, uint32(id))
	}
	for _, id := range d.GoneGroups {
		if err := p.next(); err != nil {
			return err
		}
		p.page.GoneGroups = append(p.page.GoneGroups, uint32(id))
	}
	for _, t := range d.Topics {
		if err := p.next(); err != nil {
			return err
		}
		p.page.Topics = append(p.page.Topics, tierwire.FromTopic(t))
	}
	for _, g := range d.Groups {
		if err := p.next(); err != nil {
			return err
		}
		p.page.Groups = append(p.page.Groups, tierwire.FromGroup(g))
	}
	p.page.Last = true
	return p.flush()
}

package remote

import (
	"context"
	"errors"
	"sync"

	routerpb "github.com/perigee-mq/perigee/gen/perigee/router/v1"
)

// A RouterStatus is what one router says when it is asked, and what the client thinks of
// it.
type RouterStatus struct {
	Address  string
	Followed bool
	// Life and Revision are those of its metadata; zero when it does not answer.
	Life     string
	Revision uint64
	// Err says why it does not answer, or is refused as a source; nil when neither is so.
	Err error
}

// Routers asks every router, all at the same time, and waits for a few seconds for those
// that do not answer. They are in the order of ClientOptions.
func (c *Client) Routers(ctx context.Context) []RouterStatus {
	list := make([]RouterStatus, len(c.routers))
	var asking sync.WaitGroup
	for i, p := range c.routers {
		list[i].Address = p.address
		asking.Go(func() { c.ask(ctx, p, &list[i]) })
	}
	asking.Wait()
	return list
}

// ask asks one router. The first word of a watch says all that is wanted.
func (c *Client) ask(ctx context.Context, p *peer, s *RouterStatus) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	s.Followed = c.connected.Load() == p
	if !p.reachable(ctx) {
		s.Err = errors.New("cannot be reached")
		return
	}
	stream, err := p.rpc.Watch(ctx, &routerpb.WatchRequest{Known: c.known()})
	if err != nil {
		s.Err = ended(ctx, err)
		return
	}
	resp, err := stream.Recv()
	if err != nil {
		s.Err = ended(ctx, err)
		return
	}
	s.Life, s.Revision = resp.GetHello().GetLife(), resp.GetHello().GetRevision()
	if s.Revision == 0 {
		s.Err = errors.New("a watch that does not begin with a hello")
		return
	}
	s.Err = c.mirror.Fits(s.Life, s.Revision)
}

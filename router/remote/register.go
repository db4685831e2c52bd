package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"

	routerpb "github.com/perigee-mq/perigee/gen/perigee/router/v1"
	"github.com/perigee-mq/perigee/router"
)

type registerStream = grpc.BidiStreamingClient[routerpb.RegisterRequest, routerpb.RegisterResponse]

// Register makes the process known as a node to every router, each as soon as it answers,
// until Leave, Goodbye or Close; behind one of these it does nothing. The node's identity is that
// of the directory of the client. It is called once.
func (c *Client) Register(node router.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.left {
		return
	}
	node.Identity = c.identity
	c.node = node
	c.registered, c.leave = context.WithCancel(c.ctx)
	for _, p := range c.routers {
		c.registers.Go(func() { c.register(p) })
	}
}

// Goodbye tells the routers that the node goes, for good, and does not wait until they have
// heard. It may be called before Register, by which the node is not made known then.
func (c *Client) Goodbye() {
	c.mu.Lock()
	c.mu.left = true
	leave := c.leave
	c.mu.Unlock()
	if leave != nil {
		leave()
	}
}

// Leave is Goodbye, and waits until the routers have heard, as long as that takes no time.
func (c *Client) Leave() {
	c.Goodbye()
	c.registers.Wait()
}

// register keeps this node registered with one router, until Close.
func (c *Client) register(p *peer) {
	said := ""
	for failures := 1; c.registered.Err() == nil; failures++ {
		registered, err := c.registration(p)
		if c.registered.Err() != nil {
			return
		}
		if registered {
			said, failures = "", 1
		}
		if text := err.Error(); text != said {
			said = text
			c.logger.Warn("node not registered", "router", p.address, "node", c.node.Name, "reason", text)
		}
		if !pause(c.registered, failures) {
			return
		}
	}
}

// goodbyeTimeout bounds the wait for the end of a registration.
const goodbyeTimeout = time.Second

// registration registers this node and sends heartbeats until the stream ends or the
// client closes; then it says goodbye.
func (c *Client) registration(p *peer) (registered bool, err error) {
	// It outlives the client's context for as long as a goodbye takes.
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(c.registered))
	var reading sync.WaitGroup
	defer reading.Wait()
	defer cancel(nil)
	watchdog := time.AfterFunc(silence, func() { cancel(fmt.Errorf("nothing came for %s", silence)) })
	defer watchdog.Stop()
	stop := context.AfterFunc(c.registered, func() { watchdog.Reset(goodbyeTimeout) })
	defer stop()

	stream, err := p.rpc.Register(ctx)
	if err != nil {
		return false, ended(ctx, err)
	}
	if err := stream.Send(&routerpb.RegisterRequest{Node: fromNode(c.node)}); err != nil && !errors.Is(err, io.EOF) {
		return false, ended(ctx, err)
	}
	answers, failed := make(chan time.Duration), make(chan error, 1)
	reading.Go(func() { // ends with the stream
		for {
			resp, err := stream.Recv()
			if err != nil {
				failed <- err
				return
			}
			select {
			case answers <- time.Duration(resp.GetLease()):
			case <-ctx.Done():
			case <-c.registered.Done(): // only the end of the stream is waited for
			}
		}
	})
	beat := time.NewTimer(silence)
	defer beat.Stop()
	for {
		select {
		case lease := <-answers:
			if !registered {
				registered = true
				c.logger.Info("node registered", "router", p.address, "node", c.node.Name)
			}
			watchdog.Reset(silence)
			// Three heartbeats for each lease: one may be late, and one lost.
			beat.Reset(min(max(lease/3, 100*time.Millisecond), silence/3))
		case <-beat.C:
			if err := stream.Send(&routerpb.RegisterRequest{}); err != nil && !errors.Is(err, io.EOF) {
				return registered, ended(ctx, err)
			}
		case err := <-failed:
			return registered, ended(ctx, err)
		case <-c.registered.Done():
			return registered, goodbye(stream, failed)
		}
	}
}

// goodbye tells the router that the node goes, and waits until it has heard.
func goodbye(stream registerStream, failed <-chan error) error {
	if err := stream.Send(&routerpb.RegisterRequest{Goodbye: true}); err != nil {
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	return <-failed // the stream's context ends the wait
}

package proxy

import (
	"context"
	"net"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/proxy/quirks"
	"github.com/perigee-mq/perigee/proxy/transport"
	"github.com/perigee-mq/perigee/proxy/wire"
)

// reachable returns the endpoints under which the client of ctx can reach this
// server: the address advertised for the listener it has come through, else what
// the client says it dialled, else the authority of its call, else the address
// its connection arrived at. There is exactly one address, unless the client itself has
// dialled several, and a scheme that fits it.
func (s *Server) reachable(ctx context.Context, asked *rmqpb.Endpoints) (*rmqpb.Endpoints, error) {
	if address := transport.Advertised(ctx); address != "" {
		return wire.EndpointsFor(address)
	}
	if s.advertise != nil {
		return s.advertise, nil
	}
	if e := dialled(ctx, asked); e != nil {
		return e, nil
	}
	// Java sends a fixed text without a port as its authority.
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		for _, authority := range md[":authority"] {
			if e, err := wire.EndpointsFor(authority); err == nil {
				return e, nil
			}
		}
	}
	if p, ok := peer.FromContext(ctx); ok && p.LocalAddr != nil {
		if e, err := wire.EndpointsFor(p.LocalAddr.String()); err == nil {
			return e, nil
		}
	}
	return nil, refuse(rmqpb.Code_ILLEGAL_ACCESS_POINT,
		"endpoints %q: must hold the host and port the client connects to", mq.Shorten(asked.String()))
}

// Bounds of a client's list of addresses.
const (
	// maxAsked is how many are looked at.
	maxAsked = 64
	// maxDialled is how many the client is told: each queue of a route has them.
	maxDialled = 8
)

// dialled returns where the client of ctx can reach this server by what it says it dialled, or
// nil when that is no address. Of several, some may lead to servers that are down: the one
// that its connection has arrived at comes first, and alone unless the client can take all
// of them, which then finds another server when this one ends. The scheme follows from the
// host: not every client sets the right one.
func dialled(ctx context.Context, asked *rmqpb.Endpoints) *rmqpb.Endpoints {
	var all []*rmqpb.Endpoints
	list := asked.GetAddresses()
	for _, a := range list[:min(len(list), maxAsked)] {
		if e := dialledAddress(a); e != nil {
			all = append(all, e)
		}
	}
	if len(all) == 0 {
		return nil
	}
	e := all[0]
	if len(all) == 1 {
		return e
	}
	if here := arrived(ctx, all); here > 0 {
		e = all[here]
		all = slices.Insert(slices.Delete(all, here, here+1), 0, e)
	}
	if e.GetScheme() == rmqpb.AddressScheme_DOMAIN_NAME || !quirks.TakesAddresses(clientOf(ctx).Language) {
		return e
	}
	for _, other := range all[1:] {
		if other.GetScheme() == e.GetScheme() && len(e.GetAddresses()) < maxDialled {
			e.Addresses = append(e.Addresses, other.GetAddresses()...)
		}
	}
	return e
}

// arrived returns which of the endpoints the connection of ctx has arrived at: that with its
// local address, else the only one with its port; -1 when nobody can tell, as behind a balancer.
func arrived(ctx context.Context, all []*rmqpb.Endpoints) int {
	p, ok := peer.FromContext(ctx)
	if !ok || p.LocalAddr == nil {
		return -1
	}
	local, err := wire.EndpointsFor(p.LocalAddr.String())
	if err != nil {
		return -1
	}
	here := local.GetAddresses()[0]
	byPort := -1
	for i, e := range all {
		switch a := e.GetAddresses()[0]; {
		case a.GetPort() != here.GetPort():
		case a.GetHost() == here.GetHost():
			return i
		case byPort >= 0:
			byPort = len(all) // several
		default:
			byPort = i
		}
	}
	if byPort == len(all) {
		return -1
	}
	return byPort
}

// dialledAddress returns an address as endpoints, or nil when it is none.
func dialledAddress(a *rmqpb.Address) *rmqpb.Endpoints {
	host := strings.TrimSpace(a.GetHost())
	if inner, ok := strings.CutPrefix(host, "["); ok {
		host = strings.TrimSuffix(inner, "]")
	}
	fixed, err := wire.EndpointsFor(net.JoinHostPort(host, strconv.Itoa(int(a.GetPort()))))
	if err != nil {
		return nil
	}
	return fixed
}

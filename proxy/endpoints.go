package proxy

import (
	"context"
	"net"
	"strconv"
	"strings"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/proxy/transport"
	"github.com/perigee-mq/perigee/proxy/wire"
)

// reachable returns the endpoints under which the client of ctx can reach this
// server: the address advertised for the listener it has come through, else what
// the client says it dialled, else the authority of its call, else the address
// its connection arrived at. There is exactly one address, and a scheme that fits
// it.
func (s *Server) reachable(ctx context.Context, asked *rmqpb.Endpoints) (*rmqpb.Endpoints, error) {
	if address := transport.Advertised(ctx); address != "" {
		return wire.EndpointsFor(address)
	}
	if s.advertise != nil {
		return s.advertise, nil
	}
	if e := dialled(asked); e != nil {
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

// dialled returns the first address of e, or nil when that is none. The scheme
// follows from the host: not every client sets the right one.
func dialled(e *rmqpb.Endpoints) *rmqpb.Endpoints {
	if len(e.GetAddresses()) == 0 {
		return nil
	}
	a := e.GetAddresses()[0]
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

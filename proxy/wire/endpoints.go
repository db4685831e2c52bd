package wire

import (
	"net"
	"net/netip"
	"strconv"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
)

// EndpointsFor returns endpoints with the one address hostport ("host:port", an
// IPv6 address in brackets). The scheme is always set and there is always
// exactly one address: some SDKs cannot use anything else. The error is an
// *mq.InvalidError.
func EndpointsFor(hostport string) (*rmqpb.Endpoints, error) {
	invalid := func(reason string) error {
		return &mq.InvalidError{Kind: mq.ErrInvalid, Field: "endpoint", Value: mq.Shorten(hostport), Reason: reason}
	}
	host, portText, err := net.SplitHostPort(hostport)
	if err != nil {
		return nil, invalid("must be host:port, with an IPv6 address in brackets")
	}
	if host == "" {
		return nil, invalid("must name a host")
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil || port == 0 {
		return nil, invalid("must have a port from 1 to 65535")
	}
	scheme := rmqpb.AddressScheme_DOMAIN_NAME
	if ip, err := netip.ParseAddr(host); err == nil {
		scheme = rmqpb.AddressScheme_IPv6
		if ip.Is4() {
			scheme = rmqpb.AddressScheme_IPv4
		}
	}
	return &rmqpb.Endpoints{
		Scheme:    scheme,
		Addresses: []*rmqpb.Address{{Host: host, Port: int32(port)}},
	}, nil
}

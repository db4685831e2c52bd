package wire

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"unicode"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
)

// maxHost is the longest host name that DNS has room for, in bytes. A route repeats
// the host for every queue.
const maxHost = 253

func neverInHost(r rune) bool { return r == '/' || unicode.IsSpace(r) || unicode.IsControl(r) }

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
	switch {
	case host == "":
		return nil, invalid("must name a host")
	case len(host) > maxHost:
		return nil, invalid(fmt.Sprintf("has a host of %d bytes, the limit is %d", len(host), maxHost))
	case strings.ContainsFunc(host, neverInHost):
		return nil, invalid("must have a host without spaces, slashes and control characters")
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

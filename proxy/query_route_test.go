package proxy

import (
	"context"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/proxy/wire"
	"github.com/perigee-mq/perigee/router"
)

func endpoints(scheme rmqpb.AddressScheme, host string, port int32) *rmqpb.Endpoints {
	return &rmqpb.Endpoints{Scheme: scheme, Addresses: []*rmqpb.Address{{Host: host, Port: port}}}
}

func (s *testServer) routeOf(t testing.TB, ctx context.Context, topic string) *rmqpb.QueryRouteResponse {
	t.Helper()
	res, err := s.QueryRoute(ctx, &rmqpb.QueryRouteRequest{
		Topic: named(topic), Endpoints: endpoints(rmqpb.AddressScheme_DOMAIN_NAME, "mq.test", 8081),
	})
	require.NoError(t, err)
	return res
}

func TestRouteNamesTheEndpointsThatTheClientDialled(t *testing.T) {
	s := newTestServer(t)
	s.topic(t, "orders")
	for name, c := range map[string]struct{ asked, want *rmqpb.Endpoints }{
		"mapped port":        {endpoints(rmqpb.AddressScheme_IPv4, "203.0.113.7", 30081), endpoints(rmqpb.AddressScheme_IPv4, "203.0.113.7", 30081)},
		"name":               {endpoints(rmqpb.AddressScheme_DOMAIN_NAME, "mq.example", 443), endpoints(rmqpb.AddressScheme_DOMAIN_NAME, "mq.example", 443)},
		"IPv6":               {endpoints(rmqpb.AddressScheme_IPv6, "::1", 8081), endpoints(rmqpb.AddressScheme_IPv6, "::1", 8081)},
		"IPv6 in brackets":   {endpoints(rmqpb.AddressScheme_IPv6, "[::1]", 8081), endpoints(rmqpb.AddressScheme_IPv6, "::1", 8081)},
		"missing scheme":     {endpoints(0, "127.0.0.1", 8081), endpoints(rmqpb.AddressScheme_IPv4, "127.0.0.1", 8081)},
		"address as a name":  {endpoints(rmqpb.AddressScheme_DOMAIN_NAME, "10.0.0.1", 8081), endpoints(rmqpb.AddressScheme_IPv4, "10.0.0.1", 8081)},
		"name as an address": {endpoints(rmqpb.AddressScheme_IPv4, "localhost", 8081), endpoints(rmqpb.AddressScheme_DOMAIN_NAME, "localhost", 8081)},
		"several addresses": {
			&rmqpb.Endpoints{Scheme: rmqpb.AddressScheme_IPv4, Addresses: []*rmqpb.Address{{Host: "10.0.0.1", Port: 1}, {Host: "10.0.0.2", Port: 2}}},
			endpoints(rmqpb.AddressScheme_IPv4, "10.0.0.1", 1),
		},
	} {
		res, err := s.QueryRoute(as(t, "c"), &rmqpb.QueryRouteRequest{Topic: named("orders"), Endpoints: c.asked})
		require.NoError(t, err)
		require.Equal(t, rmqpb.Code_OK, res.GetStatus().GetCode(), name)
		require.Len(t, res.GetMessageQueues(), 2, name)
		for _, q := range res.GetMessageQueues() {
			require.True(t, proto.Equal(c.want, q.GetBroker().GetEndpoints()), "%s: %v", name, q)
		}
	}
}

// A client that has a list of servers must not be led to one that is down: the one that
// answers comes first.
func TestRouteOfAClientWithAListBeginsWithTheServerThatAnswers(t *testing.T) {
	s := newTestServer(t)
	s.topic(t, "orders")
	const v4, v6, name = rmqpb.AddressScheme_IPv4, rmqpb.AddressScheme_IPv6, rmqpb.AddressScheme_DOMAIN_NAME
	list := func(scheme rmqpb.AddressScheme, hosts ...string) *rmqpb.Endpoints {
		e := &rmqpb.Endpoints{Scheme: scheme}
		for _, hostport := range hosts {
			one, err := wire.EndpointsFor(hostport)
			require.NoError(t, err)
			e.Addresses = append(e.Addresses, one.GetAddresses()...)
		}
		return e
	}
	many := func(n int) *rmqpb.Endpoints {
		e := &rmqpb.Endpoints{Scheme: v4}
		for i := range n {
			e.Addresses = append(e.Addresses, &rmqpb.Address{Host: "10.0.0.1", Port: int32(i + 1)})
		}
		return e
	}
	const here = "10.0.0.2:8081"
	for _, c := range []struct {
		what, language, local string
		asked, want           *rmqpb.Endpoints
	}{
		{"the one it arrived at, and the others", "GO", here, list(v4, "10.0.0.1:8081", here, "10.0.0.3:8081"), list(v4, here, "10.0.0.1:8081", "10.0.0.3:8081")},
		{"the same, for whoever takes one", "HTTP", here, list(v4, "10.0.0.1:8081", here), list(v4, here)},
		{"the first one behind a balancer", "HTTP", here, list(v4, "192.0.2.1:9", "192.0.2.2:9"), list(v4, "192.0.2.1:9")},
		{"all of them behind a balancer", "JAVA", here, list(v4, "192.0.2.1:9", "192.0.2.2:9"), list(v4, "192.0.2.1:9", "192.0.2.2:9")},
		{"the only one with the port", "PYTHON", here, list(v4, "192.0.2.1:9", "192.0.2.2:8081"), list(v4, "192.0.2.2:8081")},
		{"names, of which each client takes one", "GO", here, list(name, "a.example:9", "b.example:8081"), list(name, "b.example:8081")},
		{"those of the scheme", "RUST", here, list(v4, "[2001:db8::1]:8081", here, "a.example:8081", "10.0.0.3:8081"), list(v4, here, "10.0.0.3:8081")},
		{"IPv6", "CPP", "[2001:db8::2]:8081", list(v6, "[2001:db8::1]:8081", "[2001:db8::2]:8081"), list(v6, "[2001:db8::2]:8081", "[2001:db8::1]:8081")},
		{"no address of the list is one", "GO", here, &rmqpb.Endpoints{Addresses: []*rmqpb.Address{{}, {Host: "a b"}}}, list(v4, here)},
		{"not too many", "GO", here, many(1000), many(maxDialled)},
		{"the one it arrived at, behind many", "HTTP", "10.0.0.1:40", many(1000), list(v4, "10.0.0.1:40")},
		{"not connected to any", "GO", "", list(v4, "10.0.0.1:1", "10.0.0.2:1"), list(v4, "10.0.0.1:1", "10.0.0.2:1")},
	} {
		ctx := as(t, "c", headerLanguage, c.language)
		if c.local != "" {
			ctx = peer.NewContext(ctx, &peer.Peer{
				Addr: &net.TCPAddr{IP: net.IPv6loopback, Port: 5}, LocalAddr: net.TCPAddrFromAddrPort(netip.MustParseAddrPort(c.local)),
			})
		}
		res, err := s.QueryRoute(ctx, &rmqpb.QueryRouteRequest{Topic: named("orders"), Endpoints: c.asked})
		require.NoError(t, err)
		require.NotEmpty(t, res.GetMessageQueues(), c.what)
		for _, q := range res.GetMessageQueues() {
			require.True(t, proto.Equal(c.want, q.GetBroker().GetEndpoints()), "%s: %v", c.what, q.GetBroker().GetEndpoints())
		}
	}
}

func TestRouteFallsBackToTheAuthorityAndThenToTheLocalAddress(t *testing.T) {
	s := newTestServer(t)
	s.topic(t, "orders")
	local := peer.NewContext(t.Context(), &peer.Peer{
		Addr: &net.TCPAddr{IP: net.IPv6loopback, Port: 5}, LocalAddr: &net.TCPAddr{IP: net.IPv6loopback, Port: 8081},
	})
	header := func(kv ...string) context.Context {
		return metadata.NewIncomingContext(local, metadata.Pairs(append([]string{headerClientID, "c"}, kv...)...))
	}
	ask := func(ctx context.Context, asked *rmqpb.Endpoints) *rmqpb.QueryRouteResponse {
		res, err := s.QueryRoute(ctx, &rmqpb.QueryRouteRequest{Topic: named("orders"), Endpoints: asked})
		require.NoError(t, err)
		return res
	}
	for _, asked := range []*rmqpb.Endpoints{nil, {}, endpoints(rmqpb.AddressScheme_IPv4, "", 8081), endpoints(rmqpb.AddressScheme_IPv4, "10.0.0.1", 0)} {
		res := ask(header(":authority", "mq.example:30081"), asked)
		require.True(t, proto.Equal(endpoints(rmqpb.AddressScheme_DOMAIN_NAME, "mq.example", 30081),
			res.GetMessageQueues()[0].GetBroker().GetEndpoints()), "%v", res)
	}
	res := ask(header(":authority", "IPAuthority"), nil)
	require.True(t, proto.Equal(endpoints(rmqpb.AddressScheme_IPv6, "::1", 8081), res.GetMessageQueues()[0].GetBroker().GetEndpoints()), "%v", res)

	res = ask(as(t, "c"), nil)
	require.Equal(t, rmqpb.Code_ILLEGAL_ACCESS_POINT, res.GetStatus().GetCode(), "no address is known at all")
}

func TestAdvertisedAddressWinsOverWhatTheClientDialled(t *testing.T) {
	s := newTestServer(t, func(o *testOptions) { o.Advertise = "[2001:db8::1]:9081" })
	s.topic(t, "orders")
	res := s.routeOf(t, as(t, "c"), "orders")
	require.True(t, proto.Equal(endpoints(rmqpb.AddressScheme_IPv6, "2001:db8::1", 9081), res.GetMessageQueues()[0].GetBroker().GetEndpoints()))

	for _, bad := range []string{"mq.example", ":8081", "mq.example:0", "2001:db8::1:9081"} {
		_, err := New(Options{Advertise: bad})
		require.ErrorIs(t, err, mq.ErrInvalid, bad)
		require.ErrorContains(t, err, bad)
	}
}

// permissions lists what the route permits, by queue id.
func permissions(res *rmqpb.QueryRouteResponse) []rmqpb.Permission {
	var out []rmqpb.Permission
	for i, q := range res.GetMessageQueues() {
		if q.GetId() != int32(i) {
			return nil
		}
		out = append(out, q.GetPermission())
	}
	return out
}

func TestQueuePermissionFollowsFromIDAndTopic(t *testing.T) {
	const rw, r, w, none = rmqpb.Permission_READ_WRITE, rmqpb.Permission_READ, rmqpb.Permission_WRITE, rmqpb.Permission_NONE
	s := newTestServer(t)
	for name, c := range map[string]struct {
		read, write int32
		permission  mq.Permission
		want        []rmqpb.Permission
	}{
		"more_writable":  {2, 4, mq.PermReadWrite, []rmqpb.Permission{rw, rw, w, w}},
		"more_readable":  {4, 2, mq.PermReadWrite, []rmqpb.Permission{rw, rw, r, r}},
		"read_only":      {1, 3, mq.PermRead, []rmqpb.Permission{r}},
		"write_only":     {3, 2, mq.PermWrite, []rmqpb.Permission{w, w}},
		"no_permission":  {3, 3, mq.PermNone, []rmqpb.Permission{none}},
		"equal_and_open": {2, 2, mq.PermReadWrite, []rmqpb.Permission{rw, rw}},
	} {
		s.topic(t, name)
		_, err := s.meta.UpdateTopic(t.Context(), mq.Resource{Name: name}, router.TopicUpdate{
			ReadQueues: &c.read, WriteQueues: &c.write, Permission: &c.permission,
		})
		require.NoError(t, err)
		res := s.routeOf(t, as(t, "c"), name)
		require.Equal(t, rmqpb.Code_OK, res.GetStatus().GetCode(), name)
		require.Equal(t, c.want, permissions(res), name)
	}
}

func TestRouteListsShardsAndQueuesInAStableOrderWithIDsFromZero(t *testing.T) {
	s := newTestServer(t, func(o *testOptions) { o.router.Shards = []string{"b", "a"} })
	s.topic(t, "mixed", router.TopicSpec{Type: mq.TopicMixed, Queues: 2})
	first := s.routeOf(t, as(t, "c"), "mixed")
	var order []string
	for _, q := range first.GetMessageQueues() {
		order = append(order, q.GetBroker().GetName()+string('0'+q.GetId()))
		require.Zero(t, q.GetBroker().GetId())
		require.Equal(t, []rmqpb.MessageType{
			rmqpb.MessageType_NORMAL, rmqpb.MessageType_FIFO, rmqpb.MessageType_DELAY,
			rmqpb.MessageType_TRANSACTION,
		}, q.GetAcceptMessageTypes())
	}
	require.Equal(t, []string{"a0", "a1", "b0", "b1"}, order)
	require.True(t, proto.Equal(first, s.routeOf(t, as(t, "c"), "mixed")))
}

func TestRouteEchoesTheTopicAsItWasSent(t *testing.T) {
	s := newTestServer(t)
	_, _, err := s.meta.CreateTopic(t.Context(), router.TopicSpec{Resource: mq.Resource{Namespace: "shop", Name: "orders"}})
	require.NoError(t, err)
	for _, c := range []struct {
		ctx   context.Context
		topic *rmqpb.Resource
	}{
		{as(t, "c"), &rmqpb.Resource{ResourceNamespace: "shop", Name: "orders"}},
		{as(t, "c", headerNamespace, "shop"), &rmqpb.Resource{Name: "orders"}},
		{as(t, "c", headerNamespace, "other"), &rmqpb.Resource{ResourceNamespace: "shop", Name: "orders"}},
	} {
		res, err := s.QueryRoute(c.ctx, &rmqpb.QueryRouteRequest{Topic: c.topic, Endpoints: endpoints(0, "mq.test", 1)})
		require.NoError(t, err)
		require.Equal(t, rmqpb.Code_OK, res.GetStatus().GetCode())
		require.True(t, proto.Equal(c.topic, res.GetMessageQueues()[0].GetTopic()))
	}
	require.Equal(t, rmqpb.Code_TOPIC_NOT_FOUND, s.routeOf(t, as(t, "c"), "orders").GetStatus().GetCode())
}

func TestUnknownTopicIsNotFoundUntilItIsCreated(t *testing.T) {
	s := newTestServer(t)
	res := s.routeOf(t, as(t, "c"), "late")
	require.Equal(t, rmqpb.Code_TOPIC_NOT_FOUND, res.GetStatus().GetCode())
	require.Contains(t, res.GetStatus().GetMessage(), "perigee topic create late")
	require.Empty(t, res.GetMessageQueues())

	s.topic(t, "late")
	require.Equal(t, rmqpb.Code_OK, s.routeOf(t, as(t, "c"), "late").GetStatus().GetCode())
}

func TestUnknownTopicIsCreatedWhereTheRouterDoesThat(t *testing.T) {
	s := newTestServer(t, func(o *testOptions) { o.router.AutoCreateTopics = true })
	require.Len(t, s.routeOf(t, as(t, "c"), "fresh").GetMessageQueues(), router.DefaultQueues)
	s.send(t, message("fresher", "m", "body"))
	require.Len(t, s.leased(t, "fresher", "g", 9, 0), 1)
	// Names of retry topics stay unknown.
	require.Equal(t, rmqpb.Code_TOPIC_NOT_FOUND, s.routeOf(t, as(t, "c"), "%RETRY%g").GetStatus().GetCode())
}

func TestRouteRefusesIllegalNames(t *testing.T) {
	s := newTestServer(t)
	for _, name := range []string{"", " ", "a.b", "SCHEDULE_TOPIC_XXXX"} {
		res := s.routeOf(t, as(t, "c"), name)
		require.Equal(t, rmqpb.Code_ILLEGAL_TOPIC, res.GetStatus().GetCode(), name)
	}
	res := s.routeOf(t, as(t, "c", headerNamespace, "a/b"), "orders")
	require.Equal(t, rmqpb.Code_BAD_REQUEST, res.GetStatus().GetCode())
	require.Contains(t, res.GetStatus().GetMessage(), "namespace")
}

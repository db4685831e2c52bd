package etcd

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/perigee-mq/perigee/internal/tiercreds"
	"github.com/perigee-mq/perigee/router"
	"github.com/perigee-mq/perigee/router/remote"
)

// doors lead from names to routers that are served.
type doors struct {
	mu sync.Mutex
	to map[string]*bufconn.Listener
}

func (d *doors) dial(ctx context.Context, name string) (net.Conn, error) {
	d.mu.Lock()
	lis := d.to[name]
	d.mu.Unlock()
	if lis == nil {
		return nil, errors.New("connection refused")
	}
	return lis.DialContext(ctx)
}

func (d *doors) set(name string, lis *bufconn.Listener) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.to[name] = lis
}

// serve opens a door to a router, and returns what closes it.
func (d *doors) serve(t *testing.T, name string, r *router.Router) (stop func()) {
	nodes := router.NewRegistry(router.RegistryOptions{})
	s, err := remote.NewServer(t.Context(), remote.ServerOptions{Router: r, Registry: nodes})
	require.NoError(t, err)
	opts, err := tiercreds.Server(tiercreds.Options{})
	require.NoError(t, err)
	g := grpc.NewServer(opts...)
	s.Register(g)
	lis := bufconn.Listen(1 << 16)
	var serving sync.WaitGroup
	serving.Go(func() { _ = g.Serve(lis) })
	d.set(name, lis)
	return func() {
		d.set(name, nil)
		g.Stop()
		serving.Wait()
		nodes.Close()
	}
}

func (d *doors) client(t *testing.T, names ...string) *remote.Client {
	dial, err := tiercreds.Client(tiercreds.Options{})
	require.NoError(t, err)
	opts := remote.ClientOptions{Dial: append(dial, grpc.WithContextDialer(d.dial))}
	for _, name := range names {
		opts.Addresses = append(opts.Addresses, "passthrough:///"+name)
	}
	c, err := remote.Open(opts)
	require.NoError(t, err)
	require.NoError(t, c.Ready(t.Context()))
	return c
}

func TestARouterThatIsBehindIsFollowedWithoutGoingBack(t *testing.T) {
	inBubble(t, 2, func(t *testing.T, _ *fakeEtcd, peers []*peer) {
		d := &doors{to: map[string]*bufconn.Listener{}}
		stop := d.serve(t, "a", peers[0].Router)
		defer d.serve(t, "b", peers[1].Router)()
		second := d.to["b"]
		d.set("b", nil)
		c := d.client(t, "a", "b")
		defer func() { require.NoError(t, c.Close()) }()
		synctest.Wait()
		peers[1].line.set(func(l *line) { l.mu.deaf = true })
		topic, _, err := c.CreateTopic(t.Context(), router.TopicSpec{Resource: named("t")})
		require.NoError(t, err)
		require.Less(t, peers[1].Revision(), c.Revision())
		stop()
		d.set("b", second)
		time.Sleep(10 * time.Second)
		require.Equal(t, "passthrough:///b", c.Connected())
		require.NoError(t, c.Err())
		require.Equal(t, c.Revision(), peers[1].Revision())
		got, err := c.DeleteTopic(t.Context(), named("t"))
		require.NoError(t, err)
		require.Equal(t, topic, got)
	})
}

func TestWhatAnotherRouterHasJustMadeIsFound(t *testing.T) {
	inBubble(t, 2, func(t *testing.T, _ *fakeEtcd, peers []*peer) {
		d := &doors{to: map[string]*bufconn.Listener{}}
		defer d.serve(t, "b", peers[1].Router)()
		c := d.client(t, "b")
		defer func() { require.NoError(t, c.Close()) }()
		peers[1].line.set(func(l *line) { l.mu.lag = 200 * time.Millisecond })
		byName, err := create(peers[0], "name")
		require.NoError(t, err)
		got, err := c.Topic(t.Context(), byName.Resource)
		require.NoError(t, err)
		require.Equal(t, byName, got)
		byID, err := create(peers[0], "id")
		require.NoError(t, err)
		got, err = c.TopicByID(byID.ID)
		require.NoError(t, err)
		require.Equal(t, byID, got)
		g, _, err := peers[0].CreateGroup(t.Context(), router.GroupSpec{Resource: named("g")})
		require.NoError(t, err)
		group, err := c.GroupByID(g.ID)
		require.NoError(t, err)
		require.Equal(t, g, group)
	})
}

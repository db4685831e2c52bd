package remote

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/perigee-mq/perigee/internal/tiercreds"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

// A host is one router that can be stopped and started, and at whose address others dial.
type host struct {
	t       testing.TB
	name    string
	fs      vfs.FS
	opts    []grpc.ServerOption
	router  *router.Router
	server  *Server
	nodes   *router.Registry
	grpc    *grpc.Server
	serving sync.WaitGroup
}

// A network leads from addresses to hosts.
type network struct {
	mu sync.Mutex
	at map[string]*bufconn.Listener
}

func newNetwork() *network { return &network{at: map[string]*bufconn.Listener{}} }

func (n *network) set(name string, lis *bufconn.Listener) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.at[name] = lis
}

func (n *network) dial(ctx context.Context, name string) (net.Conn, error) {
	n.mu.Lock()
	lis := n.at[name]
	n.mu.Unlock()
	if lis == nil {
		return nil, errors.New("connection refused")
	}
	return lis.DialContext(ctx)
}

// A cable is what one process is on the network by.
type cable struct {
	network *network
	mu      sync.Mutex
	cut     bool
	conns   []*wire
}

// A wire is a connection that can go dead without anybody being told.
type wire struct {
	net.Conn
	mu   sync.Mutex
	dead chan struct{} // nil: it lives
}

func (w *wire) die() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dead = make(chan struct{})
}

func (w *wire) state() chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dead
}

// Read returns nothing of what comes over a dead wire.
func (w *wire) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	if dead := w.state(); dead != nil {
		<-dead
		return 0, net.ErrClosed
	}
	return n, err
}

// Write over a dead wire seems to work.
func (w *wire) Write(p []byte) (int, error) {
	if w.state() != nil {
		return len(p), nil
	}
	return w.Conn.Write(p)
}

func (w *wire) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dead != nil {
		select {
		case <-w.dead:
		default:
			close(w.dead)
		}
	}
	return w.Conn.Close()
}

// freeze lets every connection go dead; new ones can be made.
func (c *cable) freeze() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		conn.die()
	}
}

func (c *cable) dial(ctx context.Context, name string) (net.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cut {
		return nil, errors.New("network is unreachable")
	}
	conn, err := c.network.dial(ctx, name)
	if err != nil {
		return nil, err
	}
	w := &wire{Conn: conn}
	c.conns = append(c.conns, w)
	return w, nil
}

// pull cuts the process off, plug brings it back.
func (c *cable) pull() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = true
	for _, conn := range c.conns {
		conn.Close()
	}
	c.conns = nil
}

func (c *cable) plug() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = false
}

// on puts the client on the network by a cable.
func (c *cable) on(o *ClientOptions) {
	o.Dial = dialing(c.dial)
}

// dialing returns the options of clients without credentials.
func dialing(by func(context.Context, string) (net.Conn, error)) []grpc.DialOption {
	opts, err := tiercreds.Client(tiercreds.Options{})
	if err != nil {
		panic(err)
	}
	return append(opts, grpc.WithContextDialer(by))
}

// start starts the host on its file system.
func (h *host) start(n *network) {
	var err error
	h.router, err = router.Open(router.Options{FS: h.fs, Dir: "meta", AutoCreateTopics: true})
	require.NoError(h.t, err)
	_, err = h.router.AddShard(h.t.Context(), "s1")
	require.NoError(h.t, err)
	h.nodes = router.NewRegistry(router.RegistryOptions{})
	h.server, err = NewServer(h.t.Context(), ServerOptions{Router: h.router, Registry: h.nodes})
	require.NoError(h.t, err)
	opts := h.opts
	if opts == nil {
		opts, err = tiercreds.Server(tiercreds.Options{})
		require.NoError(h.t, err)
	}
	h.grpc = grpc.NewServer(opts...)
	h.server.Register(h.grpc)
	lis := bufconn.Listen(1 << 16)
	h.serving.Go(func() { _ = h.grpc.Serve(lis) })
	n.set(h.name, lis)
}

// stop takes the host down as a process that is killed: nobody is told.
func (h *host) stop(n *network) {
	n.set(h.name, nil)
	h.grpc.Stop()
	h.serving.Wait()
	h.nodes.Close()
	require.NoError(h.t, h.router.Close())
}

// A world is a network with routers in fake time.
type world struct {
	*testing.T
	network *network
	hosts   map[string]*host
}

func inWorld(t *testing.T, names string, f func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, network: newNetwork(), hosts: map[string]*host{}}
		for _, name := range strings.Fields(names) {
			w.hosts[name] = &host{t: t, name: name, fs: vfs.NewMem()}
			w.hosts[name].start(w.network)
		}
		defer func() {
			for _, h := range w.hosts {
				if w.network.at[h.name] != nil {
					h.stop(w.network)
				}
			}
		}()
		f(w)
	})
}

func (w *world) options(addresses string) ClientOptions {
	opts := ClientOptions{Dial: dialing(w.network.dial)}
	for _, a := range strings.Fields(addresses) {
		opts.Addresses = append(opts.Addresses, "passthrough:///"+a)
	}
	return opts
}

func (w *world) open(opts ClientOptions) *Client {
	c, err := Open(opts)
	require.NoError(w, err)
	w.Cleanup(func() { require.NoError(w, c.Close()) })
	return c
}

// client opens a client that knows the routers named and waits until it is ready.
func (w *world) client(addresses string, edit ...func(*ClientOptions)) *Client {
	opts := w.options(addresses)
	for _, f := range edit {
		f(&opts)
	}
	c := w.open(opts)
	require.NoError(w, c.Ready(w.Context()))
	return c
}

// settle lets everything happen that happens within d.
func (w *world) settle(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func named(s string) mq.Resource { return mq.Resource{Name: s} }

func (w *world) topic(h *host, name string) *mq.Topic {
	w.Helper()
	t, created, err := h.router.CreateTopic(w.Context(), router.TopicSpec{Resource: named(name)})
	require.NoError(w, err)
	require.True(w, created)
	return t
}

// requireSame fails unless the client shows what the router does.
func requireSame(t require.TestingT, r *router.Router, c *Client) {
	all := router.Selection{AllNamespaces: true, DeadLetters: true, SystemGroups: true}
	ctx := context.Background()
	require.Equal(t, r.Revision(), c.Revision())
	require.Equal(t, r.ListTopics(ctx, all), c.ListTopics(ctx, all))
	require.Equal(t, r.ListGroups(ctx, all), c.ListGroups(ctx, all))
	require.Equal(t, r.Shards(), c.Shards())
	rt, rg := r.LastIDs()
	ct, cg := c.LastIDs()
	require.Equal(t, []any{rt, rg}, []any{ct, cg})
}

// A logBuffer keeps what is logged.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func (b *logBuffer) logger() *slog.Logger { return slog.New(slog.NewTextHandler(b, nil)) }

// cloneOf returns a copy of a file system.
func cloneOf(t require.TestingT, fs vfs.FS) *vfs.MemFS {
	to := vfs.NewMem()
	ok, err := vfs.Clone(fs, to, "meta", "meta")
	require.NoError(t, err)
	require.True(t, ok)
	return to
}

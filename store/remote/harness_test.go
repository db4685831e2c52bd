package remote_test

import (
	"context"
	"fmt"
	"net"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/remote"
)

// A cluster is nodes that a client can reach in memory.
type cluster struct {
	t      *testing.T
	mu     sync.Mutex
	nodes  map[string]*testNode // by address
	shards map[string]string    // address by shard
}

// A testNode is one node, which can be stopped and started.
type testNode struct {
	listener *bufconn.Listener
	server   *remote.Server
	grpc     *grpc.Server
}

func newCluster(t *testing.T) *cluster {
	return &cluster{t: t, nodes: map[string]*testNode{}, shards: map[string]string{}}
}

// start starts a node that serves shards from a store.
func (c *cluster) start(addr string, store remote.Store, shards ...string) *testNode {
	n := &testNode{listener: bufconn.Listen(1 << 20)}
	n.server = remote.NewServer(remote.ServerOptions{Store: store, CompileFilter: compile})
	n.grpc = grpc.NewServer(remote.GRPCOptions()...)
	n.server.Register(n.grpc)
	go func() { _ = n.grpc.Serve(n.listener) }()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes[addr] = n
	for _, s := range shards {
		c.shards[s] = addr
	}
	return n
}

// stop ends the node at once, as a crash does.
func (n *testNode) stop() { n.grpc.Stop() }

func (c *cluster) stopAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.nodes {
		n.grpc.Stop()
	}
}

func (c *cluster) NodeOf(shard string) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if addr := c.shards[shard]; addr != "" {
		return addr, nil
	}
	return "", fmt.Errorf("%w: %s", mq.ErrShardNotFound, shard)
}

func (c *cluster) Nodes() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []string
	for addr := range c.nodes {
		list = append(list, addr)
	}
	return list
}

func (c *cluster) client() *remote.Client {
	return remote.NewClient(remote.Options{Directory: c, Dial: []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(c.dialer),
	}})
}

// dialer finds the node by what gRPC leaves of its address.
func (c *cluster) dialer(ctx context.Context, addr string) (net.Conn, error) {
	c.mu.Lock()
	n := c.nodes["passthrough:///"+addr]
	c.mu.Unlock()
	if n == nil {
		return nil, fmt.Errorf("nobody listens at %s", addr)
	}
	return n.listener.DialContext(ctx)
}

// one runs fn with a client of one node, "passthrough:///node", that serves "s" from a
// store.
func one(t *testing.T, store remote.Store, fn func(c *cluster, n *testNode, client *remote.Client)) {
	c := newCluster(t)
	n := c.start(nodeA, store, "s")
	client := c.client()
	fn(c, n, client)
	require.NoError(t, client.Close())
	c.stopAll()
}

const (
	nodeA = "passthrough:///a"
	nodeB = "passthrough:///b"
)

// filter is one whose text is all there is of it.
type filter string

func (f filter) String() string           { return string(f) }
func (f filter) Matches(_, _ []byte) bool { return true }

func compile(expression string) (mq.Filter, error) {
	if expression == "bad" {
		return nil, fmt.Errorf("%w: at 1:1", mq.ErrIllegalFilter)
	}
	return filter(expression), nil
}

// fill sets everything in v that can be set to something that is not zero and nowhere
// else.
func fill(v reflect.Value, n *int) {
	*n++
	switch v.Type() {
	case reflect.TypeFor[time.Time]():
		v.Set(reflect.ValueOf(time.Unix(0, int64(*n)*1e9+7)))
		return
	case reflect.TypeFor[mq.Filter]():
		v.Set(reflect.ValueOf(filter(fmt.Sprint("filter", *n))))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(fmt.Sprint("text", *n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(int64(*n%100 + 1))
	case reflect.Float64:
		v.SetFloat(float64(*n%100 + 1))
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(*n%100 + 1))
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), n)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(v.Index(i), n)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range 2 {
			key, val := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fill(key, n)
			fill(val, n)
			v.SetMapIndex(key, val)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Func, reflect.Interface:
	default:
		panic(v.Type().String())
	}
}

// filled returns a T with every field set.
func filled[T any](n *int) T {
	var v T
	fill(reflect.ValueOf(&v).Elem(), n)
	return v
}

func topic() *mq.Topic {
	return &mq.Topic{
		ID: 7, Resource: mq.Resource{Name: "orders"}, Type: mq.TopicNormal, Permission: mq.PermReadWrite,
		Shards: []mq.ShardQueues{{Shard: "s", Read: 8, Write: 8}}, Retention: time.Hour, Dedup: time.Minute, Version: 3,
	}
}

func group() *mq.Group {
	return &mq.Group{
		ID: 9, Resource: mq.Resource{Name: "billing"}, Retry: mq.DefaultRetryPolicy(), DeadLetter: 8, DeadLetterShard: "s", Version: 2,
	}
}

package crashtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
)

// A deployment is a router, two store nodes and two proxies, in processes of their own.
type deployment struct {
	router  *server
	names   []string // of the store nodes, and of their shards
	stores  []*server
	proxies []*server
	// homes has a message group for each shard that has its place there.
	homes map[string]string
}

func newDeployment(t *testing.T, bin, flush string) *deployment {
	t.Helper()
	at := ownAddress(t)
	d := &deployment{router: newProcess(t, bin, "router", "--listen", at), names: []string{"a", "b"}}
	for _, name := range d.names {
		d.stores = append(d.stores, newProcess(t, bin, "store", "--name", name, "--router", at, "--listen", ownAddress(t),
			"--flush", flush, "--segment-size", "4352KiB"))
	}
	for i := range 2 {
		d.proxies = append(d.proxies, newProcess(t, bin, "proxy", "--name", fmt.Sprint("p", i), "--router", at, "--grpc-listen", "127.0.0.1:0",
			"--tls-mode", "disabled", "--max-body-size", "64KiB"))
	}
	return d
}

// ownAddress returns an address that is free again whenever its process is not there: the
// host is one that nothing else connects from.
func ownAddress(t *testing.T) string {
	t.Helper()
	host := fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), 1+rand.IntN(254), 1+rand.IntN(254))
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Skipf("this system has one loopback address only: %v", err)
	}
	defer l.Close()
	return l.Addr().String()
}

// all returns the processes in the order in which they start.
func (d *deployment) all() []*server {
	return append(append([]*server{d.router}, d.stores...), d.proxies...)
}

func (d *deployment) start() (time.Duration, error) {
	began := time.Now()
	for _, s := range d.all() {
		if s.running() {
			continue
		}
		if _, err := s.start(); err != nil {
			return 0, fmt.Errorf("%s: %w", s.command[0], err)
		}
	}
	return time.Since(began), nil
}

func (d *deployment) down() {
	for _, s := range d.all() {
		s.down()
	}
}

func (d *deployment) shards() []string { return d.names }

func (d *deployment) checkAll(t *testing.T) {
	for _, s := range d.stores {
		s.check(t)
	}
}

// connection leads through any proxy.
func (d *deployment) connection(ctx context.Context) (*grpc.ClientConn, error) {
	return through{d, rand.IntN(len(d.proxies))}.connection(ctx)
}

func (d *deployment) client(number int) (calls, settles way) { return through{d, number}, d }

// through is the way through one proxy, and through another one while that is away.
type through struct {
	d      *deployment
	number int
}

func (w through) connection(ctx context.Context) (*grpc.ClientConn, error) {
	for {
		for i := range w.d.proxies {
			if conn := w.d.proxies[(w.number+i)%len(w.d.proxies)].current(); conn != nil {
				return conn, nil
			}
		}
		if !pause(ctx, 5*time.Millisecond) {
			return nil, ctx.Err()
		}
	}
}

// createOn creates a topic once it comes onto as many shards: the router hears late of
// store nodes.
func (d *deployment) createOn(t *testing.T, shards int, req *adminpb.CreateTopicRequest) *adminpb.Topic {
	t.Helper()
	conn, err := d.connection(t.Context())
	require.NoError(t, err)
	admin := adminpb.NewAdminServiceClient(conn)
	var topic *adminpb.Topic
	require.Eventually(t, func() bool {
		resp, err := admin.CreateTopic(t.Context(), req)
		if topic = resp.GetTopic(); err == nil && len(topic.GetShards()) == shards {
			return true
		}
		_, _ = admin.DeleteTopic(t.Context(), &adminpb.DeleteTopicRequest{Name: req.GetName()}) // it may not be there
		return false
	}, time.Minute, 50*time.Millisecond, req.GetName())
	return topic
}

// probeTopic has message groups by which a shard is found.
const probeTopic = "probe"

// prepare finds out which message groups have their places where.
func (d *deployment) prepare(t *testing.T) {
	d.createOn(t, len(d.names), &adminpb.CreateTopicRequest{Name: probeTopic, Type: adminpb.TopicType_TOPIC_TYPE_FIFO, Queues: 1})
	d.homes = map[string]string{}
	conn, err := d.connection(t.Context())
	require.NoError(t, err)
	full := map[string]int64{}
	for i := range 100 {
		if len(d.homes) == len(d.names) {
			return
		}
		group := fmt.Sprint("home-", i)
		// One that was just started may not have found all store nodes.
		require.Eventually(t, func() bool { return probe(t.Context(), conn, group) == rmqpb.Code_OK }, time.Minute, 50*time.Millisecond)
		resp, err := adminpb.NewAdminServiceClient(conn).GetTopic(t.Context(), &adminpb.GetTopicRequest{Name: probeTopic})
		require.NoError(t, err)
		for _, q := range resp.GetQueues() {
			if q.GetMaxOffset() > full[q.GetShard()] {
				full[q.GetShard()] = q.GetMaxOffset()
				d.homes[q.GetShard()] = group
			}
		}
	}
	require.Len(t, d.homes, len(d.names), "message groups are at home on the shards %v", d.homes)
}

// probe sends a message of a message group and returns the answer.
func probe(ctx context.Context, conn *grpc.ClientConn, group string) rmqpb.Code {
	ctx, cancel := call(ctx, "probe", 5*time.Second)
	defer cancel()
	resp, err := rmqpb.NewMessagingServiceClient(conn).SendMessage(ctx, &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{{
		Topic: &rmqpb.Resource{Name: probeTopic}, Body: []byte("probe"),
		SystemProperties: &rmqpb.SystemProperties{MessageId: fmt.Sprint("probe-", rand.Uint64()), MessageType: rmqpb.MessageType_FIFO, MessageGroup: &group},
	}}})
	if err != nil {
		return rmqpb.Code_CODE_UNSPECIFIED
	}
	return resp.GetStatus().GetCode()
}

// awaitReach waits until proxies that run reach the shards: what has its place there is
// stored through them.
func (d *deployment) awaitReach(t *testing.T, proxies []*server, shards ...string) time.Duration {
	t.Helper()
	began := time.Now()
	for _, p := range proxies {
		for _, shard := range shards {
			for conn := p.current(); conn != nil && probe(t.Context(), conn, d.homes[shard]) != rmqpb.Code_OK; conn = p.current() {
				require.Less(t, time.Since(began), goOn, "a proxy does not find store node %s", shard)
				require.True(t, pause(t.Context(), 20*time.Millisecond))
			}
		}
	}
	return time.Since(began)
}

// goOn bounds the wait until clients go on without a process. They notice that it is gone
// within seconds.
const goOn = 30 * time.Second

// onlyForDeployments leaves a test to make clustertest: it takes minutes.
func onlyForDeployments(t *testing.T) {
	if os.Getenv("PERIGEE_DEPLOYMENT") == "" {
		t.Skip("set PERIGEE_DEPLOYMENT, as make clustertest does")
	}
}

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
)

// A deployment is a router, two store nodes and two proxies, in processes of their own.
type deployment struct {
	router  *server
	names   []string // of the store nodes, and of their shards
	stores  []*server
	proxies []*server
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

// routerAway is how long the router is away at least: longer than the lease of a node.
const routerAway = 12 * time.Second

// goOn bounds the wait until clients go on without a process. They notice that it is gone
// within seconds.
const goOn = 30 * time.Second

// onlyForDeployments leaves a test to make clustertest: it takes minutes.
func onlyForDeployments(t *testing.T) {
	if os.Getenv("PERIGEE_DEPLOYMENT") == "" {
		t.Skip("set PERIGEE_DEPLOYMENT, as make clustertest does")
	}
}

// TestADeploymentKeepsWhatItAnsweredWhicheverProcessesAreKilled kills proxies and store nodes
// at random, some of it while the router is away, and all of them at once in the end. The
// other shard, and the other proxy, go on meanwhile.
func TestADeploymentKeepsWhatItAnsweredWhicheverProcessesAreKilled(t *testing.T) {
	onlyForDeployments(t)
	kills, modes := int(number(t, "PERIGEE_KILLS", 4)), []string{"sync", "async"}
	if testing.Short() {
		kills, modes = min(kills, 4), modes[:1]
	}
	seed := number(t, "PERIGEE_SEED", rand.Uint64())
	bin := binary(t)
	for _, flush := range modes {
		t.Run(flush, func(t *testing.T) {
			t.Logf("PERIGEE_SEED=%d", seed)
			d := newDeployment(t, bin, flush)
			r := &run{t: t, column: "deployed, " + flush, server: d, loads: newLoads(), rng: rand.New(rand.NewPCG(seed, 0))}
			r.run(func(ctx context.Context) { r.killParts(ctx, d, kills) })
		})
	}
}

// killParts kills processes. In the middle third the router is away.
func (r *run) killParts(ctx context.Context, d *deployment, kills int) {
	ways := []func(){
		func() { r.killProxies(ctx, d, d.proxies[r.rng.IntN(len(d.proxies))]) },
		func() { r.killStore(ctx, d, 0) },
		func() { r.killProxies(ctx, d, d.proxies...) },
		func() { r.killStore(ctx, d, 1) },
		func() { r.killProxies(ctx, d, d.proxies[r.rng.IntN(len(d.proxies))]) },
	}
	var plan []func()
	for i := range kills {
		plan = append(plan, ways[i%len(ways)])
	}
	r.rng.Shuffle(len(plan), func(i, j int) { plan[i], plan[j] = plan[j], plan[i] })
	var away time.Time
	for i, kill := range plan {
		if i == kills/3 {
			r.killed["router"]++
			d.router.down()
			away = time.Now()
		}
		if i == (2*kills+2)/3 {
			r.bringBack(ctx, d, away)
		}
		require.True(r.t, pause(ctx, 100*time.Millisecond+r.upTo(900*time.Millisecond)))
		kill()
	}
	r.bringBack(ctx, d, away)
}

// bringBack starts the router again once it has been away for long. Until then clients go on.
func (r *run) bringBack(ctx context.Context, d *deployment, away time.Time) {
	if d.router.running() {
		return
	}
	require.True(r.t, pause(ctx, max(time.Until(away.Add(routerAway)), time.Millisecond)))
	r.goesOn(ctx, "without a router", d.names...)
	r.again(d.router)
}

func (r *run) again(s *server) {
	took, err := s.start()
	require.NoError(r.t, err, s.command[0])
	r.recoveries = append(r.recoveries, took)
}

// killProxies kills proxies. Unless those were all, clients go on before they are back.
func (r *run) killProxies(ctx context.Context, d *deployment, proxies ...*server) {
	r.killed[fmt.Sprintf("%d of 2 proxies", len(proxies))]++
	for _, p := range proxies {
		p.down()
		r.cutOff()
	}
	if len(proxies) < len(d.proxies) {
		r.goesOn(ctx, "through the other proxy", d.names...)
	}
	for _, p := range proxies {
		r.again(p)
	}
}

// killStore kills a store node. What is on the other one goes on before it is back.
func (r *run) killStore(ctx context.Context, d *deployment, number int) {
	r.killed["store node"]++
	d.stores[number].down()
	r.cutOff()
	r.goesOn(ctx, "without store node "+d.names[number], d.names[1-number])
	r.again(d.stores[number])
}

// goesOn waits until more has been answered, and delivered from the shards.
func (r *run) goesOn(ctx context.Context, how string, shards ...string) {
	r.t.Helper()
	const more = 20
	before := r.sum()
	began := time.Now()
	for {
		now := r.sum()
		on := now.acked >= before.acked+more
		for _, shard := range shards {
			on = on && now.from[shard] >= before.from[shard]+more
		}
		if on {
			break
		}
		require.Less(r.t, time.Since(began), goOn, "%s: %d sends answered, deliveries by shard %v, before %v", how, now.acked-before.acked, now.from, before.from)
		require.True(r.t, pause(ctx, 20*time.Millisecond))
	}
	r.longest = max(r.longest, time.Since(began))
}

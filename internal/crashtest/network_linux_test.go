package crashtest

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The hosts of a deployment, one for each process.
var (
	hostOfRouter   = "r"
	hostsOfStores  = []string{"a", "b"}
	hostsOfProxies = []string{"p", "q"}
)

// newSpreadDeployment is newDeployment with each process on a host of its own. Clients are on
// the hosts of the proxies.
func newSpreadDeployment(t *testing.T, bin, flush string, l *lan) *deployment {
	t.Helper()
	on := func(host string, command ...string) *server {
		s := newProcess(t, bin, command...)
		s.in, s.dial = []string{"ip", "netns", "exec", l.prefix + host}, l.dial(host)
		return s
	}
	at := l.address(hostOfRouter) + ":8082"
	d := &deployment{router: on(hostOfRouter, "router", "--listen", at), names: hostsOfStores}
	for _, host := range hostsOfStores {
		d.stores = append(d.stores, on(host, "store", "--name", host, "--router", at, "--listen", l.address(host)+":8083", "--flush", flush, "--segment-size", "4352KiB"))
	}
	for _, host := range hostsOfProxies {
		d.proxies = append(d.proxies, on(host, "proxy", "--name", host, "--router", at, "--grpc-listen", "127.0.0.1:8081",
			"--tls-mode", "disabled", "--max-body-size", "64KiB"))
	}
	return d
}

// silence is longer than it takes until a connection that says nothing is given up, and until
// the routers do not name a node any more.
const silence = 16 * time.Second

// TestADeploymentOverABadNetworkAnswersInTimeAndLosesNothing: packets between proxies and
// store nodes are slow, then some are lost, then all of one store node, then all of one
// proxy. Nobody is told of any of it. In the end the network is well, and all is judged.
func TestADeploymentOverABadNetworkAnswersInTimeAndLosesNothing(t *testing.T) {
	onlyForDeployments(t)
	if testing.Short() {
		t.Skip("it waits for connections that say nothing")
	}
	seed := number(t, "PERIGEE_SEED", rand.Uint64())
	t.Logf("PERIGEE_SEED=%d", seed)
	l := newLAN(t, seed, slices.Concat([]string{hostOfRouter}, hostsOfStores, hostsOfProxies)...)
	d := newSpreadDeployment(t, binary(t), "sync", l)
	r := &run{t: t, column: "bad network", server: d, loads: newLoads(), rng: rand.New(rand.NewPCG(seed, 0))}
	r.run(func(ctx context.Context) {
		n := &network{r, l, d, ctx}
		n.phase("well", link{}, nil, hostsOfStores, hostsOfProxies, 3*time.Second)
		for _, delay := range []time.Duration{50 * time.Millisecond, 200 * time.Millisecond} {
			n.phase(fmt.Sprint(delay, " more each way"), link{delay: delay}, nil, hostsOfStores, hostsOfProxies, 6*time.Second)
		}
		for _, share := range []float64{0.05, 0.2} {
			// A connection may break when packets are lost for long.
			n.phase(fmt.Sprintf("50 to 200ms more, %.0f%% lost", 100*share),
				link{delay: 50 * time.Millisecond, jitter: 150 * time.Millisecond, loss: share}, hostsOfStores, hostsOfStores, hostsOfProxies, 8*time.Second)
		}
		n.phase("store node a is cut off from the proxies", link{cut: true}, hostsOfStores[:1], hostsOfStores[:1], hostsOfProxies, silence)
		n.phase("proxy p is cut off from all", link{cut: true}, hostsOfStores, hostsOfProxies[:1], append([]string{hostOfRouter}, hostsOfStores...), silence)
	})
}

// A network lets clients work while it is bad.
type network struct {
	*run
	lan *lan
	d   *deployment
	ctx context.Context
}

// phase lets the links between hosts be bad for a while, and waits until clients go on once
// they are well again. away are the shards that a proxy may lose.
func (n *network) phase(name string, how link, away, some, others []string, d time.Duration) {
	n.t.Helper()
	before := n.sum()
	began := time.Now()
	over, mended := n.outages.begin(away...), func() {}
	if len(away) > 0 {
		mended = n.cuts.begin(anything...)
	}
	n.lan.set(how, some, others)
	require.True(n.t, pause(n.ctx, d))
	during := n.sum()
	n.lan.set(link{}, some, others)
	healed := time.Now()
	n.goesOn(n.ctx, "after "+name, n.d.names...)
	n.d.awaitReach(n.t, n.d.proxies, n.d.names...)
	n.reached = max(n.reached, time.Since(healed))
	mended()
	over()
	sends, got := during.acked-before.acked, during.delivered-before.delivered
	n.t.Logf("%s, %v: %d messages answered OK, %d delivered; all went on %v after it", name, time.Since(began).Round(time.Second), sends, got, time.Since(healed).Round(time.Millisecond))
	require.Positive(n.t, sends, "%s: no send was answered", name)
	require.Positive(n.t, got, "%s: nothing was delivered", name)
	failed := n.sum().failed
	for why, count := range before.failed {
		failed[why] -= count
	}
	for _, why := range slices.Sorted(maps.Keys(failed)) {
		if failed[why] == 0 {
			continue
		}
		n.t.Logf("    %d sends: %s", failed[why], why)
		clear := strings.HasPrefix(why, "TOO_MANY_REQUESTS: ") || strings.HasPrefix(why, "PROXY_TIMEOUT: ")
		if !strings.HasPrefix(why, "without an answer: DeadlineExceeded") { // a machine that stands still for long
			require.True(n.t, clear && (strings.Contains(why, "store node") || strings.Contains(why, "shard")), "%s: a send was answered with %s", name, why)
		}
	}
}

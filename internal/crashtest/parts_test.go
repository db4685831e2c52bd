package crashtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// cached is long enough until every process has written down what it knows, which each does
// behind every change and once a second at most.
const cached = 5 * time.Second

// routerAway is how long the router is away at least: longer than the lease of a node.
const routerAway = 12 * time.Second

// TestADeploymentKeepsWhatItAnsweredWhicheverProcessesAreKilled kills proxies and store nodes
// at random, alone and together, some of it while the router is away, and all of them at once
// in the end. The other shard, and the other proxy, go on meanwhile. In one run there is no
// router from the first message to the last one.
func TestADeploymentKeepsWhatItAnsweredWhicheverProcessesAreKilled(t *testing.T) {
	onlyForDeployments(t)
	kills := int(number(t, "PERIGEE_KILLS", 4))
	modes := []struct {
		name, flush string
		noRouter    bool
	}{{"sync", "sync", false}, {"async", "async", false}, {"no router", "sync", true}}
	if testing.Short() {
		kills, modes = min(kills, 4), modes[:1]
	}
	seed := number(t, "PERIGEE_SEED", rand.Uint64())
	bin := binary(t)
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			t.Logf("PERIGEE_SEED=%d", seed)
			d := newDeployment(t, bin, mode.flush)
			r := &run{t: t, column: "deployed, " + mode.name, server: d, loads: newLoads(), rng: rand.New(rand.NewPCG(seed, 0))}
			if mode.noRouter {
				r.before = func() {
					require.True(t, pause(t.Context(), cached))
					r.killed["router"]++
					d.router.down()
				}
			}
			r.run(func(ctx context.Context) {
				if !mode.noRouter {
					require.True(t, pause(ctx, cached))
				}
				r.killParts(ctx, d, kills, !mode.noRouter)
				require.Equal(t, mode.noRouter, !d.router.running())
			})
		})
	}
}

// killParts kills processes. In the middle third the router is away, if it has been there.
func (r *run) killParts(ctx context.Context, d *deployment, kills int, router bool) {
	any := func() *server { return d.proxies[r.rng.IntN(len(d.proxies))] }
	ways := []func(){
		func() { r.killProxies(ctx, d, any()) },
		func() { r.killStore(ctx, d, 0) },
		func() { r.killProxies(ctx, d, d.proxies...) },
		func() { r.killStore(ctx, d, 1) },
		func() { r.killStore(ctx, d, r.rng.IntN(len(d.stores)), any()) },
	}
	var plan []func()
	for i := range kills {
		plan = append(plan, ways[i%len(ways)])
	}
	r.rng.Shuffle(len(plan), func(i, j int) { plan[i], plan[j] = plan[j], plan[i] })
	var away time.Time
	for i, kill := range plan {
		if router && i == kills/3 {
			r.killed["router"]++
			d.router.down()
			away = time.Now()
		}
		if router && i == (2*kills+2)/3 {
			r.bringBack(ctx, d, away)
		}
		require.True(r.t, pause(ctx, 100*time.Millisecond+r.upTo(900*time.Millisecond)))
		kill()
	}
	if router {
		r.bringBack(ctx, d, away)
	}
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

// againProxies starts proxies. Until they have found all store nodes a send may go around
// one.
func (r *run) againProxies(d *deployment, proxies ...*server) {
	over := r.outages.begin(d.names...)
	for _, p := range proxies {
		r.again(p)
	}
	d.awaitReach(r.t, proxies, d.names...)
	over()
}

// killProxies kills proxies. Unless those were all, clients go on before they are back.
func (r *run) killProxies(ctx context.Context, d *deployment, proxies ...*server) {
	r.killed[fmt.Sprintf("%d of 2 proxies", len(proxies))]++
	for _, p := range proxies {
		r.cutting(p.down)
	}
	if len(proxies) < len(d.proxies) {
		r.goesOn(ctx, "through the other proxy", d.names...)
	}
	r.againProxies(d, proxies...)
}

// killStore kills a store node, and proxies with it. What is on the other one goes on before
// they are back.
func (r *run) killStore(ctx context.Context, d *deployment, number int, proxies ...*server) {
	what := "store node"
	if len(proxies) > 0 {
		what += " and proxy"
	}
	r.killed[what]++
	over := r.outages.begin(d.names[number])
	r.cutting(d.stores[number].down)
	for _, p := range proxies {
		r.cutting(p.down)
	}
	r.goesOn(ctx, "without store node "+d.names[number], d.names[1-number])
	r.again(d.stores[number])
	r.reached = max(r.reached, d.awaitReach(r.t, d.proxies, d.names[number]))
	if len(proxies) > 0 {
		r.againProxies(d, proxies...)
	}
	over()
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

package crashtest

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// binaryOf returns a server that calls itself by a version.
func binaryOf(t *testing.T, version string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "perigee-"+version)
	cmd := exec.Command("go", "build", "-ldflags", "-X main.version="+version, "-o", path, "../../cmd/perigee")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "go build: %s", out)
	return path
}

// versions returns the version of each process that the deployment knows of.
func (d *deployment) versions(t *testing.T) map[string]string {
	t.Helper()
	out := command(t, d.proxies[0].bin, "cluster", "status", "--json", "--endpoint", d.endpoint(t))
	type node struct{ Name, Version string }
	var status struct{ Stores, Proxies []node }
	require.NoError(t, json.Unmarshal([]byte(out), &status), out)
	versions := map[string]string{}
	for _, n := range append(status.Stores, status.Proxies...) {
		versions[n.Name] = n.Version
	}
	return versions
}

// TestADeploymentIsUpgradedWhileItWorksAndLosesNothing replaces the program of every process, one
// at a time: the router, the store nodes, the proxies. Clients go on after each. Then it goes back
// the same way, as after an upgrade that somebody regrets.
func TestADeploymentIsUpgradedWhileItWorksAndLosesNothing(t *testing.T) {
	onlyForDeployments(t)
	old, next := binaryOf(t, "v1"), binaryOf(t, "v2")
	seed := number(t, "PERIGEE_SEED", rand.Uint64())
	t.Logf("PERIGEE_SEED=%d", seed)
	d := newDeployment(t, old, "sync")
	r := &run{t: t, column: "upgraded", server: d, loads: newLoads(), rng: rand.New(rand.NewPCG(seed, 0))}
	r.run(func(ctx context.Context) {
		want := map[string]string{"a": "v1", "b": "v1", "p0": "v1", "p1": "v1"}
		require.Equal(t, want, d.versions(t))
		r.replace(ctx, d, next)
		require.Equal(t, map[string]string{"a": "v2", "b": "v2", "p0": "v2", "p1": "v2"}, d.versions(t))
		r.replace(ctx, d, old)
		require.Equal(t, want, d.versions(t))
	})
}

// replace stops each process in order and starts another program over its data.
func (r *run) replace(ctx context.Context, d *deployment, bin string) {
	for _, s := range d.all() {
		r.killed["stopped to be replaced"]++
		s.terminate(30 * time.Second)
		s.bin = bin
		r.again(s)
		r.goesOn(ctx, "with the next "+s.command[0], d.names...)
	}
}

package crashtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// command runs a command line and returns its output; it must succeed.
func command(t *testing.T, bin string, args ...string) string {
	t.Helper()
	out, err := tryCommand(t, bin, args...)
	require.NoError(t, err, "perigee %s: %s", strings.Join(args, " "), out)
	return out
}

func tryCommand(t *testing.T, bin string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), bin, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// endpoint returns the address of the first proxy.
func (d *deployment) endpoint(t *testing.T) string {
	t.Helper()
	conn, err := d.proxies[0].connection(t.Context())
	require.NoError(t, err)
	return strings.TrimPrefix(conn.Target(), "passthrough:///")
}

// messages returns the ids of messages that a command prints.
func (d *deployment) messages(t *testing.T, args ...string) (ids []string) {
	t.Helper()
	out := command(t, d.proxies[0].bin, append(args, "--json", "--endpoint", d.endpoint(t))...)
	for line := range strings.Lines(out) {
		var m struct {
			ID string `json:"message_id"`
		}
		require.NoError(t, json.Unmarshal([]byte(line), &m), line)
		ids = append(ids, m.ID)
	}
	slices.Sort(ids)
	return ids
}

func (d *deployment) topic(t *testing.T, name string) {
	t.Helper()
	require.Eventually(t, func() bool { // both store nodes are to be there
		out, _ := tryCommand(t, d.proxies[0].bin, "cluster", "status", "--endpoint", d.endpoint(t))
		return strings.Contains(out, "p1") && !strings.Contains(out, "no store node") && strings.Count(out, "active") == 2
	}, time.Minute, 100*time.Millisecond)
	command(t, d.proxies[0].bin, "topic", "create", name, "--endpoint", d.endpoint(t))
}

// over returns a process with the same command over another data folder.
func (s *server) over(t *testing.T, dataDir string) *server {
	t.Helper()
	again := newProcess(t, s.bin, s.command...)
	again.dataDir = dataDir
	return again
}

// forgetRouters removes what a process knows of the metadata.
func (s *server) forgetRouters(t *testing.T) {
	t.Helper()
	require.NoError(t, os.Remove(filepath.Join(s.dataDir, "router", "router-cache")))
}

// TestADeploymentIsBackedUpAndRestoredTierByTier backs up real processes at work, store nodes
// first and the router last, and brings back all of them, then the router alone beside newer store
// nodes, then a store node alone beside newer metadata.
func TestADeploymentIsBackedUpAndRestoredTierByTier(t *testing.T) {
	if testing.Short() {
		t.Skip("starts and stops many processes")
	}
	bin := binary(t)
	d := newDeployment(t, bin, "sync")
	_, err := d.start()
	require.NoError(t, err)
	d.topic(t, "orders")
	settled := d.messages(t, "send", "orders", "settled", "--count", "20")
	require.Equal(t, settled, d.messages(t, "receive", "orders", "--group", "g", "--max", "32"))
	before := d.messages(t, "send", "orders", "before", "--count", "40")

	dir := t.TempDir()
	target := func(s *server) string { return filepath.Join(dir, "backup-"+filepath.Base(filepath.Dir(s.dataDir))) }
	kept := append(slices.Clone(d.stores), d.router)
	for _, s := range kept {
		out := command(t, bin, "backup", "--data-dir", s.dataDir, "--to", target(s))
		require.Contains(t, out, "backup of a "+s.command[0])
		require.Contains(t, command(t, bin, "check", "--data-dir", target(s)), "backup of a ")
	}
	// Since then.
	require.Equal(t, before, d.messages(t, "receive", "orders", "--group", "g", "--max", "64"))
	after := d.messages(t, "send", "orders", "after", "--count", "10")
	d.topic(t, "newer")
	newer := d.messages(t, "send", "newer", "x", "--count", "10")
	d.down()

	restore := func(s *server, name string, args ...string) *server {
		to := filepath.Join(dir, name)
		command(t, bin, append([]string{"restore", "--from", target(s), "--data-dir", to}, args...)...)
		command(t, bin, "check", "--data-dir", to)
		return s.over(t, to)
	}
	proxies := func(name string) (list []*server) {
		for i, p := range d.proxies {
			list = append(list, p.over(t, filepath.Join(dir, fmt.Sprint(name, i))))
		}
		return list
	}

	// All of it.
	all := &deployment{
		router: restore(d.router, "all-router"), names: d.names, proxies: proxies("all-proxy"),
		stores: []*server{restore(d.stores[0], "all-a"), restore(d.stores[1], "all-b")},
	}
	_, err = all.start()
	require.NoError(t, err)
	require.Equal(t, before, all.messages(t, "receive", "orders", "--group", "g", "--max", "64"),
		"what was acknowledged since comes again, what was sent since is lost")
	all.topic(t, "newer")
	again := all.messages(t, "send", "newer", "x", "--count", "5")
	require.Equal(t, again, all.messages(t, "receive", "newer", "--group", "g", "--max", "64"))
	all.down()
	all.checkAll(t)

	// The router alone: the store nodes are newer.
	older := &deployment{router: restore(d.router, "older-router"), names: d.names, proxies: proxies("older-proxy"), stores: d.stores}
	_, err = older.router.start()
	require.NoError(t, err)
	d.stores[0].forgetRouters(t)
	_, err = d.stores[0].start()
	require.Error(t, err, "it has a topic that the router has never known")
	log, err := os.ReadFile(d.stores[0].log.Name())
	require.NoError(t, err)
	require.Contains(t, string(log), "it has never known")
	older.router.down()
	older.router = restore(d.router, "giving-router", "--give-up-newer")
	d.stores[1].forgetRouters(t)
	_, err = older.start()
	require.NoError(t, err)
	require.Equal(t, after, older.messages(t, "receive", "orders", "--group", "g", "--max", "64"))
	older.topic(t, "newer")
	fresh := older.messages(t, "send", "newer", "y", "--count", "10")
	got := older.messages(t, "receive", "newer", "--group", "g", "--max", "64")
	require.Equal(t, fresh, got, "an id is not given out again: not %v", newer)

	// A store node alone: the metadata are newer.
	older.stores[0].down()
	older.stores[0] = restore(d.stores[0], "older-a")
	_, err = older.stores[0].start()
	require.NoError(t, err)
	older.topic(t, "last")
	require.Subset(t, before, older.messages(t, "receive", "orders", "--group", "g", "--max", "64"))
	last := older.messages(t, "send", "newer", "z", "--count", "10")
	require.Equal(t, last, older.messages(t, "receive", "newer", "--group", "g", "--max", "64"))
	older.down()
	older.checkAll(t)
}

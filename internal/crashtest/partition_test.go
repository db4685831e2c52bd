package crashtest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// hosts are network namespaces with a link between each two of them. What a link carries is
// lost while it is cut, as behind a switch that has failed: nobody is told.
type hosts struct {
	t      *testing.T
	prefix string
}

// The hosts, and the address of each on its link to another.
const (
	routerHost, storeHost, proxyHost = "r", "s", "p"

	routerForStore, storeForRouter = "10.251.1.1", "10.251.1.2"
	routerForProxy, proxyForRouter = "10.251.2.1", "10.251.2.2"
	storeForProxy, proxyForStore   = "10.251.3.1", "10.251.3.2"
)

// newHosts makes them, and skips the test where that is not allowed.
func newHosts(t *testing.T) *hosts {
	t.Helper()
	h := &hosts{t: t, prefix: fmt.Sprintf("perigee-%d-", os.Getpid())}
	for _, name := range []string{routerHost, storeHost, proxyHost} {
		if out, err := exec.Command("ip", "netns", "add", h.prefix+name).CombinedOutput(); err != nil {
			t.Skipf("no network namespaces here: %v: %s", err, out)
		}
		t.Cleanup(func() { h.ip("netns", "delete", h.prefix+name) })
		h.ip("-n", h.prefix+name, "link", "set", "lo", "up")
	}
	h.connect(routerHost, routerForStore, storeHost, storeForRouter)
	h.connect(routerHost, routerForProxy, proxyHost, proxyForRouter)
	h.connect(storeHost, storeForProxy, proxyHost, proxyForStore)
	return h
}

func (h *hosts) ip(args ...string) {
	h.t.Helper()
	out, err := exec.Command("ip", args...).CombinedOutput()
	require.NoError(h.t, err, "ip %s: %s", strings.Join(args, " "), out)
}

// connect makes a link between two hosts. The device of each is called after the other.
func (h *hosts) connect(a, addressA, b, addressB string) {
	h.t.Helper()
	if out, err := exec.Command("ip", "link", "add", "to-"+b, "netns", h.prefix+a, "type", "veth", "peer", "name", "to-"+a, "netns", h.prefix+b).CombinedOutput(); err != nil {
		h.t.Skipf("no links between network namespaces here: %v: %s", err, out)
	}
	for _, end := range [][3]string{{a, b, addressA}, {b, a, addressB}} {
		h.ip("-n", h.prefix+end[0], "address", "add", end[2]+"/30", "dev", "to-"+end[1])
		h.ip("-n", h.prefix+end[0], "link", "set", "to-"+end[1], "up")
	}
}

// cut cuts the link from a host to another one, at its side; mend mends it.
func (h *hosts) cut(at, to string)  { h.ip("-n", h.prefix+at, "link", "set", "to-"+to, "down") }
func (h *hosts) mend(at, to string) { h.ip("-n", h.prefix+at, "link", "set", "to-"+to, "up") }

// start starts a process of perigee on a host.
func (h *hosts) start(bin, host string, command ...string) {
	h.t.Helper()
	s := newProcess(h.t, bin, command...)
	s.in = []string{"ip", "netns", "exec", h.prefix + host}
	_, err := s.start()
	require.NoError(h.t, err, command[0])
}

// perigee runs a command of perigee on the host of the proxy. It must end in time.
func (h *hosts) perigee(bin string, command ...string) (out string, err error) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), time.Minute)
	defer cancel()
	began := time.Now()
	b, err := exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", h.prefix + proxyHost, bin}, command...)...).CombinedOutput()
	// A connection that says nothing is given up after eight seconds.
	require.Less(h.t, time.Since(began), 14*time.Second, "%v: %s", command, b)
	return string(b), err
}

// TestHostsThatAreCutOffFromEachOtherGetClearErrorsAndGoOn: first the proxy from the store
// node, then the proxy from the router.
func TestHostsThatAreCutOffFromEachOtherGetClearErrorsAndGoOn(t *testing.T) {
	onlyForDeployments(t)
	if testing.Short() {
		t.Skip("it waits for connections that say nothing")
	}
	bin := binary(t)
	h := newHosts(t)
	h.start(bin, routerHost, "router", "--listen", "0.0.0.0:8082")
	h.start(bin, storeHost, "store", "--name", "a", "--router", routerForStore+":8082", "--listen", "0.0.0.0:8083", "--announce", storeForProxy+":8083")
	h.start(bin, proxyHost, "proxy", "--router", routerForProxy+":8082", "--grpc-listen", "127.0.0.1:8081")
	eventually := func(command ...string) {
		t.Helper()
		var out string
		var err error
		for end := time.Now().Add(goOn); time.Now().Before(end); {
			if out, err = h.perigee(bin, command...); err == nil {
				return
			}
			require.True(t, pause(t.Context(), 100*time.Millisecond))
		}
		require.NoError(t, err, "%v: %s", command, out)
	}
	eventually("topic", "create", "orders")
	sent := map[string]bool{}
	send := func(body string) {
		t.Helper()
		eventually("send", "orders", body)
		sent[body] = true
	}
	send("at first")

	h.cut(storeHost, proxyHost)
	for range 3 {
		out, err := h.perigee(bin, "send", "orders", "meanwhile")
		require.Error(t, err, out)
		require.Contains(t, out, "store node "+storeForProxy+":8083")
	}
	_, err := h.perigee(bin, "receive", "orders", "--group", "readers", "--wait", "1s", "--no-ack")
	require.Error(t, err)
	h.mend(storeHost, proxyHost)
	send("after the store node was back")

	h.cut(routerHost, proxyHost)
	out, err := h.perigee(bin, "send", "orders", "without a router")
	require.NoError(t, err, out)
	sent["without a router"] = true
	for range 2 {
		out, err := h.perigee(bin, "topic", "create", "other")
		require.Error(t, err, out)
		require.Contains(t, out, "router")
	}
	h.mend(routerHost, proxyHost)
	eventually("topic", "create", "other")

	// What the cut link had brought the node, and nobody heard of, may be there too.
	got := map[string]bool{}
	for end := time.Now().Add(2 * goOn); time.Now().Before(end) && len(got) < len(sent); {
		out, err := h.perigee(bin, "receive", "orders", "--group", "readers", "--wait", "1s", "--json")
		if err != nil {
			continue
		}
		for line := range strings.Lines(out) {
			var m struct {
				Body string `json:"body"`
			}
			if json.Unmarshal([]byte(line), &m) == nil && sent[m.Body] {
				got[m.Body] = true
			}
		}
	}
	require.Equal(t, sent, got)
}

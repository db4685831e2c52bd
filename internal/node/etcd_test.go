package node_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/internal/config"
	"github.com/perigee-mq/perigee/internal/node"
)

func withEtcd(addrs ...string) func(*config.Config) {
	return func(c *config.Config) { c.Etcd.Endpoints = addrs }
}

// closedAddress is one at which nobody listens.
func closedAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// TestWhoWaitsForOthersEndsWhenItIsToldTo: that is no failure.
func TestWhoWaitsForOthersEndsWhenItIsToldTo(t *testing.T) {
	d := &deployment{t: t, dir: t.TempDir(), router: closedAddress(t)}
	for _, cfg := range []config.Config{
		configOf(d.dir, d.tier(config.Router, "r"), withEtcd(closedAddress(t))),
		configOf(d.dir, d.tier(config.Proxy, "p")),
		configOf(d.dir, d.tier(config.Store, "a")),
	} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		told := make(chan struct{}, 100)
		logger := slog.New(slog.NewTextHandler(noteOf("waiting for the metadata", told), nil))
		done := make(chan error)
		go func() {
			done <- node.Run(ctx, cfg, logger, func(node.Info) { t.Error("it serves without metadata") })
		}()
		<-told
		cancel()
		require.NoError(t, <-done, cfg.Tier)
	}
}

// A note is a writer that tells when a text is written.
type note struct {
	text string
	to   chan<- struct{}
}

func noteOf(text string, to chan<- struct{}) io.Writer { return note{text, to} }

func (n note) Write(p []byte) (int, error) {
	if strings.Contains(string(p), n.text) {
		select {
		case n.to <- struct{}{}:
		default:
		}
	}
	return len(p), nil
}

func TestARouterDoesNotBeginInEtcdBesideMetadataOfItsOwn(t *testing.T) {
	d, r := deploy(t)
	r.stop(t)
	err := refusal(t, configOf(d.dir, d.tier(config.Router, "r"), withEtcd(closedAddress(t))))
	require.ErrorContains(t, err, "has the metadata of a router without etcd")
	require.ErrorContains(t, err, filepath.Join(d.dir, "router-r", "router"))
}

func TestAPasswordForEtcdComesFromAFile(t *testing.T) {
	d := &deployment{t: t, dir: t.TempDir()}
	missing := filepath.Join(t.TempDir(), "missing")
	err := refusal(t, configOf(d.dir, d.tier(config.Router, "r"), withEtcd(closedAddress(t)), func(c *config.Config) {
		c.Etcd.Username, c.Etcd.PasswordFile = "u", missing
	}))
	require.ErrorContains(t, err, "etcd.password_file")
	require.ErrorContains(t, err, missing)
}

// startEtcd starts a real etcd and returns its address and what kills it.
func startEtcd(t *testing.T) (address string, kill func()) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts and kills a real etcd")
	}
	binary, err := exec.LookPath("etcd")
	if err != nil {
		t.Skip("no etcd in PATH: install the package etcd-server, or put the binary there")
	}
	address = closedAddress(t)
	peer := "http://" + closedAddress(t)
	cmd := exec.Command(binary, "--name", "one", "--data-dir", t.TempDir(), "--log-level", "error",
		"--listen-client-urls", "http://"+address, "--advertise-client-urls", "http://"+address,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "one="+peer)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	killed := false
	kill = func() {
		if !killed {
			killed = true
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	t.Cleanup(kill)
	return address, kill
}

func TestADeploymentWithTwoRoutersOverEtcdOutlivesEachOfThem(t *testing.T) {
	address, kill := startEtcd(t)
	d := &deployment{t: t, dir: t.TempDir()}
	first, second := d.start(config.Router, "r1", withEtcd(address)), d.start(config.Router, "r2", withEtcd(address))
	both := func(c *config.Config) { c.Routers = []string{first.info.TierAddr, second.info.TierAddr} }
	a, p := d.start(config.Store, "a", both), d.start(config.Proxy, "p", both)
	p.createOn(t, "t", 4, 1, adminpb.TopicType_TOPIC_TYPE_NORMAL)
	require.Equal(t, rmqpb.Code_OK, p.send(t, "t").GetCode())
	require.Len(t, p.drain(t, "t", "g", []string{"a"}, p), 1)
	for i, name := range []string{"without the first", "without the second"} {
		stopped := []*running{first, second}[i]
		stopped.stop(t)
		topic := []string{"u", "v"}[i]
		p.createOn(t, topic, 4, 1, adminpb.TopicType_TOPIC_TYPE_NORMAL)
		require.Equal(t, rmqpb.Code_OK, p.send(t, topic).GetCode(), name)
		require.Len(t, p.drain(t, topic, "g", []string{"a"}, p), 1, name)
		again := d.start(config.Router, []string{"r1", "r2"}[i], withEtcd(address), func(c *config.Config) { c.Listen = stopped.info.TierAddr })
		if i == 0 {
			first = again
		} else {
			second = again
		}
	}
	// Without etcd nothing is created, and all else goes on.
	kill()
	_, err := p.admin.CreateTopic(t.Context(), &adminpb.CreateTopicRequest{Name: "w"})
	require.ErrorContains(t, err, "unavailable")
	require.Equal(t, rmqpb.Code_OK, p.send(t, "t").GetCode())
	require.Eventually(t, func() bool {
		resp, err := http.Get("http://" + first.info.HTTPAddr + "/readyz")
		require.NoError(t, err)
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, resp.StatusCode, "it tells what it knows: %s", body)
		return strings.HasPrefix(string(body), "ok, but ") && strings.Contains(string(body), address)
	}, time.Minute, 100*time.Millisecond)
	// A proxy that starts now finds what there is.
	late := d.start(config.Proxy, "late", both)
	require.Equal(t, rmqpb.Code_OK, late.send(t, "t").GetCode())
	late.stop(t)
	for _, r := range []*running{p, a, first, second} {
		r.stop(t)
	}
}

// TestADeploymentMovesItsMetadataIntoEtcdAndGoesOn stops the router that had them for itself,
// and nobody else.
func TestADeploymentMovesItsMetadataIntoEtcdAndGoesOn(t *testing.T) {
	address, _ := startEtcd(t)
	d, router := deploy(t)
	a, p := d.start(config.Store, "a"), d.start(config.Proxy, "p")
	p.createOn(t, "t", 4, 1, adminpb.TopicType_TOPIC_TYPE_NORMAL)
	cfg := configOf(d.dir, d.tier(config.Router, "r"), withEtcd(address))
	_, err := node.ImportIntoEtcd(t.Context(), cfg)
	require.ErrorContains(t, err, "in use")
	router.stop(t)
	require.Equal(t, rmqpb.Code_OK, p.send(t, "t").GetCode())
	var done node.Imported
	require.Eventually(t, func() bool { // etcd may not be there yet
		done, err = node.ImportIntoEtcd(t.Context(), cfg)
		return err == nil
	}, time.Minute, 100*time.Millisecond)
	require.Equal(t, 3, done.Entries) // counters, topic, shard
	require.DirExists(t, done.Aside)
	again := d.start(config.Router, "r", withEtcd(address), func(c *config.Config) { c.Listen = router.info.TierAddr })
	second := d.start(config.Router, "r2", withEtcd(address))
	p.createOn(t, "u", 4, 1, adminpb.TopicType_TOPIC_TYPE_NORMAL)
	for _, topic := range []string{"t", "u"} {
		require.Equal(t, rmqpb.Code_OK, p.send(t, topic).GetCode())
	}
	require.Len(t, p.drain(t, "t", "g", []string{"a"}, p), 2)
	require.Len(t, p.drain(t, "u", "g", []string{"a"}, p), 1)
	for _, r := range []*running{p, a, again, second} {
		r.stop(t)
	}
}

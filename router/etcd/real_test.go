package etcd

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

// A realEtcd is a member, a process of its own, which can be killed and started again.
type realEtcd struct {
	t             *testing.T
	binary, dir   string
	name          string
	address, peer string
	cluster       string // all members
	scheme        string // of clients
	flags         []string
	cmd           *exec.Cmd
}

// findEtcd skips the test when there is no etcd to run.
func findEtcd(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("starts and kills a real etcd")
	}
	binary, err := exec.LookPath("etcd")
	if err != nil {
		t.Skip("no etcd in PATH: install the package etcd-server, or put the binary there")
	}
	return binary
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

func startEtcd(t *testing.T) *realEtcd { return startMembers(t, 1)[0] }

// startMembers starts a cluster of n members with further flags.
func startMembers(t *testing.T, n int, flags ...string) []*realEtcd {
	t.Helper()
	binary := findEtcd(t)
	var members []*realEtcd
	var names []string
	for i := range n {
		e := &realEtcd{
			t: t, binary: binary, dir: t.TempDir(), name: fmt.Sprint("m", i), address: freeAddress(t), peer: "http://" + freeAddress(t),
			scheme: "http://", flags: flags,
		}
		if len(flags) > 0 && slices.Contains(flags, "--cert-file") {
			e.scheme = "https://"
		}
		members, names = append(members, e), append(names, e.name+"="+e.peer)
	}
	for _, e := range members {
		e.cluster = strings.Join(names, ",")
		e.start()
		t.Cleanup(func() { e.kill() })
	}
	return members
}

func addresses(members []*realEtcd) (list []string) {
	for _, e := range members {
		list = append(list, e.address)
	}
	return list
}

func (e *realEtcd) start() {
	e.t.Helper()
	e.cmd = exec.Command(e.binary, append([]string{
		"--name", e.name, "--data-dir", e.dir, "--log-level", "error",
		"--listen-client-urls", e.scheme + e.address, "--advertise-client-urls", e.scheme + e.address,
		"--listen-peer-urls", e.peer, "--initial-advertise-peer-urls", e.peer, "--initial-cluster", e.cluster,
	}, e.flags...)...)
	e.cmd.Stderr = os.Stderr
	require.NoError(e.t, e.cmd.Start())
}

func (e *realEtcd) kill() {
	if e.cmd == nil {
		return
	}
	_ = e.cmd.Process.Kill()
	_ = e.cmd.Wait()
	e.cmd = nil
}

// open opens a router as soon as etcd answers.
func (e *realEtcd) open(prefix string) *router.Router {
	e.t.Helper()
	return openRouter(e.t, Options{Endpoints: []string{e.address}, Prefix: prefix})
}

func openRouter(t *testing.T, opts Options) *router.Router {
	t.Helper()
	var r *router.Router
	require.Eventually(t, func() bool {
		var err error
		r, err = tryRouter(opts)
		require.True(t, err == nil || errors.Is(err, mq.ErrUnavailable), "%v", err)
		return err == nil
	}, time.Minute, 100*time.Millisecond)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

func tryRouter(opts Options) (*router.Router, error) {
	backend, err := Open(opts)
	if err != nil {
		return nil, err
	}
	return router.Open(router.Options{Backend: backend, Shards: []string{"s1"}, AutoCreateTopics: true})
}

// requireSame waits until the routers show the same.
func requireSame(t *testing.T, routers ...*router.Router) {
	t.Helper()
	for _, r := range routers {
		require.Eventually(t, func() bool { return r.CatchUp(t.Context()) == nil }, time.Minute, 100*time.Millisecond)
	}
	for _, r := range routers[1:] {
		require.Equal(t, show(routers[0]), show(r))
	}
}

func TestRoutersShareARealEtcd(t *testing.T) {
	e := startEtcd(t)
	a, b := e.open("/one"), e.open("/one")
	other := e.open("/one2")
	require.NotEqual(t, a.Life(), other.Life())

	// Changes of both at once.
	const each = 30
	results := make(chan error)
	for i := range 2 * each {
		r := []*router.Router{a, b}[i%2]
		go func() {
			_, _, err := r.CreateTopic(t.Context(), router.TopicSpec{Resource: named(fmt.Sprint("t", i))})
			results <- err
		}()
	}
	for range 2 * each {
		require.NoError(t, <-results)
	}
	requireSame(t, a, b)
	last, _ := a.LastIDs()
	require.EqualValues(t, 2*each, last)
	for i := range each {
		_, err := b.DeleteTopic(t.Context(), named(fmt.Sprint("t", i)))
		require.NoError(t, err)
	}
	_, _, err := a.CreateGroup(t.Context(), router.GroupSpec{Resource: named("g")})
	require.NoError(t, err)
	_, err = b.DeleteGroup(t.Context(), named("g"))
	require.NoError(t, err, "made by the other router a moment ago")
	_, err = a.Group(t.Context(), named("g"))
	require.True(t, err == nil || errors.Is(err, mq.ErrGroupNotFound))
	requireSame(t, a, b)
	require.EqualValues(t, 1, other.Revision())
	requireSame(t, b, e.open("/one"))
}

func TestARealEtcdThatIsKilledComesBack(t *testing.T) {
	e := startEtcd(t)
	a, b := e.open("/perigee"), e.open("/perigee")
	_, err := a.EnsureTopic(t.Context(), named("before"))
	require.NoError(t, err)
	requireSame(t, a, b)
	e.kill()
	_, err = a.EnsureTopic(t.Context(), named("meanwhile"))
	require.ErrorIs(t, err, mq.ErrUnavailable)
	_, err = b.Topic(t.Context(), named("before"))
	require.NoError(t, err)
	require.ErrorIs(t, a.Degraded(), mq.ErrUnavailable)
	e.start()
	require.Eventually(t, func() bool {
		_, err := a.EnsureTopic(t.Context(), named("after"))
		return err == nil
	}, time.Minute, 100*time.Millisecond)
	require.NoError(t, a.Degraded())
	requireSame(t, a, b)
}

func TestARealWatchBehindACompactionBeginsAnew(t *testing.T) {
	e := startEtcd(t)
	a := e.open("/perigee")
	backend, err := Open(Options{Endpoints: []string{e.address}, Prefix: "/perigee"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, backend.Close()) })
	require.NoError(t, backend.Load(t.Context(), func(router.Entry) error { return nil }))
	for i := range 5 {
		_, err := a.EnsureTopic(t.Context(), named(fmt.Sprint("t", i)))
		require.NoError(t, err)
	}
	etcd := backend.cluster.(*client).etcd
	now, err := etcd.Get(t.Context(), "x")
	require.NoError(t, err)
	_, err = etcd.Compact(t.Context(), now.Header.Revision, clientv3.WithCompactPhysical())
	require.NoError(t, err)
	err = backend.Follow(t.Context(), func([]router.Entry) error { return nil })
	require.ErrorIs(t, err, router.ErrMissed)
	_, _, _, err = backend.cluster.list(t.Context(), "/perigee/", "/perigee0", 10, 2)
	require.ErrorIs(t, err, errCompacted)
	entries := 0
	require.NoError(t, backend.Load(t.Context(), func(router.Entry) error { entries++; return nil }))
	require.Equal(t, 6, entries)
}

func TestWhatARealEtcdRefusesWasNotDone(t *testing.T) {
	e := startEtcd(t)
	e.open("/perigee")
	backend, err := Open(Options{Endpoints: []string{e.address}, Prefix: "/perigee"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, backend.Close()) })
	require.NoError(t, backend.Load(t.Context(), func(router.Entry) error { return nil }))
	large := router.Entry{Key: "v1/topic//t", Value: []byte(strings.Repeat("x", 1800<<10))}
	counters := router.Entry{Key: router.CountersKey, Value: []byte(`{"v":1,"revision":2}`)}
	err = backend.Commit(t.Context(), []router.Entry{large, counters})
	require.ErrorIs(t, err, mq.ErrUnavailable)
	require.NotErrorIs(t, err, mq.ErrOutcomeUnknown)
	require.NoError(t, backend.Commit(t.Context(), []router.Entry{counters}))
	require.ErrorIs(t, backend.Commit(t.Context(), []router.Entry{counters}), router.ErrConflict)
}

package sdktest

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/sdktest/internal/harness"
)

const (
	// binaryVariable names the server's binary.
	binaryVariable  = "PERIGEE_BIN"
	defaultBinary   = "../bin/perigee"
	commonRenewal   = "3s"
	commonPolling   = "4s"
	parallelTests   = "8"
	logTailOnFail   = 16 << 10
	progressPause   = 100 * time.Millisecond
	generousTimeout = 60 * time.Second
	// tiersVariable, set to 1, makes each server a deployment of a router, store nodes and a
	// proxy in processes of their own; with hosts.sh, with a host for each.
	tiersVariable = "PERIGEE_TIERS"
	// tlsVariable is set in the run of this binary whose clients speak TLS: the
	// switch is a variable of the whole SDK. It holds the server's host:port.
	tlsVariable = "SDKTEST_TLS_ENDPOINT"
)

// environment is what the tests of this binary share.
type environment struct {
	folder string // for servers and logs
	sdkLog string
	names  atomic.Int64

	common   shared // on as many shards as a deployment of this run has
	oneShard shared // on one
}

// shared is a server that tests share. It is opened by the first.
type shared struct {
	once   sync.Once
	server *harness.Server
	err    error
}

var env environment

func TestMain(m *testing.M) {
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	folder, err := os.MkdirTemp("", "sdktest-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(folder)
	env.folder, env.sdkLog = folder, filepath.Join(folder, "rocketmq_client_go.log")
	if err := os.Setenv(rmq.CLIENT_LOG_ROOT, folder); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	rmq.ResetLogger()
	rmq.EnableSsl = os.Getenv(tlsVariable) != ""
	// The tests wait for the most part. A value on the command line wins.
	if err := flag.Set("test.parallel", parallelTests); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	for _, common := range []*shared{&env.common, &env.oneShard} {
		if common.server == nil {
			continue
		}
		if err := common.server.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "common server:", err)
			code = max(code, 1)
		}
	}
	return code
}

func binary() (string, error) {
	path := os.Getenv(binaryVariable)
	if path == "" {
		path = defaultBinary
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("no server to test: %w; run make build, or name a binary in %s", err, binaryVariable)
	}
	return filepath.Abs(path)
}

// server is a running server, seen from one test.
type server struct {
	*harness.Server
	t *testing.T
}

// deployedStores is how many store nodes a server of this run has: 0, all tiers are one
// process, or two, or three with a host for each process.
func deployedStores() int {
	if tiers := os.Getenv(tiersVariable); tiers == "" || tiers == "0" {
		return 0
	}
	if harness.Hosts() {
		return 3
	}
	return 2
}

// commonServer returns the server that all tests share which do not end it. Its
// leases are renewed in short slices and its polls are short.
func commonServer(t *testing.T) server {
	t.Helper()
	return env.common.get(t, "common", deployedStores())
}

// oneShardServer is a common server for tests that are about what one shard promises: the
// order of what lies in different queues, the number of a queue or its offsets, and what
// one receive finds.
func oneShardServer(t *testing.T) server {
	t.Helper()
	if deployedStores() == 0 {
		return commonServer(t)
	}
	return env.oneShard.get(t, "one-shard", 1)
}

func (s *shared) get(t *testing.T, name string, stores int) server {
	t.Helper()
	s.once.Do(func() { s.server, s.err = openShared(name, stores) })
	require.NoError(t, s.err)
	return watched(t, s.server)
}

func openShared(name string, stores int) (*harness.Server, error) {
	path, err := binary()
	if err != nil {
		return nil, err
	}
	if endpoint := os.Getenv(tlsVariable); endpoint != "" {
		return harness.Attach(path, endpoint), nil
	}
	dir := filepath.Join(env.folder, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	flags := []string{"--renew-slice", commonRenewal, "--long-polling-max", commonPolling}
	return harness.Open(context.Background(), harness.Options{Binary: path, Dir: dir, Flags: flags, Stores: stores})
}

// ownServer returns a server for this test alone, which it may end and start
// again.
func ownServer(t *testing.T, flags ...string) server {
	t.Helper()
	return openOwn(t, deployedStores(), flags)
}

// ownOneShardServer is such a server for tests that oneShardServer would be for.
func ownOneShardServer(t *testing.T, flags ...string) server {
	t.Helper()
	return openOwn(t, min(deployedStores(), 1), flags)
}

func openOwn(t *testing.T, stores int, flags []string) server {
	t.Helper()
	path, err := binary()
	require.NoError(t, err)
	s, err := harness.Open(t.Context(), harness.Options{Binary: path, Dir: t.TempDir(), Flags: flags, Stores: stores})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.Close())
		require.NotContains(t, s.Log(0), "cut off", "the server waited for what clients hold open")
	})
	return watched(t, s)
}

// watched prints the end of what the server logs during the test if that fails.
func watched(t *testing.T, s *harness.Server) server {
	before := len(s.Log(0))
	t.Cleanup(func() {
		if t.Failed() {
			log := s.Log(before)
			t.Logf("the server's log:\n%s", log[max(0, len(log)-logTailOnFail):])
		}
	})
	return server{Server: s, t: t}
}

// name returns a name that no other test uses, in this run of the binary or in
// another one against the same server.
func (s server) name(kind string) string {
	return fmt.Sprintf("%s-%d-%d", kind, os.Getpid(), env.names.Add(1))
}

// topic creates a topic with flags of perigee topic create, and returns its name.
func (s server) topic(flags ...string) string {
	s.t.Helper()
	name := s.name("topic")
	s.perigee(append([]string{"topic", "create", name}, flags...)...)
	return name
}

// group creates a consumer group with flags of perigee group create, and returns
// its name.
func (s server) group(flags ...string) string {
	s.t.Helper()
	name := s.name("group")
	s.perigee(append([]string{"group", "create", name}, flags...)...)
	return name
}

func (s server) perigee(args ...string) string {
	s.t.Helper()
	out, err := s.Perigee(s.t.Context(), args...)
	require.NoError(s.t, err)
	return out
}

// progress is what a group still has to do with a topic.
type progress struct {
	Topic    string `json:"topic"`
	Ready    int64  `json:"ready"`
	InFlight int64  `json:"in_flight"`
	Blocked  int64  `json:"blocked"`
}

func (s server) progress(group, topic string) (progress, bool) {
	s.t.Helper()
	var described struct {
		Topics []progress `json:"topics"`
	}
	require.NoError(s.t, json.Unmarshal([]byte(s.perigee("group", "describe", group, "--json")), &described))
	for _, p := range described.Topics {
		if p.Topic == topic {
			return p, true
		}
	}
	return progress{}, false
}

// answered returns how many calls of a method the server has answered, whatever
// the answer was.
func (s server) answered(method string) int {
	s.t.Helper()
	metrics, err := s.Metrics(s.t.Context())
	require.NoError(s.t, err)
	total := 0
	for line := range strings.Lines(metrics) {
		if strings.HasPrefix(line, "perigee_rpc_duration_seconds_count{") && strings.Contains(line, "/"+method+`"`) {
			fields := strings.Fields(line)
			n, err := strconv.Atoi(fields[len(fields)-1])
			require.NoError(s.t, err)
			total += n
		}
	}
	return total
}

// awaitSettled waits until the group has settled every message of the topic:
// none will come again.
func (s server) awaitSettled(group, topic string) {
	s.t.Helper()
	s.await("everything settled", func() bool {
		p, known := s.progress(group, topic)
		return known && p.Ready == 0 && p.InFlight == 0 && p.Blocked == 0
	})
}

// await looks at a condition again and again until it holds.
func (s server) await(what string, holds func() bool) {
	s.t.Helper()
	limit := time.NewTimer(generousTimeout)
	defer limit.Stop()
	tick := time.NewTicker(progressPause)
	defer tick.Stop()
	for !holds() {
		select {
		case <-limit.C:
			s.t.Fatalf("%s: not within %v", what, generousTimeout)
		case <-tick.C:
		}
	}
}

// sdkLogged returns the lines of the SDK's log that hold all parts.
func sdkLogged(t *testing.T, parts ...string) []string {
	t.Helper()
	content, err := os.ReadFile(env.sdkLog)
	require.NoError(t, err)
	var found []string
	for line := range strings.Lines(string(content)) {
		if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) }) {
			found = append(found, line)
		}
	}
	return found
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/internal/client/fake"
)

// outcome is what a command line did.
type outcome struct {
	code           int
	stdout, stderr string
}

// lines returns the objects printed with --json.
func (o outcome) lines(t *testing.T) []map[string]any {
	t.Helper()
	require.Zero(t, o.code, o.stderr)
	var all []map[string]any
	for line := range strings.Lines(o.stdout) {
		var object map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &object), line)
		all = append(all, object)
	}
	return all
}

// perigee runs a command line in an environment.
func perigee(t *testing.T, env []string, stdin string, args ...string) outcome {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), append([]string{"perigee"}, args...), env, strings.NewReader(stdin), &stdout, &stderr)
	return outcome{code, stdout.String(), stderr.String()}
}

// against runs a command line against a server.
func against(t *testing.T, server *fake.Server, args ...string) outcome {
	t.Helper()
	return perigee(t, []string{"PERIGEE_ENDPOINT=" + server.Addr}, "", args...)
}

func TestHelpAndVersionNeedNoServer(t *testing.T) {
	for _, args := range [][]string{{}, {"--help"}, {"topic"}, {"topic", "create", "--help"}, {"version"}} {
		o := perigee(t, nil, "", args...)
		require.Zero(t, o.code, args)
		require.NotEmpty(t, o.stdout)
		require.Empty(t, o.stderr)
	}
	require.Contains(t, perigee(t, nil, "", "version", "--json").lines(t)[0], "version")
}

func TestUsageErrorsExitWithTwo(t *testing.T) {
	for want, args := range map[string][]string{
		`unknown command "frobnicate" for "perigee"`:      {"frobnicate"},
		`unknown command "make" for "perigee topic"`:      {"topic", "make"},
		`unknown command "views" for "perigee dump"`:      {"dump", "views"},
		`unknown flag: --frob`:                            {"version", "--frob"},
		`perigee topic create takes NAME, got 0`:          {"topic", "create"},
		`perigee version takes no arguments, got 1`:       {"version", "x"},
		`type "BIG": must be one of NORMAL, FIFO`:         {"topic", "create", "a", "--type", "BIG"},
		`permission "ALL": must be one of`:                {"topic", "update", "a", "--permission", "ALL"},
		`nothing to change`:                               {"topic", "update", "a"},
		`for good: say --yes`:                             {"topic", "purge", "a"},
		`perigee topic purge takes NAME, got 0`:           {"topic", "purge", "--yes"},
		`invalid argument "7d" for "--retention" flag`:    {"topic", "create", "a", "--retention", "7d"},
		`perigee dlq redrive takes GROUP, got 0`:          {"dlq", "redrive"},
		`priority -1: must not be negative`:               {"send", "a", "x", "--priority=-1"},
		`max -1: must not be negative`:                    {"dlq", "redrive", "g", "--max=-1"},
		`unknown command "peek" for "perigee dlq"`:        {"dlq", "peek"},
		`nothing to change; see perigee group update`:     {"group", "update", "a"},
		`exclude each other`:                              {"group", "create", "a", "--retry-delays=1s", "--retry-max=1h"},
		`start "soon": must be earliest, latest or`:       {"group", "create", "a", "--start", "soon"},
		`property "a": must be key=value`:                 {"send", "a", "b", "--property", "a"},
		`count 0: must be 1 or more`:                      {"send", "a", "b", "--count", "0"},
		`a consumer group is missing`:                     {"receive", "a"},
		`only one of them can be the filter`:              {"receive", "a", "--group", "g", "--tag", "a", "--filter-sql", "a = 1"},
		`--insecure is about certificates`:                {"topic", "list", "--insecure"},
		`endpoint "here": must be host:port`:              {"topic", "list", "--endpoint", "here"},
		`size "big": must be a whole number`:              {"bench", "send", "a", "--size", "big"},
		`connections 0: must be 1 or more`:                {"bench", "send", "a", "--connections", "0"},
		`default_queues "0": must lie between 1 and 1024`: {"standalone", "--default-queues", "0"},
		`invalid argument "x" for "--segment-size" flag`:  {"standalone", "--segment-size", "x"},
	} {
		o := perigee(t, nil, "", args...)
		require.Equal(t, exitUsage, o.code, "%v: %s", args, o.stderr)
		require.Contains(t, o.stderr, want)
		require.Empty(t, o.stdout)
	}
}

func TestARefusedConnectionSaysWhatToDo(t *testing.T) {
	o := perigee(t, nil, "", "topic", "list", "--endpoint", "127.0.0.1:1")
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.stderr, "no server answers at 127.0.0.1:1")
	require.Contains(t, o.stderr, "perigee standalone")
	require.Contains(t, o.stderr, "--endpoint")

	for _, args := range [][]string{{"send", "a", "b"}, {"receive", "a", "--group", "g"}, {"bench", "send", "a"}} {
		o := perigee(t, []string{"PERIGEE_ENDPOINT=127.0.0.1:1"}, "", args...)
		require.Equal(t, exitFailed, o.code, args)
		require.Contains(t, o.stderr, "no server answers at 127.0.0.1:1")
	}
}

func TestAPortThatServesSomethingElseIsNamedAsThat(t *testing.T) {
	web := httptest.NewServer(http.NotFoundHandler())
	defer web.Close()
	o := perigee(t, nil, "", "topic", "list", "--endpoint", web.Listener.Addr().String())
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.stderr, "serve something else, such as HTTP")
	require.Contains(t, o.stderr, "--tls")
	require.NotContains(t, o.stderr, "perigee standalone")
}

func TestErrorsAreJSONWithTheFlag(t *testing.T) {
	server := fake.Start(t)
	for want, args := range map[string][]string{
		"NOT_FOUND":       {"topic", "describe", "orders"},
		"TOPIC_NOT_FOUND": {"send", "orders", "x"},
		"USAGE":           {"topic", "describe"},
		"UNREACHABLE":     {"topic", "list", "--endpoint", "127.0.0.1:1"},
	} {
		o := against(t, server, append(args, "--json")...)
		require.NotZero(t, o.code)
		var printed struct {
			Error struct{ Code, Message string }
		}
		require.NoError(t, json.Unmarshal([]byte(o.stderr), &printed), o.stderr)
		require.Equal(t, want, printed.Error.Code)
		require.NotEmpty(t, printed.Error.Message)
	}
}

func TestTheEndpointFlagWinsOverTheEnvironment(t *testing.T) {
	server := fake.Start(t)
	o := perigee(t, []string{"PERIGEE_ENDPOINT=127.0.0.1:1"}, "", "topic", "list", "--endpoint", server.Addr)
	require.Zero(t, o.code, o.stderr)
}

func TestTLSAgainstCleartextNamesTheFlags(t *testing.T) {
	server := fake.Start(t)
	o := against(t, server, "topic", "list", "--tls", "--insecure")
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.stderr, "--tls and --insecure say how to connect")
}

// withServe runs a command line whose server is serve.
func withServe(ctx context.Context, serve serveFunc, stdout, stderr io.Writer, env []string, args ...string) int {
	a := &app{program: "perigee", env: env, stdin: strings.NewReader(""), stdout: stdout, stderr: stderr, serve: serve}
	return a.run(ctx, args)
}

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// running is a standalone server in this process.
type running struct {
	info serverInfo
	stop func() (code int, stderr string)
}

// startServer runs the standalone command on free ports.
func startServer(t *testing.T, folder string, args ...string) running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	stdout, printed := io.Pipe()
	var stderr bytes.Buffer
	exited := make(chan int, 1)
	go func() {
		code := run(ctx, append([]string{
			"perigee", "standalone", "--json", "--data-dir", folder, "--log-level", "warn",
			"--grpc-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0",
			// However full the disk of the test is.
			"--retention-disk-clean", "100%", "--retention-disk-force", "100%", "--retention-disk-refuse", "100%",
		}, args...), nil, strings.NewReader(""), printed, &stderr)
		printed.Close()
		exited <- code
	}()
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if err != nil {
		cancel()
		<-exited
		require.NoError(t, err, stderr.String())
	}
	s := running{stop: func() (int, string) {
		cancel()
		code := <-exited
		exited <- code // for the cleanup
		return code, stderr.String()
	}}
	t.Cleanup(func() { s.stop() })
	require.NoError(t, json.Unmarshal(line, &s.info))
	return s
}

// perigee runs a command line against the server.
func (r running) perigee(t *testing.T, args ...string) outcome {
	t.Helper()
	return perigee(t, []string{"PERIGEE_ENDPOINT=" + r.info.GRPCAddr}, "", args...)
}

func TestAStandaloneServerKeepsMessagesOverARestart(t *testing.T) {
	folder := t.TempDir()
	first := startServer(t, folder, "--flush", "async")
	require.Equal(t, folder, first.info.DataDir)
	require.Equal(t, "ready\n", perigee(t, nil, "", "health", "--http", first.info.HTTPAddr).stdout)

	refused := first.perigee(t, "send", "orders", "x")
	require.Equal(t, exitFailed, refused.code)
	require.Contains(t, refused.stderr, "TOPIC_NOT_FOUND")
	require.Contains(t, refused.stderr, "perigee topic create orders")

	require.Equal(t, true, first.perigee(t, "topic", "create", "orders", "--json").lines(t)[0]["created"])
	for _, body := range []string{"one", "two", "three"} {
		require.Zero(t, first.perigee(t, "send", "orders", body, "--tag", "a", "--property", "n="+body).code)
	}
	once := first.perigee(t, "receive", "orders", "--group", "readers", "--max", "1", "--json").lines(t)
	require.Len(t, once, 1)
	code, stderr := first.stop()
	require.Zero(t, code, stderr)
	require.Equal(t, exitFailed, perigee(t, nil, "", "health", "--http", first.info.HTTPAddr).code)

	second := startServer(t, folder, "--tls-mode", "required")
	o := second.perigee(t, "receive", "orders", "--group", "readers", "--json", "--tls", "--insecure")
	var bodies []any
	for _, m := range append(once, o.lines(t)...) {
		require.Equal(t, map[string]any{"n": m["body"]}, m["properties"])
		bodies = append(bodies, m["body"])
	}
	require.ElementsMatch(t, []any{"one", "two", "three"}, bodies)
	code, stderr = second.stop()
	require.Zero(t, code, stderr)
}

func TestABenchRunsAgainstAStandaloneServer(t *testing.T) {
	server := startServer(t, t.TempDir(), "--auto-create-topics", "--flush", "async")
	require.Zero(t, server.perigee(t, "topic", "create", "orders").code)
	sent := server.perigee(t, "bench", "send", "orders", "--count", "320", "--batch", "16", "--json").lines(t)[0]
	require.Equal(t, 320.0, sent["messages"])
	received := server.perigee(t, "bench", "receive", "orders", "--count", "320", "--json").lines(t)[0]
	require.Equal(t, 320.0, received["messages"])
	require.Empty(t, received["errors"])
	both := server.perigee(t, "bench", "e2e", "orders", "--count", "50", "--wait", "1s", "--json").lines(t)
	require.Equal(t, 50.0, both[1]["messages"])
}

func TestATopicOfAServerIsPurgedAndItsDeadLettersCounted(t *testing.T) {
	server := startServer(t, t.TempDir(), "--flush", "async", "--retention-age", "0")
	require.Zero(t, server.perigee(t, "topic", "create", "orders", "--retention", "10m").code)
	require.Contains(t, server.perigee(t, "topic", "describe", "orders").stdout, "retention   10m\n")
	short := server.perigee(t, "topic", "update", "orders", "--retention", "10s")
	require.Equal(t, exitFailed, short.code)
	require.Contains(t, short.stderr, `INVALID_ARGUMENT: retention "10s": must lie between 1m0s and`)

	require.Zero(t, server.perigee(t, "send", "orders", "x", "--count", "3").code)
	require.Len(t, server.perigee(t, "receive", "orders", "--group", "readers", "--max", "1", "--no-ack", "--json").lines(t), 1)
	require.Equal(t, 3.0, server.perigee(t, "topic", "purge", "orders", "--yes", "--json").lines(t)[0]["purged"])
	require.Empty(t, server.perigee(t, "receive", "orders", "--group", "readers", "--wait", "0s", "--json").lines(t))
	progress := server.perigee(t, "group", "describe", "readers", "--json").lines(t)[0]["topics"]
	require.Equal(t, []any{map[string]any{"namespace": "", "topic": "orders", "ready": 0.0, "in_flight": 0.0, "blocked": 0.0, "used_up": 0.0}}, progress)
	require.Zero(t, server.perigee(t, "send", "orders", "later").code)
	require.Len(t, server.perigee(t, "receive", "orders", "--group", "readers", "--json").lines(t), 1)

	require.Zero(t, server.perigee(t, "send", "%DLQ%readers", "by hand").code)
	require.Contains(t, server.perigee(t, "dlq", "list").stdout, "readers  %DLQ%readers  1         1\n")
	o := server.perigee(t, "dlq", "redrive", "readers")
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.stdout, "0 messages sent back, 1 waiting\n  1 message without origin cannot go back")
	require.Len(t, server.perigee(t, "group", "list", "--json").lines(t), 1)
	require.Equal(t, exitFailed, server.perigee(t, "receive", "orders", "--group", "%SYS%redrive").code)
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/internal/config"
)

// serving returns a server that is ready at address at once, runs until its
// context ends, and shows its configuration.
func serving(address string, seen *config.Config) serveFunc {
	return func(ctx context.Context, cfg config.Config, logger *slog.Logger, ready func(serverInfo)) error {
		*seen = cfg
		logger.Info("starting")
		ready(serverInfo{GRPCAddr: address, HTTPAddr: "127.0.0.1:2", DataDir: cfg.DataDir})
		<-ctx.Done()
		return nil
	}
}

func TestStandaloneSaysWhereItIsAndWhatToDo(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var cfg config.Config
	var stdout, stderr bytes.Buffer
	code := withServe(ctx, serving("[::]:9000", &cfg), &stdout, &stderr, nil, "standalone", "--data-dir", "/tmp/d", "--tls-mode", "required")
	require.Zero(t, code, stderr.String())
	require.Contains(t, stdout.String(), "data     /tmp/d\n")
	require.Contains(t, stdout.String(), "clients  [::]:9000 (gRPC, TLS only)\n")
	require.Contains(t, stdout.String(), "http     127.0.0.1:2 ")
	require.Contains(t, stdout.String(), "perigee topic create hello --endpoint 127.0.0.1:9000 --tls --insecure\n")
	require.NotContains(t, stdout.String(), "%!")
	require.Contains(t, stderr.String(), "msg=starting")
}

func TestStandaloneAtTheDefaultPortNeedsNoEndpoint(t *testing.T) {
	require.Empty(t, endpointHint("[::]:8081", config.TLSPermissive))
	require.Equal(t, " --endpoint 10.0.0.1:8081", endpointHint("10.0.0.1:8081", config.TLSPermissive))
}

func TestStandalonePrintsItsAddressesAsJSON(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var cfg config.Config
	var stdout, stderr bytes.Buffer
	require.Zero(t, withServe(ctx, serving("127.0.0.1:1", &cfg), &stdout, &stderr, nil, "standalone", "--data-dir", "/tmp/d", "--json", "--log-format", "json"))
	var info serverInfo
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &info))
	require.Equal(t, serverInfo{GRPCAddr: "127.0.0.1:1", HTTPAddr: "127.0.0.1:2", DataDir: "/tmp/d"}, info)
	require.True(t, json.Valid(stderr.Bytes()), stderr.String())
}

func TestStandaloneReadsFileEnvironmentAndFlags(t *testing.T) {
	file := filepath.Join(t.TempDir(), "perigee.yaml")
	require.NoError(t, os.WriteFile(file, []byte("shard: file\ndata_dir: file\ngrpc_listen: :1\n"), 0o600))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var cfg config.Config
	var stdout, stderr bytes.Buffer
	code := withServe(ctx, serving("", &cfg), &stdout, &stderr, []string{"PERIGEE_CONFIG=" + file, "PERIGEE_DATA_DIR=env", "PERIGEE_SHARD=env"},
		"standalone", "--shard", "flag", "--auto-create-topics")
	require.Zero(t, code, stderr.String())
	require.Equal(t, "flag", cfg.Shard)
	require.Equal(t, "env", cfg.DataDir)
	require.Equal(t, ":1", cfg.GRPCListen)
	require.True(t, cfg.AutoCreateTopics)
}

func TestStandaloneFailsWithItsServer(t *testing.T) {
	var stdout, stderr bytes.Buffer
	serve := func(context.Context, config.Config, *slog.Logger, func(serverInfo)) error {
		return errors.New("the data folder is in use")
	}
	require.Equal(t, exitFailed, withServe(t.Context(), serve, &stdout, &stderr, nil, "standalone"))
	require.Equal(t, "perigee: the data folder is in use\n", stderr.String())
	require.Empty(t, stdout.String())
}

func TestHealthFollowsReadiness(t *testing.T) {
	var ready atomic.Bool
	ready.Store(true)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" || !ready.Load() {
			http.Error(w, "replaying the log", http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(server.Close)
	address := strings.TrimPrefix(server.URL, "http://")
	o := perigee(t, nil, "", "health", "--http", address)
	require.Zero(t, o.code, o.stderr)
	require.Equal(t, "ready\n", o.stdout)

	ready.Store(false)
	o = perigee(t, nil, "", "health", "--http", address)
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.stderr, "503 Service Unavailable: replaying the log")

	server.Close()
	require.Equal(t, exitFailed, perigee(t, nil, "", "health", "--http", address).code)
}

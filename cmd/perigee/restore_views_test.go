package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDamagedViewsAreNamedAndRestoredWithTheCommandThatTheErrorShows(t *testing.T) {
	folder := t.TempDir()
	server := startServer(t, folder)
	require.Zero(t, server.perigee(t, "topic", "create", "orders").code)
	require.Zero(t, server.perigee(t, "send", "orders", "the body").code)
	inUse := perigee(t, nil, "", "restore-views", "--data-dir", folder)
	require.Equal(t, exitFailed, inUse.code)
	require.Contains(t, inUse.stderr, "stop the server first")
	code, stderr := server.stop()
	require.Zero(t, code, stderr)

	views := filepath.Join(folder, "store", "shards", "perigee-0", "views")
	tables, err := filepath.Glob(filepath.Join(views, "*.sst"))
	require.NoError(t, err)
	require.NotEmpty(t, tables)
	for _, table := range tables {
		require.NoError(t, os.Truncate(table, 10))
	}
	broken := perigee(t, nil, "", "standalone", "--data-dir", folder, "--grpc-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0")
	require.Equal(t, exitFailed, broken.code)
	require.Contains(t, broken.stderr, views)
	require.Contains(t, broken.stderr, "perigee restore-views")

	checked := perigee(t, nil, "", "check", "--data-dir", folder)
	require.Equal(t, exitFailed, checked.code)
	require.Contains(t, checked.stdout, "shard perigee-0: the views can be repaired, nothing is lost: perigee restore-views --data-dir "+folder+" --shard perigee-0\n")

	logs, err := filepath.Glob(filepath.Join(folder, "store", "shards", "perigee-0", "log", "*.log"))
	require.NoError(t, err)
	whole, err := os.ReadFile(logs[0])
	require.NoError(t, err)
	at := bytes.Index(whole, []byte("the body"))
	require.Positive(t, at)
	harmed := bytes.Clone(whole)
	harmed[at]++
	require.NoError(t, os.WriteFile(logs[0], harmed, 0o600))
	refused := perigee(t, nil, "", "restore-views", "--data-dir", folder)
	require.Equal(t, exitFailed, refused.code)
	require.Contains(t, refused.stderr, "the log is damaged")
	require.Contains(t, refused.stderr, logs[0]+":")
	require.DirExists(t, views)
	checked = perigee(t, nil, "", "check", "--data-dir", folder)
	require.Contains(t, checked.stdout, "shard perigee-0: the log is damaged: bring back the data directory")
	require.NotContains(t, checked.stdout, "can be repaired")
	require.NoError(t, os.WriteFile(logs[0], whole, 0o600))

	unknown := perigee(t, nil, "", "restore-views", "--data-dir", folder, "--shard", "other")
	require.Equal(t, exitFailed, unknown.code)
	require.Contains(t, unknown.stderr, "perigee-0")
	restored := perigee(t, nil, "", "restore-views", "--data-dir", folder)
	require.Zero(t, restored.code, restored.stderr)
	require.Contains(t, restored.stdout, views)
	require.Contains(t, restored.stdout, "no base is needed")
	line := perigee(t, nil, "", "restore-views", "--data-dir", folder, "--shard", "perigee-0", "--json").lines(t)[0]
	require.EqualValues(t, 1, line["first_record"])

	server = startServer(t, folder)
	got := server.perigee(t, "receive", "orders", "--group", "g", "--json").lines(t)
	require.Len(t, got, 1)
	require.Equal(t, "the body", got[0]["body"])
	code, stderr = server.stop()
	require.Zero(t, code, stderr)
}

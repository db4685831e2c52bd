package main

import (
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

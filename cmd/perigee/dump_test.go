package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestADumpShowsAStoppedStoreAndNamesDamage(t *testing.T) {
	folder := t.TempDir()
	server := startServer(t, folder)
	require.Zero(t, server.perigee(t, "topic", "create", "orders").code)
	sent := server.perigee(t, "send", "orders", "the body", "--tag", "a", "--json").lines(t)[0]
	require.Len(t, server.perigee(t, "receive", "orders", "--group", "readers", "--json").lines(t), 1)

	inUse := perigee(t, nil, "", "dump", "log", "--data-dir", folder)
	require.Equal(t, exitFailed, inUse.code)
	require.Contains(t, inUse.stderr, "stop the server first")
	code, stderr := server.stop()
	require.Zero(t, code, stderr)

	count := map[any]int{}
	for i, record := range perigee(t, nil, "", "dump", "log", "--data-dir", folder, "--json").lines(t) {
		require.Equal(t, "perigee-0", record["shard"])
		require.EqualValues(t, i+1, record["index"])
		count[record["what"]]++
	}
	require.Equal(t, 1, count["send"])
	require.Equal(t, 1, count["ack"])
	text := perigee(t, nil, "", "dump", "log", "--data-dir", folder)
	require.Contains(t, text.stdout, sent["message_id"])
	require.NotContains(t, text.stdout, "the body")

	count = map[any]int{}
	for _, key := range perigee(t, nil, "", "dump", "keys", "--data-dir", folder, "--json").lines(t) {
		count[key["what"]]++
	}
	require.Equal(t, map[any]int{"state": 1, "topic": 1, "group": 1, "subscription": 1, "entry": 1, "progress": 1, "repeat": 1}, count)

	logs, err := filepath.Glob(filepath.Join(folder, "store", "shards", "perigee-0", "log", "*.log"))
	require.NoError(t, err)
	require.Len(t, logs, 1)
	data, err := os.ReadFile(logs[0])
	require.NoError(t, err)
	at := bytes.Index(data, []byte("the body"))
	require.Positive(t, at)
	data[at]++
	require.NoError(t, os.WriteFile(logs[0], data, 0o600))
	damaged := perigee(t, nil, "", "dump", "log", "--data-dir", folder)
	require.Equal(t, exitFailed, damaged.code)
	require.Contains(t, damaged.stderr, logs[0]+":")
	require.Contains(t, damaged.stderr, "checksum mismatch")

	// Damage of the very last record looks like a torn tail to the segment itself.
	data[at]--
	last := len(bytes.TrimRight(data, "\x00")) - 1
	data[last]++
	require.NoError(t, os.WriteFile(logs[0], data, 0o600))
	short := perigee(t, nil, "", "dump", "log", "--data-dir", folder)
	require.Equal(t, exitFailed, short.code)
	require.Contains(t, short.stderr, "the log was durable up to")
}

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// filesBelow returns the content of every file below folder.
func filesBelow(t *testing.T, folder string) map[string]string {
	t.Helper()
	files := map[string]string{}
	require.NoError(t, filepath.WalkDir(folder, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		files[path] = string(b)
		return err
	}))
	return files
}

func TestCheckVerifiesAStoppedServerAndNamesDamage(t *testing.T) {
	folder := t.TempDir()
	server := startServer(t, folder)
	require.Zero(t, server.perigee(t, "topic", "create", "orders").code)
	server.perigee(t, "send", "orders", "the body", "--count", "20")
	require.Len(t, server.perigee(t, "receive", "orders", "--group", "readers", "--json").lines(t), 20)

	inUse := perigee(t, nil, "", "check", "--data-dir", folder)
	require.Equal(t, exitFailed, inUse.code)
	require.Contains(t, inUse.stderr, "stop the server first")
	code, stderr := server.stop()
	require.Zero(t, code, stderr)

	before := filesBelow(t, folder)
	sound := perigee(t, nil, "", "check", "--data-dir", folder)
	require.Zero(t, sound.code, sound.stderr)
	require.Contains(t, sound.stdout, "shard perigee-0: log of 1 segments with records 1 to ")
	require.Contains(t, sound.stdout, "20 messages")
	require.Contains(t, sound.stdout, "compared with what the log gives")
	require.Contains(t, sound.stdout, "1 topics, 1 groups")
	require.Contains(t, perigee(t, nil, "", "check", "--data-dir", folder, "--derive-limit", "0").stdout, "not derived again")
	lines := perigee(t, nil, "", "check", "--data-dir", folder, "--json").lines(t)
	require.Len(t, lines, 3)
	require.Equal(t, true, lines[0]["shard"].(map[string]any)["derived"])
	require.EqualValues(t, 1, lines[1]["metadata"].(map[string]any)["topics"])
	require.Equal(t, "server in one process", lines[2]["folder"].(map[string]any)["of"])
	require.Equal(t, before, filesBelow(t, folder), "nothing is changed")

	logs, err := filepath.Glob(filepath.Join(folder, "store", "shards", "perigee-0", "log", "*.log"))
	require.NoError(t, err)
	require.Len(t, logs, 1)
	data := []byte(before[logs[0]])
	at := bytes.Index(data, []byte("the body"))
	require.Positive(t, at)
	data[at]++
	require.NoError(t, os.WriteFile(logs[0], data, 0o600))
	require.NoError(t, os.Remove(filepath.Join(folder, "router", "REVISION")))
	refused := perigee(t, nil, "", "standalone", "--data-dir", folder, "--grpc-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0")
	require.Equal(t, exitFailed, refused.code)
	require.Contains(t, refused.stderr, "REVISION is damaged")
	require.Contains(t, refused.stderr, "check --data-dir "+folder+" shows all that is wrong")
	damaged := perigee(t, nil, "", "check", "--data-dir", folder)
	require.Equal(t, exitFailed, damaged.code)
	require.Contains(t, damaged.stdout, logs[0]+":")
	require.Contains(t, damaged.stdout, "checksum mismatch")
	require.Contains(t, damaged.stdout, "REVISION: is missing")
	require.Contains(t, damaged.stderr, "findings")
	require.Contains(t, damaged.stdout, "metadata: bring back the data directory from a backup")
	require.Contains(t, damaged.stdout, "perigee restore-revision")
	json := perigee(t, nil, "", "check", "--data-dir", folder, "--json")
	require.Equal(t, exitFailed, json.code)
	first := strings.SplitN(json.stdout, "\n", 2)[0]
	require.Contains(t, first, `{"finding":{"shard":"perigee-0","file":"`+logs[0]+`","offset":`)

	restored := perigee(t, nil, "", "restore-revision", "--data-dir", folder)
	require.Zero(t, restored.code, restored.stderr)
	require.Contains(t, restored.stdout, "with 1 topics and 1 groups")
	require.Equal(t, exitFailed, perigee(t, nil, "", "restore-revision", "--data-dir", folder).code, "it is whole")
	require.NotContains(t, perigee(t, nil, "", "check", "--data-dir", folder).stdout, "REVISION")

	require.NoError(t, os.RemoveAll(filepath.Join(folder, "router")))
	older := perigee(t, nil, "", "check", "--data-dir", folder)
	require.Equal(t, exitFailed, older.code)
	require.Contains(t, older.stdout, "missing or older than the store")

	require.Equal(t, exitFailed, perigee(t, nil, "", "check", "--data-dir", filepath.Join(folder, "nothing")).code)
	require.Equal(t, exitUsage, perigee(t, nil, "", "check", "--data-dir", folder, "--derive-limit", "much").code)
}

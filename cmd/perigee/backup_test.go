package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// bodies returns the bodies of messages that were printed as JSON.
func bodies(t *testing.T, o outcome) (list []string) {
	t.Helper()
	require.Zero(t, o.code, o.stderr)
	for _, m := range o.lines(t) {
		list = append(list, m["body"].(string))
	}
	return list
}

func TestABackupOfARunningServerIsRestored(t *testing.T) {
	parent := t.TempDir()
	folder, made, back := filepath.Join(parent, "data"), filepath.Join(parent, "backups", "one"), filepath.Join(parent, "restored")
	server := startServer(t, folder)
	require.Zero(t, server.perigee(t, "topic", "create", "orders", "--queues", "1").code)
	require.Zero(t, server.perigee(t, "send", "orders", "settled").code)
	require.Equal(t, []string{"settled"}, bodies(t, server.perigee(t, "receive", "orders", "--group", "g", "--json")))
	require.Zero(t, server.perigee(t, "send", "orders", "before").code)

	o := perigee(t, nil, "", "backup", "--data-dir", folder, "--to", made, "--rate", "1GiB")
	require.Zero(t, o.code, o.stderr)
	require.Contains(t, o.stdout, "backup of a standalone in "+made)
	require.Contains(t, o.stdout, "1 topics, 1 groups")
	again := perigee(t, nil, "", "backup", "--data-dir", folder, "--to", made, "--json")
	require.Equal(t, exitFailed, again.code)
	require.Contains(t, again.stderr, "ALREADY_EXISTS")

	require.Zero(t, server.perigee(t, "send", "orders", "after").code)
	require.Equal(t, []string{"before", "after"}, bodies(t, server.perigee(t, "receive", "orders", "--group", "g", "--json")))
	code, stderr := server.stop()
	require.Zero(t, code, stderr)

	sound := perigee(t, nil, "", "check", "--data-dir", made)
	require.Zero(t, sound.code, sound.stdout+sound.stderr)
	require.Contains(t, sound.stdout, "backup of a server in one process, made at ")
	require.Contains(t, sound.stdout, "2 messages")
	refused := perigee(t, nil, "", "standalone", "--data-dir", made, "--grpc-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0")
	require.Equal(t, exitFailed, refused.code)
	require.Contains(t, refused.stderr, "is a backup")

	require.Equal(t, exitFailed, perigee(t, nil, "", "restore", "--from", made, "--data-dir", folder).code, "it is not empty")
	o = perigee(t, nil, "", "restore", "--from", made, "--data-dir", back, "--json")
	require.Zero(t, o.code, o.stderr)
	require.Equal(t, "standalone", o.lines(t)[0]["tier"])
	require.Zero(t, perigee(t, nil, "", "check", "--data-dir", back).code)
	server = startServer(t, back)
	require.Equal(t, []string{"before"}, bodies(t, server.perigee(t, "receive", "orders", "--group", "g", "--json")),
		"what was acknowledged since comes again, what was sent since is lost")
	require.Zero(t, server.perigee(t, "topic", "create", "later").code)
	code, stderr = server.stop()
	require.Zero(t, code, stderr)
	require.Zero(t, perigee(t, nil, "", "check", "--data-dir", made).code, "the backup stays as it is")
}

func TestABackupIsRefusedInWords(t *testing.T) {
	folder := t.TempDir()
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"backup", "--data-dir", folder, "--to", filepath.Join(folder, "b")}, exitFailed, "no server that has data runs over " + folder},
		{[]string{"backup", "--data-dir", folder}, exitUsage, "--to names the folder"},
		{[]string{"backup", "--data-dir", folder, "--to", filepath.Join(folder, "b"), "--rate", "fast"}, exitUsage, `rate "fast": must be a whole number of B, KiB`},
		{[]string{"restore", "--from", folder, "--data-dir", filepath.Join(folder, "d")}, exitFailed, "it is no backup"},
		{[]string{"restore", "--from", folder}, exitUsage, "--data-dir"},
	} {
		o := perigee(t, nil, "", c.args...)
		require.Equal(t, c.code, o.code, c.args)
		require.Contains(t, o.stderr, c.says)
	}
	require.NoError(t, os.WriteFile(filepath.Join(folder, "RESTORING"), nil, 0o600))
	o := perigee(t, nil, "", "standalone", "--data-dir", folder, "--grpc-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0")
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.stderr, "a restore has not come to its end")
}

func TestOnlyTheOwnerOfADataFolderMayAskForABackupAndALongPathIsNoObstacle(t *testing.T) {
	parent := filepath.Join(t.TempDir(), strings.Repeat("deep/", 30))
	require.NoError(t, os.MkdirAll(parent, 0o755))
	folder := filepath.Join(parent, "data")
	server := startServer(t, folder)
	info, err := os.Stat(filepath.Join(folder, "control.sock"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	o := perigee(t, nil, "", "backup", "--data-dir", folder, "--to", filepath.Join(parent, "b"))
	require.Zero(t, o.code, o.stderr)
	code, stderr := server.stop()
	require.Zero(t, code, stderr)
	_, err = os.Stat(filepath.Join(folder, "control.sock"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

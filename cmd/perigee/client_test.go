package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/internal/client/fake"
)

func TestClientsAreAskedToReconnect(t *testing.T) {
	server := fake.Start(t)
	require.Equal(t, "clients asked: 1\n", against(t, server, "client", "reconnect", "--all").stdout)
	require.Equal(t, map[string]any{"asked": 1.0, "unreachable": []any{}},
		against(t, server, "client", "reconnect", "--all", "--percent", "30", "--json").lines(t)[0])
	require.Equal(t, "clients asked: 1\n", against(t, server, "client", "reconnect", "connected").stdout)
	o := against(t, server, "client", "reconnect", "connected", "gone")
	require.Equal(t, exitFailed, o.code)
	require.Equal(t, "clients asked: 1\nnot reachable: gone\n", o.stdout)
	require.Contains(t, o.stderr, "1 of 2 clients")

	requests := server.Reconnects()
	require.Len(t, requests, 4)
	require.EqualValues(t, 100, requests[0].GetPercent())
	require.EqualValues(t, 30, requests[1].GetPercent())
	require.Equal(t, []string{"connected", "gone"}, requests[3].GetClientIds())
	require.Zero(t, requests[3].GetPercent())
}

func TestWhomToReconnectMustBeSaid(t *testing.T) {
	server := fake.Start(t)
	for _, args := range [][]string{
		{}, {"c", "--all"}, {"c", "--percent", "5"}, {"--percent", "5"}, {"--all", "--percent", "0"}, {"--all", "--percent", "101"},
	} {
		o := against(t, server, append([]string{"client", "reconnect"}, args...)...)
		require.Equal(t, exitUsage, o.code, "%q: %s", args, o.stderr)
	}
	require.Empty(t, server.Reconnects())
}

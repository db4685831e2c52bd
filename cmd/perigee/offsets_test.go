package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/internal/client/fake"
)

func TestAResetSaysWhatItDoesInEachQueue(t *testing.T) {
	server := fake.Start(t)
	const done = "TOPIC   SHARD      QUEUE  FROM  TO  ENDED\norders  perigee-0  3      2     4   3\n"
	require.Equal(t, done, against(t, server, "group", "reset-offset", "readers", "--topic", "orders", "--earliest").stdout)
	require.Equal(t, done+"nothing was changed\n", against(t, server, "group", "reset-offset", "readers", "--topic", "orders", "--latest", "--dry-run").stdout)
	against(t, server, "group", "reset-offset", "readers", "--topic", "orders", "--time", "2026-01-31T08:00:00Z", "--shard", "perigee-0")
	line := against(t, server, "group", "reset-offset", "readers", "--topic", "orders", "--offset", "0", "--queue", "0", "--json").lines(t)[0]
	require.Equal(t, 4.0, line["queues"].([]any)[0].(map[string]any)["offset"])
	require.Equal(t, false, line["dry_run"])

	requests := server.Resets()
	require.Len(t, requests, 4)
	require.Equal(t, adminpb.ResetOffsetRequest_END_EARLIEST, requests[0].GetEnd())
	require.Equal(t, "readers", requests[0].GetGroup())
	require.Equal(t, "orders", requests[0].GetTopic())
	require.Nil(t, requests[0].Queue)
	require.False(t, requests[0].GetDryRun())
	require.Equal(t, adminpb.ResetOffsetRequest_END_LATEST, requests[1].GetEnd())
	require.True(t, requests[1].GetDryRun())
	require.True(t, time.Date(2026, 1, 31, 8, 0, 0, 0, time.UTC).Equal(requests[2].GetTime().AsTime()))
	require.Equal(t, "perigee-0", requests[2].GetShard())
	require.IsType(t, &adminpb.ResetOffsetRequest_Offset{}, requests[3].GetTarget())
	require.Equal(t, new(int32(0)), requests[3].Queue)
}

func TestAResetNeedsOneTarget(t *testing.T) {
	server := fake.Start(t)
	for text, args := range map[string][]string{
		"one of --earliest, --latest, --time and --offset": {"--topic", "t"},
		"one of --earliest":   {"--topic", "t", "--earliest", "--latest"},
		"either given or":     {"--topic", "t", "--earliest=false"},
		"--topic":             {"--latest"},
		"--queue is required": {"--topic", "t", "--offset", "3"},
		`time "yesterday"`:    {"--topic", "t", "--time", "yesterday"},
	} {
		got := against(t, server, append([]string{"group", "reset-offset", "readers"}, args...)...)
		require.Equal(t, exitUsage, got.code, text)
		require.Contains(t, got.stderr, text)
	}
	require.Empty(t, server.Resets())
}

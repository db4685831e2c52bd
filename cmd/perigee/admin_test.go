package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/internal/client/fake"
)

func TestTopicsGoThroughTheirLife(t *testing.T) {
	server := fake.Start(t)
	created := against(t, server, "topic", "create", "orders", "--type", "fifo", "--queues", "4", "--json").lines(t)[0]
	require.Equal(t, true, created["created"])
	require.Equal(t, map[string]any{
		"namespace": "", "name": "orders", "type": "FIFO", "permission": "READ_WRITE", "id": 1.0, "version": 1.0,
		"shards": []any{map[string]any{"shard": "perigee-0", "read_queues": 4.0, "write_queues": 4.0}},
	}, created["topic"])

	o := against(t, server, "topic", "create", "orders", "--type", "FIFO")
	require.Equal(t, "there was already topic orders (FIFO, 4 queues)\n", o.stdout)
	o = against(t, server, "topic", "create", "orders")
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.stderr, "ALREADY_EXISTS: topic orders exists")

	require.Equal(t, "NAME    TYPE  PERMISSION  READ  WRITE  RETENTION\norders  FIFO  READ_WRITE  4     4      default\n",
		against(t, server, "topic", "list").stdout)
	require.Empty(t, against(t, server, "topic", "list", "--json", "--namespace", "other").lines(t))

	described := against(t, server, "topic", "describe", "orders", "--json").lines(t)[0]
	require.Equal(t, []any{map[string]any{"shard": "perigee-0", "queue": 0.0, "min_offset": 3.0, "max_offset": 10.0}}, described["queues"])
	require.Contains(t, against(t, server, "topic", "describe", "orders").stdout, "SHARD      QUEUE  FIRST  NEXT  MESSAGES\nperigee-0  0      3      10    7\n")

	updated := against(t, server, "topic", "update", "orders", "--queues", "6", "--read-queues", "8", "--permission", "read", "--json").lines(t)[0]
	require.Equal(t, "READ", updated["topic"].(map[string]any)["permission"])
	require.Equal(t, []any{map[string]any{"shard": "perigee-0", "read_queues": 8.0, "write_queues": 6.0}},
		updated["topic"].(map[string]any)["shards"])

	require.Equal(t, "deleted topic orders\n", against(t, server, "topic", "delete", "orders").stdout)
	o = against(t, server, "topic", "delete", "orders")
	require.Equal(t, exitFailed, o.code)
	require.Equal(t, "perigee: NOT_FOUND: topic orders not found\n", o.stderr)
}

func TestNamespacesAreSentAlong(t *testing.T) {
	server := fake.Start(t)
	against(t, server, "topic", "create", "orders", "--namespace", "shop")
	require.Len(t, against(t, server, "topic", "list", "--namespace", "shop", "--json").lines(t), 1)
	require.Empty(t, against(t, server, "topic", "list", "--json").lines(t))
}

func group(t *testing.T, o outcome) map[string]any {
	t.Helper()
	return o.lines(t)[0]["group"].(map[string]any)
}

func TestGroupsGoThroughTheirLife(t *testing.T) {
	server := fake.Start(t)
	created := group(t, against(t, server, "group", "create", "readers", "--fifo", "--max-attempts", "5",
		"--retry-delays", "1s,2m,2h", "--start", "latest", "--json"))
	require.Equal(t, map[string]any{
		"namespace": "", "name": "readers", "id": 1.0, "version": 1.0, "fifo": true, "start": "latest",
		"retry":             map[string]any{"max_attempts": 5.0, "delays": []any{"1s", "2m", "2h"}},
		"dead_letter_topic": "%DLQ%readers",
	}, created)
	require.Equal(t, "NAME     FIFO  ATTEMPTS  START\nreaders  true  5         latest\n", against(t, server, "group", "list").stdout)

	described := against(t, server, "group", "describe", "readers", "--json").lines(t)[0]
	require.Equal(t, []any{map[string]any{"namespace": "", "topic": "orders", "ready": 5.0, "in_flight": 2.0, "blocked": 0.0, "used_up": 1.0}}, described["topics"])
	text := against(t, server, "group", "describe", "readers").stdout
	require.Contains(t, text, "after 1s, 2m, 2h")
	require.Contains(t, text, "TOPIC   READY  IN-FLIGHT  BLOCKED  USED-UP\norders  5      2          0        1\n")
	require.Contains(t, text, "TOPIC   SHARD      QUEUE  OFFSET  END  READY  IN-FLIGHT  BLOCKED  USED-UP  LAG\n"+
		"orders  perigee-0  3      2       7    5      2          0        1        8\n"+
		"orders  perigee-0  4      -       9    0      0          0        0        0\n")
	require.Equal(t, map[string]any{
		"namespace": "", "topic": "orders", "shard": "perigee-0", "queue": 3.0, "min_offset": 1.0, "max_offset": 7.0, "offset": 2.0,
		"ready": 5.0, "in_flight": 2.0, "blocked": 0.0, "used_up": 1.0, "lag": 8.0,
	}, described["queues"].([]any)[0])

	require.Equal(t, "deleted group readers\n", against(t, server, "group", "delete", "readers").stdout)
	require.Equal(t, exitFailed, against(t, server, "group", "describe", "readers").code)
}

func TestGroupsWithoutFlagsLeaveThePolicyToTheServer(t *testing.T) {
	server := fake.Start(t)
	require.Equal(t, map[string]any{"max_attempts": 0.0}, group(t, against(t, server, "group", "create", "readers", "--json"))["retry"])
	require.Contains(t, against(t, server, "group", "describe", "readers").stdout, "the server's default")
}

func TestMaxAttemptsAloneKeepsTheDefaultDelays(t *testing.T) {
	server := fake.Start(t)
	retry := group(t, against(t, server, "group", "create", "readers", "--max-attempts", "3", "--json"))["retry"].(map[string]any)
	require.Equal(t, 3.0, retry["max_attempts"])
	require.Len(t, retry["delays"], 18)
}

func TestBackoffFlagsDescribeExponentialBackoff(t *testing.T) {
	server := fake.Start(t)
	created := group(t, against(t, server, "group", "create", "readers", "--retry-initial", "5s", "--retry-max", "10m",
		"--retry-multiplier", "1.5", "--start", "2026-01-31T08:00:00Z", "--json"))
	require.Equal(t, map[string]any{"max_attempts": 0.0, "initial": "5s", "max": "10m", "multiplier": 1.5}, created["retry"])
	require.Equal(t, "2026-01-31T08:00:00Z", created["start"])
	require.Contains(t, against(t, server, "group", "describe", "readers").stdout, "after 5s, then 1.5 times as long each time, up to 10m")
}

func TestGroupUpdatesKeepWhatIsNotNamed(t *testing.T) {
	server := fake.Start(t)
	against(t, server, "group", "create", "readers", "--max-attempts", "5", "--retry-delays", "1s,2s")

	updated := group(t, against(t, server, "group", "update", "readers", "--max-attempts", "7", "--json"))
	require.Equal(t, map[string]any{"max_attempts": 7.0, "delays": []any{"1s", "2s"}}, updated["retry"])
	updated = group(t, against(t, server, "group", "update", "readers", "--retry-initial", "3s", "--json"))
	require.Equal(t, map[string]any{"max_attempts": 7.0, "initial": "3s", "max": "2h", "multiplier": 2.0}, updated["retry"])
	updated = group(t, against(t, server, "group", "update", "readers", "--retry-max", "1h", "--json"))
	require.Equal(t, map[string]any{"max_attempts": 7.0, "initial": "3s", "max": "1h", "multiplier": 2.0}, updated["retry"])
	updated = group(t, against(t, server, "group", "update", "readers", "--fifo=true", "--start", "latest", "--json"))
	require.Equal(t, true, updated["fifo"])

	requests := server.GroupUpdates()
	require.Nil(t, requests[0].Fifo)
	require.Nil(t, requests[0].Start)
	require.Nil(t, requests[3].Retry)
}

package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/internal/client/fake"
)

func TestRetentionIsSetShownAndTakenBack(t *testing.T) {
	server := fake.Start(t)
	created := against(t, server, "topic", "create", "orders", "--retention", "10m", "--json").lines(t)[0]
	require.Equal(t, "10m", created["topic"].(map[string]any)["retention"])
	require.Contains(t, against(t, server, "topic", "list").stdout, "RETENTION\norders  NORMAL  READ_WRITE  8     8      10m\n")
	require.Contains(t, against(t, server, "topic", "update", "orders", "--retention", "72h").stdout, "retention   72h\n")
	require.Contains(t, against(t, server, "topic", "describe", "orders").stdout, "retention   72h\n")
	require.Contains(t, against(t, server, "topic", "update", "orders", "--retention", "0").stdout, "retention   the node's default\n")
}

func TestPurgingSaysWhatItRemoved(t *testing.T) {
	server := fake.Start(t)
	against(t, server, "topic", "create", "orders")
	require.Equal(t, "purged topic orders: 7 messages removed\n", against(t, server, "topic", "purge", "orders", "--yes").stdout)
	require.Equal(t, map[string]any{
		"topic": "orders", "purged": 7.0,
		"queues": []any{map[string]any{"shard": "perigee-0", "queue": 0.0, "min_offset": 10.0, "max_offset": 10.0}},
	}, against(t, server, "topic", "purge", "orders", "--yes", "--json").lines(t)[0])
	o := against(t, server, "topic", "purge", "bills", "--yes")
	require.Equal(t, exitFailed, o.code)
	require.Equal(t, "perigee: NOT_FOUND: topic bills not found\n", o.stderr)
}

func TestDeadLettersAreListedAndRedrivenInAsManyCallsAsItTakes(t *testing.T) {
	server := fake.Start(t)
	require.Equal(t, "GROUP  TOPIC  MESSAGES  WAITING\n", against(t, server, "dlq", "list").stdout)
	server.SetDead("readers", fake.Dead{Waiting: 35})
	require.Equal(t, "GROUP    TOPIC         MESSAGES  WAITING\nreaders  %DLQ%readers  35        35\n", against(t, server, "dlq", "list").stdout)

	require.Equal(t, "group readers: 12 messages sent back, 23 waiting\n", against(t, server, "dlq", "redrive", "readers", "--max", "12").stdout)
	require.Equal(t, map[string]any{"group": "readers", "redriven": 23.0, "waiting": 0.0, "unmoved": []any{}},
		against(t, server, "dlq", "redrive", "readers", "--json").lines(t)[0])
	require.Equal(t, map[string]any{"namespace": "", "group": "readers", "topic": "%DLQ%readers", "messages": 35.0, "waiting": 0.0},
		against(t, server, "dlq", "list", "--json").lines(t)[0])
	require.Equal(t, "group readers: 0 messages sent back, 0 waiting\n", against(t, server, "dlq", "redrive", "readers").stdout)
	o := against(t, server, "dlq", "redrive", "writers")
	require.Equal(t, exitFailed, o.code)
	require.Equal(t, "perigee: NOT_FOUND: consumer group writers not found\n", o.stderr)
}

func TestARedriveThatLeavesSomeBehindSaysWhyAndFails(t *testing.T) {
	server := fake.Start(t)
	server.SetDead("readers", fake.Dead{Waiting: 15, Unmoved: []*adminpb.UnmovedDeadLetters{
		{Reason: "does not say which topic it came from", Messages: 1}, {Topic: "orders", Reason: "topic not found", Messages: 2},
	}})
	o := against(t, server, "dlq", "redrive", "readers")
	require.Equal(t, exitFailed, o.code)
	require.Equal(t, "group readers: 12 messages sent back, 3 waiting\n"+
		"  1 message without origin cannot go back: does not say which topic it came from\n"+
		"  2 messages of topic orders cannot go back: topic not found\n", o.stdout)
	require.Equal(t, "perigee: 3 messages cannot go back\n", o.stderr)
}

func TestDeadLettersThatAnotherRedriveHasAreNamed(t *testing.T) {
	server := fake.Start(t)
	server.SetDead("readers", fake.Dead{Waiting: 5, Taken: 4})
	o := against(t, server, "dlq", "redrive", "readers")
	require.Zero(t, o.code, o.stderr)
	require.Equal(t, "group readers: 1 message sent back, 4 waiting\n"+
		"  4 messages in the hands of another redrive, or of one that was cut off in the last two minutes\n", o.stdout)
}

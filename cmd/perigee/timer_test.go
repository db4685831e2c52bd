package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/internal/client/fake"
)

func withTimers(t *testing.T) *fake.Server {
	server := fake.Start(t)
	for i, id := range []string{"s/1", "s/2", "s/3", "s/4", "s/5"} {
		server.AddTimer(&adminpb.Timer{
			Id: id, MessageId: "m" + id[2:], Keys: []string{"k" + id[2:], "all"}, Tag: "red", Queue: 1, Size: 100, Shard: "s",
			DeliverAt: timestamppb.New(time.Unix(int64(i), 5)), StoredAt: timestamppb.New(time.Unix(0, 0)),
		})
	}
	return server
}

func TestDelayedMessagesAreListedPageByPage(t *testing.T) {
	server := withTimers(t)
	require.Equal(t, "ID   MESSAGE  DELIVER_AT                      QUEUE  TAG  KEYS    SIZE\n"+
		"s/1  m1       1970-01-01T00:00:00.000000005Z  1      red  k1 all  100\n"+
		"s/2  m2       1970-01-01T00:00:01.000000005Z  1      red  k2 all  100\n"+
		"s/3  m3       1970-01-01T00:00:02.000000005Z  1      red  k3 all  100\n",
		against(t, server, "timer", "list", "orders", "--max", "3").stdout)
	require.Len(t, against(t, server, "timer", "list", "orders", "--json").lines(t), 5)
	require.Equal(t, []map[string]any{{
		"id": "s/4", "message_id": "m4", "topic": "orders", "deliver_at": "1970-01-01T00:00:03.000000005Z", "stored_at": "1970-01-01T00:00:00Z",
		"shard": "s", "queue": 1.0, "tag": "red", "keys": []any{"k4", "all"}, "size": 100.0,
	}}, against(t, server, "timer", "list", "orders", "--key", "k4", "--json").lines(t))
	require.Equal(t, "m2", against(t, server, "timer", "list", "orders", "--message-id", "m2", "--json").lines(t)[0]["message_id"])
	require.Equal(t, "topic orders: 5 messages pending\n", against(t, server, "timer", "list", "orders", "--count").stdout)
}

func TestDelayedMessagesAreCancelledAndPostponedOneByOne(t *testing.T) {
	server := withTimers(t)
	require.Equal(t, "cancelled s/1\ncancelled s/2\n", against(t, server, "timer", "cancel", "orders", "s/1", "s/2").stdout)
	o := against(t, server, "timer", "cancel", "orders", "s/1", "s/3")
	require.Equal(t, exitFailed, o.code)
	require.Equal(t, "not cancelled s/1: not pending\ncancelled s/3\n", o.stdout)
	require.Equal(t, "perigee: 1 message not cancelled\n", o.stderr)
	require.Equal(t, map[string]any{"id": "s/4", "done": true},
		against(t, server, "timer", "postpone", "orders", "s/4", "--at", "2031-01-31T18:00:00+01:00", "--json").lines(t)[0])
	require.Equal(t, "2031-01-31T17:00:00Z", against(t, server, "timer", "list", "orders", "--json").lines(t)[0]["deliver_at"])
	require.Equal(t, "postponed s/5\n", against(t, server, "timer", "postpone", "orders", "s/5", "--in", "0s").stdout)
	for _, args := range [][]string{
		{"cancel", "orders"},
		{"postpone", "orders", "--in", "1s"},
		{"postpone", "orders", "s/4"},
		{"postpone", "orders", "s/4", "--in", "1s", "--at", "2031-01-31T18:00:00Z"},
		{"postpone", "orders", "s/4", "--in", "-1s"},
		{"postpone", "orders", "s/4", "--at", "tomorrow"},
		{"list", "orders", "--max", "-1"},
	} {
		require.Equal(t, exitUsage, against(t, server, append([]string{"timer"}, args...)...).code, args)
	}
}

package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/internal/client/fake"
)

func withHalves(t *testing.T) *fake.Server {
	server := fake.Start(t)
	for i, id := range []string{"s/1", "s/2", "s/3"} {
		one := &adminpb.Transaction{
			Id: id, MessageId: "m" + id[2:], Topic: "orders", Stage: adminpb.TransactionStage(i + 1), Checks: int32(i), BornHost: "box",
			Keys: []string{"k"}, Tag: "red", Queue: 1, Size: 100, Shard: "s", StoredAt: timestamppb.New(time.Unix(0, 5)),
		}
		if i < 2 {
			one.NextCheckAt = timestamppb.New(time.Unix(int64(i), 0))
		}
		server.AddTransaction(one)
	}
	return server
}

func TestHalfMessagesAreListedPageByPage(t *testing.T) {
	server := withHalves(t)
	require.Equal(t, "ID   MESSAGE  TOPIC   STAGE       CHECKS  NEXT_CHECK            STORED                          PRODUCER  SIZE\n"+
		"s/1  m1       orders  waiting     0       1970-01-01T00:00:00Z  1970-01-01T00:00:00.000000005Z  box       100\n"+
		"s/2  m2       orders  last-asked  1       1970-01-01T00:00:01Z  1970-01-01T00:00:00.000000005Z  box       100\n"+
		"s/3  m3       orders  given-up    2       never                 1970-01-01T00:00:00.000000005Z  box       100\n",
		against(t, server, "transaction", "list").stdout)
	require.Equal(t, []map[string]any{{
		"id": "s/3", "message_id": "m3", "topic": "orders", "stage": "given-up", "checks": 2.0, "stored_at": "1970-01-01T00:00:00.000000005Z",
		"born_host": "box", "tag": "red", "keys": []any{"k"}, "shard": "s", "queue": 1.0, "size": 100.0,
	}}, against(t, server, "transaction", "list", "--topic", "orders", "--stage", "given-up", "--json").lines(t))
	require.Len(t, against(t, server, "transaction", "list", "--max", "1", "--json").lines(t), 1)
	require.Len(t, against(t, server, "transaction", "list", "--message-id", "m2", "--json").lines(t), 1)
}

func TestHalfMessagesAreEndedOneByOne(t *testing.T) {
	server := withHalves(t)
	require.Equal(t, "committed s/1\n", against(t, server, "transaction", "commit", "s/1").stdout)
	o := against(t, server, "transaction", "rollback", "s/1", "s/2")
	require.Equal(t, exitFailed, o.code)
	require.Equal(t, "not rolled back s/1: unknown transaction\nrolled back s/2\n", o.stdout)
	require.Equal(t, "perigee: not rolled back: s/1\n", o.stderr)
	require.Equal(t, map[string]any{"id": "s/3", "done": true}, against(t, server, "transaction", "check", "s/3", "--json").lines(t)[0])
	require.Equal(t, "waiting", against(t, server, "transaction", "list", "--json").lines(t)[0]["stage"])
	for _, args := range [][]string{
		{"commit"},
		{"list", "--stage", "late"},
		{"list", "--max", "-1"},
		{"list", "orders"},
	} {
		require.Equal(t, exitUsage, against(t, server, append([]string{"transaction"}, args...)...).code, args)
	}
}

package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/internal/client/fake"
)

func TestClientsOfAllPagesAreListed(t *testing.T) {
	server := fake.Start(t)
	require.Equal(t, "ID  ADDRESS  SDK  TYPE  STATE  GROUP  TOPICS  RENEWED  SEEN\n", against(t, server, "client", "list").stdout)
	for i := range 5 {
		server.AddClient(&adminpb.Client{Id: fmt.Sprint("c", i)})
	}
	require.Len(t, against(t, server, "client", "list", "--json").lines(t), 5)
}

func TestAClientIsShownWithWhatItDoes(t *testing.T) {
	server := fake.Start(t)
	seen := time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	server.AddClient(&adminpb.Client{
		Id: "c1", Address: "10.0.0.1:5555", Language: "JAVA", Version: "5.0.7", Node: "n1",
		Type: adminpb.ClientType_CLIENT_TYPE_PUSH_CONSUMER, State: adminpb.ClientState_CLIENT_STATE_CONNECTED,
		Namespace: "shop", Group: "billing", Streams: 1, RenewedLeases: 7, LastSeen: timestamppb.New(seen),
		Subscriptions: []*adminpb.Subscription{{Namespace: "shop", Topic: "orders", Expression: "*"}, {Namespace: "shop", Topic: "refunds", Expression: "a||b"}},
	})
	server.AddClient(&adminpb.Client{Id: "c2", State: adminpb.ClientState_CLIENT_STATE_LOST, Type: adminpb.ClientType_CLIENT_TYPE_PRODUCER})

	listed := against(t, server, "client", "list", "--group", "billing", "--namespace", "shop", "--json").lines(t)
	require.Equal(t, []map[string]any{{
		"id": "c1", "address": "10.0.0.1:5555", "language": "JAVA", "version": "5.0.7", "type": "PUSH_CONSUMER", "state": "CONNECTED",
		"namespace": "shop", "group": "billing", "streams": 1.0, "renewed_leases": 7.0, "last_seen": "2026-05-04T03:02:01Z", "node": "n1",
		"subscriptions": []any{
			map[string]any{"namespace": "shop", "topic": "orders", "expression": "*"},
			map[string]any{"namespace": "shop", "topic": "refunds", "expression": "a||b"},
		},
	}}, listed)
	lines := strings.Split(against(t, server, "client", "list").stdout, "\n")
	require.Equal(t, []string{
		"c1", "10.0.0.1:5555", "JAVA", "5.0.7", "PUSH_CONSUMER", "CONNECTED", "shop/billing", "shop/orders,shop/refunds(a||b)", "7",
		seen.Local().Format(time.TimeOnly),
	}, strings.Fields(lines[1]))
	require.Equal(t, []string{"c2", "-", "-", "PRODUCER", "LOST", "-", "-", "0"}, strings.Fields(lines[2])[:8])
}

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

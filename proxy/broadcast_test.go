package proxy

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

// client returns one of several clients of a group.
func (s *testServer) client(id, group string) *consumer {
	return &consumer{s: s, id: id, topic: "t", group: group}
}

// all takes and acknowledges everything there is for a client.
func (c *consumer) all(t *testing.T) (ids []string) {
	t.Helper()
	for {
		a := c.receive(t, c.simple(32, time.Minute, 0))
		if len(a.messages) == 0 {
			return ids
		}
		ids = append(ids, a.ids()...)
		for i := range a.messages {
			c.acked(t, a.handle(i))
		}
	}
}

// TestEachClientOfABroadcastGroupGetsEveryMessage: five of them, a hundred messages, and a
// group that shares its messages as ever. One that comes later begins at the end.
func TestEachClientOfABroadcastGroupGetsEveryMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "t")
		s.group(t, "caches", router.GroupSpec{Broadcast: true})
		var clients []*consumer
		for i := range 5 {
			clients = append(clients, s.client(fmt.Sprint("client", i), "caches"))
			require.Empty(t, clients[i].all(t))
		}
		shared := s.client("worker", "workers")
		var sent []string
		for i := range 100 {
			id := fmt.Sprint("m", i)
			sent = append(sent, id)
			s.send(t, message("t", id, "x"))
		}
		for _, c := range clients {
			require.ElementsMatch(t, sent, c.all(t))
		}
		require.ElementsMatch(t, sent, shared.all(t))
		late := s.client("late", "caches")
		require.Empty(t, late.all(t))
		s.send(t, message("t", "new", "x"))
		require.Equal(t, []string{"new"}, late.all(t))
		require.Equal(t, []string{"new"}, clients[0].all(t))

		// Receipts are good for any client of the group, as ever, and for no other group.
		s.send(t, message("t", "held", "x"))
		held := late.receive(t, late.simple(1, time.Minute, 0))
		require.NotEqual(t, "OK", shared.ack(t, held.handle(0)).GetEntries()[0].GetStatus().GetCode().String())
		late.change(t, held.handle(0), 20*time.Second)
		clients[1].acked(t, held.handle(0))
	})
}

func TestAnInstanceGoesWithItsGroupOrWhenItsClientIsSilentForADay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "t")
		s.group(t, "caches", router.GroupSpec{Broadcast: true})
		instances := func() (n int) {
			for _, g := range s.meta.ListGroups(t.Context(), router.Selection{SystemGroups: true}) {
				if g.IsInstance() {
					n++
				}
			}
			return n
		}
		silent, busy := s.client("silent", "caches"), s.client("busy", "caches")
		require.Empty(t, silent.all(t))
		for range 30 {
			require.Empty(t, busy.all(t))
			time.Sleep(time.Hour)
		}
		require.Equal(t, 1, instances())
		require.Empty(t, silent.all(t))
		require.Equal(t, 2, instances())
		_, err := s.meta.DeleteGroup(t.Context(), mq.Resource{Name: "caches"})
		require.NoError(t, err)
		require.Zero(t, instances())
	})
}

// TestAClientOfABroadcastGroupBeginsOnAllShardsAtOnce: what is sent after its first receive comes,
// whichever shard that was from.
func TestAClientOfABroadcastGroupBeginsOnAllShardsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t, onShards)
		away := &absentStore{s.Server.store, "c"}
		s.Server.store = away
		s.topic(t, "t")
		s.group(t, "caches", router.GroupSpec{Broadcast: true})
		for _, shard := range []string{"a", "b", "c"} {
			s.onShard(t, shard, "t", "old "+shard)
		}
		c := s.client("client", "caches")
		require.Empty(t, c.receive(t, at("a", c.push(32, 0))).messages)
		away.away = ""
		require.Empty(t, c.receive(t, at("a", c.push(32, 0))).messages, "it begins on a shard that was away, too")
		var sent, got []string
		for _, shard := range []string{"a", "b", "c"} {
			s.onShard(t, shard, "t", "new "+shard)
			sent = append(sent, "new "+shard)
		}
		for _, shard := range []string{"a", "b", "c"} {
			a := c.receive(t, at(shard, c.push(32, 0)))
			got = append(got, a.ids()...)
			require.Equal(t, []int32{1}, a.attempts())
		}
		require.Equal(t, sent, got)
	})
}

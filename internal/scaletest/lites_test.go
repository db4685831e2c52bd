package scaletest

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/shard"
)

// TestManyLiteTopicsUnderOneParent: what a call costs, and the memory, must be those of few
// lite topics when there are a million.
func TestManyLiteTopicsUnderOneParent(t *testing.T) {
	few := liteRun(t, 1000)
	many := liteRun(t, number(1_000_000, 20_000))
	require.Less(t, many.heap, few.heap+256<<20, "the heap grows with the lite topics")
}

func liteRun(t *testing.T, lites int) memory {
	dir := t.TempDir()
	s := openShard(t, dir, shard.FlushAsync)
	defer func() { require.NoError(t, s.Close()) }()
	topic, group := topicOf(1, 8), groupOf(1)
	topic.Type = mq.TopicLite
	name := func(i int) string { return fmt.Sprint("lite-", i) }
	send := func(i int) error {
		m := messages(1, 100, "")
		m[0].Type, m[0].Lite = mq.Lite, name(i)
		_, err := s.Append(t.Context(), topic, 0, m)
		return err
	}
	began := time.Now()
	var wg sync.WaitGroup
	const senders = 64
	for sender := range senders {
		wg.Go(func() {
			for i := sender; i < lites; i += senders {
				if err := send(i); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d lite topics made by a send each in %v: %v", lites, time.Since(began).Round(time.Millisecond), measure())

	subscribed := min(lites, 1000)
	set := mq.LiteSync{Topic: topic, Group: group, Client: "c", Action: mq.LiteReplace, Place: mq.LitePlace{Start: mq.LiteMax}}
	for i := range subscribed {
		set.Names = append(set.Names, name(i*(lites/subscribed)))
	}
	use := func(what string) {
		began := time.Now()
		_, err := s.SyncLite(t.Context(), set)
		require.NoError(t, err)
		synced := time.Since(began)
		var sends, receives latencies
		for i := range 3000 {
			at := i * 7919 % subscribed * (lites / subscribed)
			began := time.Now()
			require.NoError(t, send(at))
			sends = append(sends, time.Since(began))
			began = time.Now()
			got, err := s.Receive(t.Context(), mq.Receive{Topic: topic, Group: group, Lite: "c", Max: 32, Invisible: time.Hour, Wait: time.Minute})
			require.NoError(t, err)
			require.Len(t, got, 1)
			receives = append(receives, time.Since(began))
			_, err = s.Ack(t.Context(), topic.ID, group.ID, []command.LeaseRef{{Queue: got[0].Lease.Queue, Offset: got[0].Lease.Offset, PopID: got[0].Lease.PopID}})
			require.NoError(t, err)
		}
		t.Logf("%s: set of %d synced in %v; send %v; receive %v", what, subscribed, synced.Round(time.Microsecond), sends, receives)
	}
	use("in use")
	m := measure()
	require.NoError(t, s.Close())
	began = time.Now()
	s = openShard(t, dir, shard.FlushAsync)
	t.Logf("opened in %v: %v", time.Since(began).Round(time.Millisecond), measure())
	use("after a restart")
	return m
}

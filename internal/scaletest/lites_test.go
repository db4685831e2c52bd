package scaletest

import (
	"fmt"
	"sync"
	"sync/atomic"
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

func liteName(i int) string { return fmt.Sprint("lite-", i) }

// sendLite sends a message to the lite topic i.
func sendLite(t *testing.T, s *shard.Shard, topic *mq.Topic, i int) error {
	m := messages(1, 100, "")
	m[0].Type, m[0].Lite = mq.Lite, liteName(i)
	_, err := s.Append(t.Context(), topic, 0, m)
	return err
}

// makeLites makes lite topics by a send to each.
func makeLites(t *testing.T, s *shard.Shard, topic *mq.Topic, lites int) {
	var wg sync.WaitGroup
	const senders = 64
	for sender := range senders {
		wg.Go(func() {
			for i := sender; i < lites; i += senders {
				if err := sendLite(t, s, topic, i); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func liteRun(t *testing.T, lites int) memory {
	dir := t.TempDir()
	s := openShard(t, dir, shard.FlushAsync)
	defer func() { require.NoError(t, s.Close()) }()
	topic, group := topicOf(1, 8), groupOf(1)
	topic.Type = mq.TopicLite
	began := time.Now()
	makeLites(t, s, topic, lites)
	t.Logf("%d lite topics made by a send each in %v: %v", lites, time.Since(began).Round(time.Millisecond), measure())

	subscribed := min(lites, 1000)
	set := mq.LiteSync{Topic: topic, Group: group, Client: "c", Action: mq.LiteReplace, Place: mq.LitePlace{Start: mq.LiteMax}}
	for i := range subscribed {
		set.Names = append(set.Names, liteName(i*(lites/subscribed)))
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
			require.NoError(t, sendLite(t, s, topic, at))
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
	began = time.Now()
	stock, err := s.LiteStock(t.Context(), topic.ID)
	require.NoError(t, err)
	require.EqualValues(t, lites, stock.Topics)
	t.Logf("%d messages counted in %v", stock.Messages, time.Since(began).Round(time.Millisecond))
	m := measure()
	require.NoError(t, s.Close())
	began = time.Now()
	s = openShard(t, dir, shard.FlushAsync)
	t.Logf("opened in %v: %v", time.Since(began).Round(time.Millisecond), measure())
	use("after a restart")
	return m
}

// TestManyLiteTopicsThatEndAtOnceDoNotStallSends lets the lives of many lite topics end at
// one moment, and sends to another topic meanwhile. So does it while clients with many lite
// topics subscribe.
func TestManyLiteTopicsThatEndAtOnceDoNotStallSends(t *testing.T) {
	lites, each := number(1_000_000, 5_000), number(2000, 500)
	var ttl atomic.Int64
	s, err := shard.Open(shard.Options{
		Name: shardName, Dir: t.TempDir(), Flush: shard.FlushAsync, LiteInterval: 100 * time.Millisecond,
		LiteTTL: func(mq.TopicID) time.Duration { return time.Duration(ttl.Load()) },
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	topic, other, group := topicOf(1, 8), topicOf(2, 8), groupOf(1)
	topic.Type = mq.TopicLite
	makeLites(t, s, topic, lites)
	quiet := sendFor(t, s, other, 4, time.Duration(number(3000, 50))*time.Millisecond)
	meanwhile := func(what string, do func()) {
		stop, during := make(chan struct{}), make(chan latencies, 1)
		go func() { during <- senders(t, s, other, 4, stop) }()
		start := time.Now()
		do()
		took := time.Since(start)
		close(stop)
		t.Logf("sends before: %v; while %s, for %v: %v", quiet, what, took.Round(time.Millisecond), <-during)
	}
	meanwhile(fmt.Sprint("10 clients subscribe to ", each, " lite topics each"), func() {
		for client := range 10 {
			set := mq.LiteSync{Topic: topic, Group: group, Client: fmt.Sprint("c", client), Action: mq.LiteReplace}
			for i := range each {
				set.Names = append(set.Names, liteName((client*each+i)*7919%lites))
			}
			_, err := s.SyncLite(t.Context(), set)
			require.NoError(t, err)
		}
	})
	meanwhile(fmt.Sprint(lites, " lite topics end"), func() {
		ttl.Store(1)
		for n := 1; n > 0; wait(10 * time.Millisecond) {
			n, err = s.LiteTopics(t.Context(), topic.ID)
			require.NoError(t, err)
		}
	})
	t.Logf("then: %v", measure())
}

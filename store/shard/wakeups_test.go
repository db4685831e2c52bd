package shard_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/shard"
)

func TestMessagesThatNobodyWantsWakeNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, vfs.NewMem(), shard.FlushAsync)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(8), groupOf(9)
		r := mq.Receive{Topic: topic, Group: group, Tags: []string{"A"}, Wait: 20 * time.Second, Max: 1}
		var waiting []chan outcome
		for range 100 {
			waiting = append(waiting, start(t, s, r))
		}
		woken := s.Stats().Woken
		for i := range 1000 {
			send(t, s, topic, mq.QueueID(i%8), message(fmt.Sprint("b", i), "B"))
		}
		synctest.Wait()
		require.Equal(t, woken, s.Stats().Woken)
		require.Equal(t, 100, s.Stats().Waiting)
		records := s.Stats().Records

		send(t, s, topic, 5, message("a", "A"))
		synctest.Wait()
		require.LessOrEqual(t, s.Stats().Woken-woken, uint64(2), "the second moves past the rest of what nobody wants")
		require.Equal(t, 99, s.Stats().Waiting)
		require.LessOrEqual(t, s.Stats().Records-records, uint64(3), "one send and two pops")
		got := 0
		for _, w := range waiting {
			out := <-w
			require.NoError(t, out.err)
			got += len(out.got)
		}
		require.Equal(t, 1, got)
	})
}

// TestBurstWakesNoMoreReceivesThanItTakes: many messages in one request, and many
// leases that end at once.
func TestBurstWakesNoMoreReceivesThanItTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, vfs.NewMem(), shard.FlushSync)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(1), groupOf(9)
		r := mq.Receive{Topic: topic, Group: group, Wait: time.Minute, Invisible: time.Second}
		waiting := map[int]chan outcome{}
		for i := range 50 {
			waiting[i] = start(t, s, r)
		}
		woken := s.Stats().Woken
		sendMany(t, s, topic, 0, 960, "") // for 30 receives
		synctest.Wait()
		require.Equal(t, 20, s.Stats().Waiting)
		require.Less(t, s.Stats().Woken-woken, uint64(100), "not one for each message")

		time.Sleep(1500 * time.Millisecond) // all leases have ended
		require.Equal(t, 0, s.Stats().Waiting)
		got := 0
		for _, w := range waiting {
			out := <-w
			require.NoError(t, out.err)
			got += len(out.got)
		}
		require.Equal(t, 50*32, got)
		require.Less(t, s.Stats().Woken-woken, uint64(200))
	})
}

func TestSparseFilterFindsItsMessageWithinOneReceive(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s := open(t, vfs.NewMem(), mode)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(4), groupOf(9)
		const unwanted = 50_000
		for i := range mq.QueueID(4) {
			sendMany(t, s, topic, i, unwanted/4, "B")
		}
		send(t, s, topic, 3, message("a", "A"))
		records := s.Stats().Records
		r := mq.Receive{Topic: topic, Group: group, Tags: []string{"A"}, Wait: 20 * time.Second, Max: 1}
		out := <-start(t, s, r)
		require.NoError(t, out.err)
		require.Equal(t, []string{"a"}, ids(out.got))
		require.LessOrEqual(t, s.Stats().Records-records, uint64(unwanted/2048+8), "a bounded look for each command")

		require.NoError(t, ack(t, s, out.got[0].Lease))
		require.Empty(t, receive(t, s, r), "the rest of the other queues")
		require.LessOrEqual(t, s.Stats().Records-records, uint64(unwanted/2048+8))
		records = s.Stats().Records
		require.Empty(t, receive(t, s, r))
		require.Equal(t, records, s.Stats().Records, "nothing is looked at twice")
	})
}

func TestRedeliveriesThatAFilterDoesNotWantCostALookOnce(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s := open(t, vfs.NewMem(), mode)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(1), groupOf(9)
		sendMany(t, s, topic, 0, 5000, "B")
		send(t, s, topic, 0, message("a", "A"))
		all := mq.Receive{Topic: topic, Group: group, Max: 1000, Invisible: time.Second}
		received := func() (n int) {
			for range 6 {
				n += len(receive(t, s, all))
			}
			return n
		}
		require.Equal(t, 5001, received())
		time.Sleep(time.Minute)
		synctest.Wait()
		backlog, err := s.Backlogs(t.Context(), group.ID)
		require.NoError(t, err)
		require.Equal(t, int64(5001), backlog[0].Ready)

		wanted := mq.Receive{Topic: topic, Group: group, Tags: []string{"A"}, Wait: 20 * time.Second, Max: 1, Invisible: time.Hour}
		records := s.Stats().Records
		require.Len(t, receive(t, s, wanted), 1, "behind all the others")
		require.Equal(t, uint64(1), s.Stats().Records-records, "only the pop that delivers is in the log")
		for range 3 {
			out := <-start(t, s, wanted)
			require.NoError(t, out.err)
			require.Empty(t, out.got)
			require.Equal(t, 20*time.Second, out.took)
		}
		require.Equal(t, uint64(1), s.Stats().Records-records)

		// Nothing was lost by it.
		send(t, s, topic, 0, message("a2", "A"))
		require.Equal(t, []string{"a2"}, ids(receive(t, s, wanted)))
		all.Invisible = time.Hour
		require.Equal(t, 5000, received())
	})
}

func TestLoweredLimitEndsRedeliveriesThatAFilterHasPassed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, vfs.NewMem(), shard.FlushSync)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(1), groupOf(9)
		sendMany(t, s, topic, 0, 3, "B")
		require.Len(t, receive(t, s, mq.Receive{Topic: topic, Group: group, Invisible: time.Second}), 3)
		time.Sleep(time.Minute)
		wanted := mq.Receive{Topic: topic, Group: group, Tags: []string{"A"}}
		require.Empty(t, receive(t, s, wanted))
		lower := groupOf(1)
		lower.Version = 2
		require.NoError(t, s.UpdateGroup(t.Context(), lower))
		wanted.Group = lower
		require.Empty(t, receive(t, s, wanted))
		synctest.Wait()
		require.Equal(t, uint64(3), s.Stats().DeadLettered)
	})
}

// TestSendsGoBetweenTheSlicesOfABurstOfExpiries: while many leases end at once, a
// send waits for the slice under way and the one of its own round.
func TestSendsGoBetweenTheSlicesOfABurstOfExpiries(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s := open(t, vfs.NewMem(), mode)
		defer func() { require.NoError(t, s.Close()) }()
		topic, other, group := topicOf(1), topicOf(1), groupOf(9)
		other.ID = 2
		leases := 20_000
		if testing.Short() {
			leases = 4_000
		}
		sendMany(t, s, topic, 0, leases, "")
		var changes []command.LeaseChange
		for len(changes) < leases {
			for _, d := range receive(t, s, mq.Receive{Topic: topic, Group: group, Max: 2000, Invisible: time.Hour}) {
				ref := command.LeaseRef{Queue: d.Lease.Queue, Offset: d.Lease.Offset, PopID: d.Lease.PopID}
				changes = append(changes, command.LeaseChange{LeaseRef: ref, Invisible: int64(time.Minute)})
			}
		}
		_, err := s.Change(t.Context(), topic.ID, group.ID, changes) // all end at one moment
		require.NoError(t, err)
		time.Sleep(time.Minute)
		leased := func() int64 {
			backlog, err := s.Backlogs(t.Context(), group.ID)
			require.NoError(t, err)
			return backlog[0].InFlight
		}
		records, sends := s.Stats().Records, uint64(0)
		for leased() > 0 {
			time.Sleep(time.Nanosecond) // the time of commands is unique, so it is a little later
			for {
				before := s.Stats().Records
				send(t, s, other, 0, message("x", ""))
				require.LessOrEqual(t, s.Stats().Records-before, uint64(4))
				sends++
				if n := leased(); n == 0 || n == int64(leases) {
					break
				}
			}
		}
		require.GreaterOrEqual(t, s.Stats().Records-records-sends, uint64(leases/1000), "slices of the burst")
	})
}

package shard_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/shard"
)

// outcome is how a receive ended, and when.
type outcome struct {
	got  []mq.Delivery
	err  error
	took time.Duration
}

// start begins a receive; the bubble waits until it is parked or has ended.
func start(t *testing.T, s *shard.Shard, r mq.Receive) chan outcome {
	t.Helper()
	if r.Max == 0 {
		r.Max = 32
	}
	if r.Invisible == 0 {
		r.Invisible = 30 * time.Second
	}
	done := make(chan outcome, 1)
	began := time.Now()
	go func() {
		got, err := s.Receive(t.Context(), r)
		done <- outcome{got, err, time.Since(began)}
	}()
	synctest.Wait()
	return done
}

// sendMany sends n messages with the tag to a queue.
func sendMany(t *testing.T, s *shard.Shard, topic *mq.Topic, queue mq.QueueID, n int, tag string) {
	t.Helper()
	for n > 0 {
		var msgs []*mq.Message
		for range min(n, 1000) {
			msgs = append(msgs, message(fmt.Sprint(tag, n), tag))
			n--
		}
		send(t, s, topic, queue, msgs...)
	}
}

func TestGroupAtItsInFlightLimitGetsNoMoreOfTheQueue(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		fs := vfs.NewMem()
		s := open(t, fs, mode)
		topic, group := topicOf(2), groupOf(9)
		sendMany(t, s, topic, 0, 20, "")
		sendMany(t, s, topic, 1, 3, "")
		limited := mq.Receive{Topic: topic, Group: group, InFlight: 5, Invisible: time.Hour, Wait: 20 * time.Second}
		require.Len(t, receive(t, s, limited), 5+3)

		records := s.Stats().Records
		out := <-start(t, s, limited)
		require.ErrorIs(t, out.err, mq.ErrTooManyInFlight)
		require.ErrorContains(t, out.err, "group g has 5")
		require.ErrorContains(t, out.err, "topic orders")
		require.ErrorContains(t, out.err, "limit is 5")
		require.Equal(t, time.Second, out.took, "held, so that nobody spins")
		limited.Wait = 0
		out = <-start(t, s, limited)
		require.ErrorIs(t, out.err, mq.ErrTooManyInFlight)
		require.Zero(t, out.took)
		require.Equal(t, records, s.Stats().Records, "a look without effect is not in the log")

		other := *group
		other.ID = 2
		require.Len(t, receive(t, s, mq.Receive{Topic: topic, Group: &other, InFlight: 15}), 15+3, "the limit is one for each group")

		require.NoError(t, s.Close())
		s = open(t, fs, mode)
		defer func() { require.NoError(t, s.Close()) }()
		out = <-start(t, s, limited)
		require.ErrorIs(t, out.err, mq.ErrTooManyInFlight, "also after a restart")
		limited.InFlight = 6
		require.Len(t, receive(t, s, limited), 1)
		limited.InFlight = 0
		require.Len(t, receive(t, s, limited), 14)
	})
}

// TestWhatEndsADeliveryLetsAReceiveThatWaitsForRoomGoOn: at once, and no other.
func TestWhatEndsADeliveryLetsAReceiveThatWaitsForRoomGoOn(t *testing.T) {
	ends := map[string]func(*testing.T, *shard.Shard, mq.Delivery){
		"ack": func(t *testing.T, s *shard.Shard, d mq.Delivery) { require.NoError(t, ack(t, s, d.Lease)) },
		"nack": func(t *testing.T, s *shard.Shard, d mq.Delivery) {
			require.NoError(t, change(t, s, d.Lease, 0, mq.Nack))
		},
		"give back": func(t *testing.T, s *shard.Shard, d mq.Delivery) {
			require.NoError(t, change(t, s, d.Lease, 0, mq.GiveBack))
		},
		"dead letter": func(t *testing.T, s *shard.Shard, d mq.Delivery) {
			require.NoError(t, s.DeadLetter(t.Context(), d.Lease))
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := open(t, vfs.NewMem(), shard.FlushSync)
				defer func() { require.NoError(t, s.Close()) }()
				topic, group := topicOf(1), groupOf(9)
				sendMany(t, s, topic, 0, 10, "")
				r := mq.Receive{Topic: topic, Group: group, InFlight: 3, Wait: 20 * time.Second, Max: 3}
				held := receive(t, s, r)
				require.Len(t, held, 3)
				done := make(chan outcome, 2)
				for range 2 {
					waiting := start(t, s, r)
					go func() { done <- <-waiting }()
				}
				woken := s.Stats().Woken
				time.Sleep(100 * time.Millisecond)
				end(t, s, held[0])
				out := <-done // of either: what is not settled makes a redelivery besides
				require.NoError(t, out.err)
				require.Len(t, out.got, 1)
				require.Equal(t, 100*time.Millisecond, out.took)
				synctest.Wait()
				require.LessOrEqual(t, s.Stats().Woken-woken, uint64(2))
				out = <-done
				require.ErrorIs(t, out.err, mq.ErrTooManyInFlight)
				require.Equal(t, time.Second, out.took)
			})
		})
	}
}

func TestEndedLeaseMakesRoom(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s := open(t, vfs.NewMem(), mode)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(1), groupOf(9)
		sendMany(t, s, topic, 0, 2, "")
		r := mq.Receive{Topic: topic, Group: group, InFlight: 1, Invisible: 500 * time.Millisecond, Wait: time.Minute}
		require.Len(t, receive(t, s, r), 1)
		out := <-start(t, s, r)
		require.NoError(t, out.err)
		require.Equal(t, mq.Attempt(2), out.got[0].Lease.Attempt, "redeliveries come first")
		require.InDelta(t, 500*time.Millisecond, out.took, float64(time.Millisecond))
	})
}

// TestEveryReceiveGoesOnWhenThereIsRoomForIt: the one that is woken wakes the next.
func TestEveryReceiveGoesOnWhenThereIsRoomForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, vfs.NewMem(), shard.FlushSync)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(1), groupOf(9)
		sendMany(t, s, topic, 0, 100, "")
		r := mq.Receive{Topic: topic, Group: group, InFlight: 10, Max: 10, Wait: 20 * time.Second}
		held := receive(t, s, r)
		r.Max = 2
		var waiting []chan outcome
		for range 5 {
			waiting = append(waiting, start(t, s, r))
		}
		var refs []mq.Lease
		for _, d := range held {
			refs = append(refs, d.Lease)
		}
		for _, err := range ackAll(t, s, refs) {
			require.NoError(t, err)
		}
		for _, w := range waiting {
			out := <-w
			require.NoError(t, out.err)
			require.Len(t, out.got, 2)
			require.Zero(t, out.took)
		}
	})
}

func TestReceiveWhoseFilterMeetsNoLimitWaitsOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, vfs.NewMem(), shard.FlushSync)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(1), groupOf(9)
		sendMany(t, s, topic, 0, 4, "A")
		a := mq.Receive{Topic: topic, Group: group, Tags: []string{"A"}, Wait: 20 * time.Second, Invisible: time.Hour}
		held := receive(t, s, a)
		require.Len(t, held, 4)
		for _, d := range held[:2] {
			require.NoError(t, change(t, s, d.Lease, 0, mq.Nack))
		}
		a.InFlight = 2 // as many are leased, and two wait to be delivered again
		b := a
		b.Tags = []string{"B"}
		waiting := start(t, s, b)
		records, woken := s.Stats().Records, s.Stats().Woken
		out := <-start(t, s, a)
		require.ErrorIs(t, out.err, mq.ErrTooManyInFlight)
		require.Equal(t, records, s.Stats().Records)
		require.NoError(t, ack(t, s, held[3].Lease))
		synctest.Wait()
		require.Equal(t, woken, s.Stats().Woken)
		out = <-waiting
		require.NoError(t, out.err)
		require.Empty(t, out.got)
		require.Equal(t, 20*time.Second, out.took)
	})
}

func TestLimitThatIsReachedWhileAReceiveWaitsEndsItSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, vfs.NewMem(), shard.FlushSync)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(1), groupOf(9)
		send(t, s, topic, 0, message("a", ""))
		r := mq.Receive{Topic: topic, Group: group, InFlight: 1, Wait: time.Minute, Invisible: time.Hour}
		require.Len(t, receive(t, s, r), 1)
		waiting := start(t, s, r)
		time.Sleep(10 * time.Second)
		send(t, s, topic, 0, message("b", ""))
		out := <-waiting
		require.ErrorIs(t, out.err, mq.ErrTooManyInFlight)
		require.Equal(t, 11*time.Second, out.took)
	})
}

func TestReceiveBeyondTheLimitOfWaitingOnesIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := shard.Open(shard.Options{Name: shardName, FS: vfs.NewMem(), Dir: "shard", ZeroFill: -1, MaxWaiting: 2})
		require.NoError(t, err)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(1), groupOf(9)
		r := mq.Receive{Topic: topic, Group: group, Wait: 10 * time.Second, Max: 1}
		first, second := start(t, s, r), start(t, s, r)
		out := <-start(t, s, r)
		require.ErrorIs(t, out.err, mq.ErrBusy)
		require.ErrorContains(t, out.err, "2 receives wait already")
		require.Zero(t, out.took)

		sendMany(t, s, topic, 0, 2, "")
		require.Len(t, (<-first).got, 1)
		require.Len(t, (<-second).got, 1)
		sendMany(t, s, topic, 0, 1, "")
		require.Len(t, receive(t, s, r), 1, "what is there is delivered without waiting")
		third := start(t, s, r)
		require.Empty(t, (<-third).got, "those that ended have made room")
	})
}

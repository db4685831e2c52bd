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

func liteTopic() *mq.Topic {
	t := topicOf(1)
	t.Type = mq.TopicLite
	return t
}

func toLite(id, lite string) *mq.Message {
	m := message(id, "")
	m.Type, m.Lite = mq.Lite, lite
	return m
}

func subscribe(t *testing.T, s *shard.Shard, client string, action mq.LiteAction, names ...string) []mq.LiteLoss {
	t.Helper()
	lost, err := s.SyncLite(t.Context(), mq.LiteSync{Topic: liteTopic(), Group: groupOf(17), Client: client, Action: action, Names: names})
	require.NoError(t, err)
	return lost
}

func liteReceive(client string, wait time.Duration) mq.Receive {
	return mq.Receive{Topic: liteTopic(), Group: groupOf(17), Lite: client, Max: 32, Invisible: time.Minute, Wait: wait}
}

// Whatever is acknowledged and sent while receives are assembled, each lite topic is received
// to its end and in its order.
func TestLiteTopicsAreReceivedToTheirEndsInOrder(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s := open(t, vfs.NewMem(), mode)
		defer func() { require.NoError(t, s.Close()) }()
		subscribe(t, s, "c", mq.LiteReplace, "a", "b")
		for round := range 1000 {
			go func() {
				for i := range 5 {
					for _, name := range []string{"a", "b"} {
						send(t, s, liteTopic(), 0, toLite(fmt.Sprint(name, " ", round, " ", i), name))
					}
				}
			}()
			got := map[byte][]string{}
			for n := 0; n < 10; {
				list, err := s.Receive(t.Context(), liteReceive("c", time.Hour))
				require.NoError(t, err)
				require.NotEmpty(t, list)
				n += len(list)
				for _, d := range list {
					got[d.ID[0]] = append(got[d.ID[0]], d.ID)
					go func() { require.NoError(t, ack(t, s, d.Lease)) }()
				}
			}
			synctest.Wait()
			for name, list := range got {
				require.Len(t, list, 5)
				for i, id := range list {
					require.Equal(t, fmt.Sprint(string(name), " ", round, " ", i), id)
				}
			}
		}
	})
}

func TestAClientReceivesWhatItHasSubscribedTo(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		fs := vfs.NewMem()
		s := open(t, fs, mode)
		send(t, s, liteTopic(), 0, toLite("before", "a"))
		subscribe(t, s, "one", mq.LiteAdd, "a", "b")
		subscribe(t, s, "two", mq.LiteAdd, "c")
		require.Empty(t, receive(t, s, liteReceive("one", 0)), "a new subscription begins behind the newest message")
		send(t, s, liteTopic(), 0, toLite("b1", "b"), toLite("b2", "b"))
		send(t, s, liteTopic(), 0, toLite("c1", "c"))
		require.Equal(t, []string{"c1"}, ids(receive(t, s, liteReceive("two", 0))))
		got := receive(t, s, liteReceive("one", 0))
		require.Equal(t, []string{"b1", "b2"}, ids(got))
		require.Empty(t, receive(t, s, liteReceive("one", 0)))

		// Nothing overtakes, and what was acknowledged lets the next one through.
		send(t, s, liteTopic(), 0, toLite("b3", "b"))
		require.Empty(t, receive(t, s, liteReceive("one", time.Second)))
		require.NoError(t, ack(t, s, got[0].Lease))
		require.Empty(t, receive(t, s, liteReceive("one", time.Second)))
		go func() {
			time.Sleep(time.Second)
			require.NoError(t, ack(t, s, got[1].Lease))
		}()
		start := time.Now()
		require.Equal(t, []string{"b3"}, ids(receive(t, s, liteReceive("one", time.Hour))))
		require.Equal(t, time.Second, time.Since(start))

		subscribe(t, s, "one", mq.LiteRemove, "b")
		subscribe(t, s, "two", mq.LiteReplace, "b")
		send(t, s, liteTopic(), 0, toLite("c2", "c"))
		require.Empty(t, receive(t, s, liteReceive("two", 0)), "c is no longer in its set, and b3 is with the other")
		time.Sleep(time.Minute)
		require.Equal(t, []string{"b3"}, ids(receive(t, s, liteReceive("two", time.Hour))))
		require.NoError(t, s.Close())

		s = open(t, fs, mode)
		defer func() { require.NoError(t, s.Close()) }()
		require.Empty(t, receive(t, s, liteReceive("two", time.Second)), "clients say again what they want")
		subscribe(t, s, "two", mq.LiteReplace, "c", "b")
		require.Equal(t, []string{"c1", "c2"}, ids(receive(t, s, liteReceive("two", 0))))
		subscribe(t, s, "two", mq.LiteLeave)
		send(t, s, liteTopic(), 0, toLite("c3", "c"))
		require.Empty(t, receive(t, s, liteReceive("two", 0)))
	})
}

func TestASuspendedDeliveryDoesNotCount(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s := open(t, vfs.NewMem(), mode)
		defer func() { require.NoError(t, s.Close()) }()
		subscribe(t, s, "c", mq.LiteAdd, "a")
		send(t, s, liteTopic(), 0, toLite("a1", "a"), toLite("a2", "a"))
		for range 50 {
			got := receive(t, s, liteReceive("c", time.Hour))
			require.Equal(t, []string{"a1", "a2"}, ids(got))
			require.EqualValues(t, 1, got[0].Lease.Attempt)
			_ = change(t, s, got[1].Lease, 0, mq.Suspend)
			_ = change(t, s, got[0].Lease, 50*time.Millisecond, mq.Suspend)
			_ = change(t, s, got[0].Lease, 50*time.Millisecond, mq.Suspend)
		}
	})
}

func TestALiteTopicEndsAndBeginsAnewUnderItsSubscription(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s, err := shard.Open(shard.Options{
			Name: "s0", FS: vfs.NewMem(), Dir: "shard", Flush: mode, ZeroFill: -1,
			LiteTTL: func(mq.TopicID) time.Duration { return time.Hour }, LiteTopics: 3,
		})
		require.NoError(t, err)
		defer func() { require.NoError(t, s.Close()) }()
		count := func() int {
			n, err := s.LiteTopics(t.Context(), 1)
			require.NoError(t, err)
			return n
		}
		subscribe(t, s, "c", mq.LiteAdd, "a", "b")
		send(t, s, liteTopic(), 0, toLite("x", "d"))
		_, err = s.Append(t.Context(), liteTopic(), 0, []*mq.Message{toLite("y", "e")})
		require.ErrorIs(t, err, mq.ErrLiteTopicQuota)
		_, err = s.SyncLite(t.Context(), mq.LiteSync{Topic: liteTopic(), Group: groupOf(17), Client: "c", Names: []string{"e"}})
		require.ErrorIs(t, err, mq.ErrLiteTopicQuota)

		time.Sleep(45 * time.Minute)
		send(t, s, liteTopic(), 0, toLite("a1", "a"))
		require.Equal(t, 3, count())
		time.Sleep(16 * time.Minute)
		require.Equal(t, 1, count(), "b and d were not written to for an hour")
		send(t, s, liteTopic(), 0, toLite("b1", "b"))
		require.ElementsMatch(t, []string{"a1", "b1"}, ids(receive(t, s, liteReceive("c", time.Minute))))
		time.Sleep(2 * time.Hour)
		require.Zero(t, count(), "what is under delivery does not keep one")
		sent := make(chan bool)
		go func() {
			time.Sleep(time.Minute)
			send(t, s, liteTopic(), 0, toLite("b2", "b"))
			close(sent)
		}()
		require.Equal(t, []string{"b2"}, ids(receive(t, s, liteReceive("c", time.Hour))))
		<-sent
	})
}

func TestLiteSubscriptionsKeepToTheirQuotas(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s := open(t, vfs.NewMem(), mode)
		defer func() { require.NoError(t, s.Close()) }()
		r := mq.LiteSync{Topic: liteTopic(), Group: groupOf(17), Client: "one", Names: []string{"a", "b"}, ClientQuota: 2, TotalQuota: 3}
		_, err := s.SyncLite(t.Context(), r)
		require.NoError(t, err)
		r.Names = []string{"c"}
		_, err = s.SyncLite(t.Context(), r)
		require.ErrorIs(t, err, mq.ErrLiteSubscriptionQuota)
		r.Client, r.Names = "two", []string{"a", "b"}
		_, err = s.SyncLite(t.Context(), r)
		require.ErrorIs(t, err, mq.ErrLiteSubscriptionQuota)
		r.Names, r.Exclusive = []string{"a"}, true
		lost, err := s.SyncLite(t.Context(), r)
		require.NoError(t, err)
		require.Equal(t, []mq.LiteLoss{{Client: "one", Topic: 1, Group: 1, Name: "a"}}, lost)
		send(t, s, liteTopic(), 0, toLite("a1", "a"))
		require.Empty(t, receive(t, s, liteReceive("one", 0)))
		require.Equal(t, []string{"a1"}, ids(receive(t, s, liteReceive("two", 0))))
		// A client that says nothing for minutes is forgotten, and makes room.
		time.Sleep(4 * time.Minute)
		r.Client, r.Names = "three", []string{"a", "b"}
		_, err = s.SyncLite(t.Context(), r)
		require.NoError(t, err)
	})
}

// Lite topics that are written to once and read never hold the log no longer than other
// messages do.
func TestMessagesOfLiteTopicsGoWithTheirAge(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		fs := vfs.NewMem()
		s := keeping(t, fs, mode, shard.Retention{Age: time.Hour})
		subscribe(t, s, "c", mq.LiteAdd, "l-0", "l-299")
		for i := range 300 {
			m := toLite(fmt.Sprint("m", i), fmt.Sprint("l-", i))
			m.Body = make([]byte, 4<<10)
			send(t, s, liteTopic(), 0, m)
			time.Sleep(10 * time.Second)
		}
		n := segments(t, fs)
		got := receive(t, s, liteReceive("c", 0))
		require.Equal(t, []string{"m0", "m299"}, ids(got))
		time.Sleep(40 * time.Minute)
		require.Less(t, segments(t, fs), n)
		require.Error(t, ack(t, s, got[0].Lease), "its message is past its age")
		require.Equal(t, []string{"m299"}, ids(receive(t, s, liteReceive("c", 0))))
		require.NoError(t, s.Close())
		s = keeping(t, fs, mode, shard.Retention{Age: time.Hour})
		subscribe(t, s, "c", mq.LiteAdd, "l-0", "l-299")
		time.Sleep(2 * time.Minute)
		require.Equal(t, []string{"m299"}, ids(receive(t, s, liteReceive("c", 0))))
		require.NoError(t, s.Close())
	})
}

func TestWhatAReceiveHasLeftGoesToTheNextOne(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s := open(t, vfs.NewMem(), mode)
		defer func() { require.NoError(t, s.Close()) }()
		var names, want []string
		for i := range 200 { // more than one pop looks at
			names = append(names, fmt.Sprint("l-", i))
		}
		subscribe(t, s, "c", mq.LiteAdd, names...)
		for _, name := range names {
			send(t, s, liteTopic(), 0, toLite(name, name), toLite(name+" again", name))
			want = append(want, name, name+" again")
		}
		r := liteReceive("c", 0)
		r.Max = 3
		var got []string
		for len(got) < len(want) {
			list := receive(t, s, r)
			require.NotEmpty(t, list)
			got = append(got, ids(list)...)
			for _, d := range list {
				require.NoError(t, ack(t, s, d.Lease))
			}
		}
		require.ElementsMatch(t, want, got)
		require.Empty(t, receive(t, s, r))
	})
}

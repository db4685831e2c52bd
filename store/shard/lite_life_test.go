package shard_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/shard"
)

// kindsLeft returns how many keys of each kind a closed shard has.
func kindsLeft(t *testing.T, fs vfs.FS) map[string]int {
	t.Helper()
	db, err := shard.ReadViews(fs, "shard")
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	it, err := db.NewIter(nil)
	require.NoError(t, err)
	kinds := map[string]int{}
	for ok := it.First(); ok; ok = it.Next() {
		kinds[string(it.Key()[:1])]++
	}
	require.NoError(t, it.Close())
	return kinds
}

// fillLites makes lite topics with everything that there is of them: messages that are
// new, leased, with and without an attempt id, given up, and used up, for two groups.
func fillLites(t *testing.T, s *shard.Shard) (*mq.Topic, []*mq.Group) {
	t.Helper()
	topic, groups := liteTopic(), []*mq.Group{groupOf(2), groupOf(2)}
	topic.Dedup = time.Hour
	groups[1].ID, groups[1].Name, groups[1].DeadLetter = 2, "other", 102
	for _, g := range groups {
		_, err := s.SyncLite(t.Context(), mq.LiteSync{Topic: topic, Group: g, Client: "c", Action: mq.LiteReplace, Names: []string{"a", "b", "c", "d", "empty"}})
		require.NoError(t, err)
	}
	for _, lite := range []string{"a", "b", "c", "d", "unread"} {
		for i := range 20 {
			send(t, s, topic, 0, toLite(fmt.Sprint(lite, i), lite), toLite(fmt.Sprint(lite, i, "x"), lite))
		}
	}
	for _, g := range groups {
		r := mq.Receive{Topic: topic, Group: g, Lite: "c", Max: 6, Invisible: time.Hour, Attempt: "lost"}
		got := receive(t, s, r)
		require.Len(t, got, 6)
		r.Attempt = ""
		for try := range 2 {
			got = receive(t, s, r)
			require.Len(t, got, 6)
			for _, d := range got[:3] {
				// The second time they are used up, and there is no dead-letter topic.
				require.NoError(t, change(t, s, d.Lease, 0, mq.Nack), try)
			}
		}
	}
	return topic, groups
}

func TestNothingIsLeftOfALiteTopicThatIsDeleted(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		fs := vfs.NewMem()
		s := open(t, fs, mode)
		topic, _ := fillLites(t, s)
		require.NoError(t, s.DeleteTopic(t.Context(), topic.ID))
		// It is made again, with another id, and knows nothing.
		again := liteTopic()
		again.ID, again.Dedup = 7, time.Hour
		_, err := s.SyncLite(t.Context(), mq.LiteSync{Topic: again, Group: groupOf(2), Client: "c", Names: []string{"a"}})
		require.NoError(t, err)
		r := mq.Receive{Topic: again, Group: groupOf(2), Lite: "c", Max: 32, Invisible: time.Hour, Attempt: "lost"}
		require.Empty(t, receive(t, s, r))
		require.False(t, send(t, s, again, 0, toLite("a0", "a")).Repeated)
		require.Equal(t, []string{"a0"}, ids(receive(t, s, r)))
		_, err = s.SyncLite(t.Context(), mq.LiteSync{Topic: topic, Group: groupOf(2), Client: "c", Names: []string{"z"}})
		require.ErrorIs(t, err, mq.ErrTopicNotFound)
		_, err = s.Append(t.Context(), topic, 0, []*mq.Message{toLite("late", "a")})
		require.ErrorIs(t, err, mq.ErrTopicNotFound)
		require.NoError(t, s.DeleteTopic(t.Context(), again.ID))
		time.Sleep(3 * time.Hour)
		require.NoError(t, s.Close())
		require.NoError(t, open(t, fs, mode).Close())
		left := kindsLeft(t, fs)
		for _, kind := range []keyspace.Kind{keyspace.KindState, keyspace.KindBegin, keyspace.KindGone, keyspace.KindGroup} {
			delete(left, string(rune(kind)))
		}
		require.Empty(t, left)
	})
}

func TestNothingIsLeftOfAGroupThatReadLiteTopics(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		fs := vfs.NewMem()
		s := open(t, fs, mode)
		topic, groups := fillLites(t, s)
		for _, g := range groups {
			require.NoError(t, s.DeleteGroup(t.Context(), g.ID))
		}
		again := groupOf(2)
		again.ID = 9
		_, err := s.SyncLite(t.Context(), mq.LiteSync{Topic: topic, Group: again, Client: "c", Names: []string{"a", "unread"}})
		require.NoError(t, err)
		require.Empty(t, receive(t, s, mq.Receive{Topic: topic, Group: again, Lite: "c", Max: 32, Invisible: time.Hour}), "it begins behind the newest")
		require.NoError(t, s.DeleteGroup(t.Context(), again.ID))
		time.Sleep(3 * time.Hour)
		require.NoError(t, s.Close())
		left := kindsLeft(t, fs)
		for _, kind := range []keyspace.Kind{
			keyspace.KindSub, keyspace.KindProgress, keyspace.KindLease, keyspace.KindReady, keyspace.KindUsedUp, keyspace.KindDue, keyspace.KindGroup,
		} {
			require.Zero(t, left[string(rune(kind))], "%c", kind)
		}
		require.Equal(t, 6, left[string(rune(keyspace.KindLite))], "the lite topics stay")
	})
}

// A purge ends the lite topics, and those that come again have nothing from before.
func TestNothingIsLeftOfLiteTopicsThatArePurgedOrEnd(t *testing.T) {
	for what, end := range map[string]func(*testing.T, *shard.Shard){
		"purged": func(t *testing.T, s *shard.Shard) { require.NoError(t, s.PurgeTopic(t.Context(), 1)) },
		"ended":  func(*testing.T, *shard.Shard) { time.Sleep(2 * time.Hour) },
	} {
		t.Run(what, func(t *testing.T) {
			modes(t, func(t *testing.T, mode shard.FlushMode) {
				fs := vfs.NewMem()
				s, err := shard.Open(shard.Options{
					Name: shardName, FS: fs, Dir: "shard", Flush: mode, ZeroFill: -1,
					LiteTTL: func(mq.TopicID) time.Duration { return time.Hour },
				})
				require.NoError(t, err)
				fillLites(t, s)
				end(t, s)
				time.Sleep(2 * time.Hour)
				require.NoError(t, s.Close())
				left := kindsLeft(t, fs)
				for _, kind := range []keyspace.Kind{
					keyspace.KindEntry, keyspace.KindProgress, keyspace.KindLease, keyspace.KindReady, keyspace.KindUsedUp, keyspace.KindDue,
					keyspace.KindLite, keyspace.KindLiteOrder,
				} {
					require.Zero(t, left[string(rune(kind))], "%c", kind)
				}
				require.Equal(t, 1, left[string(rune(keyspace.KindLiteName))], "which ids were used stays")
			})
		})
	}
}

// Nothing of a lite topic outlives it: not its leases, and not the messages that nobody could
// work on.
func TestALiteTopicEndsBesideWhatIsUnderDelivery(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s, err := shard.Open(shard.Options{
			Name: shardName, FS: vfs.NewMem(), Dir: "shard", Flush: mode, ZeroFill: -1,
			LiteTTL: func(mq.TopicID) time.Duration { return time.Minute },
		})
		require.NoError(t, err)
		defer func() { require.NoError(t, s.Close()) }()
		g := groupOf(1)
		sync := func(names ...string) {
			_, err := s.SyncLite(t.Context(), mq.LiteSync{Topic: liteTopic(), Group: g, Client: "c", Action: mq.LiteReplace, Names: names})
			require.NoError(t, err)
		}
		r := mq.Receive{Topic: liteTopic(), Group: g, Lite: "c", Max: 1, Invisible: time.Hour, Attempt: "x"}
		sync("a", "b", "c")
		send(t, s, liteTopic(), 0, toLite("a1", "a"), toLite("a2", "a"))
		send(t, s, liteTopic(), 0, toLite("b1", "b"), toLite("b2", "b"))
		a := receive(t, s, r)
		r.Attempt = ""
		b := receive(t, s, r)
		require.Equal(t, []string{"a1", "b1"}, append(ids(a), ids(b)...))
		require.NoError(t, change(t, s, b[0].Lease, 0, mq.Nack), "it is used up, and there is no dead-letter topic")
		require.Equal(t, []string{"b2"}, ids(receive(t, s, r)), "it holds up nothing")
		time.Sleep(2 * time.Minute)

		require.ErrorIs(t, ack(t, s, a[0].Lease), mq.ErrLeaseEnded)
		require.ErrorIs(t, change(t, s, a[0].Lease, time.Hour, mq.Renew), mq.ErrLeaseEnded)
		require.ErrorIs(t, s.DeadLetter(t.Context(), a[0].Lease), mq.ErrLeaseEnded)
		r.Attempt = "x"
		require.Empty(t, receive(t, s, r))
		list, err := s.Backlogs(t.Context(), g.ID)
		require.NoError(t, err)
		require.Equal(t, []mq.Backlog{{Topic: 1}}, list)

		// It comes again under the same name and is another one: the old receipts are none
		// of its messages'.
		send(t, s, liteTopic(), 0, toLite("a3", "a"))
		got := receive(t, s, r)
		require.Equal(t, []string{"a3"}, ids(got))
		require.ErrorIs(t, ack(t, s, a[0].Lease), mq.ErrLeaseEnded)
		require.NoError(t, ack(t, s, got[0].Lease))
	})
}

// A message of a lite topic that nobody can work on is copied, and holds up nothing.
func TestUsedUpMessagesOfLiteTopicsAreDeadLettered(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s := open(t, vfs.NewMem(), mode)
		defer func() { require.NoError(t, s.Close()) }()
		g := groupOf(1)
		const lites = 150 // more than are moved at once
		var names, want []string
		for i := range lites {
			names = append(names, fmt.Sprint("l-", i))
		}
		_, err := s.SyncLite(t.Context(), mq.LiteSync{Topic: liteTopic(), Group: g, Client: "c", Names: names})
		require.NoError(t, err)
		for _, name := range names {
			send(t, s, liteTopic(), 0, toLite(name+" 1", name), toLite(name+" 2", name))
			want = append(want, name+" 1", name+" 2")
		}
		r := mq.Receive{Topic: liteTopic(), Group: g, Lite: "c", Max: 32, Invisible: time.Minute}
		seen := map[string]int{}
		for len(seen) < 2*lites {
			for _, d := range receive(t, s, r) {
				seen[d.ID]++
			}
			time.Sleep(time.Second)
		}
		time.Sleep(2 * time.Minute)
		require.Empty(t, receive(t, s, r))
		dead := deadLetterTopic(g)
		send(t, s, dead, 0, message("makes it known", ""))
		time.Sleep(5 * time.Minute)
		require.EqualValues(t, 2*lites, s.Stats().DeadLettered)
		var copied []string
		reader := groupOf(17)
		reader.ID = 5
		for {
			list := receive(t, s, mq.Receive{Topic: dead, Group: reader, Max: 1000, Invisible: time.Hour})
			if len(list) == 0 {
				break
			}
			copied = append(copied, ids(list)...)
		}
		require.ElementsMatch(t, append(want, "makes it known"), copied)
	})
}

// Whatever numbers a client names, a group begins within the lite topic.
func TestLitePlacesStayWithinTheLiteTopic(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s := open(t, vfs.NewMem(), mode)
		defer func() { require.NoError(t, s.Close()) }()
		var all []string
		for i := range 4 {
			send(t, s, liteTopic(), 0, toLite(fmt.Sprint(i), "a"))
			all = append(all, fmt.Sprint(i))
		}
		for i, c := range []struct {
			start mq.LiteStart
			value int64
			want  []string
		}{
			{mq.LiteOffset, math.MaxInt64, nil},
			{mq.LiteOffset, math.MinInt64, all},
			{mq.LiteTail, math.MaxInt64, all},
			{mq.LiteTail, math.MinInt64, nil},
			{mq.LiteTime, math.MaxInt64, nil},
			{mq.LiteTime, math.MinInt64, all},
			{mq.LiteMax, 5, nil},
			{mq.LiteMin, -5, all},
		} {
			for again := range 2 {
				g := groupOf(17)
				g.ID = mq.GroupID(10 + i)
				r := mq.LiteSync{
					Topic: liteTopic(), Group: g, Client: fmt.Sprint("c", again), Names: []string{"a"}, Version: math.MinInt64,
					Place: mq.LitePlace{Start: c.start, Value: c.value, Again: true},
				}
				_, err := s.SyncLite(t.Context(), r)
				require.NoError(t, err)
				got := ids(receive(t, s, mq.Receive{Topic: liteTopic(), Group: g, Lite: r.Client, Max: 32, Invisible: time.Hour}))
				if again == 0 || c.start != mq.LiteTail {
					require.Equal(t, c.want, got, "%v %d", c.start, c.value)
				}
			}
		}
	})
}

package shard_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/shard"
)

// placed returns a later version of a topic that is as said on the shard of the tests.
func placed(topic *mq.Topic, version uint64, use mq.ShardUse) *mq.Topic {
	next := new(*topic)
	next.Version, next.Placed = version, version
	next.Shards = []mq.ShardQueues{
		{Shard: shardName, Read: topic.Shards[0].Read, Write: topic.Shards[0].Write, Use: use, Since: version},
		{Shard: "s1", Read: 1, Write: 1},
	}
	return next
}

func requireStale(t *testing.T, s *shard.Shard, topic *mq.Topic, msgs ...*mq.Message) {
	t.Helper()
	before, err := s.Queues(t.Context(), topic.ID)
	require.NoError(t, err)
	_, err = s.Append(t.Context(), topic, 0, msgs)
	require.ErrorIs(t, err, mq.ErrStale)
	require.ErrorIs(t, err, mq.ErrUnavailable)
	require.NotErrorIs(t, err, mq.ErrOutcomeUnknown)
	after, err := s.Queues(t.Context(), topic.ID)
	require.NoError(t, err)
	require.Equal(t, before, after)
}

// TestATopicThatHasClosedTakesNothingMore: not by what is sent late, nor after a power cut, and
// is read as ever. Where it opens again it takes what is sent by then.
func TestATopicThatHasClosedTakesNothingMore(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		fs := vfs.NewCrashableMem()
		s := open(t, fs, mode)
		first := topicOf(2)
		first.Type = mq.TopicMixed
		send(t, s, first, 0, inGroup("a1", "a"))
		closing := placed(first, 2, mq.ShardClosing)
		require.NoError(t, s.Place(t.Context(), closing))
		require.NoError(t, s.Place(t.Context(), closing), "again")
		left := fs.CrashClone(vfs.CrashCloneCfg{})
		require.NoError(t, s.Close())

		s = open(t, left, mode)
		for _, topic := range []*mq.Topic{first, closing, placed(first, 2, mq.ShardOpen), placed(first, 3, mq.ShardClosed)} {
			requireStale(t, s, topic, inGroup("a2", "a"))
			requireStale(t, s, topic, message("n1", ""))
		}
		got := receive(t, s, mq.Receive{Topic: placed(first, 3, mq.ShardClosed), Group: orderedGroup()})
		require.NoError(t, ack(t, s, got[0].Lease), "what was accepted is there, in async mode too")

		opened := placed(first, 4, mq.ShardOpen)
		send(t, s, opened, 0, inGroup("a3", "a"))
		requireStale(t, s, first, inGroup("a4", "a"))
		send(t, s, first, 0, message("n2", "")) // it has no place of its own
		require.NoError(t, s.Close())
		s = open(t, left, mode)
		requireStale(t, s, first, inGroup("a4", "a"))
		require.NoError(t, s.Place(t.Context(), placed(first, 5, mq.ShardClosing)))
		requireStale(t, s, opened, message("n3", ""))
		require.NoError(t, s.DeleteTopic(t.Context(), first.ID))
		require.ErrorIs(t, s.Place(t.Context(), placed(first, 6, mq.ShardClosing)), mq.ErrTopicNotFound)
		require.NoError(t, s.Close())
	})
}

// TestAFIFOGroupIsNotServedByWhatIsKnownNoMore: neither by an earlier placement of the
// topic, nor by the version of the group from before it was set back; also when the receive
// waits already.
func TestAFIFOGroupIsNotServedByWhatIsKnownNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, vfs.NewMem(), shard.FlushSync)
		defer func() { require.NoError(t, s.Close()) }()
		first, group := topicOf(1), orderedGroup()
		first.Type = mq.TopicFIFO
		waiting := func(topic *mq.Topic, group *mq.Group) chan error {
			done := make(chan error, 1)
			go func() {
				got, err := s.Receive(t.Context(), mq.Receive{Topic: topic, Group: group, Max: 1, Invisible: time.Minute, Wait: time.Hour})
				if err == nil && len(got) > 0 {
					err = errors.New("delivered " + got[0].ID)
				}
				done <- err
			}()
			synctest.Wait()
			return done
		}
		late := waiting(first, group)
		moved := placed(first, 2, mq.ShardOpen)
		send(t, s, moved, 0, inGroup("a2", "a"))
		require.ErrorIs(t, <-late, mq.ErrStale, "it has not asked the shard that has closed")
		_, err := s.Receive(t.Context(), mq.Receive{Topic: first, Group: group, Max: 1, Invisible: time.Minute})
		require.ErrorIs(t, err, mq.ErrStale)
		plain := groupOf(17)
		plain.ID = 2
		require.Len(t, receive(t, s, mq.Receive{Topic: first, Group: plain}), 1, "to others the order does not matter")

		got := receive(t, s, mq.Receive{Topic: moved, Group: group})
		require.NoError(t, ack(t, s, got[0].Lease))
		judged := waiting(moved, group)
		set := mq.OffsetSet{Topic: first, Group: group, Drop: true, Offsets: map[mq.QueueID]mq.QueueOffset{0: 0}}
		_, err = s.SetOffset(t.Context(), set)
		require.ErrorIs(t, err, mq.ErrStale)
		again := new(*group)
		again.Version++
		set.Topic, set.Group = moved, again
		_, err = s.SetOffset(t.Context(), set)
		require.NoError(t, err)
		require.ErrorIs(t, <-judged, mq.ErrStale, "it was judged before the group was set back")
		require.Len(t, receive(t, s, mq.Receive{Topic: moved, Group: again}), 1)
	})
}

func TestWhatIsLeftAndWhoIsOwed(t *testing.T) {
	s := open(t, vfs.NewMem(), shard.FlushSync)
	defer func() { require.NoError(t, s.Close()) }()
	topic, group := topicOf(2), orderedGroup()
	topic.Type = mq.TopicMixed
	owed := func(want bool, why string) {
		t.Helper()
		got, err := s.Owed(t.Context(), topic.ID, group.ID)
		require.NoError(t, err)
		require.Equal(t, want, got, why)
	}
	owed(false, "nobody has sent anything")
	send(t, s, topic, 0, inGroup("a1", "a"), inGroup("a2", "a"))
	owed(true, "it may come and begin with the oldest message")
	latest := groupOf(17)
	latest.ID, latest.Start.Policy = 2, mq.StartLatest
	require.Empty(t, receive(t, s, mq.Receive{Topic: topic, Group: latest}))
	got := receive(t, s, mq.Receive{Topic: topic, Group: group, Max: 1})
	require.NoError(t, ack(t, s, got[0].Lease))
	owed(true, "one it was never given")
	got = receive(t, s, mq.Receive{Topic: topic, Group: group})
	owed(true, "one under delivery")
	remains, err := s.Remains(t.Context())
	require.NoError(t, err)
	require.Equal(t, mq.Remains{
		Topics: 1, Topic: topic.Resource, Queues: 1, Messages: 2, Owing: 1, OwingGroup: group.Resource, OwingTopic: topic.Resource,
	}, remains)
	require.NoError(t, ack(t, s, got[0].Lease))
	owed(false, "all is settled")
	delayed := message("d", "")
	delayed.Type, delayed.Delay = mq.Delay, time.Hour
	send(t, s, topic, 1, delayed)
	dead := deadLetterTopic(group)
	send(t, s, dead, 0, message("x", ""))
	remains, err = s.Remains(t.Context())
	require.NoError(t, err)
	require.Equal(t, mq.Remains{Topics: 1, Topic: topic.Resource, Queues: 1, Messages: 2, Pending: 1, DeadLetters: 1}, remains)
	require.NoError(t, s.PurgeTopic(t.Context(), topic.ID))
	require.NoError(t, s.PurgeTopic(t.Context(), dead.ID))
	remains, err = s.Remains(t.Context())
	require.NoError(t, err)
	require.Equal(t, mq.Remains{}, remains)
}

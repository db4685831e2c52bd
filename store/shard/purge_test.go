package shard_test

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/shard"
)

func requireBacklog(t *testing.T, s *shard.Shard, group mq.GroupID, want ...mq.Backlog) {
	t.Helper()
	got, err := s.Backlogs(t.Context(), group)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

func TestPurgeEmptiesATopicForEveryGroupAndLetsNewMessagesThrough(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		fs := vfs.NewCrashableMem()
		s := open(t, fs, mode)
		topic, group := topicOf(2), groupOf(2)
		other := groupOf(2)
		other.ID, other.Name, other.DeadLetter = 2, "h", 101
		for i := range 10 {
			send(t, s, topic, mq.QueueID(i%2), message("old", ""))
		}
		got := receive(t, s, mq.Receive{Topic: topic, Group: group, Max: 4, Invisible: 10 * time.Second})
		require.Len(t, receive(t, s, mq.Receive{Topic: topic, Group: other, Max: 3}), 3)
		require.NoError(t, change(t, s, got[0].Lease, 0, mq.Extend))
		waiting := make(chan []mq.Delivery)
		go func() {
			waiting <- receive(t, s, mq.Receive{Topic: topic, Group: group, Tags: []string{"none"}, Wait: time.Minute})
		}()
		synctest.Wait()

		require.NoError(t, s.PurgeTopic(t.Context(), topic.ID))
		require.ErrorIs(t, ack(t, s, got[1].Lease), mq.ErrLeaseEnded)
		require.ErrorIs(t, change(t, s, got[2].Lease, time.Minute, mq.Renew), mq.ErrLeaseEnded)
		require.Empty(t, receive(t, s, mq.Receive{Topic: topic, Group: group}))
		requireBacklog(t, s, group.ID, mq.Backlog{Topic: topic.ID})
		requireBacklog(t, s, other.ID, mq.Backlog{Topic: topic.ID})
		require.Empty(t, <-waiting)
		time.Sleep(time.Second) // the flush interval
		crashed := fs.CrashClone(vfs.CrashCloneCfg{})
		require.NoError(t, s.Close())

		s = open(t, crashed, mode)
		defer func() { require.NoError(t, s.Close()) }()
		requireBacklog(t, s, group.ID, mq.Backlog{Topic: topic.ID})
		a := send(t, s, topic, 1, message("new", ""))
		require.Equal(t, mq.QueueOffset(5), a.Offset, "offsets go on")
		for _, g := range []*mq.Group{group, other} {
			d := receive(t, s, mq.Receive{Topic: topic, Group: g, Wait: time.Hour})
			require.Equal(t, []string{"new"}, ids(d))
			require.NoError(t, ack(t, s, d[0].Lease))
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Zero(t, s.Stats().DeadLettered+s.Stats().Lost)
	})
}

func TestPurgeOfAnUnknownTopicSaysSo(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s := open(t, vfs.NewMem(), mode)
		defer func() { require.NoError(t, s.Close()) }()
		require.ErrorIs(t, s.PurgeTopic(t.Context(), 7), mq.ErrTopicNotFound)
	})
}

func TestRetentionThatMakesNoSenseIsRefused(t *testing.T) {
	require.False(t, shard.Retention{}.Enabled())
	require.NoError(t, shard.Retention{}.Validate())
	good := shard.Retention{
		Age: time.Hour, Size: 1 << 30, Interval: time.Second,
		Clean:  shard.Watermark{Used: 0.75, Free: 3 << 30},
		Force:  shard.Watermark{Free: 2 << 30},
		Refuse: shard.Watermark{Used: 0.9, Free: 1 << 30},
	}
	require.NoError(t, good.Validate())
	require.True(t, good.Enabled())
	for field, change := range map[string]func(r *shard.Retention){
		"retention age":                  func(r *shard.Retention) { r.Age = -1 },
		"retention size":                 func(r *shard.Retention) { r.Size = -1 },
		"retention interval":             func(r *shard.Retention) { r.Interval = -1 },
		"clean watermark":                func(r *shard.Retention) { r.Clean.Used = math.NaN() },
		"force watermark":                func(r *shard.Retention) { r.Force.Used = 0.7 },
		"refuse watermark":               func(r *shard.Retention) { r.Refuse.Used = 1 },
		"clean watermark in bytes free":  func(r *shard.Retention) { r.Clean.Free = -1 },
		"refuse watermark in bytes free": func(r *shard.Retention) { r.Refuse.Free = 2<<30 + 1 },
	} {
		bad := good
		change(&bad)
		err := bad.Validate()
		require.ErrorIs(t, err, mq.ErrInvalid)
		var invalid *mq.InvalidError
		require.ErrorAs(t, err, &invalid)
		require.Equal(t, field, invalid.Field)
		_, err = shard.Open(shard.Options{Name: shardName, FS: vfs.NewMem(), Dir: "shard", Retention: bad})
		require.ErrorContains(t, err, field)
	}
}

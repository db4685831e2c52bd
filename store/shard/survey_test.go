package shard_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/machine"
	"github.com/perigee-mq/perigee/store/shard"
)

func named(id mq.TopicID, name string, queues int32) *mq.Topic {
	t := topicOf(queues)
	t.ID, t.Name = id, name
	return t
}

func survey(t *testing.T, s *shard.Shard) shard.Survey {
	t.Helper()
	v, err := s.Survey(t.Context())
	require.NoError(t, err)
	return v
}

func refs(got ...mq.Delivery) (list []command.LeaseRef) {
	for _, d := range got {
		list = append(list, command.LeaseRef{Queue: d.Lease.Queue, Offset: d.Lease.Offset, PopID: d.Lease.PopID})
	}
	return list
}

func TestASurveyTellsWhatHappened(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s := open(t, vfs.NewMem(), mode)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(2), groupOf(2)
		wanted := mq.Receive{Topic: topic, Group: group, Max: 3, Invisible: time.Minute}
		stored := uint64(0)
		for i, queue := range []mq.QueueID{0, 0, 1, 1} {
			m := message(fmt.Sprint("m", i), "tag")
			stored += uint64(len(command.AppendMessage(nil, m)))
			send(t, s, topic, queue, m)
			time.Sleep(10 * time.Second)
		}
		row := shard.TopicRow{Topic: topic.Resource, Stored: 4, TopicCounts: shard.TopicCounts{In: 4, InBytes: stored}}
		require.Equal(t, shard.Survey{Topics: []shard.TopicRow{row}}, survey(t, s), "no group has received")

		got := receive(t, s, wanted)
		require.Len(t, got, 3)
		v := survey(t, s)
		require.Equal(t, uint64(3), v.Topics[0].Out)
		require.Equal(t, stored*3/4, v.Topics[0].OutBytes)
		of := shard.GroupRow{
			Group: group.Resource, Topic: topic.Resource, GroupCounts: shard.GroupCounts{Delivered: 3},
			SubStatus: machine.SubStatus{New: 1, InFlight: 3},
		}
		require.Len(t, v.Groups, 1)
		require.InDelta(t, v.Groups[0].Oldest, 15*time.Second, float64(6*time.Second), "of the last message of either queue")
		of.Oldest = v.Groups[0].Oldest
		require.Equal(t, of, v.Groups[0])

		results, err := s.Ack(t.Context(), topic.ID, group.ID, append(refs(got[0]), refs(got[0])...))
		require.NoError(t, err)
		require.NoError(t, results[0])
		require.ErrorIs(t, results[1], mq.ErrLeaseEnded)
		time.Sleep(time.Minute + time.Second) // the others come back
		v = survey(t, s)
		of.Settled, of.Refused, of.Expired = 1, 1, 2
		of.SubStatus = machine.SubStatus{New: 1, Retrying: 2}
		of.Oldest += int64(time.Minute + time.Second)
		require.Equal(t, of, v.Groups[0])

		again := receive(t, s, wanted)
		require.Len(t, again, 3)
		require.NoError(t, s.DeadLetter(t.Context(), again[2].Lease))
		time.Sleep(time.Minute + time.Second) // the last attempt of the two others
		synctest.Wait()
		v = survey(t, s)
		of.Delivered, of.Redelivered, of.Expired, of.DeadLettered = 6, 2, 4, 3
		of.SubStatus, of.Oldest = machine.SubStatus{}, 0
		require.Equal(t, of, v.Groups[0])
		require.Len(t, v.Topics, 2)
		require.Equal(t, deadLetterTopic(group).Resource, v.Topics[1].Topic)
		require.Equal(t, uint64(3), v.Topics[1].In)
		require.Equal(t, int64(3), v.Topics[1].Stored)

		st := s.Stats()
		require.Equal(t, []uint64{4, 6, 2, 1, 1, 4, 3, 0, 0},
			[]uint64{st.Appended, st.Delivered, st.Redelivered, st.Settled, st.Refused, st.Expired, st.DeadLettered, st.Lost, st.Unreadable})
	})
}

func TestSeriesOfWhatIsDeletedVanish(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s := open(t, vfs.NewMem(), mode)
		defer func() { require.NoError(t, s.Close()) }()
		group := groupOf(2)
		for i := range mq.TopicID(3) {
			topic := named(i+1, fmt.Sprint("t", i+1), 1)
			send(t, s, topic, 0, message("m", ""))
			require.Len(t, receive(t, s, mq.Receive{Topic: topic, Group: group, Max: 1, Invisible: time.Minute}), 1)
		}
		require.NoError(t, s.DeleteTopic(t.Context(), 2))
		v := survey(t, s)
		require.Len(t, v.Topics, 2)
		require.Equal(t, []string{"t1", "t3"}, []string{v.Topics[0].Topic.Name, v.Topics[1].Topic.Name})
		require.Len(t, v.Groups, 2)
		require.NoError(t, s.DeleteGroup(t.Context(), group.ID))
		v = survey(t, s)
		require.Len(t, v.Topics, 2)
		require.Empty(t, v.Groups)
		require.Equal(t, uint64(3), s.Stats().Delivered, "the shard's own counters go on")

		_, err := s.Ack(t.Context(), 2, group.ID, []command.LeaseRef{{PopID: 1}})
		require.NoError(t, err)
		require.Empty(t, survey(t, s).Groups, "a late call brings nothing back")
	})
}

func TestSeriesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := shard.Open(shard.Options{
			Name: shardName, FS: vfs.NewMem(), Dir: "shard", SegmentSize: 1 << 20, ZeroFill: -1, MaxSeries: 2,
		})
		require.NoError(t, err)
		defer func() { require.NoError(t, s.Close()) }()
		group := groupOf(2)
		use := func(id mq.TopicID) {
			topic := named(id, fmt.Sprint("t", id), 1)
			send(t, s, topic, 0, message("a", ""), message("b", ""))
			require.Len(t, receive(t, s, mq.Receive{Topic: topic, Group: group, Max: 1, Invisible: time.Hour}), 1)
		}
		for i := range mq.TopicID(5) {
			use(i + 1)
		}
		v := survey(t, s)
		require.Len(t, v.Topics, 2)
		require.Len(t, v.Groups, 2)
		require.Equal(t, 3, v.TopicsDropped)
		require.Equal(t, 3, v.GroupsDropped)
		require.Equal(t, int64(6), v.OtherTopics.Stored)
		require.Equal(t, uint64(6), v.OtherTopics.In)
		require.Equal(t, uint64(3), v.OtherTopics.Out)
		require.Equal(t, machine.SubStatus{New: 3, InFlight: 3}, v.OtherGroups.SubStatus)
		require.Equal(t, uint64(3), v.OtherGroups.Delivered)

		// What takes a free place counts from then on; no counter goes back.
		require.NoError(t, s.DeleteTopic(t.Context(), 1))
		v = survey(t, s)
		require.Equal(t, "t3", v.Topics[1].Topic.Name)
		require.Zero(t, v.Topics[1].In)
		require.Equal(t, int64(2), v.Topics[1].Stored)
		require.Equal(t, 2, v.TopicsDropped)
		require.Equal(t, 2, v.GroupsDropped)
		require.Equal(t, uint64(6), v.OtherTopics.In)
		require.Equal(t, int64(4), v.OtherTopics.Stored)
		use(3)
		use(4)
		v = survey(t, s)
		require.Equal(t, uint64(2), v.Topics[1].In)
		require.Equal(t, uint64(8), v.OtherTopics.In)
	})
}

func TestCountersBeginAnewAndGaugesGoOnAfterARestart(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		fs := vfs.NewCrashableMem()
		s := open(t, fs, mode)
		topic, group := topicOf(1), groupOf(2)
		send(t, s, topic, 0, message("a", ""), message("b", ""))
		require.Len(t, receive(t, s, mq.Receive{Topic: topic, Group: group, Max: 1, Invisible: time.Hour}), 1)
		time.Sleep(time.Second) // async mode has synced
		crashed := fs.CrashClone(vfs.CrashCloneCfg{})
		require.NoError(t, s.Close())

		s = open(t, crashed, mode)
		defer func() { require.NoError(t, s.Close()) }()
		require.Zero(t, s.Stats().Appended)
		v := survey(t, s)
		require.Equal(t, shard.TopicRow{Topic: topic.Resource, Stored: 2}, v.Topics[0])
		require.Equal(t, machine.SubStatus{New: 1, InFlight: 1}, v.Groups[0].SubStatus)
		require.Zero(t, v.Groups[0].GroupCounts)
		require.NotZero(t, v.Groups[0].Oldest)
	})
}

func TestPositionsSayHowFarEachPartIs(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		fs := vfs.NewMem()
		s := open(t, fs, mode)
		topic := topicOf(1)
		send(t, s, topic, 0, message("a", ""))
		st := s.Stats()
		require.Equal(t, st.LogAppended, st.LogApplied)
		require.Greater(t, st.LogAppended, st.LogFirst)
		require.Equal(t, 1, st.Segments)
		require.GreaterOrEqual(t, st.LogBytes, st.LogAppended-st.LogFirst)
		v, err := s.Views()
		require.NoError(t, err)
		require.Zero(t, v.Durable, "all is in memory")
		require.NotZero(t, v.MemTable)
		require.NoError(t, s.Close())
		_, err = s.Views()
		require.ErrorIs(t, err, mq.ErrStopped)
		_, err = s.Survey(t.Context())
		require.ErrorIs(t, err, mq.ErrStopped)

		s = open(t, fs, mode)
		defer func() { require.NoError(t, s.Close()) }()
		v, err = s.Views()
		require.NoError(t, err)
		require.Equal(t, s.Stats().LogApplied, v.Durable)
		require.NotZero(t, v.Files)
		require.Equal(t, st.LogApplied, s.Stats().LogApplied)
	})
}

func TestEveryRequestAndRoundIsTimed(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s := open(t, vfs.NewMem(), mode)
		defer func() { require.NoError(t, s.Close()) }()
		for range 5 {
			send(t, s, topicOf(1), 0, message("a", ""))
		}
		survey(t, s) // no command
		time.Sleep(time.Second)
		st := s.Stats()
		require.Equal(t, uint64(5), st.Stages[shard.StageQueue].Count)
		for _, stage := range []shard.Stage{shard.StageAppend, shard.StageApply, shard.StageAnswer} {
			require.Equal(t, uint64(5), st.Stages[stage].Count, stage)
		}
		require.Equal(t, st.Syncs, st.Stages[shard.StageFsync].Count)
		require.NotZero(t, st.Syncs)
	})
}

func TestMessagesThatCannotBeReadAreCountedForTheirGroup(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		fs := vfs.NewMem()
		var log strings.Builder
		s, err := shard.Open(shard.Options{
			Name: shardName, FS: fs, Dir: "shard", Flush: mode, SegmentSize: 1 << 20, ZeroFill: -1,
			Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		require.NoError(t, err)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(1), groupOf(2)
		send(t, s, topic, 0, message("good", ""), message("bad", ""))
		segment := filesIn(t, fs, shard.LogDir(fs, "shard"))[0]
		at := bytes.Index(contents(t, fs, segment), []byte("body of bad"))
		require.Positive(t, at)
		f, err := fs.OpenReadWrite(segment, vfs.WriteCategoryUnspecified)
		require.NoError(t, err)
		_, err = f.WriteAt([]byte{'B'}, int64(at))
		require.NoError(t, err)
		require.NoError(t, f.Close())

		require.Len(t, receive(t, s, mq.Receive{Topic: topic, Group: group}), 1)
		require.Equal(t, uint64(1), s.Stats().Unreadable)
		v := survey(t, s)
		require.Equal(t, shard.GroupCounts{Delivered: 2, Unreadable: 1}, v.Groups[0].GroupCounts)
		for _, id := range []string{"shard=s0", "topic=orders", "group=g", "queue=0", "offset=1"} {
			require.Contains(t, log.String(), id)
		}
		require.NotContains(t, strings.ToLower(log.String()), "body of")
	})
}

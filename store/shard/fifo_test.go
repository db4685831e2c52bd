package shard_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/shard"
)

// orderedGroup returns a group that is FIFO.
func orderedGroup() *mq.Group {
	g := groupOf(17)
	g.FIFO = true
	return g
}

func inGroup(id, group string) *mq.Message {
	m := message(id, "")
	m.Group, m.Type = group, mq.FIFO
	return m
}

func TestLanesOutliveARestart(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		fs := vfs.NewMem()
		s := open(t, fs, mode)
		topic, group := topicOf(1), orderedGroup()
		send(t, s, topic, 0, inGroup("a1", "a"), inGroup("a2", "a"), inGroup("b1", "b"), inGroup("a3", "a"))
		first := receive(t, s, mq.Receive{Topic: topic, Group: group, Max: 1, Invisible: time.Hour, Attempt: "x"})
		require.Equal(t, []string{"a1"}, ids(first))
		require.Equal(t, []string{"b1"}, ids(receive(t, s, mq.Receive{Topic: topic, Group: group, Invisible: time.Hour})))
		require.NoError(t, s.Close())

		s = open(t, fs, mode)
		defer func() { require.NoError(t, s.Close()) }()
		require.Empty(t, receive(t, s, mq.Receive{Topic: topic, Group: group}))
		again := receive(t, s, mq.Receive{Topic: topic, Group: group, Max: 1, Invisible: time.Hour, Attempt: "x"})
		require.Equal(t, first[0].Lease, again[0].Lease)
		require.NoError(t, ack(t, s, first[0].Lease))
		require.Equal(t, []string{"a2", "a3"}, ids(receive(t, s, mq.Receive{Topic: topic, Group: group, Invisible: time.Hour})))
	})
}

// What is parked was never delivered: it goes with its age as what was not passed does, and
// keeps no segment of the log.
func TestParkedMessagesDoNotOutliveTheirRetention(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		fs := vfs.NewMem()
		s := keeping(t, fs, mode, shard.Retention{Age: time.Hour})
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(2), orderedGroup()
		for i := range 100 {
			m := inGroup(fmt.Sprint("a", i), "a")
			m.Body = make([]byte, 4<<10)
			send(t, s, topic, 0, m)
		}
		got := receive(t, s, mq.Receive{Topic: topic, Group: group, Max: 1, Invisible: 24 * time.Hour})
		require.Equal(t, []string{"a0"}, ids(got))
		require.Empty(t, receive(t, s, mq.Receive{Topic: topic, Group: group}))
		backlogs, err := s.Backlogs(t.Context(), group.ID)
		require.NoError(t, err)
		require.EqualValues(t, 99, backlogs[0].Blocked)

		time.Sleep(3 * time.Hour)
		backlogs, err = s.Backlogs(t.Context(), group.ID)
		require.NoError(t, err)
		require.Equal(t, mq.Backlog{Topic: topic.ID, InFlight: 1}, backlogs[0])
		require.NoError(t, ack(t, s, got[0].Lease))
		send(t, s, topic, 0, inGroup("later", "a"))
		require.Equal(t, []string{"later"}, ids(receive(t, s, mq.Receive{Topic: topic, Group: group})))
	})
}

// What a filter does not want of a lane is settled when it is its turn, or everything
// behind it would wait for ever.
func TestAFilterPassesWhatItDoesNotWantOfALane(t *testing.T) {
	for name, filtered := range map[string]func(r mq.Receive) mq.Receive{
		"tags": func(r mq.Receive) mq.Receive { r.Tags = []string{"yes"}; return r },
		"sql":  func(r mq.Receive) mq.Receive { r.Filter = sql(t, "tag = 'yes'"); return r },
	} {
		t.Run(name, func(t *testing.T) {
			modes(t, func(t *testing.T, mode shard.FlushMode) {
				s := open(t, vfs.NewMem(), mode)
				defer func() { require.NoError(t, s.Close()) }()
				topic, group := topicOf(1), orderedGroup()
				in := func(id, tag string) *mq.Message {
					m := with(id, "tag", tag)
					m.Group, m.Type, m.Tag = "a", mq.FIFO, tag
					return m
				}
				take := func(wait time.Duration) []mq.Delivery {
					return receive(t, s, filtered(mq.Receive{Topic: topic, Group: group, Max: 1, Invisible: time.Hour, Wait: wait}))
				}
				send(t, s, topic, 0, in("a1", "yes"))
				first := take(0)
				require.Equal(t, []string{"a1"}, ids(first))
				send(t, s, topic, 0, in("a2", "no"), in("a3", "no"), in("a4", "yes"), in("a5", "no"))
				require.NoError(t, ack(t, s, first[0].Lease))
				second := take(0)
				require.Equal(t, []string{"a4"}, ids(second))
				send(t, s, topic, 0, in("a6", "no"), in("a7", "yes"))
				time.AfterFunc(time.Second, func() { _ = ack(t, s, second[0].Lease) })
				third := take(time.Minute)
				require.Equal(t, []string{"a7"}, ids(third), "a receive that waits")
				// What is behind the last one that is wanted goes in time as well.
				send(t, s, topic, 0, in("a8", "no"))
				require.NoError(t, ack(t, s, third[0].Lease))
				require.Empty(t, take(time.Minute))
				require.Equal(t, mq.Backlog{Topic: topic.ID}, backlog(t, s, group))
			})
		})
	}
}

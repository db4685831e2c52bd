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

// withIn is with in a message group.
func withIn(group, id string, pairs ...string) *mq.Message {
	m := with(id, pairs...)
	m.Group, m.Type = group, mq.FIFO
	return m
}

// What arrives behind an unsettled message is parked before anybody has judged it. When
// its turn comes and the expression does not want it, it makes way for those behind it.
func TestAnExpressionSettlesWhatItDoesNotWantInAMessageGroup(t *testing.T) {
	for _, wait := range []time.Duration{0, time.Minute} {
		t.Run(fmt.Sprint("wait ", wait), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := open(t, vfs.NewMem(), shard.FlushSync)
				defer func() { require.NoError(t, s.Close()) }()
				topic, group, f := topicOf(1), orderedGroup(), sql(t, "n = 1")
				r := mq.Receive{Topic: topic, Group: group, Filter: f, Wait: wait, Invisible: time.Hour}
				send(t, s, topic, 0, withIn("a", "a1", "n", "1"))
				first := receive(t, s, r)
				require.Equal(t, []string{"a1"}, ids(first))
				send(t, s, topic, 0, withIn("a", "a2", "n", "0"), withIn("b", "b1", "n", "0"), withIn("a", "a3", "n", "0"), withIn("a", "a4", "n", "1"))
				settled := make(chan error, 1)
				settle := func() { settled <- ack(t, s, first[0].Lease) }
				start := time.Now()
				if wait > 0 { // the receive is there when its turn comes
					time.AfterFunc(time.Second, settle)
				} else {
					require.Empty(t, receive(t, s, r))
					settle()
				}
				require.Equal(t, []string{"a4"}, ids(receive(t, s, r)))
				require.NoError(t, <-settled)
				require.LessOrEqual(t, time.Since(start), 2*time.Second)
				require.Equal(t, mq.Backlog{Topic: topic.ID, InFlight: 1}, backlog(t, s, group))
			})
		})
	}
}

// A client that got no answer asks again with the same attempt id, and gets receipts that
// are good for what it was to have.
func TestAReceiveByExpressionIsRepeatedByItsAttemptID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, vfs.NewMem(), shard.FlushSync)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(1), orderedGroup()
		send(t, s, topic, 0, withIn("a", "a1", "n", "1"), withIn("a", "a2", "n", "1"))
		r := mq.Receive{Topic: topic, Group: group, Filter: sql(t, "n = 1"), Max: 2, Invisible: time.Hour, Attempt: "x"}
		first := receive(t, s, r)
		require.Equal(t, []string{"a1", "a2"}, ids(first))
		time.Sleep(time.Minute)
		again := receive(t, s, r)
		require.Equal(t, first, again)
		send(t, s, topic, 0, withIn("a", "a3", "n", "1"))
		for _, d := range again {
			require.NoError(t, ack(t, s, d.Lease))
		}
		require.Equal(t, []string{"a3"}, ids(receive(t, s, r)))
	})
}

// Messages are settled one receive later than they come, so that others arrive behind them:
// whatever the expression wants is delivered, in the order of its message group.
func TestAnExpressionKeepsTheOrderOfMessageGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, vfs.NewMem(), shard.FlushSync)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group, f := topicOf(1), orderedGroup(), sql(t, "n <> 0")
		want, got := map[string][]string{}, map[string][]string{}
		var under []mq.Delivery
		step := func(most int) (found bool) {
			list := receive(t, s, mq.Receive{Topic: topic, Group: group, Filter: f, Max: most, Invisible: time.Hour})
			for _, d := range under {
				require.NoError(t, ack(t, s, d.Lease))
			}
			for _, d := range list {
				got[d.Group] = append(got[d.Group], d.ID)
			}
			found, under = len(list)+len(under) > 0, list
			return found
		}
		for i := range 600 {
			g, n := string(rune('a'+i%3)), i/3%4
			id := fmt.Sprint(g, i)
			send(t, s, topic, 0, withIn(g, id, "n", fmt.Sprint(n)))
			if n != 0 {
				want[g] = append(want[g], id)
			}
			if i%5 == 0 {
				step(2)
			}
		}
		for step(7) {
		}
		require.Equal(t, want, got)
		require.Equal(t, mq.Backlog{Topic: topic.ID}, backlog(t, s, group))
	})
}

package machine_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/machine"
)

// urgent pops by priority.
func (s *story) urgent(most int32, edit ...func(*command.SelectPop)) (machine.Result, mq.PopID) {
	c := command.SelectPop{Order: command.PriorityOrder}
	c.Pop = command.Pop{Time: s.tick(), Topic: 1, Group: 1, Max: most, Scan: 1000, Invisible: int64(time.Minute)}
	for _, fn := range edit {
		fn(&c)
	}
	return s.apply(command.KindPopSelect, &c), mq.PopID(c.Time)
}

// places lists where what was delivered lies.
func places(res machine.Result) (list []string) {
	for _, p := range res.Popped {
		list = append(list, fmt.Sprintf("%d/%d", p.Queue, p.Offset))
	}
	return list
}

func TestHighestQueueIsDeliveredFirst(t *testing.T) {
	s := newStory(t, 3)
	s.send(0, 2, "")
	s.send(2, 2, "")
	s.send(1, 1, "")
	res, _ := s.urgent(10)
	require.Equal(t, []string{"2/0", "2/1", "1/0", "0/0", "0/1"}, places(res))
	s.send(1, 2, "")
	s.send(2, 1, "")
	res, _ = s.urgent(2)
	require.Equal(t, []string{"2/2", "1/1"}, places(res))
}

func TestRedeliveriesKeepTheirPriority(t *testing.T) {
	for name, between := range map[string]func(*story){
		"at once": func(*story) {}, "after a reopen": (*story).reopen, "after a rebuild": (*story).rebuild,
	} {
		t.Run(name, func(t *testing.T) {
			s := newStory(t, 3)
			for q := range mq.QueueID(3) {
				s.send(q, 2, "")
			}
			res, id := s.urgent(4)
			require.Equal(t, []string{"2/0", "2/1", "1/0", "1/1"}, places(res))
			// The lower ones come back first, and one by the end of its lease.
			require.NoError(t, s.change(res.Popped[2], id, 0, mq.Nack))
			require.NoError(t, s.change(res.Popped[1], id, 0, mq.GiveBack))
			s.now += int64(2 * time.Minute)
			s.expire()
			s.send(2, 1, "")
			between(s)
			res, _ = s.urgent(5)
			require.Equal(t, []string{"2/1", "2/0", "2/2", "1/0", "1/1"}, places(res), "of a queue what comes back goes first")
			require.Equal(t, []mq.Attempt{1, 2, 1, 2, 2}, attempts(res))
			res, _ = s.urgent(5)
			require.Equal(t, []string{"0/0", "0/1"}, places(res))
		})
	}
}

func attempts(res machine.Result) (list []mq.Attempt) {
	for _, p := range res.Popped {
		list = append(list, p.Attempt)
	}
	return list
}

func TestUrgentMessagesPassALongBacklog(t *testing.T) {
	for _, most := range []int32{1, 16, 32} {
		for past := range 9 { // pops before: whose turn it is then
			s := newStory(t, 10)
			s.send(1, 1000, "")
			s.send(0, 100, "")
			for range past {
				s.urgent(1)
			}
			s.send(9, 10, "")
			low, high := 0, 0
			for high < 10 {
				res, _ := s.urgent(most)
				for _, p := range res.Popped {
					if p.Queue == 9 {
						high++
					} else if high < 10 {
						low++
					}
				}
			}
			require.LessOrEqual(t, low, 50, "%d at a time, after %d pops", most, past)
		}
	}
}

// TestNoPriorityStarves: with a flow at the highest priority that never ends, each pop
// takes one message, and every message of a lower queue is delivered within eight pops for
// each lower queue and each message before it.
func TestNoPriorityStarves(t *testing.T) {
	const lower, each, every = 3, 4, 8
	s := newStory(t, lower+2) // one queue is empty
	for q := range mq.QueueID(lower) {
		s.send(q, each, "")
	}
	delivered := map[mq.QueueID]int{}
	for n := 1; n <= every*lower*each; n++ {
		s.send(lower+1, 2, "")
		res, _ := s.urgent(1)
		require.Len(t, res.Popped, 1)
		p := res.Popped[0]
		delivered[p.Queue]++
		require.Equal(t, n%every == 0, p.Queue <= lower, "pop %d delivered from queue %d", n, p.Queue)
		if n%5 == 0 {
			s.reopen()
		}
		if n%(every*lower) == 0 {
			for q := range mq.QueueID(lower) {
				require.Equal(t, n/(every*lower), delivered[q], "of queue %d after %d pops", q, n)
			}
		}
	}
}

func TestLowerMessageThatComesAfterALongFlowWaitsForItsTurnOnly(t *testing.T) {
	s := newStory(t, 2)
	for range 100 {
		s.send(1, 1, "")
		s.urgent(1)
	}
	s.send(0, 1, "")
	s.send(1, 100, "")
	pops := 0
	for {
		pops++
		res, _ := s.urgent(1)
		if res.Popped[0].Queue == 0 {
			break
		}
	}
	require.Equal(t, 8, pops)
}

func TestQueueAtItsLimitLetsLowerOnesGoOn(t *testing.T) {
	limited := func(c *command.SelectPop) { c.InFlight = 2 }
	s := newStory(t, 3)
	s.send(2, 5, "")
	s.send(0, 3, "")
	res, id := s.urgent(10, limited)
	require.Equal(t, []string{"2/0", "2/1", "0/0", "0/1"}, places(res))
	require.True(t, res.Full)
	res, _ = s.urgent(10, limited)
	require.Empty(t, res.Popped)
	require.True(t, res.Full)
	require.Equal(t, machine.Look{Full: true}, s.lookByPriority(2))
	require.NoError(t, s.change(machine.Popped{Queue: 2, Offset: 1}, id, 0, mq.Nack))
	require.True(t, s.lookByPriority(2).May)
	res, _ = s.urgent(10, limited)
	require.Equal(t, []string{"2/1"}, places(res))
}

func (s *story) lookByPriority(limit int32, tags ...string) machine.Look {
	require.NoError(s.t, s.m.Commit())
	c := command.SelectPop{Order: command.PriorityOrder}
	c.Pop = command.Pop{Topic: 1, Group: 1, Max: 10, Scan: 1000, Tags: tags}
	c.InFlight = limit
	look, err := s.m.Look(&c)
	require.NoError(s.t, err)
	return look
}

// TestRedeliveriesForOthersHideNone: in front of what a consumer wants there are more
// redeliveries that it does not want than a pop looks at.
func TestRedeliveriesForOthersHideNone(t *testing.T) {
	s := newStory(t, 3)
	s.send(2, 50, "B")
	s.send(1, 1, "A")
	res, id := s.urgent(51)
	for _, p := range res.Popped {
		require.NoError(t, s.change(p, id, 0, mq.GiveBack))
	}
	s.send(0, 1, "A")
	after, pops := uint64(0), 0
	var got []string
	for len(got) < 2 {
		pops++
		require.Less(t, pops, 12)
		res, _ := s.urgent(2, func(c *command.SelectPop) { c.Scan, c.After, c.Tags = 10, after, []string{"A"} })
		require.True(t, res.More || len(res.Popped) > 0)
		after = res.After
		got = append(got, places(res)...)
	}
	require.Equal(t, []string{"1/0", "0/0"}, got)
	require.False(t, s.lookByPriority(0, "A").May)
	require.Len(t, first(s.urgent(100)).Popped, 50)
}

func first(res machine.Result, _ mq.PopID) machine.Result { return res }

// TestGroupThatBeginsToReceiveByPriority has redeliveries from before, when the topic was
// of another type.
func TestGroupThatBeginsToReceiveByPriority(t *testing.T) {
	s := newStory(t, 3)
	for q := range mq.QueueID(3) {
		s.send(q, 2, "")
	}
	res, id := s.pop(command.Pop{Max: 6})
	slices.SortFunc(res.Popped, func(a, b machine.Popped) int { return int(a.Queue - b.Queue) })
	for _, p := range res.Popped {
		require.NoError(t, s.change(p, id, 0, mq.Nack))
	}
	require.Equal(t, []string{"0/0"}, places(first(s.urgent(1))), "the first pop puts them in order")
	require.Equal(t, []string{"2/0", "2/1", "1/0"}, places(first(s.urgent(3))))
	// Back to another order, and to priorities again.
	require.Equal(t, []string{"0/1"}, places(first(s.pop(command.Pop{Max: 1}))))
	require.Equal(t, []string{"1/1"}, places(first(s.urgent(3))))
}

func TestPurgeAndDeletionLeaveNothingOfThePriorities(t *testing.T) {
	s := newStory(t, 2)
	s.send(1, 3, "")
	s.send(0, 3, "")
	res, id := s.urgent(6)
	for _, p := range res.Popped {
		require.NoError(t, s.change(p, id, 0, mq.Nack))
	}
	require.Contains(t, s.keys(), "redelivery-by-priority 6")
	s.purge()
	require.Equal(t, []string{"ends 2", "group 1", "progress 2", "subscription 1", "topic 1", "turn 1"}, s.keys())
	s.send(1, 1, "")
	res, id = s.urgent(6)
	require.Equal(t, []string{"1/3"}, places(res))
	require.NoError(t, s.change(res.Popped[0], id, 0, mq.Nack))
	s.reopen()
	require.Equal(t, []string{"1/3"}, places(first(s.urgent(6))))
	s.apply(command.KindTopicDelete, &command.TopicDelete{Time: s.tick(), ID: 1})
	lower, upper := keyspace.TurnKeys()
	require.NoError(t, s.m.Commit())
	it, err := s.db.NewIter(nil)
	require.NoError(t, err)
	require.False(t, it.SeekGE(lower) && string(it.Key()) < string(upper))
	require.NoError(t, it.Close())
}

package machine_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/machine"
)

func (s *story) trim(queue mq.QueueID, least, kept mq.QueueOffset) machine.Result {
	return s.apply(command.KindTrim, &command.Trim{
		Time: s.tick(), Topic: 1, Queues: []command.QueueTrim{{Queue: queue, Min: least, Kept: kept}},
	})
}

func (s *story) purge() machine.Result {
	return s.apply(command.KindTrim, &command.Trim{Time: s.tick(), Topic: 1, Purge: true})
}

func (s *story) backlog() mq.Backlog {
	list, err := s.m.Backlogs(1)
	require.NoError(s.t, err)
	require.Len(s.t, list, 1)
	return list[0]
}

func (s *story) mayPop() bool {
	require.NoError(s.t, s.m.Commit())
	look, err := s.m.Look(&command.SelectPop{LimitedPop: command.LimitedPop{Pop: command.Pop{Group: 1, Topic: 1, Max: 1, Scan: 1000}}})
	require.NoError(s.t, err)
	return look.May
}

func TestEmptiedQueueGoesOnWithItsNextOffsetForEver(t *testing.T) {
	for name, empty := range map[string]func(s *story) machine.Result{
		"trim":  func(s *story) machine.Result { return s.trim(0, 5, 5) },
		"purge": func(s *story) machine.Result { return s.purge() },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStory(t, 2)
			s.send(0, 5, "")
			res := empty(s)
			require.Equal(t, uint64(5), res.Trimmed)
			require.NoError(t, s.m.Commit())
			for range 3 {
				require.NoError(t, s.m.Close())
				m, err := machine.Open(s.db)
				require.NoError(t, err)
				s.m = m
				ranges, err := s.m.Queues(1)
				require.NoError(t, err)
				require.Equal(t, []mq.QueueRange{{Queue: 0, Min: 5, Next: 5}, {Queue: 1}}, ranges)
			}
			require.Equal(t, mq.QueueOffset(5), s.send(0, 1, "").First)
			s.rebuild()
			got, _ := s.pop(command.Pop{Max: 10})
			require.Len(t, got.Popped, 1)
			require.Equal(t, mq.QueueOffset(5), got.Popped[0].Offset)
		})
	}
}

func TestTrimmedMessagesAreNeitherDeliveredNorCounted(t *testing.T) {
	s := newStory(t, 1)
	s.send(0, 10, "")
	got, _ := s.pop(command.Pop{Max: 1})
	require.Len(t, got.Popped, 1)
	require.Equal(t, int64(9), s.backlog().Ready)
	require.Equal(t, uint64(7), s.trim(0, 7, 0).Trimmed)
	require.Equal(t, mq.Backlog{Topic: 1, Ready: 3, InFlight: 1}, s.backlog())
	require.True(t, s.mayPop())
	got, _ = s.pop(command.Pop{Max: 1})
	require.Equal(t, mq.QueueOffset(7), got.Popped[0].Offset)
	require.Equal(t, uint64(3), s.trim(0, 1000, 0).Trimmed, "as far as there is something")
	require.Zero(t, s.trim(0, 2, 0).Trimmed, "a beginning never moves back")
	require.Equal(t, mq.Backlog{Topic: 1, InFlight: 2}, s.backlog())
	require.False(t, s.mayPop())
}

func TestNewGroupsBeginWhereTheQueueBegins(t *testing.T) {
	for start, want := range map[mq.StartPolicy]mq.QueueOffset{mq.StartEarliest: 4, mq.StartTimestamp: 6, mq.StartLatest: 10} {
		s := newStory(t, 1)
		var times []int64
		for range 10 {
			s.send(0, 1, "")
			times = append(times, s.now)
		}
		s.trim(0, 4, 2)
		s.apply(command.KindGroup, &command.Group{
			Time: s.tick(), ID: 2, Name: mq.Resource{Name: "h"}, MaxAttempts: 1, Start: start, StartTime: times[6], Version: 1,
		})
		res := s.apply(command.KindPop, &command.Pop{Time: s.tick(), Topic: 1, Group: 2, Max: 1, Scan: 10, Invisible: 1})
		if want == 10 {
			require.Empty(t, res.Popped)
			continue
		}
		require.Equal(t, want, res.Popped[0].Offset, "%s", start)
		if start == mq.StartTimestamp { // a time before what is left
			s.apply(command.KindGroup, &command.Group{
				Time: s.tick(), ID: 3, Name: mq.Resource{Name: "i"}, MaxAttempts: 1, Start: start, StartTime: times[1], Version: 1,
			})
			res = s.apply(command.KindPop, &command.Pop{Time: s.tick(), Topic: 1, Group: 3, Max: 1, Scan: 10, Invisible: 1})
			require.Equal(t, mq.QueueOffset(4), res.Popped[0].Offset)
		}
	}
}

func TestMessageUnderDeliveryOutlivesTheTrimThatKeepsIt(t *testing.T) {
	s := newStory(t, 1)
	s.send(0, 5, "")
	got, id := s.pop(command.Pop{Max: 2})
	s.trim(0, 5, 0)
	require.NoError(t, s.change(got.Popped[0], id, 0, mq.Extend))
	again, id := s.pop(command.Pop{Max: 9})
	require.Len(t, again.Popped, 1, "the rest has never been delivered, and is trimmed")
	require.Equal(t, got.Popped[0].Offset, again.Popped[0].Offset)
	require.NoError(t, s.m.Commit())
	u, found, err := s.m.Inspect(keyspace.Ref{Sub: keyspace.Sub{Group: 1, Topic: 1}, Offset: 1})
	require.NoError(t, err)
	require.True(t, found)
	require.False(t, u.Missing)

	// What is not kept any more is no longer there for its redelivery either.
	s.trim(0, 5, 2)
	require.NoError(t, s.change(again.Popped[0], id, 0, mq.Extend))
	none, _ := s.pop(command.Pop{Max: 9})
	require.Empty(t, none.Popped)
	require.Equal(t, uint64(1), s.m.Effects.Lost)
	u, found, err = s.m.Inspect(keyspace.Ref{Sub: keyspace.Sub{Group: 1, Topic: 1}, Offset: 1})
	require.NoError(t, err)
	require.True(t, found)
	require.True(t, u.Missing)
	require.Equal(t, mq.Backlog{Topic: 1, InFlight: 1}, s.backlog())
}

func TestPurgeEndsEveryDeliveryAndWhatComesAfterItIsDelivered(t *testing.T) {
	for _, commit := range []bool{false, true} {
		t.Run(fmt.Sprint("commit between: ", commit), func(t *testing.T) {
			between := func(s *story) {
				if commit {
					require.NoError(t, s.m.Commit())
				}
			}
			s := newStory(t, 2)
			s.send(0, 5, "")
			s.send(1, 5, "")
			got, id := s.pop(command.Pop{Max: 6})
			require.NoError(t, s.change(got.Popped[0], id, 0, mq.Extend)) // ready
			between(s)
			require.Equal(t, uint64(10), s.purge().Trimmed)
			between(s)
			for _, p := range got.Popped {
				require.ErrorIs(t, s.change(p, id, time.Minute, mq.Extend), mq.ErrLeaseEnded)
			}
			res := s.apply(command.KindAck, &command.Ack{Time: s.tick(), Topic: 1, Group: 1, Leases: []command.LeaseRef{
				{Queue: got.Popped[1].Queue, Offset: got.Popped[1].Offset, PopID: id},
			}})
			require.ErrorIs(t, res.Settled[0], mq.ErrLeaseEnded)
			require.NotErrorIs(t, res.Settled[0], mq.ErrLeaseSuperseded)
			between(s)
			require.Equal(t, mq.Backlog{Topic: 1}, s.backlog())
			none, _ := s.pop(command.Pop{Max: 9})
			require.Empty(t, none.Popped)
			require.False(t, s.mayPop())

			require.Equal(t, mq.QueueOffset(5), s.send(0, 1, "").First)
			got, id = s.pop(command.Pop{Max: 9})
			require.Len(t, got.Popped, 1)
			require.NoError(t, s.change(got.Popped[0], id, 0, mq.Extend))
			got, _ = s.pop(command.Pop{Max: 9})
			require.Len(t, got.Popped, 1, "the first redelivery after the purge")
			require.Equal(t, mq.Attempt(2), got.Popped[0].Attempt)
			s.now += int64(time.Hour) // the ends of dropped leases are no trouble
			require.True(t, s.due())
			s.expire()
			require.False(t, s.due())
			got, _ = s.pop(command.Pop{Max: 9})
			require.Len(t, got.Popped, 1)
			require.Zero(t, s.m.Effects.Lost)
		})
	}
}

func TestPurgeOfAnotherTopicTouchesNothing(t *testing.T) {
	s := newStory(t, 1)
	s.send(0, 3, "")
	_, _ = s.pop(command.Pop{Max: 1})
	s.apply(command.KindTopic, &command.Topic{Time: s.tick(), ID: 2, Name: mq.Resource{Name: "u"}, Queues: 1, Version: 1})
	res := s.apply(command.KindTrim, &command.Trim{Time: s.tick(), Topic: 2, Purge: true})
	require.NoError(t, res.Err)
	res = s.apply(command.KindTrim, &command.Trim{Time: s.tick(), Topic: 3, Purge: true})
	require.ErrorIs(t, res.Err, mq.ErrTopicNotFound)
	require.Equal(t, mq.Backlog{Topic: 1, Ready: 2, InFlight: 1}, s.backlog())
}

func TestDeletedTopicLeavesNoEndsBehind(t *testing.T) {
	s := newStory(t, 1)
	s.send(0, 3, "")
	s.purge()
	s.apply(command.KindTopicDelete, &command.TopicDelete{Time: s.tick(), ID: 1})
	require.NoError(t, s.m.Commit())
	lower := keyspace.AppendTopicEndsPrefix(nil, 1)
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: keyspace.Next(append([]byte(nil), lower...))})
	require.NoError(t, err)
	require.False(t, it.First())
	require.NoError(t, it.Close())
}

// TestGapAtAnEndOfAQueueIsNamed: what the ends promise and is not there is damage, at
// the beginning and at the end of a queue too.
func TestGapAtAnEndOfAQueueIsNamed(t *testing.T) {
	for name, c := range map[string]struct {
		trim int // how many are trimmed before; -1: none, and no ends are written
		lost mq.QueueOffset
	}{
		"first of a queue that was never trimmed": {-1, 0},
		"first that is left":                      {2, 2},
		"last, known from the ends":               {4, 4},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStory(t, 1)
			s.send(0, 5, "")
			if c.trim >= 0 {
				s.trim(0, mq.QueueOffset(c.trim), mq.QueueOffset(c.trim))
			}
			require.NoError(t, s.m.Commit())
			require.NoError(t, s.db.Delete(keyspace.AppendEntryKey(nil, keyspace.Queue{Topic: 1}, c.lost), pebble.NoSync))
			require.NoError(t, s.m.Close())
			m, err := machine.Open(s.db)
			require.NoError(t, err)
			s.m = m
			last := s.log[len(s.log)-1]
			pop := &command.Pop{Time: s.tick(), Topic: 1, Group: 1, Max: 10, Scan: 10, Invisible: int64(time.Minute)}
			var res machine.Result
			err = s.m.Apply(machine.Record{
				Kind: command.KindPop, Payload: pop.Append(nil), PayloadPos: last.Next, Next: last.Next + 1, Index: last.Index + 1,
			}, &res)
			require.ErrorIs(t, err, keyspace.ErrCorrupt)
			require.ErrorContains(t, err, fmt.Sprintf("queue 0 of topic 1 has no entry %d", c.lost))
		})
	}
}

func TestBeginningOfTheLogIsKeptAndNeverMovesBack(t *testing.T) {
	s := newStory(t, 1)
	require.Zero(t, s.m.LogBegin())
	s.apply(command.KindDrop, &command.Drop{Time: s.tick(), First: 4096, Index: 7})
	s.apply(command.KindDrop, &command.Drop{Time: s.tick(), First: 2048, Index: 3})
	want := keyspace.Begin{Pos: 4096, Index: 7}
	require.Equal(t, want, s.m.LogBegin())
	require.NoError(t, s.m.Commit())
	require.NoError(t, s.m.Close())
	m, err := machine.Open(s.db)
	require.NoError(t, err)
	s.m = m
	require.Equal(t, want, s.m.LogBegin())
	got, err := machine.ReadBegin(s.db)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

func TestSearchFindsTheFirstEntryThatIsNotBelow(t *testing.T) {
	s := newStory(t, 1)
	for range 100 {
		s.send(0, 1, "")
	}
	s.trim(0, 20, 10)
	require.NoError(t, s.m.Commit())
	v, err := machine.OpenView(s.db)
	require.NoError(t, err)
	defer func() { require.NoError(t, v.Close()) }()
	s.send(0, 50, "") // not in the view
	require.NoError(t, s.m.Commit())
	ends, err := v.Queues(1)
	require.NoError(t, err)
	require.Equal(t, []keyspace.Ends{{Min: 20, Kept: 10, Next: 100}}, ends)
	q := keyspace.Queue{Topic: 1}
	entries := map[mq.QueueOffset]keyspace.Entry{}
	for offset := mq.QueueOffset(10); offset < 100; offset++ {
		entries[offset], err = v.Entry(q, offset)
		require.NoError(t, err)
	}
	for low := mq.QueueOffset(10); low <= 100; low += 7 {
		for want := low; want <= 100; want++ {
			reads := 0
			got, first, err := v.Search(q, low, 100, func(e *keyspace.Entry) bool {
				reads++
				return want == 100 || e.StoreTime < entries[want].StoreTime
			})
			require.NoError(t, err)
			require.Equal(t, want, got)
			require.Equal(t, entries[want], first)
			require.LessOrEqual(t, reads, 14)
			if want == low && low < 100 {
				require.Equal(t, 1, reads, "what is near is found at once")
			}
		}
	}
	_, err = v.Entry(q, 9)
	require.ErrorIs(t, err, keyspace.ErrCorrupt)
	none, err := v.Queues(7)
	require.NoError(t, err)
	require.Empty(t, none)
}

func TestDeliveriesOfAViewAreThoseOfTheRanges(t *testing.T) {
	s := newStory(t, 3)
	for q := range mq.QueueID(3) {
		s.send(q, 20, "")
	}
	got, id := s.pop(command.Pop{Max: 60})
	require.Len(t, got.Popped, 60)
	s.apply(command.KindAck, &command.Ack{Time: s.tick(), Topic: 1, Group: 1, Leases: []command.LeaseRef{{Queue: 1, Offset: 5, PopID: id}}})
	require.NoError(t, s.m.Commit())
	v, err := machine.OpenView(s.db)
	require.NoError(t, err)
	defer func() { require.NoError(t, v.Close()) }()
	groups, err := v.Subscribers(func(id mq.TopicID) bool { return id == 1 })
	require.NoError(t, err)
	require.Equal(t, map[mq.TopicID][]mq.GroupID{1: {1}}, groups)
	var seen []string
	ranges := []machine.Range{{Queue: 0, Low: 18, High: 30}, {Queue: 1, Low: 3, High: 7}, {Queue: 2, Low: 4, High: 4}}
	err = v.Deliveries(keyspace.Sub{Group: 1, Topic: 1}, ranges, func(ref keyspace.Ref, l keyspace.Lease) error {
		require.Equal(t, id, l.PopID)
		seen = append(seen, fmt.Sprint(ref.Queue, "/", ref.Offset))
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, []string{"0/18", "0/19", "1/3", "1/4", "1/6"}, seen)
}

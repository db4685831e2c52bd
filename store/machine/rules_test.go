package machine_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/machine"
)

// story drives a machine through a history written by hand: topic 1 with some
// queues, and group 1.
type story struct {
	t   testing.TB
	db  *pebble.DB
	m   *machine.Machine
	log []machine.Record
	now int64
}

func newStory(t testing.TB, queues int32) *story {
	s := &story{t: t, now: 1_700_000_000 * int64(time.Second)}
	s.open()
	t.Cleanup(s.close)
	s.register(queues)
	return s
}

func (s *story) open() {
	db, err := pebble.Open("views", &pebble.Options{FS: vfs.NewMem(), DisableWAL: true, Logger: quiet{}})
	require.NoError(s.t, err)
	m, err := machine.Open(db)
	require.NoError(s.t, err)
	s.db, s.m = db, m
}

func (s *story) close() {
	require.NoError(s.t, s.m.Close())
	require.NoError(s.t, s.db.Close())
}

// rebuild applies the log to empty views, with a commit after every record.
func (s *story) rebuild() {
	s.close()
	s.open()
	var res machine.Result
	for _, rec := range s.log {
		require.NoError(s.t, s.m.Apply(rec, &res))
		require.NoError(s.t, s.m.Commit())
	}
}

func (s *story) tick() int64 {
	s.now += int64(time.Millisecond)
	return s.now
}

func (s *story) apply(kind command.Kind, c encoder) machine.Result {
	payload := c.Append(nil)
	rec := machine.Record{Kind: kind, Payload: payload, Index: uint64(len(s.log)) + 1}
	if n := len(s.log); n > 0 {
		rec.PayloadPos = s.log[n-1].Next
	}
	rec.Next = rec.PayloadPos + uint64(len(payload))
	s.log = append(s.log, rec)
	var res machine.Result
	require.NoError(s.t, s.m.Apply(rec, &res))
	return res
}

func (s *story) register(queues int32) {
	s.apply(command.KindTopic, &command.Topic{Time: s.tick(), ID: 1, Name: mq.Resource{Name: "t"}, Queues: queues, Version: uint64(queues)})
	s.group(1, 10)
}

func (s *story) group(version uint64, limit mq.Attempt) {
	s.apply(command.KindGroup, &command.Group{
		Time: s.tick(), ID: 1, Name: mq.Resource{Name: "g"}, MaxAttempts: limit, DeadLetter: 9, Version: version,
	})
}

func (s *story) send(queue mq.QueueID, n int, tag string) machine.Result {
	c := &command.Append{Time: s.tick(), Topic: 1, Queue: queue}
	for i := range n {
		c.Messages = append(c.Messages, &mq.Message{ID: fmt.Sprint("m", i), Tag: tag})
	}
	return s.apply(command.KindAppend, c)
}

func (s *story) pop(c command.Pop) (machine.Result, mq.PopID) {
	c.Time, c.Topic, c.Group = s.tick(), 1, 1
	if c.Scan == 0 {
		c.Scan = 1000
	}
	if c.Invisible == 0 {
		c.Invisible = int64(time.Minute)
	}
	return s.apply(command.KindPop, &c), mq.PopID(c.Time)
}

func (s *story) change(p machine.Popped, id mq.PopID, d time.Duration, reason mq.ChangeReason) error {
	res := s.apply(command.KindChange, &command.Change{Time: s.tick(), Topic: 1, Group: 1, Changes: []command.LeaseChange{{
		LeaseRef: command.LeaseRef{Queue: p.Queue, Offset: p.Offset, PopID: id}, Invisible: int64(d), Reason: reason,
	}}})
	require.Len(s.t, res.Settled, 1)
	return res.Settled[0]
}

func (s *story) due() bool {
	require.NoError(s.t, s.m.Commit())
	due, err := s.m.Due(s.now)
	require.NoError(s.t, err)
	return due
}

func (s *story) expire() { s.apply(command.KindExpire, &command.Expire{Time: s.tick(), Limit: 1000}) }

func TestRegistrationThatCrossedADeletionBringsNothingBack(t *testing.T) {
	s := newStory(t, 1)
	s.send(0, 3, "")
	_, _ = s.pop(command.Pop{Max: 1})
	require.NoError(t, s.m.Commit())

	// One round: the deletions, and behind them callers that had not heard of them.
	s.apply(command.KindTopicDelete, &command.TopicDelete{Time: s.tick(), ID: 1})
	s.apply(command.KindGroupDelete, &command.GroupDelete{Time: s.tick(), ID: 1})
	s.apply(command.KindTopic, &command.Topic{Time: s.tick(), ID: 1, Name: mq.Resource{Name: "t"}, Queues: 2, Version: 2})
	s.group(2, 10)
	require.ErrorIs(t, s.send(0, 1, "").Err, mq.ErrTopicNotFound)
	res, _ := s.pop(command.Pop{Max: 1})
	require.ErrorIs(t, res.Err, mq.ErrGroupNotFound)

	// The same with ids that the shard had never known.
	s.apply(command.KindTopicDelete, &command.TopicDelete{Time: s.tick(), ID: 5})
	s.apply(command.KindTopic, &command.Topic{Time: s.tick(), ID: 5, Name: mq.Resource{Name: "u"}, Queues: 1, Version: 1})
	s.apply(command.KindGroupDelete, &command.GroupDelete{Time: s.tick(), ID: 5})
	s.apply(command.KindGroup, &command.Group{Time: s.tick(), ID: 5, Name: mq.Resource{Name: "h"}, MaxAttempts: 1, Version: 1})

	for range 2 {
		require.NoError(t, s.m.Commit())
		topics, groups := s.m.Registered()
		require.Empty(t, topics)
		require.Empty(t, groups)
		s.rebuild()
	}
}

func TestPopWhoseScanEndsWithTheRedeliveriesGoesOnWithNewMessages(t *testing.T) {
	s := newStory(t, 1)
	s.send(0, 2, "other")
	got, id := s.pop(command.Pop{Max: 2})
	for _, p := range got.Popped {
		require.NoError(t, s.change(p, id, 0, mq.Extend))
	}
	s.send(0, 1, "mine")
	c := command.Pop{Max: 1, Scan: 2, Tags: []string{"mine"}}
	res, _ := s.pop(c) // looks at the two redeliveries only
	require.Empty(t, res.Popped)
	require.True(t, res.More, "there is a message that it has not looked at")
	c.After = res.After
	res, _ = s.pop(c)
	require.Len(t, res.Popped, 1)
	c.After = 0
	res, _ = s.pop(c)
	require.False(t, res.More, "now it has looked at everything")
}

func TestEveryQueueIsServedWhateverTheRhythmOfTheRecords(t *testing.T) {
	const queues = 4
	for rhythm := 1; rhythm <= 8; rhythm++ {
		s := newStory(t, queues)
		for q := range mq.QueueID(queues) {
			s.send(q, 100, "")
		}
		served := map[mq.QueueID]int{}
		for range 60 {
			res, _ := s.pop(command.Pop{Max: 1})
			require.Len(t, res.Popped, 1)
			served[res.Popped[0].Queue]++
			for range rhythm - 1 {
				s.apply(command.KindAck, &command.Ack{Time: s.tick(), Topic: 1, Group: 1})
			}
		}
		for q := range mq.QueueID(queues) {
			require.Greater(t, served[q], 3, "queue %d of %v, with %d records to a pop", q, served, rhythm)
		}
	}
}

func TestLeaseThatEndsAtOnceOrInThePastComesBack(t *testing.T) {
	for _, invisible := range []time.Duration{1, -1, -time.Hour, math.MinInt64} {
		s := newStory(t, 1)
		s.send(0, 2, "")
		_, _ = s.pop(command.Pop{Max: 1, Invisible: 1})
		s.tick()
		require.True(t, s.due())
		s.expire() // from here on nothing before is looked at
		_, _ = s.pop(command.Pop{Max: 2, Invisible: int64(invisible)})
		s.tick()
		require.True(t, s.due(), "%s", invisible)
		s.expire()
		res, _ := s.pop(command.Pop{Max: 2})
		require.Len(t, res.Popped, 2, "%s", invisible)
	}
}

func TestLeaseBeyondTheEndOfTimeIsNotDue(t *testing.T) {
	s := newStory(t, 1)
	s.send(0, 2, "")
	res, id := s.pop(command.Pop{Max: 2, Invisible: math.MaxInt64})
	require.NoError(t, s.change(res.Popped[0], id, math.MaxInt64, mq.Extend))
	require.False(t, s.due())
	require.Greater(t, s.m.NextDue(), s.now)
	require.NoError(t, s.change(res.Popped[1], id, time.Second, mq.Extend))
	s.now += int64(time.Minute)
	require.True(t, s.due())
	s.expire()
	require.False(t, s.due())
	res, _ = s.pop(command.Pop{Max: 2})
	require.Len(t, res.Popped, 1)
}

func TestGivingBackTwiceCountsOnce(t *testing.T) {
	s := newStory(t, 1)
	s.send(0, 1, "")
	res, id := s.pop(command.Pop{Max: 1})
	require.NoError(t, s.change(res.Popped[0], id, 0, mq.Extend))
	res, id = s.pop(command.Pop{Max: 1})
	require.Equal(t, mq.Attempt(2), res.Popped[0].Attempt)
	for range 3 {
		require.NoError(t, s.change(res.Popped[0], id, 0, mq.GiveBack))
	}
	require.ErrorIs(t, s.change(res.Popped[0], id, time.Hour, mq.Renew), mq.ErrLeaseEnded, "a renewal on its way")
	res, _ = s.pop(command.Pop{Max: 1})
	require.Len(t, res.Popped, 1)
	require.Equal(t, mq.Attempt(2), res.Popped[0].Attempt)
}

func TestGivingBackAfterTheEndOfTheLeaseDoesNotCountEither(t *testing.T) {
	s := newStory(t, 1)
	s.send(0, 1, "")
	res, id := s.pop(command.Pop{Max: 1, Invisible: 1})
	s.tick()
	require.True(t, s.due())
	s.expire()
	require.NoError(t, s.change(res.Popped[0], id, 0, mq.GiveBack))
	list, err := s.m.Backlogs(1)
	require.NoError(t, err)
	require.Equal(t, []mq.Backlog{{Topic: 1, Ready: 1}}, list)
	res, _ = s.pop(command.Pop{Max: 1})
	require.Len(t, res.Popped, 1)
	require.Equal(t, mq.Attempt(1), res.Popped[0].Attempt)
}

// TestRedeliveryWhoseEntryIsLostIsNamedAndNotDropped: a redelivery that a trim has not
// taken is dropped by nobody. Views that are derived again have its entry.
func TestRedeliveryWhoseEntryIsLostIsNamedAndNotDropped(t *testing.T) {
	s := newStory(t, 1)
	s.send(0, 4, "")
	res, id := s.pop(command.Pop{Max: 4})
	s.trim(0, 3, 2)
	for _, p := range res.Popped {
		require.NoError(t, s.change(p, id, 0, mq.Extend))
	}
	require.NoError(t, s.m.Commit())
	require.NoError(t, s.db.Delete(keyspace.AppendEntryKey(nil, keyspace.Queue{Topic: 1}, 2), pebble.NoSync))
	want := "queue 0 of topic 1 has no entry 2"
	u, found, err := s.m.Inspect(keyspace.Ref{Sub: keyspace.Sub{Group: 1, Topic: 1}, Offset: 2})
	require.NoError(t, err)
	require.True(t, found)
	require.False(t, u.Missing)
	require.ErrorIs(t, u.Damage, keyspace.ErrCorrupt)
	require.ErrorContains(t, u.Damage, want)

	last := s.log[len(s.log)-1]
	c := &command.Pop{Time: s.tick(), Topic: 1, Group: 1, Max: 4, Scan: 10, Invisible: int64(time.Minute)}
	var got machine.Result
	err = s.m.Apply(machine.Record{Kind: command.KindPop, Payload: c.Append(nil), PayloadPos: last.Next, Next: last.Next + 1, Index: last.Index + 1}, &got)
	require.ErrorIs(t, err, keyspace.ErrCorrupt)
	require.ErrorContains(t, err, want)
	require.Equal(t, uint64(2), got.Lost, "those that were trimmed")
}

// TestGapInAQueueIsNamedAndNotSteppedOver: the message of a lost entry would be
// lost for the group without a word.
func TestGapInAQueueIsNamedAndNotSteppedOver(t *testing.T) {
	for _, lost := range []mq.QueueOffset{1, 2} { // in the middle; at the end
		s := newStory(t, 1)
		s.send(0, 3, "")
		require.NoError(t, s.m.Commit())
		require.NoError(t, s.db.Delete(keyspace.AppendEntryKey(nil, keyspace.Queue{Topic: 1}, lost), pebble.NoSync))
		last := s.log[len(s.log)-1]
		c := &command.Pop{Time: s.tick(), Topic: 1, Group: 1, Max: 10, Scan: 10, Invisible: int64(time.Minute)}
		var res machine.Result
		err := s.m.Apply(machine.Record{Kind: command.KindPop, Payload: c.Append(nil), PayloadPos: last.Next, Next: last.Next + 1, Index: last.Index + 1}, &res)
		require.ErrorIs(t, err, keyspace.ErrCorrupt)
		require.ErrorContains(t, err, fmt.Sprintf("queue 0 of topic 1 has no entry %d", lost))
	}
}

package machine_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/machine"
)

const knownFor = 5 * time.Minute

func known(id string, content uint64) *mq.Message {
	return &mq.Message{ID: id, Type: mq.Normal, Content: content}
}

// put sends messages to a queue of a topic that knows what it was sent.
func (s *story) put(topic mq.TopicID, queue mq.QueueID, window time.Duration, msgs ...*mq.Message) []machine.Stored {
	s.t.Helper()
	res := s.apply(command.KindSend, &command.Send{Time: s.tick(), Topic: topic, Queue: queue, Window: int64(window), Messages: msgs})
	require.NoError(s.t, res.Err)
	return append([]machine.Stored{}, res.Stored...)
}

// remembered counts the sends that the views remember.
func (s *story) remembered() (n int) {
	require.NoError(s.t, s.m.Commit())
	lower, upper := keyspace.RepeatKeys()
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	require.NoError(s.t, err)
	for ok := it.First(); ok; ok = it.Next() {
		n++
	}
	require.NoError(s.t, it.Close())
	return n
}

// requireRepeat requires the answer of the first send, whatever the queue asked now.
func requireRepeat(t *testing.T, first, again machine.Stored) {
	t.Helper()
	require.True(t, again.Repeated)
	require.Equal(t, first.Sent, again.Sent)
}

func TestSendsThatAreForgottenLeaveNothingBehind(t *testing.T) {
	s := newStory(t, 2)
	most := 0
	for minutes := range 60 {
		for i := range 10 {
			s.put(1, mq.QueueID(i%2), knownFor, known(fmt.Sprint(minutes, "-", i), 1))
		}
		s.now += int64(time.Minute)
		if minutes%7 == 3 {
			s.reopen()
		}
		most = max(most, s.remembered())
	}
	require.LessOrEqual(t, most, 10*7, "five minutes, and those that are not over at both ends")
	require.GreaterOrEqual(t, most, 10*5)
	s.now += int64(time.Hour)
	s.put(1, 0, 0, known("last", 1))
	require.Zero(t, s.remembered())
}

func TestMessageIsKnownUntilTheEndOfItsWindowToTheNanosecond(t *testing.T) {
	for _, window := range []time.Duration{1, time.Second, time.Minute, knownFor, 7*time.Minute + 1, mq.MaxDedup} {
		for _, reopened := range []bool{false, true} {
			s := newStory(t, 1)
			first := s.put(1, 0, window, known("m", 1))[0]
			if reopened {
				s.reopen()
			}
			if window >= time.Second {
				s.now = first.StoreTime + int64(window) - 1 - int64(time.Millisecond) // put adds one
				requireRepeat(t, first, s.put(1, 0, window, known("m", 1))[0])
			}
			s.now = max(s.now, first.StoreTime+int64(window)-int64(time.Millisecond))
			again := s.put(1, 0, window, known("m", 1))[0]
			require.False(t, again.Repeated, window)
			require.Equal(t, first.Offset+1, again.Offset)
			if window >= time.Second {
				requireRepeat(t, again, s.put(1, 0, window, known("m", 1))[0])
			}
		}
	}
}

func TestSameIDWithOtherContentOrOnAnotherTopicIsAnotherMessage(t *testing.T) {
	s := newStory(t, 2)
	s.apply(command.KindTopic, &command.Topic{Time: s.tick(), ID: 2, Name: mq.Resource{Name: "u"}, Queues: 2, Version: 1})
	long := strings.Repeat("i", 255)
	first := s.put(1, 0, knownFor, known(long, 1))[0]
	for _, other := range []machine.Stored{
		s.put(1, 0, knownFor, known(long, 2))[0], s.put(2, 0, knownFor, known(long, 1))[0],
		s.put(1, 0, knownFor, known(long[1:]+"j", 1))[0], s.put(1, 0, 0, known(long, 1))[0],
	} {
		require.False(t, other.Repeated)
	}
	requireRepeat(t, first, s.put(1, 1, knownFor, known(long, 1))[0])
	s.reopen()
	requireRepeat(t, first, s.put(1, 1, knownFor, known(long, 1))[0])
}

func TestRepeatsInsideOneSendAreStoredOnce(t *testing.T) {
	s := newStory(t, 1)
	s.put(1, 0, knownFor, known("before", 1))
	got := s.put(1, 0, knownFor, known("a", 1), known("b", 2), known("a", 1), known("before", 1), known("c", 3))
	requireRepeat(t, got[0], got[2])
	require.EqualValues(t, 0, got[3].Offset)
	require.True(t, got[3].Repeated)
	for i, offset := range map[int]mq.QueueOffset{0: 1, 1: 2, 4: 3} {
		require.Equal(t, offset, got[i].Offset, "without gaps")
	}
	s.reopen()
	again := s.put(1, 0, knownFor, known("c", 3), known("b", 2), known("a", 1))
	for i, first := range []int{4, 1, 0} {
		requireRepeat(t, got[first], again[i])
	}
}

func TestRepeatOfAPendingMessageNamesIt(t *testing.T) {
	s := newStory(t, 1)
	delayed := &mq.Message{ID: "d", Type: mq.Delay, Content: 1, DeliverAt: time.Unix(0, s.now+int64(time.Hour))}
	half := &mq.Message{ID: "h", Type: mq.Transaction, Content: 2}
	first := s.put(1, 0, knownFor, known("n", 3), delayed, half, known("o", 4))
	require.NotZero(t, first[1].Pending)
	require.NotZero(t, first[2].Pending)
	require.EqualValues(t, 1, first[3].Offset)
	for range 2 {
		again := s.put(1, 0, knownFor, half, known("o", 4), delayed)
		for i, of := range []int{2, 3, 1} {
			requireRepeat(t, first[of], again[i])
		}
		s.reopen()
	}
	require.EqualValues(t, 1, s.m.PendingOf(1, keyspace.Timed))
	require.EqualValues(t, 1, s.m.PendingOf(1, keyspace.Half))
}

func TestRepeatOfAMessageThatIsGoneIsARepeatStill(t *testing.T) {
	s := newStory(t, 1)
	first := s.put(1, 0, knownFor, known("purged", 1))[0]
	s.purge()
	requireRepeat(t, first, s.put(1, 0, knownFor, known("purged", 1))[0])
	require.Zero(t, s.queues()[0].Next-s.queues()[0].Min, "it does not come back")
	first = s.put(1, 0, knownFor, known("trimmed", 1))[0]
	s.trim(0, 2, 2)
	s.reopen()
	requireRepeat(t, first, s.put(1, 0, knownFor, known("trimmed", 1))[0])
	require.EqualValues(t, 2, s.queues()[0].Next)
}

func (s *story) queues() []mq.QueueRange {
	require.NoError(s.t, s.m.Commit())
	q, err := s.m.Queues(1)
	require.NoError(s.t, err)
	return q
}

func TestShorterWindowKnowsWhatWasSentInsideIt(t *testing.T) {
	s := newStory(t, 1)
	first := s.put(1, 0, time.Hour, known("m", 1))[0]
	s.now += int64(30 * time.Second)
	requireRepeat(t, first, s.put(1, 0, time.Minute, known("m", 1))[0])
	s.now += int64(time.Minute)
	second := s.put(1, 0, time.Minute, known("m", 1))[0]
	require.False(t, second.Repeated)
	requireRepeat(t, first, s.put(1, 0, time.Hour, known("m", 1))[0])
	requireRepeat(t, second, s.put(1, 0, 30*time.Second, known("m", 1))[0])
}

func TestDeletedTopicLeavesNothingOfItsSendsBehind(t *testing.T) {
	s := newStory(t, 1)
	s.apply(command.KindTopic, &command.Topic{Time: s.tick(), ID: 2, Name: mq.Resource{Name: "u"}, Queues: 1, Version: 1})
	for _, topic := range []mq.TopicID{1, 2} {
		s.put(topic, 0, knownFor, known("a", 1))
		require.NoError(t, s.m.Commit())
		s.put(topic, 0, time.Hour, known("b", 1)) // in the batch of the deletion
	}
	s.apply(command.KindTopicDelete, &command.TopicDelete{Time: s.tick(), ID: 1})
	require.Equal(t, 2, s.remembered())
	require.True(t, s.put(2, 0, time.Hour, known("a", 1))[0].Repeated)
}

package shard_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/shard"
)

const shardName = "s0"

func topicOf(queues int32) *mq.Topic {
	return &mq.Topic{
		ID: 1, Resource: mq.Resource{Name: "orders"}, Type: mq.TopicNormal, Permission: mq.PermReadWrite,
		Shards: []mq.ShardQueues{{Shard: shardName, Read: queues, Write: queues}}, Version: 1,
	}
}

func groupOf(maxAttempts mq.Attempt) *mq.Group {
	g := &mq.Group{ID: 1, Resource: mq.Resource{Name: "g"}, Retry: mq.DefaultRetryPolicy(), DeadLetter: 100, Version: 1}
	g.Retry.MaxAttempts = maxAttempts
	return g
}

func deadLetterTopic(g *mq.Group) *mq.Topic {
	return &mq.Topic{
		ID: g.DeadLetter, Resource: g.DeadLetterTopic(), Type: mq.TopicNormal, Permission: mq.PermReadWrite,
		Shards: []mq.ShardQueues{{Shard: shardName, Read: 1, Write: 1}}, Version: 1,
	}
}

func open(t *testing.T, fs vfs.FS, mode shard.FlushMode) *shard.Shard {
	t.Helper()
	s, err := shard.Open(shard.Options{
		Name: shardName, FS: fs, Dir: "shard", Flush: mode, SegmentSize: 1 << 20, ZeroFill: -1,
	})
	require.NoError(t, err)
	return s
}

func message(id, tag string) *mq.Message {
	return &mq.Message{ID: id, Tag: tag, Type: mq.Normal, Body: []byte("body of " + id)}
}

func send(t *testing.T, s *shard.Shard, topic *mq.Topic, queue mq.QueueID, msgs ...*mq.Message) mq.Appended {
	t.Helper()
	a, err := s.Append(t.Context(), topic, queue, msgs)
	require.NoError(t, err)
	return a[0]
}

func receive(t *testing.T, s *shard.Shard, r mq.Receive) []mq.Delivery {
	t.Helper()
	if r.Max == 0 {
		r.Max = 32
	}
	if r.Invisible == 0 {
		r.Invisible = 30 * time.Second
	}
	d, err := s.Receive(t.Context(), r)
	require.NoError(t, err)
	return d
}

func ack(t *testing.T, s *shard.Shard, l mq.Lease) error {
	t.Helper()
	res, err := s.Ack(t.Context(), l.Topic, l.Group, []command.LeaseRef{{Queue: l.Queue, Offset: l.Offset, PopID: l.PopID}})
	require.NoError(t, err)
	require.Len(t, res, 1)
	return res[0]
}

// ackAll settles leases of one topic and group in one call.
func ackAll(t *testing.T, s *shard.Shard, leases []mq.Lease) []error {
	t.Helper()
	refs := make([]command.LeaseRef, len(leases))
	for i, l := range leases {
		refs[i] = command.LeaseRef{Queue: l.Queue, Offset: l.Offset, PopID: l.PopID}
	}
	res, err := s.Ack(t.Context(), leases[0].Topic, leases[0].Group, refs)
	require.NoError(t, err)
	return res
}

func change(t *testing.T, s *shard.Shard, l mq.Lease, d time.Duration, reason mq.ChangeReason) error {
	t.Helper()
	res, err := s.Change(t.Context(), l.Topic, l.Group, []command.LeaseChange{{
		LeaseRef: command.LeaseRef{Queue: l.Queue, Offset: l.Offset, PopID: l.PopID}, Invisible: int64(d), Reason: reason,
	}})
	require.NoError(t, err)
	require.Len(t, res, 1)
	return res[0]
}

func ids(d []mq.Delivery) []string {
	var out []string
	for i := range d {
		out = append(out, d[i].ID)
	}
	return out
}

// modes runs a test in both flush modes, each in a bubble of fake time.
func modes(t *testing.T, fn func(t *testing.T, mode shard.FlushMode)) {
	for name, mode := range map[string]shard.FlushMode{"sync": shard.FlushSync, "async": shard.FlushAsync} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { fn(t, mode) })
		})
	}
}

func TestSentMessageIsReceivedOnceAndSettledByAck(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s := open(t, vfs.NewMem(), mode)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(4), groupOf(3)
		a := send(t, s, topic, 2, message("a", "x"), message("b", ""))
		require.Equal(t, mq.QueueOffset(0), a.Offset)
		a = send(t, s, topic, 2, message("c", ""))
		require.Equal(t, mq.QueueOffset(2), a.Offset)

		got := receive(t, s, mq.Receive{Topic: topic, Group: group})
		require.Equal(t, []string{"a", "b", "c"}, ids(got))
		require.Equal(t, "body of a", string(got[0].Body))
		require.Equal(t, mq.Attempt(1), got[0].Lease.Attempt)
		require.Empty(t, receive(t, s, mq.Receive{Topic: topic, Group: group}))
		for _, d := range got {
			require.NoError(t, ack(t, s, d.Lease))
			require.ErrorIs(t, ack(t, s, d.Lease), mq.ErrLeaseEnded)
		}
		time.Sleep(time.Hour)
		require.Empty(t, receive(t, s, mq.Receive{Topic: topic, Group: group}))
	})
}

func TestUnackedMessageComesBackOnTimeWithItsOffsetAndTheNextAttempt(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s := open(t, vfs.NewMem(), mode)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(1), groupOf(5)
		send(t, s, topic, 0, message("a", ""))
		first := receive(t, s, mq.Receive{Topic: topic, Group: group, Invisible: 10 * time.Second})
		require.Len(t, first, 1)
		start := time.Now()
		again := receive(t, s, mq.Receive{Topic: topic, Group: group, Wait: time.Minute})
		require.Equal(t, []string{"a"}, ids(again))
		require.WithinDuration(t, start.Add(10*time.Second), time.Now(), 50*time.Millisecond)
		require.Equal(t, mq.Attempt(2), again[0].Lease.Attempt)
		require.Equal(t, first[0].Lease.Offset, again[0].Lease.Offset)
		require.ErrorIs(t, ack(t, s, first[0].Lease), mq.ErrLeaseEnded, "the receipt of the earlier delivery")
		require.NoError(t, ack(t, s, again[0].Lease))
	})
}

func TestReceiptStaysGoodAcrossRenewalsAndUntilTheNextDelivery(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s := open(t, vfs.NewMem(), mode)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(1), groupOf(5)
		send(t, s, topic, 0, message("a", ""), message("b", ""))
		got := receive(t, s, mq.Receive{Topic: topic, Group: group, Invisible: 10 * time.Second})
		for range 5 {
			time.Sleep(9 * time.Second)
			require.NoError(t, change(t, s, got[0].Lease, 10*time.Second, mq.Renew))
		}
		require.NoError(t, ack(t, s, got[0].Lease))
		require.NoError(t, ack(t, s, got[1].Lease), "expired, but not delivered again")
		require.Empty(t, receive(t, s, mq.Receive{Topic: topic, Group: group, Wait: time.Hour}))
	})
}

func TestMessageIsDeadLetteredAfterExactlyMaxAttemptsWithoutAnyPoll(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s := open(t, vfs.NewMem(), mode)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(1), groupOf(3)
		send(t, s, topic, 0, message("a", "red"))
		for attempt := range 3 {
			got := receive(t, s, mq.Receive{Topic: topic, Group: group, Invisible: 10 * time.Second, Wait: time.Minute})
			require.Len(t, got, 1)
			require.Equal(t, mq.Attempt(attempt+1), got[0].Lease.Attempt)
		}
		time.Sleep(11 * time.Second) // nobody polls
		synctest.Wait()
		require.Equal(t, uint64(1), s.Stats().DeadLettered)
		require.Empty(t, receive(t, s, mq.Receive{Topic: topic, Group: group, Wait: time.Hour}))

		other := groupOf(3)
		other.ID, other.Name, other.DeadLetter = 2, "drain", 101
		dead := receive(t, s, mq.Receive{Topic: deadLetterTopic(group), Group: other})
		require.Equal(t, []string{"a"}, ids(dead))
		require.Equal(t, "red", dead[0].Tag)
		require.Contains(t, string(dead[0].Properties), shard.DeadLetterReason)
		require.Contains(t, string(dead[0].Properties), shard.ReasonAttempts)
	})
}

func TestNackOfTheLastAttemptIsDeadLetteredAtOnce(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s := open(t, vfs.NewMem(), mode)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(1), groupOf(2)
		send(t, s, topic, 0, message("a", ""))
		got := receive(t, s, mq.Receive{Topic: topic, Group: group})
		require.NoError(t, change(t, s, got[0].Lease, time.Second, mq.Nack))
		got = receive(t, s, mq.Receive{Topic: topic, Group: group, Wait: time.Minute})
		require.NoError(t, change(t, s, got[0].Lease, time.Hour, mq.Nack))
		synctest.Wait()
		require.Equal(t, uint64(1), s.Stats().DeadLettered)
	})
}

func TestGivenBackDeliveryDoesNotCount(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s := open(t, vfs.NewMem(), mode)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(1), groupOf(1)
		send(t, s, topic, 0, message("a", ""))
		for range 10 {
			got := receive(t, s, mq.Receive{Topic: topic, Group: group})
			require.Equal(t, []string{"a"}, ids(got))
			require.Equal(t, mq.Attempt(1), got[0].Lease.Attempt)
			require.NoError(t, change(t, s, got[0].Lease, time.Hour, mq.GiveBack))
		}
	})
}

func TestForwardedMessageIsDeadLetteredOnce(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s := open(t, vfs.NewMem(), mode)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(1), groupOf(9)
		send(t, s, topic, 0, message("a", ""))
		got := receive(t, s, mq.Receive{Topic: topic, Group: group})
		require.NoError(t, s.DeadLetter(t.Context(), got[0].Lease))
		require.ErrorIs(t, s.DeadLetter(t.Context(), got[0].Lease), mq.ErrLeaseEnded)
		ranges, err := s.Queues(t.Context(), group.DeadLetter)
		require.NoError(t, err)
		require.Equal(t, mq.QueueOffset(1), ranges[0].Next)
	})
}

func TestWaitingReceiveIsWokenByAMatchingMessageOnly(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s := open(t, vfs.NewMem(), mode)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(4), groupOf(9)
		done := make(chan []mq.Delivery)
		go func() {
			done <- receive(t, s, mq.Receive{Topic: topic, Group: group, Tags: []string{"Aa"}, Wait: time.Minute})
		}()
		synctest.Wait()
		records := s.Stats().Records
		for range 50 {
			send(t, s, topic, 3, message("b", "BB")) // the same Java hash as Aa
		}
		synctest.Wait()
		require.Equal(t, records+50, s.Stats().Records, "a message that does not match costs the waiting receive nothing")
		send(t, s, topic, 1, message("a", "Aa"))
		require.Equal(t, []string{"a"}, ids(<-done))
		backlog, err := s.Backlogs(t.Context(), group.ID)
		require.NoError(t, err)
		require.EqualValues(t, 0, backlog[0].Ready, "progress has passed what does not match")
	})
}

func TestEveryWaitingReceiveGetsOneOfManyMessages(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s := open(t, vfs.NewMem(), mode)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(4), groupOf(9)
		const n = 50
		done := make(chan string, n)
		for range n {
			go func() {
				d, err := s.Receive(context.Background(), mq.Receive{Topic: topic, Group: group, Max: 1, Invisible: time.Hour, Wait: time.Minute})
				if err != nil || len(d) != 1 {
					done <- fmt.Sprint(err, len(d))
					return
				}
				done <- d[0].ID
			}()
		}
		synctest.Wait()
		require.Equal(t, n, s.Stats().Waiting)
		for i := range n {
			send(t, s, topic, mq.QueueID(i%4), message(fmt.Sprint("m", i), ""))
		}
		start := time.Now()
		seen := map[string]bool{}
		for range n {
			seen[<-done] = true
		}
		require.Len(t, seen, n)
		require.Less(t, time.Since(start), time.Second)
	})
}

func TestCancelledReceiveGivesBackWhatItLeased(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s := open(t, vfs.NewMem(), mode)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(1), groupOf(1)
		send(t, s, topic, 0, message("a", ""))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := s.Receive(ctx, mq.Receive{Topic: topic, Group: group, Max: 1, Invisible: time.Hour})
		require.ErrorIs(t, err, context.Canceled)
		got := receive(t, s, mq.Receive{Topic: topic, Group: group})
		require.Equal(t, []string{"a"}, ids(got))
		require.Equal(t, mq.Attempt(1), got[0].Lease.Attempt)
	})
}

func TestStartPositionOfANewGroup(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s := open(t, vfs.NewMem(), mode)
		defer func() { require.NoError(t, s.Close()) }()
		for i, tc := range []struct {
			policy mq.StartPolicy
			want   int
		}{{mq.StartEarliest, 10}, {mq.StartLatest, 0}, {mq.StartTimestamp, 5}} {
			topic := topicOf(1)
			topic.ID = mq.TopicID(1 + i)
			for i := range 10 {
				send(t, s, topic, 0, message(fmt.Sprint(i), ""))
				time.Sleep(time.Second)
			}
			g := groupOf(5)
			g.ID = mq.GroupID(1 + i)
			g.Start = mq.StartPosition{Policy: tc.policy, Time: time.Now().Add(-5*time.Second - time.Millisecond)}
			require.Len(t, receive(t, s, mq.Receive{Topic: topic, Group: g}), tc.want)
			bigger := topicOf(2)
			bigger.ID, bigger.Version = topic.ID, 2
			send(t, s, bigger, 1, message("new queue", ""))
			require.Len(t, receive(t, s, mq.Receive{Topic: bigger, Group: g}), 1, "queues added later are read from their beginning")
		}
	})
}

func TestStateSurvivesRestartWhereverTheCrashFell(t *testing.T) {
	for _, mode := range []shard.FlushMode{shard.FlushSync, shard.FlushAsync} {
		synctest.Test(t, func(t *testing.T) {
			fs := vfs.NewCrashableMem()
			s := open(t, fs, mode)
			topic, group := topicOf(2), groupOf(5)
			for i := range 20 {
				send(t, s, topic, mq.QueueID(i%2), message(fmt.Sprint("m", i), ""))
			}
			got := receive(t, s, mq.Receive{Topic: topic, Group: group, Max: 10, Invisible: time.Minute})
			for _, d := range got[:5] {
				require.NoError(t, ack(t, s, d.Lease))
			}
			time.Sleep(time.Second) // the flush interval
			crashed := fs.CrashClone(vfs.CrashCloneCfg{})
			require.NoError(t, s.Close())

			s = open(t, crashed, mode)
			defer func() { require.NoError(t, s.Close()) }()
			require.NoError(t, ack(t, s, got[5].Lease), "a receipt from before the crash")
			rest := receive(t, s, mq.Receive{Topic: topic, Group: group})
			require.Len(t, rest, 10)
			time.Sleep(2 * time.Minute)
			again := receive(t, s, mq.Receive{Topic: topic, Group: group})
			require.Len(t, again, 14, "4 from before the crash and 10 from after it")
		})
	}
}

func TestDeletedTopicAndGroupLeaveNothingBehind(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		fs := vfs.NewMem()
		s := open(t, fs, mode)
		topic, group := topicOf(1), groupOf(5)
		send(t, s, topic, 0, message("a", ""), message("b", ""))
		got := receive(t, s, mq.Receive{Topic: topic, Group: group, Max: 1})
		require.NoError(t, s.DeleteTopic(t.Context(), topic.ID))
		require.ErrorIs(t, ack(t, s, got[0].Lease), mq.ErrLeaseEnded)
		_, err := s.Append(t.Context(), topic, 0, []*mq.Message{message("c", "")})
		require.ErrorIs(t, err, mq.ErrTopicNotFound, "a sender that does not know yet must not bring it back")
		require.NoError(t, s.Close())

		s = open(t, fs, mode)
		defer func() { require.NoError(t, s.Close()) }()
		_, err = s.Append(t.Context(), topic, 0, []*mq.Message{message("c", "")})
		require.ErrorIs(t, err, mq.ErrTopicNotFound)
		again := topicOf(1)
		again.ID = 7
		send(t, s, again, 0, message("d", ""))
		require.Equal(t, []string{"d"}, ids(receive(t, s, mq.Receive{Topic: again, Group: group, Wait: time.Hour})))
		require.NoError(t, s.DeleteGroup(t.Context(), group.ID))
		_, err = s.Receive(t.Context(), mq.Receive{Topic: again, Group: group, Max: 1, Invisible: time.Minute})
		require.ErrorIs(t, err, mq.ErrGroupNotFound)
		time.Sleep(time.Hour) // the ends of dropped leases are no trouble
		require.NoError(t, s.Err())
	})
}

func TestSparseFilterPassesWhatDoesNotMatch(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s := open(t, vfs.NewMem(), mode)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(1), groupOf(5)
		var msgs []*mq.Message
		for i := range 10_000 {
			msgs = append(msgs, message(fmt.Sprint(i), "B"))
		}
		for i := 0; i < len(msgs); i += 500 {
			send(t, s, topic, 0, msgs[i:i+500]...)
		}
		send(t, s, topic, 0, message("a", "A"))
		require.Equal(t, []string{"a"}, ids(receive(t, s, mq.Receive{Topic: topic, Group: group, Tags: []string{"A"}})))
	})
}

func TestCloseUnderLoadAnswersEveryCall(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s := open(t, vfs.NewMem(), mode)
		topic, group := topicOf(4), groupOf(5)
		done := make(chan error, 200)
		for i := range 100 {
			go func() {
				_, err := s.Append(context.Background(), topic, mq.QueueID(i%4), []*mq.Message{message("a", "")})
				done <- err
			}()
			go func() {
				_, err := s.Receive(context.Background(), mq.Receive{Topic: topic, Group: group, Tags: []string{"none"}, Max: 1, Invisible: time.Minute, Wait: time.Hour})
				done <- err
			}()
		}
		require.NoError(t, s.Close())
		for range 200 {
			if err := <-done; err != nil && !errors.Is(err, mq.ErrStopped) {
				t.Error(err)
			}
		}
	})
}

func TestLoweredAttemptLimitHoldsForWhatIsInFlight(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s := open(t, vfs.NewMem(), mode)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(1), groupOf(9)
		require.NoError(t, s.UpdateGroup(t.Context(), group))
		require.Zero(t, s.Stats().Records, "a group that the shard does not know is no business of it")
		send(t, s, topic, 0, message("a", ""))
		require.Len(t, receive(t, s, mq.Receive{Topic: topic, Group: group, Invisible: 10 * time.Second}), 1)
		lowered := groupOf(1)
		lowered.Version = 2
		require.NoError(t, s.UpdateGroup(t.Context(), lowered))
		records := s.Stats().Records
		require.NoError(t, s.UpdateGroup(t.Context(), lowered))
		require.Equal(t, records, s.Stats().Records, "nothing new, nothing written")
		time.Sleep(11 * time.Second)
		synctest.Wait()
		require.Equal(t, uint64(1), s.Stats().DeadLettered)
	})
}

func TestMissingFirstSegmentOfTheLogIsNamed(t *testing.T) {
	fs := vfs.NewMem()
	opts := shard.Options{Name: shardName, FS: fs, Dir: "shard", SegmentSize: 64 << 10, ZeroFill: -1}
	s, err := shard.Open(opts)
	require.NoError(t, err)
	for range 4 {
		big := message("a", "")
		big.Body = make([]byte, 30<<10)
		send(t, s, topicOf(1), 0, big)
	}
	require.NoError(t, s.Close())
	dir := shard.LogDir(fs, "shard")
	names, err := fs.List(dir)
	require.NoError(t, err)
	slices.Sort(names)
	require.Greater(t, len(names), 1)
	require.NoError(t, fs.Remove(fs.PathJoin(dir, names[0])))
	_, err = shard.Open(opts)
	require.ErrorContains(t, err, names[1])
	require.ErrorContains(t, err, "missing")
}

func TestReceiveIsBoundedInBytesAndTheRestGoesToTheNextOne(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s, err := shard.Open(shard.Options{Name: shardName, FS: vfs.NewMem(), Dir: "shard", Flush: mode, SegmentSize: 64 << 20, ZeroFill: -1})
		require.NoError(t, err)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(1), groupOf(5)
		got := make(chan int, 4)
		for range 4 {
			go func() { got <- len(receive(t, s, mq.Receive{Topic: topic, Group: group, Wait: time.Minute})) }()
		}
		synctest.Wait()
		var msgs []*mq.Message
		for i := range 12 {
			big := message(fmt.Sprint(i), "")
			big.Body = make([]byte, 1<<20)
			msgs = append(msgs, big)
		}
		huge := message("huge", "")
		huge.Body = make([]byte, 5<<20)
		start := time.Now()
		send(t, s, topic, 0, append(msgs, huge)...)
		sum, most := 0, 0
		for range 4 {
			n := <-got
			sum, most = sum+n, max(most, n)
		}
		require.Equal(t, 13, sum)
		require.LessOrEqual(t, most, 4)
		require.Less(t, time.Since(start), time.Second, "nobody waited for what another one left")
	})
}

func TestAnInterruptedOpenLosesNothing(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		fs := vfs.NewMem()
		s := open(t, fs, mode)
		topic, group := topicOf(1), groupOf(3)
		const sent = 1000
		for i := range sent {
			send(t, s, topic, 0, message(fmt.Sprint(i), ""))
		}
		require.NoError(t, s.Close())
		require.NoError(t, fs.RemoveAll(shard.ViewsDir(fs, "shard")), "so that all of it is replayed")

		interrupt := make(chan struct{})
		close(interrupt)
		for range 3 {
			_, err := shard.Open(shard.Options{Name: shardName, FS: fs, Dir: "shard", Flush: mode, SegmentSize: 1 << 20, ZeroFill: -1, Interrupt: interrupt})
			require.ErrorIs(t, err, shard.ErrInterrupted)
		}
		s = open(t, fs, mode)
		defer func() { require.NoError(t, s.Close()) }()
		require.Len(t, receive(t, s, mq.Receive{Topic: topic, Group: group, Max: 2 * sent}), sent)
	})
}

func TestMessagesOnBothSidesOfASegmentsEndAreReceivedTogether(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s, err := shard.Open(shard.Options{Name: shardName, FS: vfs.NewMem(), Dir: "shard", Flush: mode, SegmentSize: 4 << 10, ZeroFill: -1})
		require.NoError(t, err)
		defer s.Close() // also after a failed check, so that the bubble ends
		topic, group := topicOf(1), groupOf(2)
		var want []string
		for i := range 100 {
			want = append(want, fmt.Sprint("m", i))
			send(t, s, topic, 0, message(want[i], ""))
		}
		got := receive(t, s, mq.Receive{Topic: topic, Group: group, Max: 100})
		require.Equal(t, want, ids(got))
		require.Zero(t, s.Stats().Unreadable)
	})
}

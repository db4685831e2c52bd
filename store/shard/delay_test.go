package shard_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/perigee-mq/perigee/internal/faultfs"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/machine"
	"github.com/perigee-mq/perigee/store/shard"
)

// inBubble runs a test with a delayed shard in a bubble of fake time, in both flush modes.
func inBubble(t *testing.T, opts shard.Options, fn func(d *delayed)) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		opts := opts
		opts.Flush = mode
		d := newDelayed(t, opts)
		defer func() { d.close() }()
		fn(d)
	})
}

func TestADelayedMessageWakesAReceiveAtItsTime(t *testing.T) {
	inBubble(t, shard.Options{}, func(d *delayed) {
		d.send("a", "m", 7*time.Second)
		start := time.Now()
		got := receive(d.t, d.s, mq.Receive{Topic: d.topics["a"], Group: d.group, Wait: time.Minute})
		require.Equal(d.t, []string{"m"}, ids(got))
		require.Equal(d.t, 7*time.Second, time.Since(start), "not a tick early, and not late when nothing else is to be done")
		require.Equal(d.t, mq.Delay, got[0].Type)
		require.Equal(d.t, mq.Attempt(1), got[0].Lease.Attempt)
		require.WithinDuration(d.t, time.Now(), got[0].StoreTime, 0, "it is stored in its queue by now")
	})
}

// Times at whole seconds, a millisecond before and a millisecond after: a receive that waits
// gets each at its time to the millisecond.
func TestTimesAroundWholeSecondsAreKept(t *testing.T) {
	inBubble(t, shard.Options{}, func(d *delayed) {
		start := time.Now()
		for i := range 1000 {
			second := time.Duration(1+i%30) * time.Second
			d.send("a", fmt.Sprint("m", i), second+[]time.Duration{0, time.Millisecond, -time.Millisecond}[i%3]-time.Since(start))
		}
		for n := 0; n < 1000; {
			got := receive(d.t, d.s, mq.Receive{Topic: d.topics["a"], Group: d.group, Wait: time.Minute})
			require.NotEmpty(d.t, got)
			for _, one := range got {
				late := time.Since(d.due["a/"+one.ID])
				require.GreaterOrEqual(d.t, late, time.Duration(0), "%s is early", one.ID)
				require.Less(d.t, late, time.Millisecond, one.ID)
				require.NoError(d.t, ack(d.t, d.s, one.Lease))
			}
			n += len(got)
		}
		require.Zero(d.t, d.s.Stats().Timed)
	})
}

func TestABatchOfDelayedMessagesKeepsTheTimeOfEach(t *testing.T) {
	inBubble(t, shard.Options{}, func(d *delayed) {
		var msgs []*mq.Message
		for i, in := range []time.Duration{3, 0, 1, 2, -5} {
			m := message(fmt.Sprint("m", i), "")
			m.Type, m.DeliverAt = mq.Delay, time.Now().Add(in*time.Second)
			msgs = append(msgs, m)
		}
		msgs = append(msgs, message("n", ""))
		a, err := d.s.Append(d.t.Context(), d.topics["a"], 1, msgs)
		require.NoError(d.t, err)
		for i, pending := range []bool{true, false, true, true, false, false} {
			require.Equal(d.t, pending, a[i].Pending != 0, "message %d", i)
		}
		var got [][]string
		for range 4 {
			synctest.Wait()
			got = append(got, ids(d.receive("a", 0)))
			time.Sleep(time.Second)
		}
		require.Equal(d.t, [][]string{{"m1", "m4", "n"}, {"m2"}, {"m3"}, {"m0"}}, got)
	})
}

func TestARepeatedSendOfADelayedMessageIsOneMessage(t *testing.T) {
	inBubble(t, shard.Options{}, func(d *delayed) {
		d.topics["a"].Dedup = time.Hour
		first := d.send("a", "m", time.Minute)
		again := d.send("a", "m", time.Minute)
		require.True(d.t, again.Repeated)
		require.Equal(d.t, first.Pending, again.Pending)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(d.t, []string{"m"}, ids(d.receive("a", 0)))
		late := d.send("a", "m", 0)
		require.Equal(d.t, first.Pending, late.Pending, "the answer is that to the first, also when it was delivered")
	})
}

// TestOfManyMessagesThoseRecalledNeverCome recalls half of a thousand that are due in one
// second, until just before, and the others come, each once.
func TestOfManyMessagesThoseRecalledNeverCome(t *testing.T) {
	inBubble(t, shard.Options{}, func(d *delayed) {
		rng := rand.New(rand.NewPCG(1, 2))
		var left []string
		order := rng.Perm(1000)
		for i := range 1000 {
			d.send("a", fmt.Sprint("m", i), time.Minute+time.Duration(rng.IntN(1000))*time.Millisecond-time.Since(d.began))
		}
		for n, i := range order[:500] {
			if n == 250 {
				time.Sleep(59 * time.Second)
			}
			require.NoError(d.t, d.change("a", command.RecallPending, fmt.Sprint("m", i), 0))
		}
		for _, i := range order[500:] {
			left = append(left, fmt.Sprint("m", i))
		}
		require.EqualValues(d.t, 500, d.s.Stats().Timed)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		require.ElementsMatch(d.t, left, ids(d.receive("a", 0)))
		st := d.s.Stats()
		require.EqualValues(d.t, 500, st.Fired)
		require.EqualValues(d.t, 500, st.Late.Count)
		require.Zero(d.t, st.Timed)
	})
}

func TestHandlesOfOtherMessagesAreRefused(t *testing.T) {
	inBubble(t, shard.Options{}, func(d *delayed) {
		d.send("a", "m", time.Minute)
		half := message("half", "")
		half.Type, half.Recovery = mq.Transaction, time.Minute
		a, err := d.s.Append(d.t.Context(), d.topics["a"], 0, []*mq.Message{half})
		require.NoError(d.t, err)
		h := d.handles["a/m"]
		hash := mq.HashName(h.MessageID)
		recall := func(topic mq.TopicID, id mq.PendingID, hash uint64) error {
			res, err := d.s.ChangePending(d.t.Context(), topic, []command.PendingRef{{ID: id, Hash: hash}}, command.RecallPending, time.Time{})
			require.NoError(d.t, err)
			return res[0]
		}
		require.ErrorIs(d.t, recall(2, h.ID, hash), mq.ErrInvalidHandle, "another topic")
		require.ErrorIs(d.t, recall(1, h.ID, hash+1), mq.ErrInvalidHandle, "another message id")
		require.ErrorIs(d.t, recall(1, h.ID+1, hash), mq.ErrNotPending, "no message")
		require.ErrorIs(d.t, recall(1, a[0].Pending, 0), mq.ErrNotPending, "a half message")
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(d.t, []string{"m"}, ids(d.receive("a", 0)), "nothing of it had an effect")
		_, err = d.s.ChangePending(d.t.Context(), 1, nil, command.RecallPending, time.Time{})
		require.ErrorIs(d.t, err, mq.ErrInvalid)
	})
}

func TestPendingMessagesAreListedInTheOrderOfTheirTimes(t *testing.T) {
	inBubble(t, shard.Options{}, func(d *delayed) {
		for i := range 10 {
			m := message(fmt.Sprint("m", i), "red")
			m.Type, m.DeliverAt = mq.Delay, time.Now().Add(time.Duration(i%5+1)*time.Minute)
			m.System = protowire.AppendString(protowire.AppendTag(nil, 2, protowire.BytesType), "order-7")
			a, err := d.s.Append(d.t.Context(), d.topics["a"], 1, []*mq.Message{m})
			require.NoError(d.t, err)
			d.sent("a", m, a[0])
		}
		var got []string
		for _, m := range d.list("a", keyspace.Timed) {
			got = append(got, m.MessageID)
			require.Equal(d.t, d.handles["a/"+m.MessageID], m.PendingHandle)
			require.Equal(d.t, d.due["a/"+m.MessageID], m.At)
			require.Equal(d.t, []string{"order-7"}, m.Keys)
			require.Equal(d.t, "red", m.Tag)
			require.Equal(d.t, mq.QueueID(1), m.Queue)
		}
		require.Equal(d.t, []string{"m0", "m5", "m1", "m6", "m2", "m7", "m3", "m8", "m4", "m9"}, got)
		one, next, err := d.s.Pending(d.t.Context(), 1, keyspace.Timed, machine.PendingMark{}, 3, func(p *keyspace.Pending) bool { return p.ID == mq.HashName("m8") })
		require.NoError(d.t, err)
		require.Len(d.t, one, 1)
		require.Equal(d.t, "m8", one[0].MessageID)
		require.Zero(d.t, next)
	})
}

// TestAPostponedMessageSaysItsNewTime: the consumer is told when the message was to come,
// not when it was to come first.
func TestAPostponedMessageSaysItsNewTime(t *testing.T) {
	inBubble(t, shard.Options{}, func(d *delayed) {
		timestamp := func(at time.Time) []byte {
			ts := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), uint64(at.Unix()))
			if n := at.Nanosecond(); n != 0 {
				ts = protowire.AppendVarint(protowire.AppendTag(ts, 2, protowire.VarintType), uint64(n))
			}
			return ts
		}
		system := func(at time.Time) []byte {
			b := protowire.AppendString(protowire.AppendTag(nil, 2, protowire.BytesType), "key")
			b = protowire.AppendBytes(protowire.AppendTag(b, 11, protowire.BytesType), timestamp(at))
			return protowire.AppendString(protowire.AppendTag(b, 13, protowire.BytesType), "trace")
		}
		for _, id := range []string{"m", "n"} {
			m := message(id, "")
			m.Type, m.DeliverAt = mq.Delay, time.Now().Add(time.Minute)
			m.System = system(m.DeliverAt)
			a, err := d.s.Append(d.t.Context(), d.topics["a"], 0, []*mq.Message{m})
			require.NoError(d.t, err)
			d.sent("a", m, a[0])
		}
		require.NoError(d.t, d.change("a", command.PostponePending, "n", 90*time.Second+5))
		time.Sleep(time.Hour)
		synctest.Wait()
		got := d.receive("a", 0)
		require.Equal(d.t, []string{"m", "n"}, ids(got))
		for _, m := range got {
			require.Equal(d.t, system(d.due["a/"+m.ID]), m.System)
		}
	})
}

func TestAMessageThatCannotBeReadHoldsUpNoOther(t *testing.T) {
	inBubble(t, shard.Options{SegmentSize: smallSegment}, func(d *delayed) {
		d.send("a", "good0", 10*time.Minute)
		d.send("a", "bad", 10*time.Minute)
		d.send("a", "good1", 10*time.Minute)
		d.send("a", "good2", 10*time.Minute+10*time.Second+time.Millisecond)
		fill(d.t, d.s, d.topics["b"], 20) // the segment is full
		d.close()
		for _, path := range filesIn(d.t, d.fs, shard.LogDir(d.fs, "shard")) {
			b := contents(d.t, d.fs, path)
			if i := strings.Index(string(b), "body of bad"); i >= 0 {
				b[i]++
				rewrite(d.t, d.fs, path, b)
			}
		}
		d.open()
		time.Sleep(10*time.Minute - time.Since(d.began))
		synctest.Wait()
		require.Equal(d.t, []string{"good0", "good1"}, ids(d.receive("a", 0)))
		start := time.Now()
		require.Equal(d.t, []string{"good2"}, ids(receive(d.t, d.s, mq.Receive{Topic: d.topics["a"], Group: d.group, Wait: time.Minute})))
		require.Less(d.t, time.Since(start), 11*time.Second)
		require.EqualValues(d.t, 1, d.s.Stats().TimedUnreadable)
		require.NoError(d.t, d.s.Err())
		list := d.list("a", keyspace.Timed)
		require.Len(d.t, list, 1, "it is still there to be seen, and to be cancelled")
		require.Empty(d.t, list[0].MessageID)
		require.NoError(d.t, d.change("a", command.RecallPending, "bad", 0))
		time.Sleep(time.Hour)
		require.Zero(d.t, d.s.Stats().Timed)
	})
}

func TestDelayedMessagesOutliveTheSegmentsTheyWereWrittenIn(t *testing.T) {
	opts := shard.Options{SegmentSize: smallSegment, Retention: shard.Retention{
		Interval: time.Minute, Of: func(id mq.TopicID) (time.Duration, bool) {
			return map[mq.TopicID]time.Duration{1: time.Minute}[id], true
		},
	}}
	inBubble(t, opts, func(d *delayed) {
		var late []string
		for i := range 20 {
			late = append(late, fmt.Sprint("late", i))
			d.send("b", late[i], 6*time.Hour)
		}
		half := message("half", "")
		half.Type, half.Recovery = mq.Transaction, time.Minute
		a, err := d.s.Append(d.t.Context(), d.topics["b"], 0, []*mq.Message{half})
		require.NoError(d.t, err)
		first := d.s.Stats().LogFirst
		for range 5 {
			fill(d.t, d.s, d.topics["a"], 30)
			time.Sleep(2 * time.Minute)
		}
		st := d.s.Stats()
		require.Greater(d.t, st.LogFirst, first, "the log was cut")
		require.LessOrEqual(d.t, segments(d.t, d.fs), 3)
		require.GreaterOrEqual(d.t, st.Moved, uint64(21))
		require.Less(d.t, st.Moved, uint64(200), "not again and again")
		d.crash()
		require.EqualValues(d.t, 20, d.s.Stats().Timed)
		require.NoError(d.t, d.change("b", command.RecallPending, "late7", 0))
		late = slices.Delete(late, 7, 8)
		var pending []mq.PendingMessage
		for from := (machine.PendingMark{}); len(pending) == 0; {
			if pending, from, err = d.s.Pending(d.t.Context(), d.topics["b"].ID, keyspace.Half, from, 3, nil); err != nil {
				break
			}
		}
		require.NoError(d.t, err)
		require.Equal(d.t, a[0].Pending, pending[0].ID)
		require.Equal(d.t, "half", pending[0].MessageID, "its bytes are there")
		for range 12 { // some time at a time, so that the log goes on meanwhile
			time.Sleep(30 * time.Minute)
			fill(d.t, d.s, d.topics["a"], 2)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		require.ElementsMatch(d.t, late, ids(d.receive("b", 0)))
	})
}

// TestALogThatIsMostlyPendingMessagesIsNotCopiedAgainAndAgain: to move what is nearly all
// that there is frees nothing.
func TestALogThatIsMostlyPendingMessagesIsNotCopiedAgainAndAgain(t *testing.T) {
	opts := shard.Options{SegmentSize: smallSegment, Retention: shard.Retention{Interval: time.Minute, Size: 4 * smallSegment}}
	inBubble(t, opts, func(d *delayed) {
		for i := range 100 {
			m := message(fmt.Sprint("m", i), "")
			m.Type, m.DeliverAt, m.Body = mq.Delay, time.Now().Add(12*time.Hour), make([]byte, 8<<10)
			a, err := d.s.Append(d.t.Context(), d.topics["a"], 0, []*mq.Message{m})
			require.NoError(d.t, err)
			d.sent("a", m, a[0])
		}
		time.Sleep(time.Hour)
		require.Zero(d.t, d.s.Stats().Moved)
		d.crash()
		for range 30 { // as much again of what goes soon
			fill(d.t, d.s, d.topics["b"], 10)
			time.Sleep(2 * time.Minute)
		}
		st := d.s.Stats()
		require.LessOrEqual(d.t, st.Moved, uint64(300))
		require.Positive(d.t, st.Moved)
		require.LessOrEqual(d.t, st.LogBytes, uint64(3*100*8<<10))
		require.EqualValues(d.t, 100, st.Timed)
		time.Sleep(12 * time.Hour)
		synctest.Wait()
		require.EqualValues(d.t, 100, d.s.Stats().Fired)
	})
}

func TestALogThatWasKeptForPendingMessagesIsCutWhenTheyAreRecalled(t *testing.T) {
	opts := shard.Options{SegmentSize: smallSegment, Retention: shard.Retention{Interval: time.Minute, Size: 4 * smallSegment}}
	inBubble(t, opts, func(d *delayed) {
		for i := range 100 {
			m := message(fmt.Sprint("m", i), "")
			m.Type, m.DeliverAt, m.Body = mq.Delay, time.Now().Add(12*time.Hour), make([]byte, 8<<10)
			a, err := d.s.Append(d.t.Context(), d.topics["a"], 0, []*mq.Message{m})
			require.NoError(d.t, err)
			d.sent("a", m, a[0])
		}
		time.Sleep(5 * time.Minute)
		first := d.s.Stats().LogFirst
		for i := range 90 {
			require.NoError(d.t, d.change("a", command.RecallPending, fmt.Sprint("m", i), 0))
		}
		time.Sleep(5 * time.Minute)
		require.Greater(d.t, d.s.Stats().LogFirst, first)
		require.EqualValues(d.t, 10, d.s.Stats().Timed)
	})
}

// TestAFullDiskRefusesSendsAndDeliversWhatIsDue: and what has no room even so comes when
// there is some.
func TestAFullDiskRefusesSendsAndDeliversWhatIsDue(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		disk := &smallDisk{FS: vfs.NewMem(), capacity: 1 << 30}
		s := keeping(t, disk, mode, watermarks)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(1), groupOf(3)
		var msgs []*mq.Message
		for i := range 3 {
			m := message(fmt.Sprint("m", i), "")
			m.Type, m.DeliverAt = mq.Delay, time.Now().Add(time.Duration(i+1)*time.Minute)
			msgs = append(msgs, m)
		}
		_, err := s.Append(t.Context(), topic, 0, msgs)
		require.NoError(t, err)
		disk.others.Store(1 << 30 * 92 / 100)
		time.Sleep(time.Minute)
		synctest.Wait()
		_, err = s.Append(t.Context(), topic, 0, []*mq.Message{message("x", "")})
		require.ErrorIs(t, err, mq.ErrStoreFull)
		require.Equal(t, []string{"m0"}, receiveAll(t, s, topic, group))

		disk.others.Store(1 << 30 * 999 / 1000)
		time.Sleep(90 * time.Second)
		require.EqualValues(t, 2, s.Stats().Timed, "there is no room, and nothing is lost")
		list, _, err := s.Pending(t.Context(), topic.ID, keyspace.Timed, machine.PendingMark{}, 10, nil)
		require.NoError(t, err)
		res, err := s.ChangePending(t.Context(), topic.ID, []command.PendingRef{{ID: list[1].ID}}, command.RecallPending, time.Time{})
		require.NoError(t, err)
		require.NoError(t, res[0], "a recall makes room")

		disk.others.Store(1 << 30 / 2)
		time.Sleep(15 * time.Second)
		synctest.Wait()
		require.Equal(t, []string{"m1"}, receiveAll(t, s, topic, group))
	})
}

func TestSendsGoBetweenTheSlicesOfABurstOfDelayedMessages(t *testing.T) {
	inBubble(t, shard.Options{}, func(d *delayed) {
		const due = 20_000
		at := time.Now().Add(time.Minute)
		for range due / 1000 {
			var msgs []*mq.Message
			for range 1000 {
				m := message("m", "")
				m.Type, m.DeliverAt = mq.Delay, at
				msgs = append(msgs, m)
			}
			_, err := d.s.Append(d.t.Context(), d.topics["a"], 0, msgs)
			require.NoError(d.t, err)
		}
		time.Sleep(time.Minute)
		records, sends := d.s.Stats().Records, uint64(0)
		for d.s.Stats().Timed > 0 {
			before := d.s.Stats().Records
			send(d.t, d.s, d.topics["b"], 0, message("x", ""))
			require.LessOrEqual(d.t, d.s.Stats().Records-before, uint64(8), "a send waits for a slice or two")
			sends++
		}
		require.GreaterOrEqual(d.t, d.s.Stats().Records-records-sends, uint64(due/512), "slices of the burst")
		synctest.Wait()
		require.EqualValues(d.t, due, d.s.Stats().Fired)
	})
}

// TestRandomHistoriesOfDelayedMessages lets messages be sent, recalled and postponed while
// the wall clock jumps and the machine crashes: each comes once, and not before its
// time, or was recalled.
func TestRandomHistoriesOfDelayedMessages(t *testing.T) {
	for _, seed := range seeds(t, 20) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 3))
			d := newDelayed(t, shard.Options{SegmentSize: smallSegment, Retention: shard.Retention{
				Interval: time.Minute, Of: func(id mq.TopicID) (time.Duration, bool) { return time.Duration(id-1) * time.Minute, true },
			}})
			defer func() { d.close() }()
			between := func(low, high time.Duration) time.Duration { return low + time.Duration(rng.Int64N(int64(high-low))) }
			var ids []string
			recalled, came := map[string]bool{}, map[string]int{}
			receive := func() {
				synctest.Wait()
				for _, m := range d.receive("a", 0) { // which checks the time
					came[m.ID]++
				}
			}
			for n := range 150 {
				switch some := func() string { return ids[rng.IntN(len(ids))] }; rng.IntN(12) {
				case 0, 1, 2, 3:
					ids = append(ids, fmt.Sprint("m", n))
					d.send("a", ids[len(ids)-1], between(-time.Minute, 20*time.Minute))
				case 4:
					if len(ids) > 0 {
						if id := some(); d.change("a", command.RecallPending, id, 0) == nil {
							recalled[id] = true
						}
					}
				case 5:
					if len(ids) > 0 {
						_ = d.change("a", command.PostponePending, some(), between(-time.Minute, 20*time.Minute)) // judged by what comes
					}
				case 6:
					receive() // what has come, by the clock that it came by
					d.wall.step(between(-10*time.Minute, 10*time.Minute))
				case 7:
					receive()
					d.crash()
				case 8:
					fill(d.t, d.s, d.topics["b"], rng.IntN(8)) // so that segments go
				default:
					time.Sleep(between(0, 2*time.Minute))
					receive()
				}
			}
			time.Sleep(time.Hour)
			receive()
			for _, id := range ids {
				want := 1
				if recalled[id] {
					want = 0
				}
				require.Equal(t, want, came[id], "seed %d: %s", seed, id)
			}
			require.Zero(t, d.s.Stats().Timed)
		})
	}
}

// A delayScript is a small workload with everything that becomes of delayed messages:
// sends, recalls, deliveries, and segments that go.
type delayScript struct {
	t    *testing.T
	s    *shard.Shard
	a, b *mq.Topic
	mu   sync.Mutex // the maps are read where a crash falls
	// sent are those whose send was answered; recalled those whose recall was, or may
	// have been.
	sent, recalled, perhaps map[string]time.Time
	n                       int
	interval                time.Duration // of the retainer
	moved                   uint64
}

func newDelayScript(t *testing.T) *delayScript {
	return &delayScript{
		t: t, a: numbered(1), b: numbered(2), interval: 10 * time.Second,
		sent: map[string]time.Time{}, recalled: map[string]time.Time{}, perhaps: map[string]time.Time{},
	}
}

func (c *delayScript) open(fs vfs.FS) (err error) {
	c.s, err = shard.Open(shard.Options{
		Name: shardName, FS: fs, Dir: "shard", SegmentSize: 8 << 10, ZeroFill: -1, CacheSize: 1 << 20,
		Retention: shard.Retention{Interval: c.interval, Of: func(id mq.TopicID) (time.Duration, bool) {
			if id == c.a.ID {
				return 0, true // for ever
			}
			return 20 * time.Second, true
		}},
	})
	return err
}

func (c *delayScript) send(in ...time.Duration) (mq.PendingID, error) {
	var msgs []*mq.Message
	for _, d := range in {
		c.n++
		m := message(fmt.Sprint("m", c.n), "")
		m.Type, m.DeliverAt, m.Properties = mq.Delay, time.Now().Add(d), make([]byte, 300)
		msgs = append(msgs, m)
		c.note(c.perhaps, m.ID, m.DeliverAt)
	}
	due := make([]time.Time, len(msgs))
	for i, m := range msgs {
		due[i] = m.DeliverAt
	}
	a, err := c.s.Append(c.t.Context(), c.a, 0, msgs)
	if err != nil {
		return 0, err
	}
	for i, m := range msgs {
		c.note(c.sent, m.ID, due[i])
	}
	return a[len(a)-1].Pending, nil
}

func (c *delayScript) note(in map[string]time.Time, id string, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	in[id] = at
}

// now returns a copy of what is known at this moment.
func (c *delayScript) now() *delayScript {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &delayScript{t: c.t, a: c.a, b: c.b, sent: maps.Clone(c.sent), recalled: maps.Clone(c.recalled), perhaps: maps.Clone(c.perhaps)}
}

func (c *delayScript) run(fs vfs.FS) error {
	for _, part := range []func() error{c.first, c.second} {
		if err := c.open(fs); err != nil {
			return err
		}
		err := part()
		synctest.Wait()
		if err == nil {
			err = c.s.Err()
		}
		c.moved += c.s.Stats().Moved
		if closeErr := c.s.Close(); err == nil {
			err = closeErr
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *delayScript) first() error {
	id, err := c.send(5*time.Second, time.Minute, 30*time.Minute)
	if err != nil {
		return err
	}
	last := fmt.Sprint("m", c.n)
	c.note(c.recalled, last, time.Time{}) // it may be, from now on
	res, err := c.s.ChangePending(c.t.Context(), c.a.ID, []command.PendingRef{{ID: id}}, command.RecallPending, time.Time{})
	if err == nil {
		err = res[0]
	}
	if err != nil {
		return err
	}
	c.note(c.perhaps, last, time.Time{}) // it is for sure
	if _, err := c.send(10*time.Minute, 20*time.Minute); err != nil {
		return err
	}
	for range 3 {
		m := message("x", "")
		m.Body = make([]byte, 6<<10)
		if _, err := c.s.Append(c.t.Context(), c.b, 0, []*mq.Message{m}); err != nil {
			return err
		}
	}
	time.Sleep(50 * time.Second) // the first is due; the segments go
	return nil
}

func (c *delayScript) second() error {
	if _, err := c.send(time.Second); err != nil {
		return err
	}
	time.Sleep(15 * time.Second)
	return nil
}

// requireKept opens what is left, and checks that all comes that was sent, and nothing early.
func (c *delayScript) requireKept(fs vfs.FS) {
	c.t.Helper()
	c.interval = 24 * time.Hour
	require.NoError(c.t, c.open(fs))
	defer c.s.Close()
	group := groupOf(16)
	got := map[string]int{}
	for range 6 {
		synctest.Wait()
		for _, id := range receiveAll(c.t, c.s, c.a, group) {
			got[id]++
			due, known := c.sent[id]
			if !known {
				due = c.perhaps[id]
			}
			require.False(c.t, time.Now().Before(due), "%s is early", id)
		}
		time.Sleep(6 * time.Minute)
	}
	for id := range c.sent {
		_, may := c.recalled[id]
		switch {
		case !may:
			require.Equal(c.t, 1, got[id], "%s was sent, and comes once", id)
		case c.perhaps[id].IsZero():
			require.Zero(c.t, got[id], "%s was recalled", id)
		default:
			require.LessOrEqual(c.t, got[id], 1)
		}
	}
	require.Zero(c.t, c.s.Stats().Timed)
	require.NoError(c.t, c.s.Close())
}

func TestNoFailedOperationLosesOrDoublesADelayedMessage(t *testing.T) {
	for i, done := 0, false; !done; i++ {
		synctest.Test(t, func(t *testing.T) {
			mem := vfs.NewCrashableMem()
			fs := faultfs.New(mem)
			fs.FailAt(i, faultfs.ErrInjected)
			c := newDelayScript(t)
			err := c.run(fs)
			if !fs.Fired() {
				require.NoError(t, err)
				require.Greater(t, i, 80)
				require.Positive(t, c.moved)
				done = true
			}
			if err != nil {
				require.ErrorContains(t, err, faultfs.ErrInjected.Error(), "operation %d", i)
			}
			rng := rand.New(rand.NewPCG(uint64(i), 1))
			c.requireKept(mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50 * (i % 2), RNG: rng}))
		})
	}
}

func TestNoCrashLosesOrDoublesADelayedMessage(t *testing.T) {
	step := 1
	if testing.Short() {
		step = 3
	}
	for k, done := 0, false; !done; k += step {
		synctest.Test(t, func(t *testing.T) {
			mem := vfs.NewCrashableMem()
			fs := faultfs.New(mem)
			c := newDelayScript(t)
			var left *vfs.MemFS
			var then *delayScript
			fs.Trace(func(op faultfs.Op) {
				if op.Index == k {
					then = c.now()
					left = mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50 * (k % 3), RNG: rand.New(rand.NewPCG(uint64(k), 2))})
				}
			})
			require.NoError(t, c.run(fs))
			if left == nil {
				require.Greater(t, k, 80)
				require.Positive(t, c.moved)
				done = true
				return
			}
			then.requireKept(left)
		})
	}
}

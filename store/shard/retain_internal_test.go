package shard

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/machine"
)

// These tests step between what happens in one go: a pass of the retainer, and the
// decision and the reading of a receive.

func ownTopic(id mq.TopicID) *mq.Topic {
	return &mq.Topic{
		ID: id, Resource: mq.Resource{Name: fmt.Sprint("t", id)}, Type: mq.TopicNormal, Permission: mq.PermReadWrite,
		Shards: []mq.ShardQueues{{Shard: "s", Read: 1, Write: 1}}, Version: 1,
	}
}

func ownGroup() *mq.Group {
	g := &mq.Group{ID: 1, Resource: mq.Resource{Name: "g"}, Retry: mq.DefaultRetryPolicy(), DeadLetter: 100, Version: 1}
	g.Retry.MaxAttempts = 3
	return g
}

// stepped opens a shard whose retainer only does what the test says.
func stepped(t *testing.T, r Retention) (*Shard, *retainer) {
	s, err := Open(Options{Name: "s", FS: vfs.NewMem(), Dir: "shard", SegmentSize: 8 << 10, ZeroFill: -1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	s.opts.Retention = r
	return s, &retainer{s: s}
}

func sendSome(t *testing.T, s *Shard, topic *mq.Topic, n int) {
	t.Helper()
	for i := range n {
		m := &mq.Message{ID: fmt.Sprint("m", i), Type: mq.Normal, Body: make([]byte, 1000)}
		_, err := s.Append(t.Context(), topic, 0, []*mq.Message{m})
		require.NoError(t, err)
	}
}

func receiveOf(topic *mq.Topic, n int) mq.Receive {
	return mq.Receive{Topic: topic, Group: ownGroup(), Max: n, Invisible: time.Minute}
}

func TestTopicThatTheRetainerHasNotHeardOfHoldsTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r := stepped(t, Retention{Age: time.Hour})
		sendSome(t, s, ownTopic(1), 20)
		require.NoError(t, r.pass())
		time.Sleep(2 * time.Hour)
		require.NoError(t, r.list())
		now := s.clock.peek()
		require.NoError(t, r.trim(r.due(now, cut{}), now, cut{}))
		sendSome(t, s, ownTopic(2), 20) // registered since the list was made
		dropped, err := r.drop(now)
		require.NoError(t, err)
		require.True(t, dropped)
		got, err := s.Receive(t.Context(), receiveOf(ownTopic(2), 32))
		require.NoError(t, err)
		require.Len(t, got, 20)
	})
}

func TestMessagesOfEmptyTopicsHoldTheLogBeforeTheyAreLookedAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r := stepped(t, Retention{Age: time.Hour})
		sendSome(t, s, ownTopic(1), 20)
		_, err := s.Receive(t.Context(), receiveOf(ownTopic(2), 1))
		require.NoError(t, err)
		require.NoError(t, r.pass())
		time.Sleep(50 * time.Minute)
		sendSome(t, s, ownTopic(2), 20)
		time.Sleep(30 * time.Minute)
		require.NoError(t, r.pass())
		require.Positive(t, s.Stats().LogFirst)
		got, err := s.Receive(t.Context(), receiveOf(ownTopic(2), 32))
		require.NoError(t, err)
		require.Len(t, got, 20)
	})
}

func TestDeliveryThatIsMadeAgainWhileItIsGivenUpKeepsItsMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r := stepped(t, Retention{Age: time.Hour})
		topic := ownTopic(1)
		sendSome(t, s, topic, 2)
		got, err := s.Receive(t.Context(), mq.Receive{Topic: topic, Group: ownGroup(), Max: 2, Invisible: time.Second})
		require.NoError(t, err)
		require.Len(t, got, 2)
		time.Sleep(2 * time.Hour)
		require.NoError(t, r.pass()) // sees them wait
		time.Sleep(2 * time.Hour)

		view := r.topics[topic.ID]
		work := &trimming{retained: view}
		v, err := machine.OpenView(s.db)
		require.NoError(t, err)
		defer v.Close()
		now := s.clock.peek()
		_, err = work.findBeginnings(v, now, cut{})
		require.NoError(t, err)
		over, err := r.findKept(v, []*trimming{work}, now)
		require.NoError(t, err)
		require.EqualValues(t, 2, over.abandoned)
		got, err = s.Receive(t.Context(), receiveOf(topic, 1)) // somebody comes after all
		require.NoError(t, err)
		require.Len(t, got, 1)
		require.NoError(t, r.giveUp(over, []*trimming{work}))
		require.NoError(t, work.settle(v, now))
		require.NoError(t, r.apply([]*trimming{work}))
		require.True(t, work.pending)
		time.Sleep(time.Minute)
		got, err = s.Receive(t.Context(), receiveOf(topic, 2))
		require.NoError(t, err)
		require.Len(t, got, 1, "the other one is over")
		require.Equal(t, mq.Attempt(3), got[0].Lease.Attempt)
		require.Zero(t, s.Stats().Lost)
	})
}

func TestCommandsOfARetainerFitIntoSmallSegments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r := stepped(t, Retention{Size: 1})
		topic := ownTopic(1)
		topic.Shards[0] = mq.ShardQueues{Shard: "s", Read: 600, Write: 600}
		for queue := range mq.QueueID(600) {
			m := &mq.Message{ID: fmt.Sprint(queue), Type: mq.Normal}
			_, err := s.Append(t.Context(), topic, queue, []*mq.Message{m})
			require.NoError(t, err)
		}
		got, err := s.Receive(t.Context(), receiveOf(topic, 600))
		require.NoError(t, err)
		require.Equal(t, 600, len(got))
		hardDrop(t, s, r)
		require.NoError(t, s.Err())
		require.Greater(t, s.Stats().Lost, uint64(400))
		require.Greater(t, s.Stats().Trimmed, uint64(400))
	})
}

// A gateFS holds the syncs of the log, once it is armed, from the second on: that of a
// round that rolls comes after that of the segment it leaves.
type gateFS struct {
	vfs.FS
	armed, passed atomic.Bool
	entered, open chan struct{}
}

func (g *gateFS) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := g.FS.OpenReadWrite(name, category, opts...)
	return &gateFile{f, g}, err
}

type gateFile struct {
	vfs.File
	gate *gateFS
}

func (f *gateFile) SyncData() error {
	if f.gate.armed.Load() && f.gate.passed.Swap(true) {
		close(f.gate.entered)
		<-f.gate.open
		f.gate.armed.Store(false)
	}
	return f.File.SyncData()
}

// TestMessagesThatAreInTheLogAndNotYetAppliedHoldIt: a pass that looks between the two
// sees a log that has gone on to its next segment, and no message in the one before.
func TestMessagesThatAreInTheLogAndNotYetAppliedHoldIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := &gateFS{FS: vfs.NewMem(), entered: make(chan struct{}), open: make(chan struct{})}
		s, err := Open(Options{Name: "s", FS: gate, Dir: "shard", SegmentSize: 8 << 10, ZeroFill: -1})
		require.NoError(t, err)
		defer func() { require.NoError(t, s.Close()) }()
		s.opts.Retention = Retention{Age: time.Hour}
		r := &retainer{s: s}
		topic := ownTopic(1)
		sendSome(t, s, topic, 1)
		require.NoError(t, s.PurgeTopic(t.Context(), topic.ID))
		require.NoError(t, r.pass())

		// Two sends in one round, the second of which does not fit into the segment.
		busy := make(chan struct{})
		go func() {
			_ = s.look(context.Background(), func(*machine.Machine) error {
				<-busy
				return nil
			})
		}()
		synctest.Wait()
		var sends sync.WaitGroup
		for i := range 2 {
			sends.Go(func() {
				m := &mq.Message{ID: fmt.Sprint(i), Type: mq.Normal, Body: make([]byte, 5000)}
				if _, err := s.Append(context.Background(), topic, 0, []*mq.Message{m}); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		gate.armed.Store(true)
		close(busy)
		<-gate.entered
		require.Len(t, s.log.Segments(), 2)
		done := make(chan error)
		go func() {
			_, err := r.drop(s.clock.peek())
			done <- err
		}()
		synctest.Wait()
		close(gate.open)
		require.NoError(t, <-done)
		sends.Wait()
		got, err := s.Receive(t.Context(), receiveOf(topic, 2))
		require.NoError(t, err)
		require.Equal(t, 2, len(got))
	})
}

// hardDrop removes everything that is in sealed segments.
func hardDrop(t *testing.T, s *Shard, r *retainer) {
	t.Helper()
	all := s.log.Segments()
	everything := cut{pos: all[len(all)-1].Base, hard: all[len(all)-1].Base}
	require.NoError(t, r.list())
	now := s.clock.peek()
	require.NoError(t, r.trim(r.due(now, everything), now, everything))
	dropped, err := r.drop(now)
	require.NoError(t, err)
	require.True(t, dropped)
}

func TestReceiveThatMeetsADropGoesOnWithWhatIsThere(t *testing.T) {
	for _, left := range []int{0, 1} {
		t.Run(fmt.Sprint("messages left: ", left), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, r := stepped(t, Retention{Size: 1})
				topic := ownTopic(1)
				sendSome(t, s, topic, 20)
				rc := receiveOf(topic, 5)
				got, err := s.pop(t.Context(), rc, time.Now().Add(time.Hour))
				require.NoError(t, err)
				popped, id := got.popped, got.popID
				require.Len(t, popped, 5)
				if left > 0 {
					sendSome(t, s, topic, 20)
					rc.Max = 40
					more, err := s.pop(t.Context(), rc, time.Now().Add(time.Hour))
					require.NoError(t, err)
					require.Len(t, more.popped, 35)
					popped, id = more.popped, more.popID
				}
				hardDrop(t, s, r)
				before := s.Stats().Lost
				deliveries, err := s.read(rc, popped, id)
				require.NoError(t, err)
				require.Equal(t, left > 0, len(deliveries) > 0)
				require.EqualValues(t, len(popped)-len(deliveries), s.Stats().Lost-before)
				require.Zero(t, s.Stats().Unreadable)
				list, err := s.Backlogs(t.Context(), 1)
				require.NoError(t, err)
				require.EqualValues(t, len(deliveries), list[0].InFlight, "nothing that is lost comes back")
			})
		})
	}
}

func TestReceiveStepsOverWhatIsGoneAndWaitsForTheNextMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := stepped(t, Retention{Size: 1})
		topic := ownTopic(1)
		sendSome(t, s, topic, 20)
		// The files are gone, and no command has said so yet.
		require.NoError(t, s.log.Roll())
		require.NoError(t, s.log.DropBefore(s.log.Appended()))
		rc := receiveOf(topic, 3)
		start := time.Now()
		rc.Wait = time.Minute
		time.AfterFunc(30*time.Second, func() { sendSome(t, s, topic, 1) })
		got, err := s.Receive(t.Context(), rc)
		require.NoError(t, err)
		require.Len(t, got, 1)
		require.Equal(t, 30*time.Second, time.Since(start).Round(time.Second))
		require.EqualValues(t, 20, s.Stats().Lost)

		sendSome(t, s, topic, 5)
		require.NoError(t, s.log.Roll())
		require.NoError(t, s.log.DropBefore(s.log.Appended()))
		start = time.Now()
		got, err = s.Receive(t.Context(), rc)
		require.NoError(t, err)
		require.Empty(t, got)
		require.Equal(t, time.Minute, time.Since(start).Round(time.Second), "no longer than it was to")
	})
}

func TestForwardOfADroppedMessageSettlesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := stepped(t, Retention{Size: 1})
		topic := ownTopic(1)
		sendSome(t, s, topic, 20)
		got, err := s.Receive(t.Context(), receiveOf(topic, 1))
		require.NoError(t, err)
		// The file is gone, and no command has said so yet.
		require.NoError(t, s.log.DropBefore(s.log.Segments()[1].Base))
		require.NoError(t, s.DeadLetter(t.Context(), got[0].Lease))
		require.EqualValues(t, 1, s.Stats().Lost)
		require.Zero(t, s.Stats().DeadLettered)
		answers, err := s.Ack(t.Context(), 1, 1, []command.LeaseRef{{PopID: got[0].Lease.PopID}})
		require.NoError(t, err)
		require.ErrorIs(t, answers[0], mq.ErrLeaseEnded)
	})
}

// Whoever has failed the shard goes on at once. Its views must be stopped then, also
// when another goroutine came first and is about to stop them.
func TestNothingOfTheViewsReachesTheDiskAfterAFailureThatIsNotTheFirst(t *testing.T) {
	s, err := Open(Options{Name: "s", FS: vfs.NewMem(), Dir: "shard", ZeroFill: -1})
	require.NoError(t, err)
	first := errors.New("first")
	s.failure.Store(&first) // and no further
	s.fail(errors.New("second"))
	require.True(t, s.viewsFS.Stopped())
	close(s.failed)
	require.ErrorIs(t, s.Close(), first)
}

// The views of a shard that has failed may lack what Pebble believes to have written, so
// that what it says of them is no answer, and no damage.
func TestWhatTheLoopReadsOfTheViewsIsNoAnswerAfterAFailure(t *testing.T) {
	s, err := Open(Options{Name: "s", FS: vfs.NewMem(), Dir: "shard", ZeroFill: -1})
	require.NoError(t, err)
	missing := errors.New("a file is missing")
	err = s.look(t.Context(), func(*machine.Machine) error {
		s.fail(errors.New("the disk is gone"))
		return missing
	})
	require.ErrorIs(t, err, mq.ErrStopped)
	require.NotErrorIs(t, err, missing)
	require.ErrorIs(t, s.Close(), mq.ErrStopped)
}

package shard_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/internal/faultfs"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/commitlog"
	"github.com/perigee-mq/perigee/store/shard"
)

// A trimmer is a workload in which messages grow old, are dropped with their segments,
// and others are kept: because they are younger, or because they are under delivery.
// What it notes says what must be there after a crash.
type trimmer struct {
	t     *testing.T
	topic *mq.Topic
	group *mq.Group
	s     *shard.Shard
	fill  int64
	n     int
	over  atomic.Bool // answers that come from now on are void
	msgs  map[string]*old
}

// old is what is known of one message.
type old struct {
	sent     time.Time // zero: not answered
	queue    mq.QueueID
	offset   mq.QueueOffset
	acked    bool
	ackBegun bool
	leased   time.Time // until when
}

const trimAge = time.Hour

func newTrimmer(t *testing.T) *trimmer {
	return &trimmer{t: t, topic: topicOf(2), group: groupOf(9), fill: -1, msgs: map[string]*old{}}
}

func (c *trimmer) open(fs vfs.FS, r shard.Retention) (err error) {
	c.s, err = shard.Open(shard.Options{
		Name: shardName, FS: fs, Dir: "node/shard", SegmentSize: 8 << 10, ZeroFill: c.fill, CacheSize: 1 << 20, Retention: r,
	})
	return err
}

// errOver ends a run whose answers interest nobody any more.
var errOver = errors.New("over")

func (c *trimmer) send(n int) error {
	for range n {
		if c.over.Load() {
			return errOver
		}
		c.n++
		m := message(fmt.Sprint("m", c.n), "")
		m.Body = []byte("body of " + m.ID + strings.Repeat(" ", 1000))
		queue := mq.QueueID(c.n % 2)
		o := &old{queue: queue}
		c.msgs[m.ID] = o
		a, err := c.s.Append(c.t.Context(), c.topic, queue, []*mq.Message{m})
		if err != nil {
			return err
		}
		if !c.over.Load() {
			o.sent, o.offset = time.Now(), a[0].Offset
		}
	}
	return nil
}

func (c *trimmer) receive(n int, invisible time.Duration) ([]mq.Delivery, error) {
	got, err := c.s.Receive(c.t.Context(), mq.Receive{Topic: c.topic, Group: c.group, Max: n, Invisible: invisible})
	if err == nil && len(got) == 0 {
		err = errors.New("nothing received")
	}
	for _, d := range got {
		if !c.over.Load() {
			c.msgs[d.ID].leased = time.Now().Add(invisible)
		}
	}
	return got, err
}

func (c *trimmer) ack(got ...mq.Delivery) error {
	for _, d := range got {
		o := c.msgs[d.ID]
		o.ackBegun = true
		res, err := c.s.Ack(c.t.Context(), d.Lease.Topic, d.Lease.Group, []command.LeaseRef{{Queue: d.Lease.Queue, Offset: d.Lease.Offset, PopID: d.Lease.PopID}})
		if err != nil {
			return err
		}
		if !c.over.Load() {
			o.acked = res[0] == nil
		}
	}
	return nil
}

// run carries the workload out and returns its first error.
func (c *trimmer) run(fs vfs.FS) error {
	var held []mq.Delivery
	for _, life := range []func() error{
		func() error { // everything of this life grows old, but for one message under delivery
			if err := c.send(30); err != nil {
				return err
			}
			got, err := c.receive(4, 10*time.Minute)
			if err != nil {
				return err
			}
			if err := c.ack(got...); err != nil {
				return err
			}
			if err := c.send(2); err != nil {
				return err
			}
			if got, err = c.receive(32, time.Minute); err != nil {
				return err
			}
			if err := c.ack(got[:len(got)-1]...); err != nil {
				return err
			}
			res, err := c.s.Change(c.t.Context(), 1, 1, []command.LeaseChange{{
				LeaseRef:  command.LeaseRef{Queue: got[len(got)-1].Lease.Queue, Offset: got[len(got)-1].Lease.Offset, PopID: got[len(got)-1].Lease.PopID},
				Invisible: int64(3 * time.Hour),
			}})
			if err != nil || res[0] != nil {
				return errors.Join(append(res, err)...)
			}
			held = got[len(got)-1:]
			time.Sleep(50 * time.Minute)
			if err := c.send(10); err != nil {
				return err
			}
			time.Sleep(20 * time.Minute) // a pass, and a drop
			return c.send(3)
		},
		func() error { // now that one too
			if err := c.ack(held...); err != nil {
				return err
			}
			time.Sleep(50 * time.Minute) // again
			if err := c.send(10); err != nil {
				return err
			}
			time.Sleep(15 * time.Minute)
			return c.send(1)
		},
	} {
		if err := c.open(fs, shard.Retention{Age: trimAge, Interval: time.Minute}); err != nil {
			return err
		}
		err := life()
		synctest.Wait()
		if err != nil {
			require.True(c.t, errors.Is(err, errOver) || errors.Is(c.s.Err(), mq.ErrStopped), "%v", err)
			_ = c.s.Close() // repeats the failure
			return err
		}
		if err := c.s.Close(); err != nil {
			return err
		}
	}
	return nil
}

// requireKept opens what is left at the moment of the crash and checks that all is there
// that must be.
func (c *trimmer) requireKept(fs vfs.FS, crash time.Time) {
	c.t.Helper()
	require.NoError(c.t, c.open(fs, shard.Retention{})) // nothing more is trimmed
	defer c.s.Close()                                   // also after a failed check, so that the bubble ends
	ranges, err := c.s.Queues(c.t.Context(), c.topic.ID)
	require.NoError(c.t, err)
	auditor := groupOf(9)
	auditor.ID, auditor.Name, auditor.DeadLetter = 2, "audit", 101
	next := map[mq.QueueID]mq.QueueOffset{}
	for _, r := range ranges {
		next[r.Queue] = r.Min
	}
	stored := map[string]bool{}
	for {
		got, err := c.s.Receive(c.t.Context(), mq.Receive{Topic: c.topic, Group: auditor, Max: 32, Invisible: time.Hour})
		require.NoError(c.t, err)
		if len(got) == 0 {
			break
		}
		for _, d := range got {
			require.Equal(c.t, next[d.Lease.Queue], d.Lease.Offset)
			next[d.Lease.Queue]++
			require.True(c.t, strings.HasPrefix(string(d.Body), "body of "+d.ID+" "))
			stored[d.ID] = true
		}
	}
	for _, r := range ranges {
		require.Equal(c.t, r.Next, next[r.Queue])
	}
	delivered := map[string]bool{}
	for {
		got, err := c.s.Receive(c.t.Context(), mq.Receive{Topic: c.topic, Group: c.group, Max: 32, Invisible: time.Hour, Wait: 4 * time.Hour})
		require.NoError(c.t, err)
		if len(got) == 0 {
			break
		}
		for _, d := range got {
			require.False(c.t, delivered[d.ID])
			delivered[d.ID] = true
			require.False(c.t, c.msgs[d.ID].acked, "%s was acknowledged", d.ID)
			require.NoError(c.t, ack(c.t, c.s, d.Lease))
		}
	}
	for id, o := range c.msgs {
		if o.sent.IsZero() {
			continue
		}
		young := crash.Sub(o.sent) < trimAge
		require.True(c.t, !young || stored[id], "%s is gone, %v old", id, crash.Sub(o.sent))
		underway := o.leased.After(crash)
		require.True(c.t, o.ackBegun || !young && !underway || delivered[id], "%s is not delivered, %v old, under delivery: %v", id, crash.Sub(o.sent), underway)
		require.Less(c.t, o.offset, next[o.queue])
	}
	require.Zero(c.t, c.s.Stats().Lost+c.s.Stats().Unreadable)
	require.NoError(c.t, c.s.Close())
}

func TestTrimmerDropsMostOfItsLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewCrashableMem()
		c := newTrimmer(t)
		require.NoError(t, c.run(fs))
		require.Less(t, len(filesIn(t, fs, shard.LogDir(fs, "node/shard"))), 5)
		require.NoError(t, c.open(fs, shard.Retention{}))
		require.Greater(t, c.s.Stats().LogFirst, c.s.Stats().LogAppended/2)
		require.NoError(t, c.s.Close())
		c.requireKept(fs, time.Now())
	})
}

// eachOperation returns at which operations to try a fault: from the first on, a step
// apart. In the short form these are one in seven, others each time.
func eachOperation(t *testing.T) (first, step int) {
	if !testing.Short() {
		return 0, 1
	}
	seed := seeds(t, 1)[0]
	t.Logf("PERIGEE_SEED=%d", seed)
	return int(seed % 7), 7
}

func TestEveryCrashWhileTheLogIsTrimmedKeepsWhatIsYoungOrUnderDelivery(t *testing.T) {
	percents := []int{0, 40, 100}
	first, step := eachOperation(t)
	for k, done := first, false; !done; k += step {
		percents := percents
		if testing.Short() {
			percents = percents[k%3 : k%3+1]
		}
		for _, percent := range percents {
			synctest.Test(t, func(t *testing.T) {
				mem := vfs.NewCrashableMem()
				fs := faultfs.New(mem)
				c := newTrimmer(t)
				// The files of the moment are put aside and the run goes on: it is
				// nobody's any more.
				var left, viewless *vfs.MemFS
				var crash time.Time
				fs.Trace(func(op faultfs.Op) {
					if op.Index == k {
						c.over.Store(true)
						crash = time.Now()
						rng := rand.New(rand.NewPCG(uint64(k), uint64(percent)))
						left = mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
						viewless = mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
					}
				})
				err := c.run(fs)
				if left != nil && errors.Is(err, errOver) {
					err = nil
				}
				require.NoError(t, err)
				if left == nil {
					require.Greater(t, k, 150)
					done = true
					return
				}
				c.requireKept(left, crash)
				if _, err := commitlog.Oldest(viewless, shard.LogDir(viewless, "node/shard")); err != nil {
					return // the crash came before there was anything
				}
				require.NoError(t, viewless.RemoveAll(shard.ViewsDir(viewless, "node/shard")))
				restored, err := shard.RestoreViews(viewless, "node/shard")
				require.NoError(t, err)
				require.True(t, restored.Base != "" || restored.First == 1)
				c.requireKept(viewless, crash)
			})
		}
	}
}

func TestEveryFailedOperationWhileTheLogIsTrimmedStopsTheShardAndLosesNothing(t *testing.T) {
	first, step := eachOperation(t)
	for i, done := first, false; !done; i += step {
		synctest.Test(t, func(t *testing.T) {
			mem := vfs.NewCrashableMem()
			fs := faultfs.New(mem)
			cause := []error{faultfs.ErrInjected, syscall.ENOSPC, syscall.EIO}[i%3]
			fs.FailAt(i, cause)
			c := newTrimmer(t)
			if i%2 == 1 {
				c.fill = 4096
			}
			err := c.run(fs)
			crash := time.Now()
			if !fs.Fired() {
				require.NoError(t, err)
				require.Greater(t, i, 150)
				done = true
			}
			if err != nil { // Pebble repeats some operations of its own
				require.ErrorContains(t, err, cause.Error(), "operation %d", i)
			}
			rng := rand.New(rand.NewPCG(uint64(i), 1))
			c.requireKept(mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50 * (i % 2), RNG: rng}), crash)
			viewless := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50 * (i % 2), RNG: rng})
			c.requireKept(mem, crash) // the process ended, the machine did not
			if _, err := commitlog.Oldest(viewless, shard.LogDir(viewless, "node/shard")); err != nil {
				return // the failure came before there was anything
			}
			require.NoError(t, viewless.RemoveAll(shard.ViewsDir(viewless, "node/shard")))
			_, err = shard.RestoreViews(viewless, "node/shard")
			require.NoError(t, err, "operation %d", i)
			c.requireKept(viewless, crash)
		})
	}
}

package shard_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path"
	"slices"
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

// firstLife is what answers to a script belong to: those that come after the
// crash are void.
const firstLife = 0

// A script is a small workload with everything that a shard does: its log has
// several segments and its views are written once in the middle.
type script struct {
	t      *testing.T
	ledger *ledger
	topic  *mq.Topic
	group  *mq.Group
	s      *shard.Shard
	fill   int64
	n      int
}

func newScript(t *testing.T) *script {
	return &script{t: t, ledger: newLedger(), topic: topicOf(2), group: groupOf(2), fill: -1}
}

func (c *script) open(fs vfs.FS) (err error) {
	c.s, err = shard.Open(shard.Options{
		Name: shardName, FS: fs, Dir: "node/shard", SegmentSize: 8 << 10, ZeroFill: c.fill, CacheSize: 1 << 20,
	})
	return err
}

func (c *script) send(queue mq.QueueID, n int) error {
	var ids []string
	var msgs []*mq.Message
	for range n {
		c.n++
		ids = append(ids, fmt.Sprint("m", c.n))
		m := message(ids[len(ids)-1], "")
		m.Properties = make([]byte, 1000) // no valid properties, and not looked at
		msgs = append(msgs, m)
	}
	sn := c.ledger.beginSend(queue, ids...)
	a, err := c.s.Append(c.t.Context(), c.topic, queue, msgs)
	if err == nil {
		c.ledger.endSend(sn, firstLife, a[0].Offset)
	}
	return err
}

func (c *script) receive(n int) ([]mq.Delivery, error) {
	const invisible = 10 * time.Second
	start := time.Now()
	got, err := c.s.Receive(c.t.Context(), mq.Receive{Topic: c.topic, Group: c.group, Max: n, Invisible: invisible, Wait: 5 * time.Second})
	c.ledger.delivered(firstLife, start, invisible, got)
	if err == nil && len(got) == 0 {
		err = errors.New("nothing received")
	}
	return got, err
}

func (c *script) ack(d mq.Delivery) error {
	c.ledger.beginAck(d.ID, false)
	res, err := c.s.Ack(c.t.Context(), d.Lease.Topic, d.Lease.Group, []command.LeaseRef{{Queue: d.Lease.Queue, Offset: d.Lease.Offset, PopID: d.Lease.PopID}})
	if err == nil {
		err = res[0]
	}
	if err == nil {
		c.ledger.endAck(d.ID, firstLife)
	}
	return err
}

func (c *script) forward(d mq.Delivery) error {
	c.ledger.beginAck(d.ID, true)
	err := c.s.DeadLetter(c.t.Context(), d.Lease)
	if err == nil {
		c.ledger.endAck(d.ID, firstLife)
	}
	return err
}

func (c *script) change(d mq.Delivery, after time.Duration, reason mq.ChangeReason) error {
	c.ledger.beginChange(d.ID)
	res, err := c.s.Change(c.t.Context(), d.Lease.Topic, d.Lease.Group, []command.LeaseChange{{
		LeaseRef:  command.LeaseRef{Queue: d.Lease.Queue, Offset: d.Lease.Offset, PopID: d.Lease.PopID},
		Invisible: int64(after), Reason: reason,
	}})
	if err == nil {
		err = res[0]
	}
	return err
}

// run carries the workload out and returns its first error, after which it has
// checked that the shard stays stopped and closes.
func (c *script) run(fs vfs.FS) error {
	for _, half := range []func() error{c.firstHalf, c.secondHalf} {
		if err := c.open(fs); err != nil {
			return err
		}
		err := half()
		synctest.Wait() // dead letters under way
		if err != nil {
			c.requireStopped()
			_ = c.s.Close() // repeats the failure
			return err
		}
		if err := c.s.Close(); err != nil {
			return err
		}
	}
	return nil
}

func (c *script) firstHalf() error {
	if err := errors.Join(c.send(0, 1), c.send(1, 1)); err != nil {
		return err
	}
	if err := c.send(0, 5); err != nil {
		return err
	}
	got, err := c.receive(4)
	if err != nil {
		return err
	}
	if err := c.ack(got[0]); err != nil {
		return err
	}
	if err := c.change(got[1], 0, mq.Extend); err != nil {
		return err
	}
	if err := c.change(got[2], 30*time.Second, mq.Renew); err != nil {
		return err
	}
	if got, err = c.receive(1); err != nil { // again
		return err
	}
	if err := c.change(got[0], time.Second, mq.Nack); err != nil { // its last attempt
		return err
	}
	return c.send(1, 4)
}

func (c *script) secondHalf() error {
	if err := c.send(1, 3); err != nil {
		return err
	}
	got, err := c.receive(8)
	if err != nil {
		return err
	}
	if err := c.forward(got[0]); err != nil {
		return err
	}
	if err := c.ack(got[1]); err != nil {
		return err
	}
	time.Sleep(11 * time.Second) // the other leases end
	return c.send(0, 1)
}

// requireStopped checks that a shard that has failed answers nothing any more.
func (c *script) requireStopped() {
	c.t.Helper()
	require.ErrorIs(c.t, c.s.Err(), mq.ErrStopped)
	require.ErrorIs(c.t, c.send(0, 1), mq.ErrStopped)
	_, err := c.receive(1)
	require.ErrorIs(c.t, err, mq.ErrStopped)
	_, err = c.s.Ack(c.t.Context(), 1, 1, []command.LeaseRef{{}})
	require.ErrorIs(c.t, err, mq.ErrStopped)
	_, err = c.s.Queues(c.t.Context(), 1)
	require.ErrorIs(c.t, err, mq.ErrStopped)
}

// requireKept opens what is left and checks it against a copy of the ledger.
func (c *script) requireKept(fs vfs.FS) {
	c.t.Helper()
	l := newLedger()
	l.sends = c.ledger.sends
	l.faults = c.ledger.faults
	for id, m := range c.ledger.msgs {
		again := *m
		l.msgs[id] = &again
	}
	require.NoError(c.t, c.open(fs))
	defer c.s.Close() // also after a failed check, so that the bubble ends
	l.requireKept(c.t, c.s, c.topic, c.group)
	require.NoError(c.t, c.s.Close())
}

func TestEveryFailedOperationStopsAcknowledgementsAndLosesNothing(t *testing.T) {
	for i, done := 0, false; !done; i++ {
		synctest.Test(t, func(t *testing.T) {
			mem := vfs.NewCrashableMem()
			fs := faultfs.New(mem)
			cause := []error{faultfs.ErrInjected, syscall.ENOSPC, syscall.EIO}[i%3]
			fs.FailAt(i, cause)
			c := newScript(t)
			if i%2 == 1 {
				c.fill = 4096
			}
			err := c.run(fs)
			if !fs.Fired() {
				require.NoError(t, err)
				require.Greater(t, i, 50)
				done = true
			}
			// Pebble repeats some operations of its own.
			if err != nil {
				require.ErrorContains(t, err, cause.Error(), "operation %d", i)
			}
			rng := rand.New(rand.NewPCG(uint64(i), 1))
			c.requireKept(mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50 * (i % 2), RNG: rng}))
			c.requireKept(mem) // the process ended, the machine did not
		})
	}
}

func TestEveryCrashKeepsWhatWasAcknowledged(t *testing.T) {
	percents := []int{0, 40, 100}
	for k, done := 0, false; !done; k++ {
		percents := percents
		if testing.Short() {
			percents = percents[k%3 : k%3+1]
		}
		for _, percent := range percents {
			synctest.Test(t, func(t *testing.T) {
				mem := vfs.NewCrashableMem()
				fs := faultfs.New(mem)
				c := newScript(t)
				// The files of the moment are put aside and the run goes on:
				// it is nobody's any more.
				var left *vfs.MemFS
				fs.Trace(func(op faultfs.Op) {
					if op.Index == k {
						c.ledger.crash()
						rng := rand.New(rand.NewPCG(uint64(k), uint64(percent)))
						left = mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
					}
				})
				require.NoError(t, c.run(fs))
				if left == nil {
					require.Greater(t, k, 50)
					done = true
					return
				}
				c.requireKept(left)
			})
		}
	}
}

func TestFullDiskStopsTheShardAndCloseReturns(t *testing.T) {
	for _, suffix := range []string{".log", ".sst", "MANIFEST"} {
		for _, mode := range []shard.FlushMode{shard.FlushSync, shard.FlushAsync} {
			t.Run(fmt.Sprint(suffix, " ", mode), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					mem := vfs.NewCrashableMem()
					full := &fullDisk{FS: mem, part: suffix}
					s := open(t, full, mode)
					topic, group := topicOf(1), groupOf(2)
					send(t, s, topic, 0, message("a", ""))
					full.full.Store(true)
					_, err := s.Append(t.Context(), topic, 0, []*mq.Message{message("b", "")})
					if suffix == ".log" {
						require.ErrorIs(t, err, mq.ErrStopped)
						require.ErrorIs(t, err, syscall.ENOSPC)
					} else {
						require.NoError(t, err)
					}
					err = s.Close()
					require.ErrorIs(t, err, mq.ErrStopped)
					require.ErrorContains(t, err, syscall.ENOSPC.Error())
					full.full.Store(false)
					s = open(t, mem, mode)
					defer s.Close()
					got := receive(t, s, mq.Receive{Topic: topic, Group: group})
					require.Contains(t, ids(got), "a")
					require.NoError(t, s.Close())
				})
			})
		}
	}
}

func TestOpenOnAFullDiskFailsInsteadOfTryingForEver(t *testing.T) {
	for _, part := range []string{"MANIFEST", ".dbtmp", "/views/"} {
		t.Run(part, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // no goroutine is left behind
				full := &fullDisk{FS: vfs.NewMem(), part: part}
				s := open(t, full, shard.FlushSync)
				send(t, s, topicOf(1), 0, message("a", ""))
				require.NoError(t, s.Close())
				full.full.Store(true)
				_, err := shard.Open(shard.Options{Name: shardName, FS: full, Dir: "shard", SegmentSize: 1 << 20, ZeroFill: -1})
				require.ErrorContains(t, err, syscall.ENOSPC.Error())
			})
		})
	}
}

// fullDisk has no room for the files whose path holds part.
type fullDisk struct {
	vfs.FS
	part string
	full atomic.Bool
}

func (d *fullDisk) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := d.FS.Create(name, category)
	return &fullFile{f, d, strings.Contains(name, d.part)}, err
}

func (d *fullDisk) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := d.FS.OpenReadWrite(name, category, opts...)
	return &fullFile{f, d, strings.Contains(name, d.part)}, err
}

type fullFile struct {
	vfs.File
	disk *fullDisk
	hit  bool
}

func (f *fullFile) Write(p []byte) (int, error) {
	if f.hit && f.disk.full.Load() {
		return 0, syscall.ENOSPC
	}
	return f.File.Write(p)
}

func (f *fullFile) WriteAt(p []byte, off int64) (int, error) {
	if f.hit && f.disk.full.Load() {
		return 0, syscall.ENOSPC
	}
	return f.File.WriteAt(p, off)
}

// filled returns a file system on which a script has run to its end.
func filled(t *testing.T) (*vfs.MemFS, *script) {
	mem := vfs.NewCrashableMem()
	c := newScript(t)
	require.NoError(t, c.run(mem))
	return mem, c
}

func filesIn(t *testing.T, fs vfs.FS, dir string) []string {
	t.Helper()
	names, err := fs.List(dir)
	require.NoError(t, err)
	slices.Sort(names)
	var files []string
	for _, name := range names {
		files = append(files, path.Join(dir, name))
	}
	return files
}

func contents(t *testing.T, fs vfs.FS, name string) []byte {
	t.Helper()
	f, err := fs.Open(name)
	require.NoError(t, err)
	defer f.Close()
	b, err := io.ReadAll(f)
	require.NoError(t, err)
	return b
}

func rewrite(t *testing.T, fs vfs.FS, name string, b []byte) {
	t.Helper()
	f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	_, err = f.Write(b)
	require.NoError(t, err)
	require.NoError(t, errors.Join(f.Sync(), f.Close()))
}

// logBytes returns the files of the log.
func logBytes(t *testing.T, fs vfs.FS) map[string][]byte {
	files := map[string][]byte{}
	for _, name := range filesIn(t, fs, shard.LogDir(fs, "node/shard")) {
		files[name] = contents(t, fs, name)
	}
	return files
}

func TestViewsAheadOfTheLogAreNamedAndNothingIsTouched(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, fs vfs.FS, segments []string){
		"last segment gone": func(t *testing.T, fs vfs.FS, segments []string) {
			require.NoError(t, fs.Remove(segments[len(segments)-1]))
		},
		"all segments gone": func(t *testing.T, fs vfs.FS, segments []string) {
			for _, segment := range segments {
				require.NoError(t, fs.Remove(segment))
			}
		},
		"last segment cut": func(t *testing.T, fs vfs.FS, segments []string) {
			last := segments[len(segments)-1]
			b := contents(t, fs, last)
			rewrite(t, fs, last, b[:len(b)/2])
		},
		"a bit of the last record flipped": func(t *testing.T, fs vfs.FS, segments []string) {
			last := segments[len(segments)-1]
			b := contents(t, fs, last)
			b = bytes.TrimRight(b, "\x00")
			b[len(b)-1] ^= 4
			rewrite(t, fs, last, b)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem, c := filled(t)
				// What the log itself remembers of its syncs may be lost in a power cut.
				require.NoError(t, mem.Remove("node/shard/log/SYNCED"))
				damage(t, mem, filesIn(t, mem, shard.LogDir(mem, "node/shard")))
				before := logBytes(t, mem)
				for range 2 { // the failed open heals nothing
					err := c.open(mem)
					if err == nil {
						_ = c.s.Close()
					}
					var corrupt *commitlog.CorruptionError
					require.ErrorAs(t, err, &corrupt)
					require.Contains(t, err.Error(), "node/shard/log")
					require.Equal(t, before, logBytes(t, mem), "the log is left as it was")
				}
			})
		})
	}
}

func TestDeletedViewsAreRebuiltFromTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem, c := filled(t)
		require.NoError(t, mem.RemoveAll(shard.ViewsDir(mem, "node/shard")))
		c.requireKept(mem)
	})
}

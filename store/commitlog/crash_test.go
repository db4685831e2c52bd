package commitlog

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/internal/faultfs"
	"github.com/perigee-mq/perigee/mq"
)

// run is a workload whose promises can be checked afterwards.
type run struct {
	opts   Options
	synced uint64 // records that were acknowledged as durable
	sent   uint64 // records that were given to Append at all
}

// work opens the log, appends rounds of records with a sync now and then, and
// closes. It returns the first error, after which it has checked that the log
// stays stopped.
func (r *run) work(rng *rand.Rand, rounds int) error {
	l, err := Open(r.opts)
	if err != nil {
		return err
	}
	defer l.Close()
	// What an earlier life sent and did not sync may be gone; its indexes are
	// used again.
	r.sent = l.LastIndex()
	for range rounds {
		sizes := make([]int, 1+rng.IntN(4))
		for i := range sizes {
			sizes[i] = rng.IntN(1500)
		}
		entries := entriesFrom(l.LastIndex()+1, sizes...)
		r.sent = max(r.sent, l.LastIndex()+uint64(len(entries)))
		if _, err := l.Append(entries); err != nil {
			return stays(l, err)
		}
		if rng.IntN(2) == 0 {
			upTo := l.LastIndex()
			if err := l.Sync(); err != nil {
				return stays(l, err)
			}
			r.synced = max(r.synced, upTo)
		}
	}
	upTo := l.LastIndex()
	if err := l.Close(); err != nil {
		return err
	}
	r.synced = max(r.synced, upTo)
	return nil
}

// stays checks that l is stopped for good after err.
func stays(l *Log, err error) error {
	if !errors.Is(err, mq.ErrStopped) || !errors.Is(l.Err(), mq.ErrStopped) {
		return fmt.Errorf("BUG: not stopped: %w", err)
	}
	if _, again := l.Append(entriesFrom(1, 1)); !errors.Is(again, l.Err()) {
		return fmt.Errorf("BUG: append after the stop: %w", again)
	}
	if again := l.Sync(); !errors.Is(again, l.Err()) {
		return fmt.Errorf("BUG: sync after the stop: %w", again)
	}
	return err
}

// requireKept opens the log on fs and checks that all acknowledged records are
// there, nothing that was not sent, nothing wrong; then that it goes on.
func (r *run) requireKept(t *testing.T, fs vfs.FS) {
	t.Helper()
	o := r.opts
	o.FS = fs
	l, err := Open(o)
	require.NoError(t, err)
	last := l.LastIndex()
	require.GreaterOrEqual(t, last, r.synced)
	require.LessOrEqual(t, last, r.sent)
	requireRecords(t, l, last)
	require.Equal(t, l.Appended(), l.Flushed())
	mustAppend(t, l, 100, 2000)
	require.NoError(t, l.Close())
	var n uint64
	require.NoError(t, Verify(fs, o.Dir, checker(1, &n)))
	require.Equal(t, last+2, n)
}

func TestEveryFailedOperationStopsTheLogAndLosesNothing(t *testing.T) {
	for _, fill := range []int64{-1, 4096} {
		t.Run(fmt.Sprintf("zero fill %d", fill), func(t *testing.T) {
			first, step := places(t)
			for i := first; ; i += step {
				mem := vfs.NewCrashableMem()
				ffs := faultfs.New(mem)
				ffs.FailAt(i, nil)
				r := run{opts: Options{FS: ffs, Dir: "store/log", SegmentSize: 8192, ZeroFill: fill}}
				err := r.work(rand.New(rand.NewPCG(1, 2)), 25)
				if !ffs.Fired() {
					require.NoError(t, err)
					require.Greater(t, i, 50)
					return
				}
				require.ErrorIs(t, err, faultfs.ErrInjected, "operation %d", i)
				rng := rand.New(rand.NewPCG(uint64(i), 3))
				clone := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: rng})
				r.requireKept(t, clone)
				r.requireKept(t, mem) // the process died, the machine did not
			}
		})
	}
}

func TestEveryCrashKeepsWhatWasSynced(t *testing.T) {
	for _, percent := range []int{0, 10, 50, 90, 100} {
		for _, cut := range []int{-1, 0, 20, 700} {
			t.Run(fmt.Sprintf("unsynced %d cut %d", percent, cut), func(t *testing.T) {
				first, step := places(t)
				for k := first; ; k += step {
					mem := vfs.NewCrashableMem()
					ffs := faultfs.New(mem)
					rng := rand.New(rand.NewPCG(uint64(k), uint64(percent)))
					var clone *vfs.MemFS
					ffs.CrashAfter(k, cut, func() {
						clone = mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
					})
					fill := int64(-1)
					if k%2 == 1 {
						fill = 4096
					}
					r := run{opts: Options{FS: ffs, Dir: "store/log", SegmentSize: 8192, ZeroFill: fill}}
					err := r.work(rand.New(rand.NewPCG(4, 5)), 20)
					if !ffs.Fired() {
						require.NoError(t, err)
						return
					}
					require.ErrorIs(t, err, faultfs.ErrCrashed, "operation %d", k)
					r.requireKept(t, clone)
				}
			})
		}
	}
}

// A history of several lives, each ending in a crash, the recoveries crashing
// too.
func TestRandomHistoriesOfCrashesKeepWhatWasSynced(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 77))
		mem := vfs.NewCrashableMem()
		r := run{opts: Options{Dir: "log", SegmentSize: 4096 + int64(rng.IntN(4))*4096, ZeroFill: 4096}}
		if rng.IntN(2) == 0 {
			r.opts.ZeroFill = -1
		}
		for life := range 8 {
			ffs := faultfs.New(mem)
			next := mem
			// The crash may come in the filler's goroutine.
			percent, crashRNG := rng.IntN(101), rand.New(rand.NewPCG(seed, uint64(life)))
			ffs.CrashAfter(rng.IntN(40), rng.IntN(1000)-300, func() {
				next = mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: crashRNG})
			})
			r.opts.FS = ffs
			err := r.work(rng, 30)
			if !ffs.Fired() {
				require.NoError(t, err, "seed %d life %d", seed, life)
			} else {
				require.ErrorIs(t, err, faultfs.ErrCrashed, "seed %d life %d", seed, life)
			}
			mem = next
		}
		t.Logf("seed %d: %d records synced", seed, r.synced)
		r.requireKept(t, mem)
	}
}

func TestACrashDuringADropLeavesNoHole(t *testing.T) {
	for k := 0; ; k++ {
		mem := vfs.NewCrashableMem()
		ffs := faultfs.New(mem)
		o := Options{FS: ffs, Dir: "log", SegmentSize: 4096, ZeroFill: -1}
		l := mustOpen(t, o)
		for range 20 {
			mustAppend(t, l, 1500)
		}
		require.NoError(t, l.Sync())
		segs := l.Segments()
		var clones []*vfs.MemFS
		ffs.CrashAfter(ffs.Count()+k, -1, func() {
			for seed := range uint64(10) {
				clones = append(clones, mem.CrashClone(vfs.CrashCloneCfg{
					UnsyncedDataPercent: int(seed) * 10, RNG: rand.New(rand.NewPCG(seed, uint64(k))),
				}))
			}
		})
		err := l.DropBefore(l.Appended())
		if !ffs.Fired() {
			require.NoError(t, err)
			require.Equal(t, 2*(len(segs)-1), k)
			return
		}
		require.ErrorIs(t, err, faultfs.ErrCrashed)
		for seed, clone := range clones {
			o.FS = clone
			l, err := Open(o)
			require.NoError(t, err, "operation %d seed %d", k, seed)
			var n uint64
			require.NoError(t, l.Scan(l.First(), checker(l.Segments()[0].FirstIndex, &n)))
			require.Equal(t, uint64(20), l.LastIndex())
			require.NoError(t, l.Close())
		}
	}
}

func TestAFailedRemovalChangesNothingAndMayBeRepeated(t *testing.T) {
	ffs := faultfs.New(vfs.NewMem())
	l := mustOpen(t, Options{FS: ffs, Dir: "log", SegmentSize: 4096, ZeroFill: -1})
	for range 20 {
		mustAppend(t, l, 1500)
	}
	before := l.Segments()
	ffs.FailAt(ffs.Count(), nil)
	require.ErrorIs(t, l.DropBefore(l.Appended()), faultfs.ErrInjected)
	require.Equal(t, before, l.Segments())
	require.NoError(t, l.Err())
	require.NoError(t, l.DropBefore(l.Appended()))
	require.Len(t, l.Segments(), 1)
}

// What a failed sync leaves in the page cache counts as clean: the records look
// fine to the next process, and its own sync does not write them.
func TestRecordsOfAFailedSyncAreWrittenAgainAtOpen(t *testing.T) {
	mem := vfs.NewCrashableMem()
	ffs := faultfs.New(mem)
	o := Options{FS: ffs, Dir: "log", ZeroFill: -1}
	l := mustOpen(t, o)
	mustAppend(t, l, 10)
	require.NoError(t, l.Sync())
	lost := mustAppend(t, l, 10, 10)
	ffs.FailAt(ffs.Count(), nil)
	require.ErrorIs(t, l.Sync(), faultfs.ErrInjected)
	require.Equal(t, lost[0].Pos, l.Flushed())
	require.ErrorIs(t, l.Close(), faultfs.ErrInjected)

	var again []faultfs.Op
	ffs.Trace(func(op faultfs.Op) { again = append(again, op) })
	l = mustOpen(t, o)
	requireRecords(t, l, 3)
	require.Equal(t, faultfs.Write, again[0].Kind)
	require.Equal(t, int64(lost[0].Pos), again[0].Offset)
	require.Equal(t, int(lost[1].Next-lost[0].Pos), again[0].Len)
	require.Equal(t, faultfs.Sync, again[1].Kind)
}

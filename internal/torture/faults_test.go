package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/internal/faultfs"
	"github.com/perigee-mq/perigee/internal/torture/table"
	"github.com/perigee-mq/perigee/store/shard"
)

// A plan is one fault in one run of the story.
type plan struct {
	flush shard.FlushMode
	kind  string // of the fault
	at    int    // index of the operation
}

func (p plan) String() string {
	return fmt.Sprintf("%s at operation %d, %s", p.kind, p.at, map[shard.FlushMode]string{shard.FlushSync: "sync", shard.FlushAsync: "async"}[p.flush])
}

// The kinds of faults. An fsync that fails is an operation like any other; what it
// should have made durable may be gone.
const (
	failOnce    = "one failure"
	failForGood = "failure for good"
	crash       = "crash"
	tornCrash   = "crash in the middle of a write"
)

// settingsFor are those of a plan: half of them with zeros written ahead.
func (p plan) settings() settings {
	o := settings{flush: p.flush, segment: 8 << 10, fill: -1}
	if p.at%2 == 1 {
		o.fill = 4 << 10
	}
	return o
}

// cleanRun returns how many operations the story makes and the states of its metadata.
func cleanRun(t *testing.T, flush shard.FlushMode) (operations int, states []string) {
	bubble(t, t.Name(), func(t *testing.T) {
		mem := vfs.NewCrashableMem()
		fs := faultfs.New(mem)
		c := newStory(plan{flush: flush}.settings())
		c.types = &types{}
		require.NoError(t, c.run(fs))
		tell(t, "a run without faults", c.verify(mem, false, c.states))
		operations, states = fs.Count(), c.states
	})
	return operations, states
}

// TestEveryFaultOfEveryOperationKeepsWhatWasAnswered lets every single operation of
// the file system under log, views and metadata fail, once or for good, with an I/O
// error or for want of room, and lets the machine crash after each, in both flush modes.
// With PERIGEE_FAULTS=all it tries them all, else a sample chosen by PERIGEE_SEED.
func TestEveryFaultOfEveryOperationKeepsWhatWasAnswered(t *testing.T) {
	seed := number(t, "PERIGEE_SEED", rand.Uint64N(1<<40))
	rng := rand.New(rand.NewPCG(seed, 1))
	sample := 200
	if testing.Short() {
		sample = 50
	}
	states := map[shard.FlushMode][]string{}
	var plans []plan
	for _, flush := range []shard.FlushMode{shard.FlushSync, shard.FlushAsync} {
		n, s := cleanRun(t, flush)
		states[flush] = s
		require.Greater(t, n, 200)
		for at := range n + 5 { // goroutines make it vary a little
			for _, kind := range []string{failOnce, failForGood, crash, tornCrash} {
				plans = append(plans, plan{flush, kind, at})
			}
		}
	}
	all := len(plans)
	rng.Shuffle(len(plans), func(i, j int) { plans[i], plans[j] = plans[j], plans[i] })
	if os.Getenv("PERIGEE_FAULTS") != "all" {
		plans = plans[:sample]
	}
	t.Logf("PERIGEE_SEED=%d, %d of %d faults", seed, len(plans), all)
	var fired, failed atomic.Int64
	inParallel(t, len(plans), func(t *testing.T, i int) {
		p := plans[i]
		hit, stopped := tryPlan(t, p, states[p.flush], seed)
		if hit {
			fired.Add(1)
		}
		if stopped {
			failed.Add(1)
		}
	})
	t.Logf("%d faults came, %d of them stopped the node", fired.Load(), failed.Load())
	for flush, column := range map[shard.FlushMode]string{shard.FlushSync: "simulated, sync", shard.FlushAsync: "simulated, async"} {
		n := 0
		for _, p := range plans {
			if p.flush == flush {
				n++
			}
		}
		require.NoError(t, table.Add(table.Cell{Column: column, Row: "faults: each operation in turn", Value: fmt.Sprint(n)}))
	}
}

// tryPlan runs the story with the fault and verifies what is left, as a process finds it
// that is started again and as one that is started after a crash of the machine.
func tryPlan(t *testing.T, p plan, states []string, seed uint64) (hit, stopped bool) {
	bubble(t, p.String(), func(t *testing.T) {
		mem := vfs.NewCrashableMem()
		fs := faultfs.New(mem)
		rng := rand.New(rand.NewPCG(seed, uint64(p.at)))
		keep := []int{0, 40, 100}[p.at%3]
		clone := func() *vfs.MemFS { return mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: keep, RNG: rng}) }
		lossy := p.flush == shard.FlushAsync && keep < 100
		cause := []error{syscall.EIO, syscall.ENOSPC}[p.at%2]
		c := newStory(p.settings())
		c.types = &types{}
		var left *vfs.MemFS
		switch p.kind {
		case failOnce:
			fs.FailAt(p.at, cause)
		case failForGood:
			fs.FailFrom(p.at, cause)
		default:
			cut := -1
			if p.kind == tornCrash {
				cut = rng.IntN(200)
			}
			fs.CrashAfter(p.at, cut, func() {
				c.ledger.ends(lossy, time.Now())
				left = clone()
			})
		}
		err := c.run(fs)
		hit, stopped = fs.Fired(), err != nil
		switch {
		case !hit:
			require.NoError(t, err, p)
		case left != nil && err != nil:
			require.ErrorIs(t, err, faultfs.ErrCrashed, p)
		case err != nil:
			require.ErrorIs(t, err, cause, p)
			tell(t, fmt.Sprint(p, ", then a crash"), c.verify(clone(), lossy, states))
		}
		if left == nil {
			left = mem // the process ended, the machine did not
		}
		tell(t, p.String(), c.verify(left, lossy && left != mem, states))
	})
	return hit, stopped
}

// inParallel calls fn for 0 to n-1, in as many goroutines as there are processors.
func inParallel(t *testing.T, n int, fn func(t *testing.T, i int)) {
	t.Run("", func(t *testing.T) {
		workers := runtime.GOMAXPROCS(0)
		for w := range workers {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				for i := w; i < n && !t.Failed(); i += workers {
					fn(t, i)
				}
			})
		}
	})
}

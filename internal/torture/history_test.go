package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/internal/faultfs"
	"github.com/perigee-mq/perigee/internal/torture/table"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store"
	"github.com/perigee-mq/perigee/store/shard"
)

// tick is the step of the clients' time: they often act at the same moment.
const tick = 50 * time.Millisecond

// A history is several clients at work on one store that meets with one fault after
// the other. All of it follows from the seed, but for the order in which goroutines
// that are ready at the same moment run.
//
// The seed also says which kinds of messages there are, up to all of them: in one topic
// ordinary ones, such with a message group, delayed ones and half messages; in another
// one messages with priorities; and lite topics in a third.
type history struct {
	settings
	rng    *rand.Rand // of the goroutine that plans
	faults bool       // or the store is only closed and opened
	// inFlight is the limit of all receives, 0: none.
	inFlight int
	ledger   *ledger
	topics   []*mq.Topic
	kinds    []mq.MessageType // of the first topic
	names    []string         // of lite topics
	lites    *liteSets
	groups   []consumers
	resets   bool                // the places of groups are moved
	backups  *backups            // nil: none are made
	jumps    bool                // the wall clock is set now and then
	slow     bool                // the disk takes its time
	nextID   int                 // guarded by ledger.mu
	moving   map[mq.GroupID]bool // likewise: somebody moves its place
}

func newHistory(seed uint64, flush shard.FlushMode, faults bool) *history {
	rng := rand.New(rand.NewPCG(seed, 0))
	h := &history{
		settings: settings{flush: flush, segment: 16 << 10, fill: -1}, rng: rng, faults: faults, ledger: newLedger(),
		kinds: []mq.MessageType{mq.Normal}, moving: map[mq.GroupID]bool{},
	}
	some := func(n int) bool { return rng.IntN(n) > 0 }
	if !some(2) {
		h.fill = 4 << 10
	}
	if !some(3) {
		h.inFlight = 5
	}
	h.checks = shard.Transactions{First: 4 * tick, Interval: 6 * tick, MaxInterval: 12 * tick, MaxChecks: 2}
	for _, kind := range []mq.MessageType{mq.FIFO, mq.Delay, mq.Transaction} {
		if some(3) {
			h.kinds = append(h.kinds, kind)
		}
	}
	h.resets = some(2)
	dedup := 5 * time.Minute
	switch {
	case !some(4) && faults:
		h.jumps, h.resets, h.wall = true, false, h.ledger.clock.Now // offsets of times, and pop ids, go by the store's time
		dedup, h.checks.Remember = 1000*time.Hour, 1000*time.Hour
	case !some(4) && faults && flush == shard.FlushSync: // locks are held in the other mode
		h.slow, h.ledger.slow = true, 12*slowest
	}
	if !some(3) {
		dedup = 0
	}
	if !h.slow && some(2) {
		h.memtable = 4 << 10 // the views are written again and again
		h.ledger.crowd = crowd
	}
	topic := func(kind mq.TopicType, queues int32) {
		id := mq.TopicID(len(h.topics) + 1)
		h.topics = append(h.topics, &mq.Topic{
			ID: id, Resource: mq.Resource{Name: fmt.Sprint("topic-", id)}, Type: kind, Permission: mq.PermReadWrite, Dedup: dedup,
			Shards: []mq.ShardQueues{{Shard: shardName, Read: queues, Write: queues}}, Version: 1,
		})
	}
	topic(mq.TopicMixed, 3)
	if some(2) {
		topic(mq.TopicPriority, 3)
	}
	if some(2) {
		topic(mq.TopicLite, 2)
		h.names = []string{"one", "two", "three", "four"}
	}
	for id := range mq.GroupID(1 + rng.IntN(2)) {
		g := &mq.Group{ID: 1 + id, Resource: mq.Resource{Name: fmt.Sprint("g", id)}, Retry: mq.DefaultRetryPolicy(), DeadLetter: mq.TopicID(100 + id), Version: 1}
		g.Retry.MaxAttempts = mq.Attempt(1 + rng.IntN(4))
		g.FIFO, g.LiteExclusive = !some(2), !some(3)
		c := consumers{Group: g}
		if id > 0 {
			c.tags = tags[:1+rng.IntN(2)]
		}
		h.groups = append(h.groups, c)
		h.ledger.limits[g.ID] = g.Retry.MaxAttempts
	}
	return h
}

// run returns an error where the store cannot be opened or read at the end, which is
// a fault as well; the other ones are in the ledger.
func (h *history) run() error {
	disk := vfs.NewCrashableMem()
	for range 2 + h.rng.IntN(3) {
		var err error
		if disk, err = h.live(disk); err != nil {
			return err
		}
	}
	h.ledger.counts.restarts++
	s, err := openStore(disk, h.settings)
	if err != nil {
		return fmt.Errorf("open at the end: %w", err)
	}
	err = drain(context.Background(), s, h.ledger, h.topics, h.names, h.groups)
	if err := errors.Join(err, s.Close()); err != nil {
		return fmt.Errorf("drain: %w", err)
	}
	for _, f := range findings(disk) {
		h.ledger.fault(&h.ledger.counts.other, "check: %s", f)
	}
	return h.judgeBackups(disk)
}

// An ending is how a life of the store ends.
type ending int

const (
	closes          ending = iota // in order, at some time
	killed                        // the process at some time; what it wrote stays
	crashes                       // the machine at some time; what was not synced may go
	crashesAt                     // the machine after an operation, of which a part is done
	fails                         // one operation
	failsFrom                     // one operation and all after it
	failsAWhile                   // one operation, of which a part is done, and some after it
	failsAndCrashes               // one operation, and the machine after it
	drops                         // an fsync fails, and what it should have made durable is gone
	endings
)

// live runs clients on the disk until the life of the store ends, and returns the disk
// that is left for the next one.
func (h *history) live(mem *vfs.MemFS) (*vfs.MemFS, error) {
	how := closes
	if h.faults {
		how = ending(h.rng.IntN(int(endings)))
	}
	if h.jumps && h.rng.IntN(2) == 0 {
		h.ledger.clock.step(h.step(h.rng))
	}
	trace("the store is opened, and its life will end with %d", how)
	fs := faultfs.New(mem)
	h.ledger.drops(nil)
	if how == drops {
		h.ledger.drops(fs.Fired)
	}
	began := time.Now()
	defer func() {
		h.ledger.counts.lived += time.Since(began)
		if how < crashesAt || fs.Fired() {
			h.ledger.counts.came[how]++
		}
	}()
	if h.slow {
		h.slowDown(fs)
	}
	left := mem
	keep := []int{0, 0, 30, 70, 100}[h.rng.IntN(5)]
	rng := rand.New(rand.NewPCG(h.rng.Uint64(), 3)) // of the goroutine that crashes
	lossy := h.flush == shard.FlushAsync
	clone := func(percent int) {
		left = mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
	}
	at := h.rng.IntN(220)
	cause := []error{syscall.EIO, syscall.ENOSPC, faultfs.ErrInjected}[h.rng.IntN(3)]
	stopped := make(chan struct{})
	switch how {
	case crashesAt:
		cut := h.rng.IntN(400) - 200
		fs.CrashAfter(at, cut, func() {
			h.ledger.ends(lossy && keep < 100, time.Now())
			h.ledger.counts.crashes++
			clone(keep)
			close(stopped)
		})
	case fails, failsAndCrashes:
		fs.FailAt(at, cause)
	case failsFrom:
		fs.FailFrom(at, cause)
	case drops:
		fs.DropAt(at, cause)
	case failsAWhile:
		fs.FailFor(at, 1+h.rng.IntN(20), h.rng.IntN(300), cause)
	}

	var failed atomic.Bool
	var since atomic.Int64 // the failure, in Unix nanoseconds
	since.Store(time.Now().UnixNano())
	o := h.settings
	o.onFailure = func() {
		if failed.CompareAndSwap(false, true) && how != crashesAt {
			since.Store(time.Now().UnixNano())
			close(stopped)
		}
	}
	h.ledger.counts.restarts++
	var disk vfs.FS = fs
	if h.backups != nil {
		disk = slowly{fs, rand.New(rand.NewPCG(h.rng.Uint64(), 4))}
	}
	s, err := openStore(disk, o)
	if err != nil && !fs.Fired() {
		return nil, fmt.Errorf("open: %w", err)
	}
	if err == nil {
		h.ledger.opened()
		if how == closes && h.faults && !h.slow && h.backups == nil && h.rng.IntN(2) == 0 {
			h.readWrongly(fs)
		}
		h.work(s, disk, how, stopped, func() {
			h.ledger.ends(how == crashes && lossy && keep < 100, time.Now())
			if how == killed {
				clone(100)
			} else {
				h.ledger.counts.crashes++
				clone(keep)
			}
		})
	}
	if how >= fails && fs.Fired() {
		h.ledger.counts.failures++
		since := time.Unix(0, since.Load())
		if err == nil && !failed.Load() && s.Err() != nil {
			return nil, errors.New("the store has stopped and did not say so")
		}
		switch how {
		case failsAndCrashes:
			h.ledger.ends(lossy && keep < 100, since)
			clone(keep)
		case drops:
			h.ledger.ends(lossy, since)
			if h.rng.IntN(2) == 0 {
				clone(keep)
			}
		default:
			h.ledger.ends(false, since)
		}
	}
	return left, nil
}

// work lets clients work until the life ends.
func (h *history) work(s *store.Store, fs vfs.FS, how ending, stopped chan struct{}, crash func()) {
	life := h.ledger.now()
	h.lites = &liteSets{has: map[liteSet]map[string]bool{}, lost: map[liteSet]map[string]time.Time{}}
	ctx, cancel := context.WithCancel(context.Background())
	var clients sync.WaitGroup
	for n := range 1 + h.rng.IntN(3) {
		c := &client{h: h, s: s, life: life, name: fmt.Sprint("c", n), rng: rand.New(rand.NewPCG(h.rng.Uint64(), uint64(n)))}
		clients.Go(func() { c.run(ctx) })
	}
	if h.backups != nil {
		rng := rand.New(rand.NewPCG(h.rng.Uint64(), 4))
		clients.Go(func() { h.backUp(ctx, s, fs, rng) })
	}
	timer := time.NewTimer(time.Duration(1+h.rng.IntN(80)) * tick)
	if how >= crashesAt {
		timer.Reset(80 * tick) // in case the operation never comes
	}
	select {
	case <-timer.C:
	case <-stopped:
	}
	if how == killed || how == crashes {
		crash()
	}
	if h.rng.IntN(2) == 0 {
		cancel() // half of the closes are under load
		clients.Wait()
	}
	h.ledger.closing()
	_ = s.Close() // whoever is still answered after a crash is nobody's any more
	cancel()
	clients.Wait()
	h.ledger.closed()
}

// crowd is how late leases end at most that the shard ends in slices, while much of its
// views is on its way to disk, and what they are looked for with.
const crowd = 25 * time.Millisecond

// slowest is how long an operation of a slow disk takes at most.
const slowest = 10 * tick

// slowDown lets syncs and reads of the log take their time.
func (h *history) slowDown(fs *faultfs.FS) {
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(h.rng.Uint64(), 4))
	takes := func(chance int) time.Duration {
		mu.Lock()
		defer mu.Unlock()
		if rng.IntN(chance) > 0 {
			return 0
		}
		h.ledger.delayed()
		return time.Duration(rng.Int64N(int64(slowest)))
	}
	fs.Slow(func(op faultfs.Op) {
		if op.Kind == faultfs.SyncData && strings.Contains(op.Path, "/log/") {
			time.Sleep(takes(3))
		}
	})
	fs.Reads(func(path string, _ int64, _ []byte) {
		if strings.Contains(path, "/log/") {
			time.Sleep(takes(6))
		}
	})
}

// readWrongly lets some reads of messages come back with a bit that is another one.
func (h *history) readWrongly(fs *faultfs.FS) {
	h.ledger.startMisreading()
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(h.rng.Uint64(), 5))
	left := mostMisreads
	fs.Reads(func(path string, _ int64, p []byte) {
		mu.Lock()
		defer mu.Unlock()
		if left > 0 && strings.Contains(path, "/log/") && rng.IntN(6) == 0 {
			left--
			p[rng.IntN(len(p))] ^= 1 << rng.IntN(8)
			h.ledger.readWrong(path)
		}
	})
}

// step returns how far the wall clock is set: a little, or by hours.
func (h *history) step(rng *rand.Rand) time.Duration {
	d := time.Duration(1+rng.IntN(100)) * tick
	if rng.IntN(3) == 0 {
		d = time.Duration(1+rng.IntN(10)) * time.Hour
	}
	if rng.IntN(2) == 0 {
		return -d
	}
	return d
}

// number returns the number in an environment variable, or the fallback.
func number(t *testing.T, name string, fallback uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return fallback
	}
	n, err := strconv.ParseUint(text, 10, 64)
	require.NoError(t, err, name)
	return n
}

// TestHistoriesWithFaultsKeepWhatWasAcknowledged runs PERIGEE_HISTORIES histories in
// each mode, their seeds counted from PERIGEE_SEED.
func TestHistoriesWithFaultsKeepWhatWasAcknowledged(t *testing.T) {
	fallback := uint64(120)
	if testing.Short() {
		fallback = 25
	}
	n := number(t, "PERIGEE_HISTORIES", fallback)
	first := number(t, "PERIGEE_SEED", rand.Uint64N(1<<40))
	t.Logf("PERIGEE_SEED=%d PERIGEE_HISTORIES=%d", first, n)
	for _, mode := range []struct {
		name   string
		flush  shard.FlushMode
		faults bool
		n      uint64
	}{
		{"simulated, sync", shard.FlushSync, true, n},
		{"simulated, async", shard.FlushAsync, true, n},
		{"simulated, no faults", shard.FlushSync, false, n / 10},
	} {
		t.Run(mode.name, func(t *testing.T) {
			var mu sync.Mutex
			var sum counts
			ran := uint64(0)
			began := time.Now()
			inParallel(t, int(max(mode.n, 1)), func(t *testing.T, i int) {
				runHistory(t, first+uint64(i), mode.flush, mode.faults, func(c *counts) { // one that fails, too
					mu.Lock()
					defer mu.Unlock()
					sum.add(c)
					ran++
				})
			})
			t.Logf("%+v in %v", sum, time.Since(began).Round(time.Millisecond))
			require.NoError(t, table.Add(sum.cells(mode.name, ran)...))
		})
	}
}

// cells returns what a run adds to the table.
func (c *counts) cells(column string, histories uint64) []table.Cell {
	number := func(row string, n int) table.Cell { return table.Cell{Column: column, Row: row, Value: fmt.Sprint(n)} }
	cells := []table.Cell{
		number("histories", int(histories)),
		{Column: column, Row: "simulated hours", Value: fmt.Sprintf("%.1f", c.lived.Hours())},
		number("violations", c.violations()), number("acknowledged messages", c.acked), number("deliveries", c.deliveries),
		number("lost", c.lost), number("stuck", c.stuck), number("deliveries after an OK ack", c.afterAck),
		number("two holders at once", c.twoHolders), number("delivered early", c.early),
		number("seen against a recall or rollback", c.visible), number("out of order", c.order), number("other faults", c.other),
		number("of them FIFO", c.kinds[mq.FIFO]), number("of them delayed", c.kinds[mq.Delay]),
		number("of them half messages", c.kinds[mq.Transaction]), number("of them with a priority", c.kinds[mq.Priority]),
		number("of them to lite topics", c.kinds[mq.Lite]), number("recalls answered OK", c.recalls),
		number("transactions ended", c.ends), number("questions to producers", c.checks), number("groups moved", c.resets), number("sends repeated", c.repeats),
		{Column: column, Row: "worst redelivery lateness", Value: c.late.String()},
	}
	if c.crashes+c.failures == 0 {
		return append(cells, number("duplicates per million deliveries", c.duplicates*1_000_000/max(c.deliveries, 1)))
	}
	return append(cells,
		number("faults: process killed", c.came[killed]), number("faults: machine crashed", c.came[crashes]),
		number("faults: crashed in a write", c.came[crashesAt]), number("faults: one operation failed", c.came[fails]+c.came[failsAndCrashes]),
		number("faults: disk gone for good", c.came[failsFrom]), number("faults: disk full for a while", c.came[failsAWhile]), number("faults: fsync failed, data gone", c.came[drops]),
		number("faults: slow operations", c.delays), number("faults: reads gone wrong", c.misreads), number("faults: clock set", c.steps))
}

func runHistory(t *testing.T, seed uint64, flush shard.FlushMode, faults bool, ended func(*counts)) {
	var l *ledger
	defer func() {
		if l != nil {
			ended(&l.counts)
		}
	}()
	where := fmt.Sprintf("PERIGEE_SEED=%d PERIGEE_HISTORIES=1", seed)
	bubble(t, where, func(t *testing.T) {
		h := newHistory(seed, flush, faults)
		l = h.ledger
		if err := h.run(); err != nil {
			tell(t, where, []string{err.Error()})
		}
		_, l.counts.steps = l.clock.shifted()
		tell(t, where, l.faults)
	})
}

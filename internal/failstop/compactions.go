package failstop

import (
	"sync"

	"github.com/cockroachdb/pebble/v2"
)

// Compactions is a scheduler of Pebble's compactions, for one database. Unlike
// Pebble's own it has no ticker, so that an idle database does nothing. No compaction
// starts before Allow: one that fails while the database is opened would be waited for
// for ever. And none starts once the database has stopped, when each would fail, on a
// damaged table for instance, and be tried again at once.
//
// A compaction that is refused waits, and while one waits Pebble asks for no other. So
// everything that may let it run wakes the goroutine that grants: Allow, the end of
// another compaction, and Pebble's word that more may run than before.
type Compactions struct {
	stopped func() bool
	db      pebble.DBForCompaction // set once, before everything else

	poke chan struct{} // capacity 1: look whether one may run
	quit chan struct{}
	done chan struct{} // closed when the goroutine has ended

	mu struct {
		sync.Mutex // taken with Pebble's locks held; no call to Pebble but AllowedWithoutPermission
		allowed    bool
		closed     bool
		running    int
	}
}

// NewCompactions returns a scheduler that asks stopped before each compaction.
// stopped may be called with Pebble's locks held.
func NewCompactions(stopped func() bool) *Compactions {
	return &Compactions{
		stopped: stopped,
		poke:    make(chan struct{}, 1),
		quit:    make(chan struct{}),
		done:    make(chan struct{}),
	}
}

// Allow lets compactions begin; it is called once, when the database is open. The
// goroutine that it starts ends when the database is closed.
func (c *Compactions) Allow() {
	c.mu.Lock()
	c.mu.allowed = true
	c.mu.Unlock()
	go c.grant()
	c.UpdateGetAllowedWithoutPermission()
}

// Register implements pebble.CompactionScheduler.
func (c *Compactions) Register(_ int, db pebble.DBForCompaction) { c.db = db }

// Unregister implements pebble.CompactionScheduler.
func (c *Compactions) Unregister() {
	c.mu.Lock()
	c.mu.closed = true
	allowed := c.mu.allowed
	c.mu.Unlock()
	if allowed {
		close(c.quit)
		<-c.done
	}
}

// TrySchedule implements pebble.CompactionScheduler.
func (c *Compactions) TrySchedule() (bool, pebble.CompactionGrantHandle) {
	if !c.take() {
		return false, nil
	}
	return true, grant{c}
}

// UpdateGetAllowedWithoutPermission implements pebble.CompactionScheduler.
func (c *Compactions) UpdateGetAllowedWithoutPermission() {
	select {
	case c.poke <- struct{}{}:
	default:
	}
}

// take counts one more compaction, if one may run.
func (c *Compactions) take() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.mu.allowed || c.mu.closed || c.stopped() || c.mu.running >= c.db.GetAllowedWithoutPermission() {
		return false
	}
	c.mu.running++
	return true
}

func (c *Compactions) giveBack() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.running--
}

// grant lets waiting compactions run.
func (c *Compactions) grant() {
	defer close(c.done)
	for {
		select {
		case <-c.quit:
			return
		case <-c.poke:
		}
		for c.take() {
			if waits, _ := c.db.GetWaitingCompaction(); !waits || !c.db.Schedule(grant{c}) {
				c.giveBack()
				break
			}
		}
	}
}

// grant is the permission to run one compaction.
type grant struct{ c *Compactions }

// Started implements pebble.CompactionGrantHandle.
func (grant) Started() {}

// MeasureCPU implements pebble.CompactionGrantHandle.
func (grant) MeasureCPU(pebble.CompactionGoroutineKind) {}

// CumulativeStats implements pebble.CompactionGrantHandle.
func (grant) CumulativeStats(pebble.CompactionGrantHandleStats) {}

// Done implements pebble.CompactionGrantHandle.
func (g grant) Done() {
	g.c.giveBack()
	g.c.UpdateGetAllowedWithoutPermission()
}

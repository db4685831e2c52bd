// Package shard runs one shard: the log, the machine and the goroutine between
// them. It batches commands, appends them, makes them durable as the flush mode
// asks, applies them and answers; it wakes the receives that wait, ends leases
// on time and moves used-up messages to their dead-letter topic.
//
// It never decides what a command does (store/machine) and never looks into the
// log's files (store/commitlog). The store package is its caller.
package shard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/perigee-mq/perigee/internal/durable"
	"github.com/perigee-mq/perigee/internal/failstop"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/commitlog"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/machine"
)

// FlushMode says when what is acknowledged is on disk.
type FlushMode uint8

const (
	// FlushSync is before it is acknowledged or seen by a consumer. It survives
	// power loss.
	FlushSync FlushMode = iota
	// FlushAsync is at most FlushInterval later. It survives the end of the
	// process at once, and power loss after the flush.
	FlushAsync
)

// Options configure Open. Zero values mean the documented defaults.
type Options struct {
	// Name is the shard's name, the protocol's broker name.
	Name string
	// FS holds the files; vfs.Default when nil.
	FS vfs.FS
	// Dir is the shard's own directory, created when missing.
	Dir string
	// Flush is FlushSync by default; FlushInterval is 200 ms.
	Flush         FlushMode
	FlushInterval time.Duration
	// SegmentSize and ZeroFill are those of commitlog.Options. ZeroFill is off in
	// async mode by default: zeros make syncs cheap, and there are few, but they
	// double what is written.
	SegmentSize int64
	ZeroFill    int64
	// CacheSize bounds the block cache of the views: 32 MiB by default.
	CacheSize int64
	// MemTableSize is how many bytes of effects the views gather before they are
	// written: 32 MiB by default. Up to four times as many are in memory.
	MemTableSize int64
	// QueueBytes bounds the messages of the appends that wait for the loop or are
	// in it: 256 MiB by default. More are refused.
	QueueBytes int64
	// KnownBytes bounds the memory for what is known to have been sent within the Dedup
	// windows of topics: 128 MiB by default. What takes more is forgotten before its time,
	// that first which would be forgotten next.
	KnownBytes int64
	// Wall is the wall clock: time.Now by default. Delayed messages are delivered by it;
	// everything else goes by a clock that starts from it, and that no step of it moves.
	Wall func() time.Time
	// MaxWaiting bounds how many receives and pulls may wait for messages at a time; 0: no
	// bound.
	MaxWaiting int
	// Retention says how long messages are kept: for ever by default.
	Retention Retention
	// Transactions say when producers are asked about half messages.
	Transactions Transactions
	// LiteTopics bounds how many lite topics each topic may have; 0: no bound.
	LiteTopics int
	// LiteTTL is asked how long after it was written to last a lite topic of a topic
	// lives; 0: for ever. It is called as Retention.Of is. Nil: all live for ever.
	LiteTTL func(mq.TopicID) time.Duration
	// LiteInterval is how often the shard looks for lite topics to end: 10 s by default.
	LiteInterval time.Duration
	// Interrupt ends Open with ErrInterrupted when it is closed before the log is
	// replayed. Nothing is lost: the next Open begins where this one did, or later.
	Interrupt <-chan struct{}
	// Logger receives what an operator should know; silent when nil.
	Logger *slog.Logger
	// MaxSeries is how many topics, and how many pairs of group and topic, are
	// counted each by itself; 1,000 by default. The rest is counted together.
	MaxSeries int
	// OnFailure is called once when the shard stops for good, with Err set. It
	// must be quick and call nothing of the shard but Err. Nil: nobody is told.
	OnFailure func()
}

func (o Options) withDefaults() Options {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.FlushInterval == 0 {
		o.FlushInterval = 200 * time.Millisecond
	}
	if o.ZeroFill == 0 && o.Flush == FlushAsync {
		o.ZeroFill = -1
	}
	if o.CacheSize == 0 {
		o.CacheSize = 32 << 20
	}
	o.Transactions = o.Transactions.withDefaults()
	if o.Retention.Interval == 0 {
		o.Retention.Interval = 10 * time.Second
	}
	if o.LiteInterval == 0 {
		o.LiteInterval = 10 * time.Second
	}
	if o.MaxSeries == 0 {
		o.MaxSeries = 1000
	}
	if o.MemTableSize == 0 {
		o.MemTableSize = 32 << 20
	}
	if o.QueueBytes == 0 {
		o.QueueBytes = 256 << 20
	}
	if o.KnownBytes == 0 {
		o.KnownBytes = 128 << 20
	}
	if o.Wall == nil {
		o.Wall = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Logger = o.Logger.With("shard", o.Name)
	return o
}

// ErrInterrupted says that Options.Interrupt has ended Open.
var ErrInterrupted = errors.New("interrupted while the log was replayed")

// Shard is an open shard. Its methods may be called from any goroutine.
type Shard struct {
	opts    Options
	logger  *slog.Logger
	log     *commitlog.Log
	db      *pebble.DB
	viewsFS *failstop.FS     // of db
	machine *machine.Machine // the loop's alone
	clock   clock            // the loop's, but for peek
	turning atomic.Int64     // when the turn that the loop is in began, by the shard's clock; 0: it is in none
	told    atomic.Int64     // of which such turn the log has told that it hangs

	viewsMoved chan struct{} // capacity 1: a flush or compaction of the views has ended
	viewsSeen  uint64        // machine.Written when there was room for more; the loop's alone
	crowded    bool          // the views have half of what they may on its way to disk; the loop's alone
	expiry     expiry        // the loop's alone
	// held has the groups and topics whose pops get nothing for now; the loop's alone.
	held      map[keyspace.Sub]int
	forgotten int64 // when it was told that something was forgotten before its time; the loop's alone

	requests chan *request
	queued   atomic.Int64 // bytes of the appends in requests and in the loop
	pool     sync.Pool    // of *request
	waiters  waiters
	pulls    pulls
	looks    looks
	lites    lites
	unsynced chan struct{} // capacity 1: there is something to flush
	usedUp   chan struct{} // capacity 1: there is something to dead-letter
	timed    timed
	sweep    sweep
	asking   asking

	topics atomic.Uint64           // grows when a topic is registered, changed or deleted
	disk   atomic.Pointer[diskUse] // of the disk; nil while nothing is known or asked for
	scarce chan struct{}           // capacity 1: there may be less room than is known

	serving  context.Context // the shard's own, no call's: it ends when Close begins
	endCalls context.CancelCauseFunc
	closing  <-chan struct{} // that of serving
	stop     chan struct{}   // closed when the loop must end
	running  sync.WaitGroup
	closed   sync.Once
	closeErr error
	failure  atomic.Pointer[error]
	failed   chan struct{} // closed with failure set

	// submit.RLock is held while a request is put into the queue or the views are
	// read from outside the loop; Close takes the lock to know that no more will
	// come. Until receives under way have ended, what they give back is let through.
	submit struct {
		sync.RWMutex
		closed bool
		ended  bool // nothing is let through any more
	}
	receiving sync.WaitGroup // receives and a backup under way: added to under submit, and not once closed
	backingUp sync.Mutex     // held during a backup

	stats  stats
	stages stages
}

// Open recovers the shard in opts.Dir: it opens the log and the views, applies
// what the log has and the views have not, and starts the shard's goroutines.
// Damage is an error that names it; nothing is deleted to get started.
func Open(opts Options) (*Shard, error) {
	opts = opts.withDefaults()
	if opts.Name == "" || opts.Dir == "" {
		return nil, fmt.Errorf("shard: %w: name and directory are required", mq.ErrInvalid)
	}
	if err := errors.Join(opts.Retention.Validate(), opts.Transactions.Validate()); err != nil {
		return nil, fmt.Errorf("shard %s: %w", opts.Name, err)
	}
	s := &Shard{
		opts:       opts,
		logger:     opts.Logger,
		requests:   make(chan *request, 4096),
		viewsMoved: make(chan struct{}, 1),
		unsynced:   make(chan struct{}, 1),
		usedUp:     make(chan struct{}, 1),
		timed:      timed{wake: make(chan struct{}, 1)},
		sweep:      sweep{wake: make(chan struct{}, 1)},
		asking:     asking{giveUp: make(chan struct{}, 1)},
		scarce:     make(chan struct{}, 1),
		held:       map[keyspace.Sub]int{},
		stop:       make(chan struct{}),
		failed:     make(chan struct{}),
	}
	s.serving, s.endCalls = context.WithCancelCause(context.Background())
	s.closing = s.serving.Done()
	if err := s.open(); err != nil {
		return nil, fmt.Errorf("shard %s: %w", opts.Name, errors.Join(err, s.releaseFiles()))
	}
	if opts.Retention.Enabled() {
		r := &retainer{s: s}
		if begin := commitlog.Pos(s.machine.LogBegin().Pos); s.log.Segments()[0].Base < begin {
			r.pending = begin // an earlier life was interrupted
		}
		r.measure() // before the first send
		s.running.Go(func() { s.retain(r) })
	}
	s.running.Go(s.loop)
	s.running.Go(s.deadLetters)
	s.running.Go(s.deliverTimed)
	s.running.Go(s.sweepPending)
	s.running.Go(s.giveUpHalves)
	if opts.LiteTTL != nil {
		s.running.Go(s.endLites)
	}
	if opts.Flush == FlushAsync {
		s.running.Go(s.flusher)
	}
	return s, nil
}

func (s *Shard) open() (err error) {
	if err := durable.MakeDir(s.opts.FS, s.opts.Dir); err != nil {
		return err
	}
	if err := s.opts.FS.RemoveAll(s.opts.FS.PathJoin(s.opts.Dir, spareDir)); err != nil {
		s.logger.Warn("what a backup has left cannot be removed", "error", err)
	}
	reach, err := ReadReach(s.opts.FS, s.opts.Dir)
	if err != nil {
		return viewsError(ViewsDir(s.opts.FS, s.opts.Dir), err)
	}
	s.log, err = commitlog.Open(commitlog.Options{
		Reach: commitlog.Pos(reach.State.Pos),
		FS:    s.opts.FS, Dir: LogDir(s.opts.FS, s.opts.Dir),
		SegmentSize: s.opts.SegmentSize, ZeroFill: s.opts.ZeroFill, Logger: s.logger,
	})
	if err != nil {
		return err
	}
	first := s.log.Segments()[0]
	if reach.State.Index > 0 {
		err = reach.CheckBegin(first)
	}
	if err == nil {
		err = reach.checkRebuild(ViewsDir(s.opts.FS, s.opts.Dir), first)
	}
	if err != nil {
		return err
	}
	s.db, err = openViews(s)
	if err != nil {
		return viewsError(ViewsDir(s.opts.FS, s.opts.Dir), err)
	}
	// The directories of log and views are entries of this one.
	if err := durable.SyncDir(s.opts.FS, s.opts.Dir); err != nil {
		return err
	}
	s.machine, err = machine.Open(s.db)
	if err != nil {
		return viewsError(ViewsDir(s.opts.FS, s.opts.Dir), err)
	}
	if err := s.replay(); err != nil {
		return err
	}
	s.clock = newClock(s.machine.State().Time, s.opts.Wall())
	s.topics.Store(1) // a retainer knows none
	s.stats.open(s.machine, s.opts.MaxSeries)
	return nil
}

// interrupted returns ErrInterrupted if that is so.
func (s *Shard) interrupted() error {
	select {
	case <-s.opts.Interrupt:
		return ErrInterrupted
	default:
		return nil
	}
}

// LogDir returns where the log of the shard in dir is.
func LogDir(fs vfs.FS, dir string) string { return fs.PathJoin(dir, "log") }

// ViewsDir returns where the views of the shard in dir are.
func ViewsDir(fs vfs.FS, dir string) string { return fs.PathJoin(dir, "views") }

// Name returns the shard's name.
func (s *Shard) Name() string { return s.opts.Name }

// Err returns why the shard has stopped for good, or nil.
func (s *Shard) Err() error {
	if err := s.failure.Load(); err != nil {
		return *err
	}
	return nil
}

// notServing is the error of what was asked when the shard had stopped: nothing of it was
// done.
func (s *Shard) notServing() error { return fmt.Errorf("%w: %w", mq.ErrNotServing, s.Err()) }

// fail stops the shard for good. Nothing is acknowledged after it, and nothing of the
// views reaches the disk, also when another goroutine is about to stop it.
func (s *Shard) fail(cause error) {
	err := fmt.Errorf("shard %s: %w: %w", s.opts.Name, mq.ErrStopped, cause)
	first := s.failure.CompareAndSwap(nil, &err)
	if s.viewsFS != nil {
		s.viewsFS.Stop()
	}
	if first {
		s.logger.Error("shard stopped", "error", cause)
		close(s.failed)
		if s.opts.OnFailure != nil {
			s.opts.OnFailure()
		}
	}
}

// Close ends the shard in order:
//  1. no further request is taken, and waiting receives end empty; those that have
//     leased messages and not read them yet give them back;
//  2. the loop answers what it has taken, and the other goroutines end;
//  3. the log is synced and the views are flushed, so that the next open has
//     nothing to replay;
//  4. views and log are closed.
//
// It returns the failure of the shard, if that is why nothing could be flushed.
func (s *Shard) Close() error {
	s.closed.Do(func() {
		s.endCalls(fmt.Errorf("shard %s: %w", s.opts.Name, mq.ErrNotServing))
		s.submit.Lock()
		s.submit.closed = true
		s.submit.Unlock()
		s.receiving.Wait()
		s.submit.Lock()
		s.submit.ended = true
		s.submit.Unlock()
		close(s.stop)
		s.running.Wait()
		s.closeErr = s.Err()
		if s.closeErr == nil {
			s.closeErr = errors.Join(s.log.Sync(), s.flushViews())
		}
		s.closeErr = errors.Join(s.closeErr, s.releaseFiles())
	})
	return s.closeErr
}

// flushViews writes the views to disk. When the shard fails meanwhile, Pebble is told
// that the flush went well.
func (s *Shard) flushViews() error {
	done, err := s.db.AsyncFlush()
	if err != nil {
		return err
	}
	<-done
	return s.Err()
}

// releaseFiles closes what open has opened.
func (s *Shard) releaseFiles() error {
	var errs []error
	if s.machine != nil {
		errs = append(errs, s.machine.Close())
	}
	if s.db != nil {
		errs = append(errs, s.db.Close())
	}
	if s.log != nil {
		errs = append(errs, s.log.Close())
	}
	return errors.Join(errs...)
}

// flusher syncs the log one interval after something was appended.
func (s *Shard) flusher() {
	timer := time.NewTimer(s.opts.FlushInterval)
	timer.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-s.unsynced:
		}
		timer.Reset(s.opts.FlushInterval)
		select {
		case <-s.stop:
			timer.Stop()
			return
		case <-timer.C:
		}
		if _, err := s.sync(); err != nil {
			s.fail(err)
			return
		}
	}
}

// sync makes the log durable, and returns when that was done.
func (s *Shard) sync() (ended int64, err error) {
	began := s.clock.peek()
	if err := s.log.Sync(); err != nil {
		return 0, err
	}
	ended = s.clock.peek()
	s.stats.syncs.Add(1)
	s.stages.spent[StageFsync].Observe(time.Duration(ended - began))
	return ended, nil
}

// do hands r to the loop and waits for the answer. When ctx ends first the
// outcome is unknown and r must not be used again.
func (s *Shard) do(ctx context.Context, r *request) error {
	if err := s.send(ctx, r); err != nil {
		return err
	}
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return fmt.Errorf("shard %s: answer not awaited: %w", s.opts.Name, context.Cause(ctx))
	}
}

// queueWait is how long a send or receive waits for room in a full queue. One that
// does not move for so long would make it wait until its caller gives up.
const queueWait = 500 * time.Millisecond

// send puts r into the queue. The queue is bounded: when it is full, send waits
// until ctx ends, and with what brings new work for queueWait at most.
func (s *Shard) send(ctx context.Context, r *request) error {
	err := s.enqueue(ctx, r)
	if err != nil {
		s.forget(r)
	}
	return err
}

func (s *Shard) enqueue(ctx context.Context, r *request) error {
	s.submit.RLock()
	defer s.submit.RUnlock()
	closing, back := s.closing, r.givesBack()
	if s.submit.closed && !back || s.submit.ended {
		return context.Cause(s.serving)
	}
	if back {
		closing = nil // the loop goes on until it has them
	}
	if s.Err() != nil {
		return s.notServing()
	}
	if r.query == nil {
		r.submitted = s.clock.peek()
	}
	if r.kind == command.KindSend && r.query == nil {
		if err := s.stalled(r.submitted); err != nil {
			return err
		}
	}
	select {
	case s.requests <- r:
		return nil
	default:
	}
	var late <-chan time.Time
	if r.kind == command.KindSend || r.isPop() {
		timer := time.NewTimer(queueWait)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case s.requests <- r:
		return nil
	case <-closing:
		return context.Cause(s.serving)
	case <-ctx.Done():
		return fmt.Errorf("shard %s: %w: %w", s.opts.Name, mq.ErrBusy, context.Cause(ctx))
	case <-late:
		return fmt.Errorf("shard %s: its queue of %d requests was full for %s: %w", s.opts.Name, cap(s.requests), queueWait, mq.ErrBusy)
	}
}

// stallTime is how long the disk may keep the loop in one turn until sends are refused. They
// would wait until their callers give up, not knowing what has become of them; refused, they
// go to another shard, or are sent again when the disk answers.
const stallTime = 5 * time.Second

// stalled returns an error that wraps mq.ErrUnavailable while the loop hangs.
func (s *Shard) stalled(now int64) error {
	began := s.turning.Load()
	if began == 0 || now-began < int64(stallTime) {
		return nil
	}
	if s.told.Swap(began) != began {
		s.logger.Error("the disk does not answer: sends are refused until it does", "waited", time.Duration(now-began))
	}
	return fmt.Errorf("%w: shard %s: its disk has not answered for %v; nothing was stored",
		mq.ErrUnavailable, s.opts.Name, time.Duration(now-began).Round(time.Second))
}

// reserve counts the bytes of an append that is about to be put into the queue. It
// reports false when there are as many as may be; one is let in whatever its size.
// They are counted until the loop has answered, also when nobody waits any more.
func (s *Shard) reserve(r *request) bool {
	r.queued = int64(r.sent.Size())
	if n := s.queued.Add(r.queued); n <= s.opts.QueueBytes || n == r.queued {
		return true
	}
	s.forget(r)
	return false
}

// forget undoes reserve.
func (s *Shard) forget(r *request) {
	s.queued.Add(-r.queued)
	r.queued = 0
}

// answer gives r its answer. It belongs to its caller from then on.
func (s *Shard) answer(r *request, err error) {
	s.forget(r)
	r.answer(err)
}

package loadgen

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// afterError is how long a worker pauses after a call that failed, so that a
// server that is gone costs no processor.
const afterError = 50 * time.Millisecond

// worker makes one call at a time.
type worker interface {
	// step makes a call for up to n messages that was due at the given time. It
	// returns how many of them count towards the limit, and false when the
	// worker has nothing left to do.
	step(ctx context.Context, n int, due time.Time) (used int, more bool, err error)
	// finish ends what the steps have left open, also after the end of ctx.
	finish(ctx context.Context) error
}

// drive runs one worker per meter until the limit, the end of ctx, or until
// every worker has nothing left to do. The context of the calls ends with ctx;
// at the end of the duration calls under way go on, unless cut.
func drive(ctx context.Context, load Load, batch int, cut bool, meters []*meter, workers []worker) Result {
	start := time.Now()
	stop := make(chan struct{})
	calls, cancel := context.WithCancel(ctx)
	defer cancel()

	ends := newEnds(load.Limit, start)
	if cut && load.Limit.Duration > 0 {
		timer := time.AfterFunc(load.Limit.Duration, cancel)
		defer timer.Stop()
	}
	pace := newPacer(load.Rate, start)
	wait := watch(start, meters, load.Progress, stop)
	var running sync.WaitGroup
	for i, w := range workers {
		running.Go(func() { work(calls, w, meters[i], ends, pace, batch) })
	}
	running.Wait()
	elapsed := time.Since(start)
	close(stop)
	wait()
	return gather(elapsed, meters)
}

func work(ctx context.Context, w worker, m *meter, ends *ends, pace *pacer, batch int) {
	defer func() {
		if err := w.finish(context.WithoutCancel(ctx)); err != nil {
			m.failed(errorName(err), 1)
			m.gone = m.gone || status.Code(err) == codes.Unavailable
		}
	}()
	for ctx.Err() == nil {
		n := ends.take(batch)
		if n == 0 {
			return
		}
		due, ok := pace.wait(ctx, n, ends.deadline)
		if !ok {
			return
		}
		used, more, err := w.step(ctx, n, due)
		ends.refund(n - used)
		if err != nil {
			if ctx.Err() != nil {
				return // the end, not a failure
			}
			m.failed(errorName(err), 1)
			m.gone = status.Code(err) == codes.Unavailable
			pause(ctx, afterError)
		} else {
			m.gone = false
		}
		if !more {
			return
		}
	}
}

// pause waits for d or the end of ctx, and reports whether ctx goes on.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// ends hands out the messages of a load.
type ends struct {
	deadline time.Time // zero: none
	counted  bool
	left     atomic.Int64
}

func newEnds(l Limit, start time.Time) *ends {
	e := &ends{counted: l.Count > 0}
	e.left.Store(l.Count)
	if l.Duration > 0 {
		e.deadline = start.Add(l.Duration)
	}
	return e
}

// take returns how many of up to n messages may still go; 0 at the end.
func (e *ends) take(n int) int {
	if !e.deadline.IsZero() && !time.Now().Before(e.deadline) {
		return 0
	}
	if !e.counted {
		return n
	}
	left := e.left.Add(-int64(n)) + int64(n)
	return int(min(int64(n), max(left, 0)))
}

// refund gives back messages that were taken and did not come.
func (e *ends) refund(n int) {
	if e.counted {
		e.left.Add(int64(n))
	}
}

// pacer spaces calls evenly.
type pacer struct {
	start   time.Time
	spacing float64 // nanoseconds per message; 0: none
	taken   atomic.Int64
}

func newPacer(rate float64, start time.Time) *pacer {
	p := &pacer{start: start}
	if rate > 0 {
		p.spacing = float64(time.Second) / rate
	}
	return p
}

// wait returns when a call for n messages is due, and the time it was due at;
// false when ctx ends or the deadline comes before.
func (p *pacer) wait(ctx context.Context, n int, deadline time.Time) (time.Time, bool) {
	now := time.Now()
	if p.spacing == 0 {
		return now, true
	}
	before := p.taken.Add(int64(n)) - int64(n)
	due := p.start.Add(time.Duration(float64(before) * p.spacing))
	if !deadline.IsZero() && !due.Before(deadline) {
		return due, false
	}
	if due.After(now) {
		return due, pause(ctx, due.Sub(now))
	}
	return due, true
}

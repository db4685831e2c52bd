package router

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/perigee-mq/perigee/mq"
)

// settleTimeout is until when it must be known how a commit has ended.
const settleTimeout = 10 * time.Second

// A doubt is a commit of which it is to be found out how it has ended.
type doubt struct {
	revision uint64
	by       string
	verdict  verdict
}

type verdict uint8

const (
	undecided verdict = iota // the revision is not reached
	made                     // it is this commit's
	beaten                   // it is another commit's
	passed                   // it was passed without being seen
)

func (d *doubt) judge(s *snapshot) {
	if d.verdict != undecided || s.revision < d.revision {
		return
	}
	switch {
	case s.revision > d.revision:
		d.verdict = passed
	case s.by == d.by:
		d.verdict = made
	default:
		d.verdict = beaten
	}
}

// giveWay keeps routers that have met from coming back at the same time.
func giveWay(ctx context.Context, tries int) error {
	if tries > 1 && !pause(ctx, min(tries, 6), time.Second) {
		return ctx.Err()
	}
	return nil
}

// commitShared makes an edit durable and shows it, unless the error says otherwise. When
// it gets no answer it finds out what has become of the edit: the mark in the counters says
// whose revision it is. After ErrConflict what came first is shown.
func (r *Router) commitShared(ctx context.Context, e *edit) error {
	e.next.by, e.next.behind = newMark(), e.next.by
	entries := e.batch()
	r.showing.Lock()
	behind := r.current.Load().revision >= e.next.revision
	r.sharing.doubt = doubt{revision: e.next.revision, by: e.next.by}
	r.showing.Unlock()
	if behind {
		return ErrConflict // it was shown while the edit was prepared
	}

	finding, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	defer context.AfterFunc(r.sharing.ctx, cancel)()
	var unknown error
	for tries := 1; ; tries++ {
		err := r.backend.Commit(context.WithoutCancel(ctx), entries)
		switch {
		case err == nil:
			r.showing.Lock()
			r.showLocked(&e.next)
			r.showing.Unlock()
			return nil
		case errors.Is(err, mq.ErrOutcomeUnknown):
			unknown = err
		case unknown == nil && !errors.Is(err, ErrConflict):
			return err
		}
		// Also after a conflict: what came first may be this commit, sent twice on its way.
		switch found := r.outcome(finding); {
		case found == made:
			return nil
		case found == beaten, found == passed && unknown == nil:
			return ErrConflict // and can never be made any more
		case found == passed:
			return fmt.Errorf("%w, and what came then hides it", unknown)
		}
		// It was not made, and may still be: the same again is made once at most.
		if r.failed.Load() == nil && pause(finding, tries, time.Second) {
			continue
		}
		if unknown == nil {
			return fmt.Errorf("%w: %w", mq.ErrUnavailable, err)
		}
		return unknown
	}
}

// outcome finds out how the commit under way has ended, as far as it has.
func (r *Router) outcome(ctx context.Context) verdict {
	for tries := 1; ; tries++ {
		err := r.CatchUp(ctx)
		r.showing.Lock()
		found := r.sharing.doubt.verdict
		r.showing.Unlock()
		if err == nil || found != undecided || r.failed.Load() != nil || !pause(ctx, tries, time.Second) {
			return found
		}
	}
}

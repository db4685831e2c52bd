package proxy

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
)

// How long a receive may take. SDKs expect an answer, if an empty one, before
// their deadline.
const (
	// answerMargin is how long before a client's deadline it gets its answer at
	// the latest: the Rust SDK polls exactly as long as its deadline is.
	answerMargin = time.Second
	// shortMargin is the margin of a deadline below shortDeadline.
	shortMargin   = 500 * time.Millisecond
	shortDeadline = 5 * time.Second
	// minPolling is the shortest time worth polling for when the client wants
	// more than its deadline leaves.
	minPolling = time.Second
	// deadlineSlack is what the SDKs add to their polling time to get a deadline.
	deadlineSlack = 3 * time.Second
)

// polling returns how long the receive may wait, and whether the deadline is too
// short for the wait the client wants.
func (s *Server) polling(ctx context.Context, c client, asked *durationpb.Duration) (wait time.Duration, short bool, err error) {
	if asked == nil {
		if session := s.sessions.Get(c.ID); session != nil {
			asked = session.Settings().GetSubscription().GetLongPollingTimeout()
		}
	}
	left := room(ctx)
	switch {
	case asked == nil && hasDeadline(ctx):
		wait = left + margin(ctx) - deadlineSlack
		short = left < minPolling
	case asked == nil:
		wait = s.opts.MaxPolling
	case asked.CheckValid() != nil:
		return 0, false, refuse(rmqpb.Code_BAD_REQUEST, "long_polling_timeout %v is not a valid duration", asked)
	default:
		wait = min(asked.AsDuration(), s.opts.MaxPolling)
		short = wait > left && left < minPolling
	}
	if short {
		return 0, true, nil
	}
	return max(min(wait, left, s.opts.MaxPolling), 0), false, nil
}

func hasDeadline(ctx context.Context) bool {
	_, ok := ctx.Deadline()
	return ok
}

// margin is how long before its deadline a call is answered at the latest.
func margin(ctx context.Context) time.Duration {
	deadline, ok := ctx.Deadline()
	switch {
	case !ok:
		return 0
	case time.Until(deadline) < shortDeadline:
		return shortMargin
	default:
		return answerMargin
	}
}

// room returns how long an answer may take, the margin before the deadline kept
// free. Without a deadline there is all the time.
func room(ctx context.Context) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return maxInvisible
	}
	return max(time.Until(deadline)-margin(ctx), 0)
}

// pause waits for d, which may be over already, and reports false when ctx has ended.
// The call has waited for it on purpose.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	if waited := waitedIn(ctx); waited != nil {
		defer func(start time.Time) { *waited += time.Since(start) }(time.Now())
	}
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

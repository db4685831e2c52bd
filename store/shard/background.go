package shard

import (
	"errors"
	"math"
	"time"

	"github.com/perigee-mq/perigee/mq"
)

// background calls pass at once, for there may be something to do from before the start,
// then with each token in wake and when the time that pass has returned is over, until the
// shard ends. math.MaxInt64 waits for a token alone. An error of pass, but that of a shard
// that is closed, stops the shard for good.
func (s *Shard) background(wake <-chan struct{}, pass func() (wait time.Duration, err error)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-s.closing:
			return
		case <-s.failed:
			return
		case <-wake:
		case <-timer.C:
		}
		wait, err := pass()
		switch {
		case errors.Is(err, mq.ErrStopped):
			return
		case err != nil:
			s.fail(err)
			return
		case wait == math.MaxInt64:
			timer.Stop()
		default:
			timer.Reset(wait)
		}
	}
}

package shard

import (
	"time"

	"github.com/perigee-mq/perigee/mq"
)

// clock tells the shard's time in Unix nanoseconds. It starts from the wall
// clock, but never before the last time in the log, and goes on with the
// monotonic clock: a step of the wall clock moves no deadline. No two commands
// get the same time, which makes the time of a pop its id.
//
// The clock is read once for each round, and its commands follow each other by a
// nanosecond: a reading costs more than many a command.
type clock struct {
	base  time.Time
	wall  int64
	round int64 // when the round began
	last  int64
}

func newClock(last int64, wall time.Time) clock {
	begin := max(wall.UnixNano(), last)
	return clock{base: time.Now(), wall: begin, round: begin, last: last}
}

// begin notes that a round begins, and returns when.
func (c *clock) begin() int64 {
	c.round = c.peek()
	return c.round
}

// now returns the time of a command: that of the round, and later than every
// time before.
func (c *clock) now() int64 {
	c.last = max(c.round, c.last+1)
	return c.last
}

// wall reads the wall clock, in Unix nanoseconds.
func (s *Shard) wall() int64 { return s.opts.Wall().UnixNano() }

// peek reads the clock. It may be called from any goroutine.
func (c *clock) peek() int64 { return c.wall + int64(time.Since(c.base)) }

// Age returns how long ago the delivery was, by the shard's clock.
func (s *Shard) Age(delivery mq.PopID) time.Duration {
	return max(time.Duration(s.clock.peek()-int64(delivery)), 0)
}

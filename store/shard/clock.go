package shard

import "time"

// clock tells the shard's time in Unix nanoseconds. It starts from the wall
// clock, but never before the last time in the log, and goes on with the
// monotonic clock: a step of the wall clock moves no deadline. No two commands
// get the same time, which makes the time of a pop its id.
type clock struct {
	base time.Time
	wall int64
	last int64
}

func newClock(last int64) clock {
	now := time.Now()
	return clock{base: now, wall: max(now.UnixNano(), last), last: last}
}

// now returns the time, later than every time before.
func (c *clock) now() int64 {
	c.last = max(c.peek(), c.last+1)
	return c.last
}

// peek returns the time without using it up.
func (c *clock) peek() int64 { return c.wall + int64(time.Since(c.base)) }

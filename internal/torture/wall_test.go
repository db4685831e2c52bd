package main

import (
	"sync"
	"time"
)

// A wallClock is the wall clock of a history, which somebody sets forward and back. The
// time of the bubble is what a monotonic clock shows.
type wallClock struct {
	mu      sync.Mutex
	shift   time.Duration
	highest time.Time // that it has shown before it was set last
	steps   int
}

// Now returns what it shows.
func (c *wallClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.shift)
}

// latest returns the latest time that it has ever shown.
func (c *wallClock) latest() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now().Add(c.shift); now.After(c.highest) {
		return now
	}
	return c.highest
}

// step sets it.
func (c *wallClock) step(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now().Add(c.shift); now.After(c.highest) {
		c.highest = now
	}
	c.shift += d
	c.steps++
	trace("the wall clock is set by %v", d)
}

func (c *wallClock) shifted() (time.Duration, int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.shift, c.steps
}

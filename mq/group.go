package mq

import (
	"fmt"
	"math"
	"time"
)

// DefaultMaxAttempts is how often a message is delivered to a group before it
// is dead-lettered: once, and 16 retries.
const DefaultMaxAttempts = 17

// A Group is a consumer group as the router knows it. Values are shared between
// goroutines and must not be changed after they are published.
type Group struct {
	ID GroupID
	Resource
	FIFO  bool
	Retry RetryPolicy
	Start StartPosition
	// LiteTopic is the only topic whose lite topics the group may receive from, by its name
	// in the group's namespace; empty: any. LiteExclusive says that one client of the group
	// at a time has a lite topic.
	LiteTopic     string
	LiteExclusive bool
	// Broadcast says that each client of the group gets every message: it receives as a
	// group of its own, an instance, see InstanceOf.
	Broadcast bool
	// Seen is when the client of an instance was last seen, to the hour; zero for other
	// groups.
	Seen time.Time
	// DeadLetter identifies the topic that takes the group's used-up messages,
	// and DeadLetterShard the shard that serves its one queue.
	DeadLetter      TopicID
	DeadLetterShard string
	// Version grows with every change of the group, from 1.
	Version uint64
}

// StartPolicy says where a group without progress starts to read.
type StartPolicy uint8

// The start policies.
const (
	// StartEarliest begins at the oldest message retained.
	StartEarliest StartPolicy = iota
	// StartLatest begins behind the newest message at the group's first receive.
	StartLatest
	// StartTimestamp begins at the first message stored at or after a time.
	StartTimestamp
)

var startPolicyNames = [...]string{"earliest", "latest", "timestamp"}

// String returns the name the command line uses.
func (p StartPolicy) String() string {
	if int(p) < len(startPolicyNames) {
		return startPolicyNames[p]
	}
	return fmt.Sprintf("StartPolicy(%d)", uint8(p))
}

// A StartPosition is where a group starts to read the queues that exist when it
// first receives from a topic. Queues added later are read from their beginning.
type StartPosition struct {
	Policy StartPolicy
	Time   time.Time // with StartTimestamp
}

// A RetryPolicy says how often and after which delays a group gets a message
// that it did not acknowledge. The zero value is not valid; see DefaultRetryPolicy.
type RetryPolicy struct {
	// MaxAttempts counts deliveries, the first included; at least 1.
	MaxAttempts Attempt
	// Customized lists the delay after the first, second, ... attempt; the last
	// one repeats. It wins when it is not empty.
	Customized []time.Duration
	// Initial, Max and Multiplier describe exponential back-off.
	Initial    time.Duration
	Max        time.Duration
	Multiplier float64
}

// MaxRetryDelay is the longest delay a retry policy may ask for, equal to the
// longest invisible duration a client may set.
const MaxRetryDelay = 12 * time.Hour

// DefaultRetryPolicy is the level table of RocketMQ: 17 attempts, delays from
// one second to two hours.
func DefaultRetryPolicy() RetryPolicy {
	return RetryPolicy{
		MaxAttempts: DefaultMaxAttempts,
		Customized: []time.Duration{
			1 * time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second,
			1 * time.Minute, 2 * time.Minute, 3 * time.Minute, 4 * time.Minute, 5 * time.Minute,
			6 * time.Minute, 7 * time.Minute, 8 * time.Minute, 9 * time.Minute, 10 * time.Minute,
			20 * time.Minute, 30 * time.Minute, 1 * time.Hour, 2 * time.Hour,
		},
	}
}

// Delay returns how long a message stays invisible after its attempt-th
// delivery failed. Attempts below 1 count as 1.
func (p RetryPolicy) Delay(attempt Attempt) time.Duration {
	n := max(int(attempt), 1)
	if len(p.Customized) > 0 {
		return p.Customized[min(n, len(p.Customized))-1]
	}
	delay := float64(p.Initial) * math.Pow(p.Multiplier, float64(n-1))
	if !(delay < float64(p.Max)) { // also when the power overflowed
		return p.Max
	}
	return time.Duration(delay)
}

// Validate checks the policy; the error is an *InvalidError of kind ErrInvalid.
func (p RetryPolicy) Validate() error {
	invalid := func(field string, value any, reason string) error {
		return &InvalidError{Kind: ErrInvalid, Field: field, Value: fmt.Sprint(value), Reason: reason}
	}
	if p.MaxAttempts < 1 || p.MaxAttempts > 1000 {
		return invalid("max-attempts", p.MaxAttempts, "must lie between 1 and 1000")
	}
	if len(p.Customized) > 0 {
		if len(p.Customized) > 100 {
			return invalid("retry-delays", len(p.Customized), "may list at most 100 delays")
		}
		for _, d := range p.Customized {
			if d < 0 || d > MaxRetryDelay {
				return invalid("retry-delays", d, "each must lie between 0s and "+MaxRetryDelay.String())
			}
		}
		return nil
	}
	switch {
	case p.Initial <= 0 || p.Initial > MaxRetryDelay:
		return invalid("retry-initial", p.Initial, "must lie above 0s and not above "+MaxRetryDelay.String())
	case p.Max < p.Initial || p.Max > MaxRetryDelay:
		return invalid("retry-max", p.Max, "must lie between retry-initial and "+MaxRetryDelay.String())
	case !(p.Multiplier >= 1 && p.Multiplier <= 100):
		return invalid("retry-multiplier", p.Multiplier, "must lie between 1 and 100")
	}
	return nil
}

// A Backlog says how far a group is with a topic, in messages.
type Backlog struct {
	Topic    TopicID
	Ready    int64 // deliverable now: never delivered, or to be delivered again
	InFlight int64 // leased to a consumer
	UsedUp   int64 // waiting for a dead-letter copy
	Blocked  int64 // of a FIFO group: waiting for earlier ones of their message group
}

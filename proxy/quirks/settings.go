package quirks

import "time"

// FIFOBackoff is the form in which a push consumer of a FIFO group gets its
// retry policy.
type FIFOBackoff uint8

const (
	// ListedDelays is a list of delays, like everybody else's. All SDKs but one
	// read it, and the Python one reads nothing else.
	ListedDelays FIFOBackoff = iota
	// Exponential is for Node.js, which knows the largest number of attempts only
	// from this form. With a list it dead-letters a message that failed once.
	Exponential
	// ExponentialMillis is Exponential for an SDK that takes the number of
	// seconds for milliseconds. It gets the wanted milliseconds as seconds;
	// otherwise a message would use up its attempts within milliseconds.
	ExponentialMillis
)

// FIFOBackoffOf returns the form for a client.
func FIFOBackoffOf(l Language, version string) FIFOBackoff {
	if l != NodeJS {
		return ListedDelays
	}
	// 1.0.8 is the newest that is known to confuse the units. A later one may
	// be right, and would then wait a thousand times too long.
	if !atLeast(version, 1, 0, 9) {
		return ExponentialMillis
	}
	return Exponential
}

// WholeSeconds reports whether durations in settings must have no fraction.
// Python reads only the seconds, so that half a second becomes none; Node.js up
// to 1.0.7 throws when it sends settings with a fraction back.
func WholeSeconds(l Language) bool { return l == NodeJS || l == Python }

// SettingsAgain returns after how long the settings are sent once more without
// having been asked for; 0: not at all. Node.js loses a reply that arrives
// before the routes of all its topics and then waits in its start.
func SettingsAgain(l Language) time.Duration {
	if l == NodeJS {
		return 2 * time.Second
	}
	return 0
}

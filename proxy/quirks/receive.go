package quirks

import (
	"strconv"
	"strings"
	"time"
)

// EmptyReceiveOK reports whether a receive without messages is answered with OK
// instead of MESSAGE_NOT_FOUND. The Go push consumer miscounts its open polls
// when it reads MESSAGE_NOT_FOUND and then waits for them in vain when it stops.
// Everyone else wants the code: C++ pauses for a second after an empty OK.
func EmptyReceiveOK(l Language, autoRenew bool) bool {
	return l == Go && autoRenew
}

// TakesAddresses reports whether a client can take endpoints with several addresses in a route,
// and goes to another of them when one does not answer. C# goes to the first, and Node.js
// makes a target of all that leads nowhere.
func TakesAddresses(l Language) bool {
	switch l {
	case Java, Go, Rust, CPP:
		return true
	}
	return false
}

// DropsCutOffReceive reports whether a client drops the messages of a receive that
// ended with an error. The official SDKs hand out nothing before the end of the
// call; another client may have begun with what it read.
func DropsCutOffReceive(l Language) bool {
	switch l {
	case Java, Go, NodeJS, Python, Rust, DotNet, CPP:
		return true
	}
	return false
}

// EndedAckOK reports whether the ack of a delivery that is over, and whose message
// may be in other hands by now, is answered with OK instead of
// INVALID_RECEIPT_HANDLE. The push consumer of Rust does not give up on it, and
// sends no other ack of that queue until it reads OK.
func EndedAckOK(l Language, autoRenew bool) bool {
	return autoRenew && l == Rust
}

// EndedChangeOK reports whether changing the invisible duration of a delivery
// that is over is answered with OK instead of INVALID_RECEIPT_HANDLE. The push
// consumers of Go and Rust repeat the call until they read OK, for ever.
func EndedChangeOK(l Language, autoRenew bool) bool {
	return autoRenew && (l == Go || l == Rust)
}

// RetryDelayFromPolicy reports whether the server replaces the delay d that a
// consumer asks for after a failure by the one of the group's retry policy. The
// push consumer of Node.js takes the policy's seconds for milliseconds, and
// customized delays for 0, so that its failures would come back at once.
func RetryDelayFromPolicy(l Language, autoRenew bool, d time.Duration) bool {
	return l == NodeJS && autoRenew && d < time.Second
}

// KnowsIllegalPollingTime reports whether a client of that version knows the
// code ILLEGAL_POLLING_TIME. SDKs before 5.0.3 take it for a broken answer and
// get BAD_REQUEST, as do clients that do not say what they are.
func KnowsIllegalPollingTime(version string) bool {
	return atLeast(version, 5, 0, 3)
}

// KnowsEmptyBody reports whether a client of that version knows the code
// MESSAGE_BODY_EMPTY. Rust 5.0.0 was made before it and panics at every code that it
// does not know; it gets BAD_REQUEST.
func KnowsEmptyBody(l Language, version string) bool {
	return l != Rust || atLeast(version, 5, 0, 1)
}

// ReadsOnAfterStreamError reports whether a client goes on reading a Telemetry stream that
// ended with an error, and so spins for ever, with a line in its log each time: Rust stops
// at a normal end alone.
func ReadsOnAfterStreamError(l Language) bool { return l == Rust }

// atLeast reports whether version is want or later, compared number by number.
// What follows the numbers ("-SNAPSHOT") does not count; text without numbers
// is earlier than everything.
func atLeast(version string, want ...int) bool {
	parts := strings.Split(strings.TrimPrefix(strings.TrimSpace(version), "v"), ".")
	for i, w := range want {
		n := 0
		if i < len(parts) {
			digits := parts[i]
			if end := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
				digits, parts = digits[:end], parts[:i+1]
			}
			var err error
			if n, err = strconv.Atoi(digits); err != nil {
				n = 0
			}
		}
		if n != w {
			return n > w
		}
	}
	return true
}

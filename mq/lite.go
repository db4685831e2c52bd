package mq

import "fmt"

// FirstLiteQueue is the id of the first lite topic of a topic of type LITE on a shard: a
// lite topic is a queue of its own. Ordinary queues have lower ids.
const FirstLiteQueue QueueID = 1 << 20

// IsLite reports whether the queue is a lite topic.
func (q QueueID) IsLite() bool { return q >= FirstLiteQueue }

// MaxLiteName is the longest name of a lite topic, in characters.
const MaxLiteName = 64

// ValidateLiteTopic checks the name of a lite topic: letters, digits, _ and -. The error
// is an *InvalidError of kind ErrIllegalLiteTopic.
func ValidateLiteTopic(name string) error {
	reason := ""
	switch {
	case name == "":
		reason = "must not be empty"
	case len(name) > MaxLiteName:
		reason = fmt.Sprintf("has %d characters, the limit is %d", len(name), MaxLiteName)
	default:
		for i := range len(name) {
			c := name[i]
			if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' && c != '-' {
				reason = "must consist of letters, digits, _ and -"
			}
		}
	}
	if reason == "" {
		return nil
	}
	return &InvalidError{Kind: ErrIllegalLiteTopic, Field: "lite_topic", Value: Shorten(name), Reason: reason}
}

// LiteStart says where a group begins to read a lite topic.
type LiteStart uint8

// The starts of a subscription to a lite topic.
const (
	// LiteDefault is where the group is, and behind the newest message when it has no
	// place there yet.
	LiteDefault LiteStart = 0
	// LiteLast is where the group is, and the oldest message when it has no place yet.
	LiteLast LiteStart = 1
	// LiteMin is the oldest message, LiteMax behind the newest.
	LiteMin LiteStart = 2
	LiteMax LiteStart = 3
	// LiteOffset is the offset Value, or the nearest one there is.
	LiteOffset LiteStart = 4
	// LiteTail is Value messages before the place of the group, or before the end when it
	// has none.
	LiteTail LiteStart = 5
	// LiteTime is the first message stored at Value or later, in Unix nanoseconds.
	LiteTime LiteStart = 6
)

var liteStartNames = [...]string{"default", "last", "min", "max", "offset", "tail", "time"}

// String returns the name of the start.
func (s LiteStart) String() string {
	if int(s) < len(liteStartNames) {
		return liteStartNames[s]
	}
	return fmt.Sprintf("LiteStart(%d)", uint8(s))
}

// A LitePlace says where lite topics are read from that are new to a subscription.
type LitePlace struct {
	Start LiteStart
	Value int64
	// Again says that it holds for a group, too, that has a place already. Without it such
	// a group goes on where it is.
	Again bool
}

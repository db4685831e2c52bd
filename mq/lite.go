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

var liteStartNames = [...]string{
	LiteDefault: "default", LiteMin: "min", LiteMax: "max", LiteOffset: "offset", LiteTail: "tail", LiteTime: "time",
}

// Valid reports whether there is such a start.
func (s LiteStart) Valid() bool { return int(s) < len(liteStartNames) && liteStartNames[s] != "" }

// String returns the name of the start.
func (s LiteStart) String() string {
	if s.Valid() {
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

// LiteAction is what a client does to its set of lite topics; the numbers are the
// protocol's.
type LiteAction uint8

// The actions of the protocol.
const (
	LiteAdd     LiteAction = 0 // add the names
	LiteRemove  LiteAction = 1 // remove the names
	LiteReplace LiteAction = 2 // the names are the whole set
	LiteLeave   LiteAction = 3 // remove the whole set
)

// A LiteSync says which lite topics of a topic a client of a group wants.
type LiteSync struct {
	Topic  *Topic
	Group  *Group
	Client string
	Action LiteAction
	Names  []string
	// Version grows with each change of the client's set; a LiteReplace older than one
	// before is passed over. 0: it is not known.
	Version int64
	Place   LitePlace
	// Exclusive says that of a group one client at a time has a lite topic: whoever adds
	// it takes it from the others.
	Exclusive bool
	// ClientQuota is how many lite topics the client may have, TotalQuota how many all
	// clients of the shard together, each counted for each client; 0: no limit.
	ClientQuota, TotalQuota int
}

// A LiteLoss is a lite topic that a client has lost to another.
type LiteLoss struct {
	Client string
	Topic  TopicID
	Group  GroupID
	Name   string
}

// A LiteWaiting is what of the lite topics of a topic waits for one group: Messages that it was
// never given, of so many lite topics in which it has a place, the oldest of which was
// stored Age nanoseconds ago; 0 without one.
type LiteWaiting struct {
	Messages, Topics, Age int64
}

// A LiteStock is what the lite topics of a topic hold, and what of it waits for each of the
// groups that have received from the topic.
type LiteStock struct {
	Topics, Messages int64
	Groups           map[GroupID]LiteWaiting
}

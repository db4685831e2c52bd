package mq

import (
	"fmt"
	"strings"
	"time"
)

// Limits on names, in characters. They are those of RocketMQ, so that every
// name an SDK accepts is accepted here.
const (
	MaxTopicName = 127
	MaxGroupName = 120
)

// DeadLetterPrefix starts the name of the topic that holds the used-up messages
// of a group: "%DLQ%" followed by the group's name.
const DeadLetterPrefix = "%DLQ%"

// SystemGroupPrefix starts the names of consumer groups of the server itself.
// Clients can neither create nor use them.
const SystemGroupPrefix = "%SYS%"

// instancePrefix starts the names of the instances of a broadcast group.
const instancePrefix = SystemGroupPrefix + "broadcast-"

// The times of instances: how exactly Group.Seen is kept, and how long an instance is
// kept whose client is not seen any more.
const (
	InstanceSeenEvery = time.Hour
	InstanceKept      = 24 * time.Hour
)

// InstanceOf returns the name of the group by which one client of a broadcast group
// receives.
func (g *Group) InstanceOf(client string) Resource {
	return Resource{g.Namespace, fmt.Sprintf("%s%d-%016x", instancePrefix, g.ID, HashName(client))}
}

// HasInstance reports whether the named group is an instance of g.
func (g *Group) HasInstance(r Resource) bool {
	return r.Namespace == g.Namespace && strings.HasPrefix(r.Name, fmt.Sprintf("%s%d-", instancePrefix, g.ID))
}

// IsInstance reports whether the named group is an instance of some group.
func (r Resource) IsInstance() bool { return strings.HasPrefix(r.Name, instancePrefix) }

// RedriveGroup is the consumer group, one in each namespace, whose progress in a
// dead-letter topic says which dead letters were sent back.
const RedriveGroup = SystemGroupPrefix + "redrive"

// A Resource names a topic or a group. The empty namespace is the default one;
// names in different namespaces never meet.
type Resource struct {
	Namespace string
	Name      string
}

// String returns the name, with the namespace and a slash before it when there
// is one. The slash is legal in neither, so the text is unambiguous.
func (r Resource) String() string {
	if r.Namespace == "" {
		return r.Name
	}
	return r.Namespace + "/" + r.Name
}

// DeadLetterTopic returns the name of the topic that receives the used-up
// messages of the group r.
func (r Resource) DeadLetterTopic() Resource {
	return Resource{Namespace: r.Namespace, Name: DeadLetterPrefix + r.Name}
}

// DeadLetterGroup returns the group whose used-up messages the topic r holds,
// and whether r is such a topic.
func (r Resource) DeadLetterGroup() (Resource, bool) {
	group, ok := strings.CutPrefix(r.Name, DeadLetterPrefix)
	return Resource{Namespace: r.Namespace, Name: group}, ok && group != ""
}

// An InvalidError says which input is wrong, what it was, and which rule it
// breaks. It matches the sentinel of its kind with errors.Is.
type InvalidError struct {
	Kind   error  // ErrIllegalTopic, ErrIllegalGroup, ErrInvalid
	Field  string // the protocol's or command line's name of the input
	Value  string // what was given, shortened when it is long
	Reason string // the rule, with its limit
}

// Error names the field, the value and the rule.
func (e *InvalidError) Error() string {
	return fmt.Sprintf("%s %q: %s", e.Field, e.Value, e.Reason)
}

// Unwrap returns the sentinel that says what kind of input is wrong.
func (e *InvalidError) Unwrap() error { return e.Kind }

// ValidateTopic checks the name of a topic: 1 to 127 characters out of letters,
// digits, underscore, hyphen, percent sign and vertical bar, and none of the
// names RocketMQ keeps for itself. The error is an *InvalidError of kind
// ErrIllegalTopic.
func ValidateTopic(name string) error {
	limit := MaxTopicName
	if strings.HasPrefix(name, DeadLetterPrefix) {
		// A group of the longest legal name must have a dead-letter topic.
		limit = MaxGroupName + len(DeadLetterPrefix)
	}
	if reason := checkName(name, limit); reason != "" {
		return &InvalidError{Kind: ErrIllegalTopic, Field: "topic", Value: Shorten(name), Reason: reason}
	}
	if systemTopics[name] || strings.HasPrefix(name, "rmq_sys_") {
		return &InvalidError{Kind: ErrIllegalTopic, Field: "topic", Value: name, Reason: "is reserved for the system"}
	}
	return nil
}

// ValidateGroup checks the name of a consumer group: 1 to 120 characters of the
// topic alphabet, and no reserved name. The error is an *InvalidError of kind
// ErrIllegalGroup.
func ValidateGroup(name string) error {
	if reason := checkName(name, MaxGroupName); reason != "" {
		return &InvalidError{Kind: ErrIllegalGroup, Field: "group", Value: Shorten(name), Reason: reason}
	}
	if systemGroups[name] || strings.HasPrefix(name, "CID_RMQ_SYS_") || strings.HasPrefix(name, SystemGroupPrefix) {
		return &InvalidError{Kind: ErrIllegalGroup, Field: "group", Value: name, Reason: "is reserved for the system"}
	}
	return nil
}

// ValidateNamespace checks a namespace: at most 127 characters of the topic
// alphabet; empty is the default namespace.
func ValidateNamespace(name string) error {
	if name == "" {
		return nil
	}
	if reason := checkName(name, MaxTopicName); reason != "" {
		return &InvalidError{Kind: ErrInvalid, Field: "namespace", Value: Shorten(name), Reason: reason}
	}
	return nil
}

func checkName(name string, limit int) string {
	if strings.TrimSpace(name) == "" {
		return "must not be blank"
	}
	for i := 0; i < len(name); i++ {
		c := name[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9',
			c == '_', c == '-', c == '%', c == '|':
		default:
			return "may hold only letters, digits, and the characters _ - % |"
		}
	}
	if len(name) > limit {
		return fmt.Sprintf("has %d characters, the limit is %d", len(name), limit)
	}
	return ""
}

// Shorten returns s for use in an error text: as it is up to 64 bytes, else its
// beginning followed by three dots.
func Shorten(s string) string {
	const limit = 64
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "..."
}

// Names that RocketMQ keeps for itself and refuses to clients.
var systemTopics = map[string]bool{
	"TBW102": true, "SCHEDULE_TOPIC_XXXX": true, "BenchmarkTest": true,
	"RMQ_SYS_TRANS_HALF_TOPIC": true, "RMQ_SYS_TRACE_TOPIC": true,
	"RMQ_SYS_TRANS_OP_HALF_TOPIC": true, "TRANS_CHECK_MAX_TIME_TOPIC": true,
	"SELF_TEST_TOPIC": true, "OFFSET_MOVED_EVENT": true, "CHECKPOINT_TOPIC": true,
}

var systemGroups = map[string]bool{
	"DEFAULT_CONSUMER": true, "DEFAULT_PRODUCER": true, "TOOLS_CONSUMER": true,
	"SCHEDULE_CONSUMER": true, "FILTERSRV_CONSUMER": true, "__MONITOR_CONSUMER": true,
	"CLIENT_INNER_PRODUCER": true, "SELF_TEST_P_GROUP": true, "SELF_TEST_C_GROUP": true,
	"CID_ONS-HTTP-PROXY": true, "CID_ONSAPI_PERMISSION": true, "CID_ONSAPI_OWNER": true,
	"CID_ONSAPI_PULL": true, "CID_RMQ_SYS_TRANS": true,
}

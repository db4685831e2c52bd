package session

import (
	"slices"
	"time"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
)

// maxReceived bounds how many topics are remembered of a client that never sends
// settings.
const maxReceived = 64

// About is what each call of a client says of it.
type About struct {
	Address   string // the peer's host:port
	Language  string
	Version   string
	Namespace string
}

// A role is what a client without settings was seen to do.
type role struct {
	kind     rmqpb.ClientType
	group    mq.Resource
	received []mq.Subscription
}

// Note notes what the client says of itself.
func (s *Session) Note(about About) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.about = about
}

// Heartbeat notes what the client says it is; what it leaves out stays.
func (s *Session) Heartbeat(kind rmqpb.ClientType, group mq.Resource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if kind != rmqpb.ClientType_CLIENT_TYPE_UNSPECIFIED {
		s.mu.role.kind = kind
	}
	if group.Name != "" {
		s.mu.role.group = group
	}
}

// Received notes what the client receives. It is of interest only for a client
// that sends no settings, and does nothing for others.
func (s *Session) Received(group mq.Resource, sub mq.Subscription) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.settings != nil {
		return
	}
	r := &s.mu.role
	r.group = group
	if len(r.received) < maxReceived && !slices.Contains(r.received, sub) {
		r.received = append(r.received, sub)
	}
}

// A Description is what is known of a client at one moment.
type Description struct {
	About
	Settings *rmqpb.Settings // the last ones; nil: none. They must not be changed
	// What a client without settings said with its heartbeats, and was seen to
	// receive.
	Kind     rmqpb.ClientType
	Group    mq.Resource
	Received []mq.Subscription

	Streams int  // open ones
	Lost    bool // the last one has ended, and no call came since
	Seen    time.Time
}

// Describe returns what is known of the client.
func (s *Session) Describe() Description {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Description{
		About: s.mu.about, Settings: s.mu.settings,
		Kind: s.mu.role.kind, Group: s.mu.role.group, Received: slices.Clone(s.mu.role.received),
		Streams: len(s.mu.streams), Seen: s.Seen(),
		Lost: len(s.mu.streams) == 0 && s.seen.Load() < s.mu.lost,
	}
}

package mq

import "time"

// A Client is one client of the front, as an operator sees it.
type Client struct {
	ID       string
	Address  string // the peer's host:port
	Language string
	Version  string
	Type     ClientType
	// Group is the consumer group; the zero Resource for a producer or when it is
	// not known.
	Group Resource
	// Subscriptions are the topics that the client receives from or sends to.
	Subscriptions []Subscription
	// Streams is how many Telemetry streams it has open.
	Streams int
	// Lost says that its last stream has ended and no call came since.
	Lost bool
	// Renewing is how many leases the server keeps alive for it.
	Renewing int
	// Seen is when it last gave a sign of life.
	Seen time.Time
}

// A Subscription is a topic that a client receives from, or sends to.
type Subscription struct {
	Topic      Resource
	Expression string // the filter of a consumer; empty for a producer
}

// ClientType says what a client does; the numbers are the protocol's.
type ClientType uint8

// The client types of the protocol.
const (
	ClientUnspecified    ClientType = 0
	ClientProducer       ClientType = 1
	ClientPushConsumer   ClientType = 2
	ClientSimpleConsumer ClientType = 3
)

// A ClientSelection says which clients are wanted: those whose ids come behind
// After, in the order of the ids, Max at most.
type ClientSelection struct {
	Group Resource // only of this group; the zero Resource: of all
	Topic Resource // only of this topic; the zero Resource: of all
	After string
	Max   int
}

// Has reports whether the client is of the group and topic wanted.
func (s ClientSelection) Has(c *Client) bool {
	if s.Group != (Resource{}) && c.Group != s.Group {
		return false
	}
	if s.Topic == (Resource{}) {
		return true
	}
	for _, sub := range c.Subscriptions {
		if sub.Topic == s.Topic {
			return true
		}
	}
	return false
}

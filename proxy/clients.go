package proxy

import (
	"cmp"
	"slices"
	"unicode/utf8"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/proxy/session"
)

// maxListed bounds the subscriptions in one list of clients, which may have
// thousands each.
const maxListed = 10_000

// Clients returns the clients of this server that are wanted, in the order of their
// ids, and whether there are more behind the last one. A list with many
// subscriptions is shorter than wanted. Clients whose ids are no text are left out.
func (s *Server) Clients(sel mq.ClientSelection) (list []mq.Client, more bool) {
	sessions := s.sessions.All()
	slices.SortFunc(sessions, func(a, b *session.Session) int { return cmp.Compare(a.ID, b.ID) })
	listed := 0
	for _, one := range sessions {
		if one.ID <= sel.After || !utf8.ValidString(one.ID) {
			continue
		}
		c := clientIn(one)
		if !sel.Has(&c) {
			continue
		}
		if listed += len(c.Subscriptions); len(list) == sel.Max || len(list) > 0 && listed > maxListed {
			return list, true
		}
		c.Renewing = s.renewals.of(c.ID)
		list = append(list, c)
	}
	return list, false
}

// clientIn returns what a session says of its client. Its settings count before
// what it was seen to do.
func clientIn(one *session.Session) mq.Client {
	d := one.Describe()
	c := mq.Client{
		ID: one.ID, Address: d.Address, Language: told(d.Language), Version: told(d.Version),
		Type: mq.ClientType(d.Kind), Group: d.Group, Subscriptions: d.Received,
		Streams: d.Streams, Lost: d.Lost, Seen: d.Seen,
	}
	if d.Settings == nil {
		return c
	}
	named := client{Namespace: d.Namespace}
	c.Subscriptions = nil
	if t := d.Settings.GetClientType(); t != rmqpb.ClientType_CLIENT_TYPE_UNSPECIFIED {
		c.Type = mq.ClientType(t)
	}
	for _, topic := range d.Settings.GetPublishing().GetTopics() {
		c.Subscriptions = append(c.Subscriptions, mq.Subscription{Topic: named.resource(topic)})
	}
	if consumes := d.Settings.GetSubscription(); consumes != nil {
		c.Group = named.resource(consumes.GetGroup())
		for _, e := range consumes.GetSubscriptions() {
			c.Subscriptions = append(c.Subscriptions, mq.Subscription{
				Topic: named.resource(e.GetTopic()), Expression: expressionOf(e.GetExpression()),
			})
		}
	}
	return c
}

// expressionOf returns the text of a filter, shortened, and "*" for none.
func expressionOf(f *rmqpb.FilterExpression) string {
	return cmp.Or(mq.Shorten(f.GetExpression()), "*")
}

// about is what the call says of its client.
func (c client) about() session.About {
	return session.About{Address: c.Address, Language: string(c.Language), Version: c.Version, Namespace: c.Namespace}
}

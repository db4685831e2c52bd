package proxy

import (
	"context"
	"fmt"
	"net"
	"strings"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/proxy/quirks"
	"github.com/perigee-mq/perigee/proxy/session"
	"github.com/perigee-mq/perigee/proxy/transport"
)

// Headers that a client sends with every call.
const (
	headerClientID  = "x-mq-client-id"
	headerLanguage  = "x-mq-language"
	headerVersion   = "x-mq-client-version"
	headerNamespace = "x-mq-namespace"
)

// maxClientID is the longest client id, in bytes. SDKs make theirs of the host's
// name and a few numbers; sessions are kept by it.
const maxClientID = 1024

// A client is who makes a call, as far as the headers tell. Only the id is
// required; a header that is repeated counts with its first value, because the
// Go SDK repeats all of them on a retried send.
type client struct {
	ID        string
	Language  quirks.Language
	Version   string
	Namespace string
	Address   string // the peer's host:port
	Host      string // the peer's address without its port
	conn      *transport.Connection
}

// caller returns who makes the call and notes a sign of life of its session,
// where there is one. The error is CLIENT_ID_REQUIRED, or BAD_REQUEST for an id
// that is too long.
func (s *Server) caller(ctx context.Context) (client, error) {
	c := clientOf(ctx)
	if c.ID == "" {
		return c, refuse(rmqpb.Code_CLIENT_ID_REQUIRED, "header %s must not be missing or blank", headerClientID)
	}
	if len(c.ID) > maxClientID {
		return c, refuse(rmqpb.Code_BAD_REQUEST, "header %s has %d bytes, the limit is %d", headerClientID, len(c.ID), maxClientID)
	}
	session := s.sessions.Seen(c.ID)
	s.heard(c, session != nil)
	return c, nil
}

// touch notes a sign of life of the client and returns its session, made if there is
// none. The error wraps mq.ErrBusy: there are as many as may be.
func (s *Server) touch(c client) (*session.Session, error) {
	one := s.sessions.Touch(c.ID)
	if one == nil {
		return nil, fmt.Errorf("this server knows %d clients, which is as many as it may (max_sessions); those that fall silent are forgotten after %v: %w",
			s.opts.MaxSessions, s.opts.SessionTimeout, mq.ErrBusy)
	}
	one.Note(c.about())
	return one, nil
}

// resources returns what the client names.
func (c client) resources(names []*rmqpb.Resource) []mq.Resource {
	list := make([]mq.Resource, len(names))
	for i, name := range names {
		list[i] = c.resource(name)
	}
	return list
}

func clientOf(ctx context.Context) client {
	first := func(key string) string { // all of the metadata would be a copy of all of it
		if v := metadata.ValueFromIncomingContext(ctx, key); len(v) > 0 {
			return strings.TrimSpace(v[0])
		}
		return ""
	}
	c := client{
		ID:        first(headerClientID),
		Language:  quirks.ParseLanguage(first(headerLanguage)),
		Version:   first(headerVersion),
		Namespace: first(headerNamespace),
		conn:      transport.ConnectionOf(ctx),
	}
	if p, ok := peer.FromContext(ctx); ok {
		c.Address = p.Addr.String()
		c.Host = c.Address
		if host, _, err := net.SplitHostPort(c.Host); err == nil {
			c.Host = host
		}
	}
	return c
}

// resource returns the resource that r names: its own namespace counts first,
// then that of the header (the Node.js SDK sets only the header).
func (c client) resource(r *rmqpb.Resource) mq.Resource {
	res := mq.Resource{Namespace: r.GetResourceNamespace(), Name: r.GetName()}
	if res.Namespace == "" {
		res.Namespace = c.Namespace
	}
	return res
}

package proxy

import (
	"context"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
)

// Heartbeat notes that a client is alive. It is one of the signs of life, as is
// every other call and an open Telemetry stream; while there are any, the server
// renews what it renews for the client.
//
// Fields: client_type; group, checked when it has a name.
//
// Codes: OK for every client that says what it is or is known here, also right
// after a restart of the server; UNRECOGNIZED_CLIENT_TYPE for one that does
// neither; ILLEGAL_CONSUMER_GROUP; TOO_MANY_REQUESTS when as many clients are known as
// may be.
//
// Apache's server refuses clients whose settings it does not hold, so that they
// stay isolated until they happen to send them again.
func (s *Server) Heartbeat(ctx context.Context, req *rmqpb.HeartbeatRequest) (*rmqpb.HeartbeatResponse, error) {
	return &rmqpb.HeartbeatResponse{Status: s.statusOf(ctx, s.heartbeat(ctx, req))}, nil
}

func (s *Server) heartbeat(ctx context.Context, req *rmqpb.HeartbeatRequest) error {
	c, err := s.caller(ctx)
	if err != nil {
		return err
	}
	if err := checkOptionalGroup(c, req.GetGroup()); err != nil {
		return err
	}
	t := req.GetClientType()
	if _, known := rmqpb.ClientType_name[int32(t)]; !known {
		return refuse(rmqpb.Code_UNRECOGNIZED_CLIENT_TYPE, "client_type %d: is no client type", t)
	}
	if t == rmqpb.ClientType_CLIENT_TYPE_UNSPECIFIED && s.sessions.Get(c.ID) == nil {
		return refuse(rmqpb.Code_UNRECOGNIZED_CLIENT_TYPE, "client_type is not set, and this server knows no settings of the client")
	}
	one, err := s.touch(c)
	if err != nil {
		return err
	}
	one.Heartbeat(req.GetClientType(), c.resource(req.GetGroup()))
	return nil
}

// checkOptionalGroup checks a group that only consumers have; the Go SDK sends
// one without a name for producers.
func checkOptionalGroup(c client, group *rmqpb.Resource) error {
	name := c.resource(group)
	if name.Name == "" {
		return nil
	}
	return validateGroup(name)
}

package proxy

import (
	"context"
	"time"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
)

// leaveInvisible is how long the messages of a client that said goodbye stay
// invisible: long enough for the acks of handlers that are finishing, short
// enough for the next consumer.
const leaveInvisible = 8 * time.Second

// NotifyClientTermination ends the client's session. Messages that the server
// was renewing for it come back within ten seconds; until a message is delivered
// again its handle stays good. What a simple consumer holds keeps the invisible
// duration it has.
//
// Fields: group, checked when it has a name.
//
// Codes: OK, also for a client that is not known here; ILLEGAL_CONSUMER_GROUP.
//
// Apache's server makes the messages visible after one second, so that handlers
// that end after the goodbye acknowledge in vain.
func (s *Server) NotifyClientTermination(ctx context.Context, req *rmqpb.NotifyClientTerminationRequest) (*rmqpb.NotifyClientTerminationResponse, error) {
	return &rmqpb.NotifyClientTerminationResponse{Status: s.statusOf(ctx, s.terminate(ctx, req))}, nil
}

func (s *Server) terminate(ctx context.Context, req *rmqpb.NotifyClientTerminationRequest) error {
	c, err := s.caller(ctx)
	if err != nil {
		return err
	}
	if err := checkOptionalGroup(c, req.GetGroup()); err != nil {
		return err
	}
	if left := s.sessions.Remove(c.ID); left != nil {
		s.producers().left(left)
	}
	s.store.LeaveLite(c.ID)
	s.renewals.end(ctx, c.ID, leaveInvisible)
	return nil
}

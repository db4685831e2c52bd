package proxy

import (
	"context"
	"time"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/proxy/session"
)

// deadInvisible is how long the messages of a client that fell silent stay
// invisible.
const deadInvisible = time.Second

// sessionEnded takes back what the server was renewing for a client that gave no
// sign of life for too long, unless it came back this very moment.
func (s *Server) sessionEnded(ended *session.Session) {
	if s.sessions.Get(ended.ID) != nil {
		return
	}
	s.store.LeaveLite(ended.ID)
	if s.renewals.leavesToOthers() {
		return
	}
	if n := s.renewals.end(context.Background(), ended.ID, deadInvisible); n > 0 {
		s.logger.Info("messages of a silent client come back", "client", mq.Shorten(ended.ID), "messages", n)
	}
}

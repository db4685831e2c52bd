package proxy

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/proxy/transport"
)

// sendWait is how long a request waits for room in the budget, sendQueue how
// many do. A queue that does not move within this time is overload, and clients
// that are told so well before their deadline can slow down or go elsewhere.
const (
	sendWait  = time.Second
	sendQueue = 1024
)

// Small requests have an eighth of the budget besides, and one connection gets half
// of it.
const (
	smallRequest = 64 << 10
	smallPart    = 8
	sendShare    = 2
)

// newSendBudget returns what bounds the bytes of sends that are under way; 0: nothing does.
func newSendBudget(limit int64) *budget {
	return &budget{limit: limit, most: limit / sendShare, small: smallRequest, spare: limit / smallPart, queue: sendQueue}
}

// acquireSend takes room for a send of so many bytes. It waits a little when there is
// none; then the error wraps mq.ErrBusy.
func (s *Server) acquireSend(ctx context.Context, bytes int) (*claim, error) {
	var conn *account
	if a := accountsOf(transport.ConnectionOf(ctx)); a != nil {
		conn = &a.sends
	}
	c, err := s.sends.acquire(ctx, conn, int64(bytes), sendWait)
	if errors.Is(err, errNoRoom) {
		return nil, fmt.Errorf("sends of %d bytes are under way, or half as many on this connection, which is as much as this server takes at a time: %w",
			s.sends.limit, mq.ErrBusy)
	}
	return c, err
}

package proxy

import (
	"context"
	"time"

	"google.golang.org/grpc"
)

// Of the time that a client leaves for a call, this share is kept for the answer, and no more
// than lastWord. Without it the client would give up in the moment in which it could hear why
// there is none, that a store node does not answer for example.
const (
	answerShare = 8
	lastWord    = 250 * time.Millisecond
)

// inTime lets calls end so long before the deadline of their clients that these get the
// answer. Receives and pulls, which wait on purpose, have a margin of their own, see polling.go.
func inTime() interceptor {
	return interceptor{
		unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			deadline, ok := ctx.Deadline()
			if !ok {
				return handler(ctx, req)
			}
			left := time.Until(deadline)
			ctx, cancel := context.WithDeadline(ctx, deadline.Add(-min(left/answerShare, lastWord)))
			defer cancel()
			return handler(ctx, req)
		},
		stream: func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			return handler(srv, stream)
		},
	}
}

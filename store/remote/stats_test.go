package remote_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/remote"
)

func TestCallsAreCountedByHowTheyEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hooked{
			append:  func(ctx context.Context) ([]mq.Appended, error) { return stored(), nil },
			receive: func(ctx context.Context) ([]mq.Delivery, error) { <-ctx.Done(); return nil, ctx.Err() },
			ack:     func() []error { return []error{mq.ErrLeaseEnded} },
		}
		one(t, h, func(cl *cluster, n *testNode, c *remote.Client) {
			require.Zero(t, c.Stats())
			require.NoError(t, c.Reach(t.Context(), nodeA))
			require.Equal(t, remote.Stats{Connected: 1}, c.Stats())
			_, err := send(t.Context(), c)
			require.NoError(t, err)
			require.ErrorIs(t, ack(t.Context(), c), mq.ErrLeaseEnded)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err = receive(ctx, c)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			want := remote.Stats{Connected: 1, Answered: 2, Abandoned: 1}
			require.Equal(t, want, c.Stats())

			polled := make(chan error, 1)
			go func() { _, err := receive(t.Context(), c); polled <- err }()
			synctest.Wait()
			n.stop()
			require.ErrorIs(t, <-polled, mq.ErrOutcomeUnknown)
			time.Sleep(5 * time.Second)
			_, err = send(t.Context(), c)
			require.ErrorIs(t, err, mq.ErrUnavailable)
			require.ErrorContains(t, c.Reach(t.Context(), nodeA), "cannot be reached")
			want.Connected, want.Unreachable, want.Unknown, want.Unsent = 0, 1, 1, 1
			require.Equal(t, want, c.Stats())

			cl.start(nodeA, h, "s")
			time.Sleep(5 * time.Second)
			require.NoError(t, c.Reach(t.Context(), nodeA))
			want.Connected, want.Unreachable = 1, 0
			require.Equal(t, want, c.Stats())
		})
	})
}

package remote

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/router"
)

// TestEveryRouterIsAskedAndJudged: the one that is followed, one of other metadata, and
// those that are away.
func TestEveryRouterIsAskedAndJudged(t *testing.T) {
	inWorld(t, "r1 r2", func(w *world) { // each has metadata of its own
		c := w.client("r1 r2")
		w.settle(time.Second)
		byAddress := func() (followed, other RouterStatus) {
			list := c.Routers(w.Context())
			require.Len(w, list, 2)
			require.Equal(w, "passthrough:///r1", list[0].Address)
			require.Equal(w, "passthrough:///r2", list[1].Address)
			if list[1].Followed {
				return list[1], list[0]
			}
			return list[0], list[1]
		}
		followed, other := byAddress()
		require.True(w, followed.Followed)
		require.NoError(w, followed.Err)
		require.Equal(w, c.Revision(), followed.Revision)
		require.NotEmpty(w, followed.Life)
		require.ErrorIs(w, other.Err, router.ErrOtherLife)
		require.False(w, other.Followed)
		require.NotEqual(w, followed.Life, other.Life)
		require.Positive(w, other.Revision)

		for _, h := range w.hosts {
			if "passthrough:///"+h.name == other.Address {
				h.stop(w.network)
			}
		}
		w.settle(time.Second)
		followed, gone := byAddress()
		require.NoError(w, followed.Err)
		require.Equal(w, RouterStatus{Address: other.Address, Err: gone.Err}, gone)
		require.ErrorContains(w, gone.Err, "cannot be reached")
		for _, h := range w.hosts {
			if "passthrough:///"+h.name == followed.Address {
				h.stop(w.network)
			}
		}
		w.settle(time.Second)
		first, second := byAddress()
		require.Error(w, first.Err)
		require.Error(w, second.Err)
		require.False(w, first.Followed)
	})
}

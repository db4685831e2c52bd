package etcd

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

// brokenCluster loses the answer of one transaction, which was made or not.
type brokenCluster struct {
	cluster
	at   int
	made bool
	n    int
}

func (b *brokenCluster) swap(ctx context.Context, guard string, at int64, writes []value) (int64, error) {
	b.n++
	if b.n-1 != b.at {
		return b.cluster.swap(ctx, guard, at, writes)
	}
	if b.made {
		if _, err := b.cluster.swap(ctx, guard, at, writes); err != nil {
			return 0, err
		}
	}
	return 0, errors.New("no answer")
}

// TestAnImportThatIsInterruptedIsMadeAgain loses the answer of each transaction.
func TestAnImportThatIsInterruptedIsMadeAgain(t *testing.T) {
	entries, shown := embedded(t, 250)
	for _, made := range []bool{false, true} {
		for at := 0; ; at++ {
			f := newFake()
			broken := &brokenCluster{cluster: f.line(), at: at, made: made}
			err := newBackend(broken, "/p", "the fake").Import(t.Context(), entries)
			if err == nil {
				require.Greater(t, at, 2)
				break
			}
			require.ErrorIs(t, err, mq.ErrOutcomeUnknown)
			last := made && at == 3 // the counters were written
			if !last {
				_, err := router.Open(router.Options{Backend: newBackend(f.line(), "/p", "the fake")})
				if at > 0 || made {
					require.Error(t, err, "nobody takes half of it for metadata")
				}
				if err == nil {
					continue // a router has begun there, which an import refuses
				}
			}
			require.NoError(t, newBackend(f.line(), "/p", "the fake").Import(t.Context(), entries))
			r, err := router.Open(router.Options{Backend: newBackend(f.line(), "/p", "the fake")})
			require.NoError(t, err)
			require.Equal(t, shown, show(r))
			require.NoError(t, r.Close())
		}
	}
}

package main

import (
	"errors"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/shard"
)

// Each bubble begins at the same wall time, so a store that is opened in a second one
// finds that the clock was set back by all the time of the first.

func TestAClockThatWasSetBackMovesNoLeaseAndNoOrder(t *testing.T) {
	mem := vfs.NewMem()
	var first mq.Delivery
	var stored time.Time
	bubble(t, t.Name(), func(t *testing.T) {
		time.Sleep(240 * time.Hour)
		s := mustOpen(t, mem, shard.FlushSync)
		a, err := s.Append(t.Context(), shardName, orders(1), 0, []*mq.Message{message("a", "")})
		require.NoError(t, err)
		stored = a[0].StoreTime
		first = receive(t, s, 0)[0] // for ten seconds
		require.NoError(t, s.Close())
	})
	bubble(t, t.Name(), func(t *testing.T) { // ten days before
		require.True(t, time.Now().Before(stored))
		s := mustOpen(t, mem, shard.FlushSync)
		a, err := s.Append(t.Context(), shardName, orders(1), 0, []*mq.Message{message("b", "")})
		require.NoError(t, err)
		require.True(t, a[0].StoreTime.After(stored), "stored at %v after %v", a[0].StoreTime, stored)
		require.Equal(t, "b", receive(t, s, 0)[0].ID, "the other one is leased")

		began := time.Now()
		again := receive(t, s, time.Hour)
		require.Equal(t, "a", again[0].ID)
		require.InDelta(t, 10*time.Second, time.Since(began), float64(time.Second), "neither at once nor ten days later")
		require.Equal(t, mq.Attempt(2), again[0].Lease.Attempt)
		require.Greater(t, again[0].Lease.PopID, first.Lease.PopID)
		require.ErrorIs(t, s.Ack(t.Context(), []mq.Lease{first.Lease})[0], mq.ErrLeaseEnded)
		require.NoError(t, errors.Join(s.Ack(t.Context(), []mq.Lease{again[0].Lease})...))
		require.NoError(t, s.Close())
		require.Empty(t, findings(mem))
	})
}

func TestAClockThatWasSetForwardEndsLeasesOnceAndLosesNothing(t *testing.T) {
	mem := vfs.NewMem()
	var first []mq.Delivery
	bubble(t, t.Name(), func(t *testing.T) {
		s := mustOpen(t, mem, shard.FlushSync)
		_, err := s.Append(t.Context(), shardName, orders(1), 0, []*mq.Message{message("a", ""), message("b", "")})
		require.NoError(t, err)
		first = receive(t, s, 0)
		require.NoError(t, errors.Join(s.Ack(t.Context(), []mq.Lease{first[1].Lease})...))
		require.NoError(t, s.Close())
	})
	bubble(t, t.Name(), func(t *testing.T) {
		time.Sleep(10 * 365 * 24 * time.Hour)
		s := mustOpen(t, mem, shard.FlushSync)
		again := receive(t, s, time.Second)
		require.Len(t, again, 1)
		require.Equal(t, "a", again[0].ID)
		require.Equal(t, mq.Attempt(2), again[0].Lease.Attempt)
		_, err := s.Append(t.Context(), shardName, orders(1), 0, []*mq.Message{message("c", "")})
		require.NoError(t, err)
		require.NoError(t, s.Close())
	})
	bubble(t, t.Name(), func(t *testing.T) { // and set right again
		s := mustOpen(t, mem, shard.FlushSync)
		require.Equal(t, "c", receive(t, s, 0)[0].ID)
		require.Equal(t, "a", receive(t, s, time.Minute)[0].ID, "ten seconds of the store's own time")
		require.NoError(t, s.Close())
		require.Empty(t, findings(mem))
	})
}

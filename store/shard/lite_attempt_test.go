package shard_test

import (
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/shard"
)

func liteAttempt(client, attempt string) mq.Receive {
	r := liteReceive(client, 0)
	r.Attempt = attempt
	return r
}

// A client whose answer was lost asks again, and gets the same messages with the same
// handles: nobody else could be given them, and everything behind them waits.
func TestALiteReceiveThatComesAgainGetsTheSameBatch(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		fs := vfs.NewMem()
		s := open(t, fs, mode)
		subscribe(t, s, "c", mq.LiteAdd, "a", "b", "z")
		send(t, s, liteTopic(), 0, toLite("a1", "a"), toLite("a2", "a"))
		send(t, s, liteTopic(), 0, toLite("b1", "b"))
		lost := receive(t, s, liteAttempt("c", "first"))
		require.Equal(t, []string{"a1", "a2", "b1"}, ids(lost))
		send(t, s, liteTopic(), 0, toLite("a3", "a"))
		time.Sleep(30 * time.Second)
		require.Empty(t, receive(t, s, liteAttempt("c", "second")), "nothing overtakes")
		require.Empty(t, receive(t, s, liteReceive("c", 0)))
		got := receive(t, s, liteAttempt("c", "first"))
		require.Equal(t, lost, got, "the same handles and attempts")

		// The leases have begun again, and what other lite topics have waits its turn.
		send(t, s, liteTopic(), 0, toLite("z1", "z"))
		time.Sleep(45 * time.Second)
		require.Equal(t, []string{"a1", "a2", "b1"}, ids(receive(t, s, liteAttempt("c", "first"))))
		require.Equal(t, []string{"z1"}, ids(receive(t, s, liteAttempt("c", "third"))))

		// What was settled is no part of it, nor what lies behind something given up.
		require.NoError(t, ack(t, s, got[2].Lease))
		require.NoError(t, s.Close())
		s = open(t, fs, mode)
		defer func() { require.NoError(t, s.Close()) }()
		require.Equal(t, []string{"a1", "a2"}, ids(receive(t, s, liteAttempt("c", "first"))), "also before it has synced again")
		require.NoError(t, change(t, s, got[0].Lease, time.Hour, mq.Nack))
		require.Empty(t, receive(t, s, liteAttempt("c", "first")))
		subscribe(t, s, "c", mq.LiteReplace, "a", "b", "z")
		require.Empty(t, receive(t, s, liteAttempt("c", "first")))
		send(t, s, liteTopic(), 0, toLite("b2", "b"))
		require.Equal(t, []string{"b2"}, ids(receive(t, s, liteAttempt("c", "first"))))
	})
}

// The order of lite topics does not depend on the group, so neither does this.
func TestALiteReceiveComesAgainWhateverTheGroupIs(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s := open(t, vfs.NewMem(), mode)
		defer func() { require.NoError(t, s.Close()) }()
		subscribe(t, s, "c", mq.LiteAdd, "a")
		send(t, s, liteTopic(), 0, toLite("a1", "a"), toLite("a2", "a"))
		group := groupOf(17)
		for version, fifo := range []bool{false, true, false} {
			changed := *group
			changed.FIFO, changed.Version = fifo, group.Version+uint64(version)
			require.NoError(t, s.UpdateGroup(t.Context(), &changed))
			require.Equal(t, []string{"a1", "a2"}, ids(receive(t, s, liteAttempt("c", "first"))))
			require.Empty(t, receive(t, s, liteReceive("c", 0)))
		}
	})
}

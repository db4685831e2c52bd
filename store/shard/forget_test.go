package shard_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/shard"
)

// What is known to have been sent has its memory. Beyond it the oldest is forgotten, and no
// send is refused; what is known, and what not, is the same after a restart.
func TestWhatWasSentIsForgottenWhenItTakesTooMuchMemory(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		fs := vfs.NewMem()
		const limit = 3 << 20
		reopen := func() *shard.Shard {
			s, err := shard.Open(shard.Options{Name: shardName, FS: fs, Dir: "shard", Flush: mode, SegmentSize: 1 << 20, ZeroFill: -1, KnownBytes: limit})
			require.NoError(t, err)
			return s
		}
		s := reopen()
		defer func() { require.NoError(t, s.Close()) }()
		topic := topicOf(1)
		topic.Dedup = 5 * time.Minute
		batch := func(i int) (msgs []*mq.Message) {
			for j := range 1000 {
				msgs = append(msgs, message(fmt.Sprint(i, "-", j), ""))
			}
			return msgs
		}
		repeated := func(i int) bool {
			a, err := s.Append(t.Context(), topic, 0, batch(i))
			require.NoError(t, err)
			for _, one := range a {
				require.Equal(t, a[0].Repeated, one.Repeated)
			}
			return a[0].Repeated
		}
		for i := range 300 {
			require.False(t, repeated(i))
			require.True(t, repeated(i), "a retry comes soon")
			// One layer of a table may go beyond it until the next round.
			require.LessOrEqual(t, s.Stats().KnownBytes, int64(limit+1<<20))
			if i%10 == 0 {
				time.Sleep(10 * time.Second)
			}
		}
		require.Positive(t, s.Stats().Forgotten)
		require.NoError(t, s.Close())
		s = reopen()
		require.True(t, repeated(299))
		require.False(t, repeated(0), "forgotten, though its window may not be over")
	})
}

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

// What is given back comes again at once and in order, whatever is acknowledged or given up
// of the rest, and whichever comes first.
func TestALiteTopicWhoseMessagesAreGivenBackGoesOn(t *testing.T) {
	for mask := range 27 {
		for _, reversed := range []bool{false, true} {
			t.Run(fmt.Sprint(mask, reversed), func(t *testing.T) {
				modes(t, func(t *testing.T, mode shard.FlushMode) {
					s := open(t, vfs.NewMem(), mode)
					defer func() { require.NoError(t, s.Close()) }()
					subscribe(t, s, "c", mq.LiteAdd, "a")
					send(t, s, liteTopic(), 0, toLite("a1", "a"), toLite("a2", "a"), toLite("a3", "a"), toLite("a4", "a"))
					r := liteReceive("c", 0)
					r.Max = 3
					got := receive(t, s, r)
					require.Len(t, got, 3)
					kind, left := mask, 4
					for i := range got {
						lease := got[i].Lease
						if reversed {
							lease = got[2-i].Lease
						}
						switch kind % 3 {
						case 0:
							require.NoError(t, change(t, s, lease, 0, mq.GiveBack))
						case 1:
							require.NoError(t, ack(t, s, lease))
							left--
						case 2:
							require.NoError(t, change(t, s, lease, 0, mq.Nack))
						}
						kind /= 3
					}
					for range 10 {
						more := receive(t, s, liteReceive("c", 0))
						for _, d := range more {
							require.NoError(t, ack(t, s, d.Lease))
							left--
						}
						time.Sleep(10 * time.Second)
					}
					require.Zero(t, left)
				})
			})
		}
	}
}

//go:build !race

package shard_test

import (
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/shard"
)

// With the race detector Pebble checks its invariants and panics where it would
// return an error, so these tests are not for it.

// readAll opens the shard, and receives and settles what is there for the group
// of the script and for one that has not read yet.
func readAll(c *script, fs vfs.FS) error {
	if err := c.open(fs); err != nil {
		return err
	}
	reader := &mq.Group{ID: 2, Resource: mq.Resource{Name: "audit"}, Retry: mq.DefaultRetryPolicy(), DeadLetter: 102, Version: 1}
	for _, group := range []*mq.Group{c.group, reader} {
		for {
			got, err := c.s.Receive(c.t.Context(), mq.Receive{Topic: c.topic, Group: group, Max: 32, Invisible: time.Hour, Wait: time.Minute})
			for _, d := range got {
				ref := command.LeaseRef{Queue: d.Lease.Queue, Offset: d.Lease.Offset, PopID: d.Lease.PopID}
				_, ackErr := c.s.Ack(c.t.Context(), d.Lease.Topic, d.Lease.Group, []command.LeaseRef{ref})
				err = errors.Join(err, ackErr)
			}
			if err != nil {
				return errors.Join(err, c.s.Close())
			}
			if len(got) == 0 {
				break
			}
		}
	}
	return c.s.Close()
}

func TestFlippedBitInTheViewsIsNamedOrHarmless(t *testing.T) {
	seed := seeds(t, 1)[0]
	t.Logf("PERIGEE_SEED=%d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	const flips = 200
	opened, named := 0, 0
	for n := range flips {
		synctest.Test(t, func(t *testing.T) {
			mem, c := filled(t)
			files := filesIn(t, mem, shard.ViewsDir(mem, "node/shard"))
			name := files[n%len(files)]
			b := contents(t, mem, name)
			if len(b) == 0 {
				return
			}
			bit := rng.IntN(len(b) * 8)
			b[bit/8] ^= 1 << (bit % 8)
			rewrite(t, mem, name, b)
			dir, err := mem.OpenDir(shard.ViewsDir(mem, "node/shard"))
			require.NoError(t, err)
			require.NoError(t, errors.Join(dir.Sync(), dir.Close())) // what was removed stays so in the copy
			err = readAll(c, mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(seed, 1))}))
			if err == nil {
				opened++
				c.requireKept(mem)
				return
			}
			named++
			require.Contains(t, err.Error(), shard.ViewsDir(mem, "node/shard"), "bit %d of %s", bit, name)
		})
	}
	t.Logf("%d flips: %d opened without loss, %d refused", opened+named, opened, named)
}

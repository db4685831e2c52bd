package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/internal/torture/table"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store"
	"github.com/perigee-mq/perigee/store/shard"
)

// everything is more than there ever is: a receive that may have so many takes all that
// can be delivered.
const everything = 500

// A caller is one of several clients that use one group at a time.
type caller struct {
	*lineup
	number int
	s      *store.Store
	rng    *rand.Rand
	had    []mq.Delivery // all of them, the old ones too
}

// call makes some call and notes its answer.
func (c *caller) call(ctx context.Context) error {
	switch n := c.rng.IntN(10); {
	case n < 3:
		return c.send(ctx)
	case n < 6:
		return c.receive(ctx)
	case len(c.had) == 0:
		return nil
	}
	// Often the latest one, and sometimes an old one.
	d := c.had[len(c.had)-1-c.rng.IntN(min(len(c.had), 1+c.rng.IntN(6)))]
	if c.rng.IntN(3) > 0 {
		return c.settle(d, anAck, 0, func() error { return c.s.Ack(ctx, []mq.Lease{d.Lease})[0] })
	}
	lasts := time.Duration(c.rng.IntN(30)) * tick
	return c.settle(d, aChange, lasts, func() error {
		return c.s.ChangeInvisible(ctx, []mq.LeaseChange{{Lease: d.Lease, Invisible: lasts, Reason: mq.Extend}})[0]
	})
}

func (c *caller) send(ctx context.Context) error {
	id := fmt.Sprintf("c%d-%d", c.number, c.rng.Uint64())
	c.sending(id)
	began := c.begin()
	_, err := c.s.Append(ctx, shardName, orders(2), mq.QueueID(c.rng.IntN(2)), []*mq.Message{message(id, "")})
	if err == nil {
		c.end(c.number, began, leaseInput{id: id, what: aSend})
	}
	return err
}

func (c *caller) receive(ctx context.Context) error {
	r := mq.Receive{Topic: orders(2), Group: readers(1000), Max: everything, Invisible: time.Duration(1+c.rng.IntN(40)) * tick}
	if c.rng.IntN(3) == 0 {
		r.Wait = time.Duration(c.rng.IntN(20)) * tick
	}
	began, start := c.begin(), time.Now().UnixNano()
	got, err := c.s.Receive(ctx, shardName, r)
	if err != nil {
		return err
	}
	c.had = append(c.had, got...)
	var ins []leaseInput
	var ids []string
	for _, d := range got {
		// The id of a delivery is its time.
		at := int64(d.Lease.PopID)
		ins = append(ins, leaseInput{id: d.ID, what: aGet, receipt: uint64(d.Lease.PopID), lo: at, hi: at, lasts: int64(r.Invisible)})
		ids = append(ids, d.ID)
	}
	for _, id := range c.others(ids) {
		ins = append(ins, leaseInput{id: id, what: aMiss, lo: start})
	}
	c.end(c.number, began, ins...)
	return nil
}

// settle makes a call with a receipt.
func (c *caller) settle(d mq.Delivery, what leaseCall, lasts time.Duration, fn func() error) error {
	in := leaseInput{id: d.ID, what: what, receipt: uint64(d.Lease.PopID), lasts: int64(lasts)}
	began := c.begin()
	in.lo = time.Now().UnixNano()
	err := fn()
	in.hi = time.Now().UnixNano() + int64(slack)
	if errors.Is(err, mq.ErrLeaseEnded) {
		in.what, err = in.what+(noAck-anAck), nil
	}
	if err == nil {
		c.end(c.number, began, in)
	}
	return err
}

// linearHistory lets clients call a store that is closed and opened, or whose machine
// crashes, now and then, and returns the calls that no order explains.
func linearHistory(t *testing.T, seed uint64) (calls int, wrong []string) {
	bubble(t, fmt.Sprintf("PERIGEE_SEED=%d PERIGEE_HISTORIES=1", seed), func(t *testing.T) {
		rng := rand.New(rand.NewPCG(seed, 9))
		h := &lineup{}
		disk := vfs.NewCrashableMem()
		var callers []*caller
		for n := range 2 + rng.IntN(3) {
			callers = append(callers, &caller{lineup: h, number: n, rng: rand.New(rand.NewPCG(seed, uint64(10+n)))})
		}
		for range 1 + rng.IntN(3) {
			s := mustOpen(t, disk, shard.FlushSync)
			var running sync.WaitGroup
			for _, c := range callers {
				c.s = s
				running.Go(func() {
					for range 5 + c.rng.IntN(12) {
						if err := c.call(context.Background()); err != nil {
							t.Errorf("client %d: %v", c.number, err)
						}
						if c.rng.IntN(2) == 0 {
							time.Sleep(time.Duration(c.rng.IntN(10)) * tick)
						}
					}
				})
			}
			running.Wait()
			left := disk
			if rng.IntN(2) == 0 {
				left = disk.CrashClone(vfs.CrashCloneCfg{})
			}
			require.NoError(t, s.Close())
			disk = left
		}
		calls, wrong = len(h.ops), h.wrong(leaseRules{late: slack})
	})
	return calls, wrong
}

// Sends, receives, acks and changes of concurrent clients are answered as if they came one
// after the other; PERIGEE_HISTORIES says how many histories are checked, their seeds
// counted from PERIGEE_SEED.
func TestConcurrentCallsAreLinearizable(t *testing.T) {
	n := int(number(t, "PERIGEE_HISTORIES", 60))
	first := number(t, "PERIGEE_SEED", rand.Uint64N(1<<40))
	t.Logf("PERIGEE_SEED=%d PERIGEE_HISTORIES=%d", first, n)
	var mu sync.Mutex
	sum := 0
	inParallel(t, n, func(t *testing.T, i int) {
		calls, wrong := linearHistory(t, first+uint64(i))
		if len(wrong) > 0 {
			t.Errorf("PERIGEE_SEED=%d PERIGEE_HISTORIES=1: no order explains\n%s", first+uint64(i), strings.Join(wrong, "\n"))
		}
		mu.Lock()
		defer mu.Unlock()
		sum += calls
	})
	t.Logf("%d answers in %d histories", sum, n)
	require.NoError(t, table.Add(table.Cell{Column: "simulated, sync", Row: "answers in a linear order", Value: fmt.Sprint(sum)}))
}

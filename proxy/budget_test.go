package proxy

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

const budgetUnit = 1 << 20

// take takes n bytes at once.
func (b *budget) take(t *testing.T, conn *account, n int64) *claim {
	t.Helper()
	start := time.Now()
	c, err := b.acquire(t.Context(), conn, n, sendWait)
	require.NoError(t, err)
	require.Zero(t, time.Since(start))
	return c
}

// An asked is what a call that waits will get.
type asked struct {
	claim *claim
	err   error
}

// ask asks for n bytes and returns once they are there or are waited for.
func (b *budget) ask(ctx context.Context, conn *account, n int64) <-chan asked {
	got := make(chan asked, 1)
	go func() {
		c, err := b.acquire(ctx, conn, n, sendWait)
		got <- asked{c, err}
	}()
	synctest.Wait()
	return got
}

func TestABudgetGivesRoomInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSendBudget(10 * budgetUnit)
		first := b.take(t, nil, 8*budgetUnit)
		large := b.ask(t.Context(), nil, 5*budgetUnit) // does not fit
		behind := b.ask(t.Context(), nil, budgetUnit)  // fits, and waits behind it
		require.Empty(t, large)
		require.Empty(t, behind)
		first.release()
		for _, got := range []<-chan asked{large, behind} {
			a := <-got
			require.NoError(t, a.err)
			a.claim.release()
		}
		all := b.take(t, nil, 1000*budgetUnit) // one that is larger than all of it gets all of it
		start := time.Now()
		_, err := b.acquire(t.Context(), nil, budgetUnit, sendWait)
		require.ErrorIs(t, err, errNoRoom)
		require.Equal(t, sendWait, time.Since(start))
		all.release()
		b.take(t, nil, 10*budgetUnit).release() // nothing is left of those that gave up
		require.Zero(t, b.held.Load())
	})
}

func TestABudgetLetsASmallOnePassWhenTheLargeOneBeforeItGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSendBudget(10 * budgetUnit)
		b.take(t, nil, 8*budgetUnit)
		ctx, cancel := context.WithCancel(t.Context())
		large := b.ask(ctx, nil, 10*budgetUnit)
		small := b.ask(t.Context(), nil, 2*budgetUnit)
		cancel()
		require.ErrorIs(t, (<-large).err, context.Canceled)
		require.NoError(t, (<-small).err)
	})
}

func TestSmallRequestsDoNotWaitBehindLargeOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSendBudget(16 * smallRequest)
		all := b.take(t, nil, 16*smallRequest)
		waiting := b.ask(t.Context(), nil, 16*smallRequest)
		one, other := b.take(t, nil, smallRequest), b.take(t, nil, smallRequest)
		require.ErrorIs(t, (<-waiting).err, errNoRoom)
		_, err := b.acquire(t.Context(), nil, smallRequest, sendWait)
		require.ErrorIs(t, err, errNoRoom, "there is no more for them either")
		one.release()
		other.release()
		all.release()
		require.Zero(t, b.mu.used)
		require.Zero(t, b.mu.spared)
	})
}

func TestALargeRequestDoesNotStarveBehindASteadyFlowOfSmallOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSendBudget(16 * smallRequest)
		// Small requests take all there is, each for 160 ms, and as one ends the next begins.
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		for i := range 18 {
			go func() {
				time.Sleep(time.Duration(i) * 10 * time.Millisecond)
				for ctx.Err() == nil {
					c, err := b.acquire(ctx, nil, smallRequest, time.Hour)
					if err != nil {
						return
					}
					time.Sleep(160 * time.Millisecond)
					c.release()
				}
			}()
		}
		time.Sleep(time.Second)
		start := time.Now()
		large, err := b.acquire(t.Context(), nil, 16*smallRequest, sendWait)
		require.NoError(t, err)
		require.LessOrEqual(t, time.Since(start), 170*time.Millisecond, "those before it have ended")
		large.release()
		stop()
		synctest.Wait()
		time.Sleep(time.Second)
		require.Zero(t, b.held.Load())
	})
}

func TestABudgetRefusesAtOnceWhatWouldWaitBehindTooMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSendBudget(1)
		b.take(t, nil, 1)
		for range sendQueue {
			go func() { _, _ = b.acquire(t.Context(), nil, 1, sendWait) }() // refused in the end
		}
		synctest.Wait()
		start := time.Now()
		_, err := b.acquire(t.Context(), nil, 1, sendWait)
		require.ErrorIs(t, err, errNoRoom)
		require.Zero(t, time.Since(start))
	})
}

func TestAConnectionThatHoldsItsPartHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, b := range map[string]*budget{"sends": newSendBudget(10 * budgetUnit), "deliveries": newDeliveryBudget(10 * budgetUnit)} {
			var slow, other account
			held := []*claim{b.take(t, &slow, 2*budgetUnit), b.take(t, &slow, 3*budgetUnit)}
			waiting := b.ask(t.Context(), &slow, 4*budgetUnit)
			behind := b.ask(t.Context(), &slow, budgetUnit)
			require.Empty(t, waiting, name)
			held = append(held, b.take(t, &other, 4*budgetUnit), b.take(t, nil, budgetUnit))
			held[1].release()
			synctest.Wait()
			require.Empty(t, waiting, "2 + 4 are more than half")
			require.Empty(t, behind, "those of one connection are served in order too")
			held[0].release()
			for _, got := range []<-chan asked{waiting, behind} {
				a := <-got
				require.NoError(t, a.err, name)
				a.claim.release()
			}
			held[2].release()
			held[3].release()
			require.Zero(t, slow.held, name)
			all := b.take(t, &slow, 10*budgetUnit) // one of any size is served
			all.release()
			require.Zero(t, b.held.Load(), name)
		}
	})
}

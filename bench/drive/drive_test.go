package drive

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/internal/loadgen"
)

func TestABudgetEndsWithItsCountOrItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(loadgen.Limit{Count: 2})
		require.True(t, b.take(time.Now()))
		require.True(t, b.take(time.Now()))
		require.False(t, b.take(time.Now()))

		b = newBudget(loadgen.Limit{Duration: time.Second})
		require.True(t, b.take(time.Now()))
		time.Sleep(time.Second)
		require.False(t, b.take(time.Now()))
	})
}

func TestSharesAddUp(t *testing.T) {
	for _, number := range []int{1, 4, 7, 500} {
		sum := 0
		for i := range 4 {
			share := split(number, i, 4)
			require.LessOrEqual(t, share, number/4+1)
			sum += share
		}
		require.Equal(t, number, sum)
	}
}

func TestAnOpenLoopDoesNotWaitForWhatItSends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var due []time.Duration
		sent, err := openLoop(t.Context(), 100, 50*time.Millisecond, func(at time.Time) error {
			due = append(due, at.Sub(start))
			if len(due) == 2 {
				time.Sleep(25 * time.Millisecond) // a server that stalls
			}
			return nil
		})
		require.NoError(t, err)
		require.EqualValues(t, 5, sent)
		const step = 10 * time.Millisecond
		require.Equal(t, []time.Duration{0, step, 2 * step, 3 * step, 4 * step}, due)
		// The times are those at which messages should have been sent.
		require.Equal(t, 4*step, time.Since(start))
	})
}

func TestAnOpenLoopEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 25*time.Millisecond)
		defer cancel()
		sent, err := openLoop(ctx, 100, time.Hour, func(time.Time) error { return nil })
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.EqualValues(t, 3, sent)
	})
}

func TestAStampTellsTheAgeOfAMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, body := stamps{time.Now()}, make([]byte, BodySize)
		time.Sleep(time.Second)
		s.put(body, time.Now())
		time.Sleep(time.Minute)
		require.Equal(t, time.Minute, s.age(body))
	})
}

func TestArrivalsAreWaitedForNoLongerThanNeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newArrivals()
		start := time.Now()
		a.add()
		go func() {
			time.Sleep(time.Second)
			a.add()
		}()
		require.EqualValues(t, 2, a.await(t.Context(), 2, time.Hour))
		require.Equal(t, time.Second, time.Since(start))
		require.EqualValues(t, 2, a.await(t.Context(), 3, time.Minute), "one never comes")
		require.Equal(t, time.Second+time.Minute, time.Since(start))
	})
}

func TestAConsumptionEndsWithItsLastAcknowledgment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := loadgen.Limit{Count: 2, Duration: time.Hour}
		c := &consumption{budget: newBudget(limit), last: make(chan struct{}, 1), start: time.Now()}
		go func() {
			for range 2 {
				require.True(t, c.take())
				time.Sleep(time.Second)
				c.acked()
			}
			require.False(t, c.take(), "one more")
		}()
		require.Equal(t, 2*time.Second, c.await(t.Context(), limit))
		synctest.Wait()
	})
}

func TestAConsumptionThatRunsOutOfMessagesLastsUntilItsLastOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := loadgen.Limit{Count: 2, Duration: time.Hour}
		c := &consumption{budget: newBudget(limit), last: make(chan struct{}, 1), start: time.Now()}
		require.True(t, c.take())
		time.Sleep(time.Second)
		c.acked()
		require.Equal(t, time.Second, c.await(t.Context(), limit))
		require.False(t, c.take(), "it is over")
	})
}

func TestTopicsOfAllRoundsAreNamed(t *testing.T) {
	require.Equal(t, []string{"start", "load-0", "latency-0", "load-1", "latency-1"}, Topics(2))
}

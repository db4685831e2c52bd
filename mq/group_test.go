package mq_test

import (
	"math"
	"testing"
	"time"

	"github.com/perigee-mq/perigee/mq"
	"github.com/stretchr/testify/require"
)

func TestDelayFollowsTheTableAndRepeatsItsLastStep(t *testing.T) {
	p := mq.DefaultRetryPolicy()
	last := mq.Attempt(len(p.Customized))
	require.EqualValues(t, 18, last)
	for attempt, want := range map[mq.Attempt]time.Duration{
		math.MinInt32: time.Second, 0: time.Second, 1: time.Second, 2: 5 * time.Second, 3: 10 * time.Second,
		mq.DefaultMaxAttempts: time.Hour, last: 2 * time.Hour, last + 1: 2 * time.Hour, math.MaxInt32: 2 * time.Hour,
	} {
		require.Equal(t, want, p.Delay(attempt), "attempt %d", attempt)
	}
	one := mq.RetryPolicy{Customized: []time.Duration{0}}
	require.Zero(t, one.Delay(1))
	require.Zero(t, one.Delay(2))
}

func TestDelayGrowsExponentiallyUpToItsMaximum(t *testing.T) {
	p := mq.RetryPolicy{MaxAttempts: 3, Initial: time.Second, Max: 10 * time.Second, Multiplier: 2}
	for attempt, want := range map[mq.Attempt]time.Duration{
		-1: time.Second, 0: time.Second, 1: time.Second, 2: 2 * time.Second, 4: 8 * time.Second, 5: 10 * time.Second,
		2000: 10 * time.Second, math.MaxInt32: 10 * time.Second,
	} {
		require.Equal(t, want, p.Delay(attempt), "attempt %d", attempt)
	}
	p.Multiplier = 1
	require.Equal(t, time.Second, p.Delay(math.MaxInt32))
}

func TestValidateNamesTheFieldOfABadPolicy(t *testing.T) {
	exponential := mq.RetryPolicy{MaxAttempts: 1, Initial: 1, Max: mq.MaxRetryDelay, Multiplier: 1}
	require.NoError(t, exponential.Validate())
	require.NoError(t, mq.DefaultRetryPolicy().Validate())
	require.NoError(t, mq.RetryPolicy{MaxAttempts: 1000, Customized: make([]time.Duration, 100)}.Validate())
	for _, c := range []struct {
		field  string
		change func(*mq.RetryPolicy)
	}{
		{"max-attempts", func(p *mq.RetryPolicy) { *p = mq.RetryPolicy{} }},
		{"max-attempts", func(p *mq.RetryPolicy) { p.MaxAttempts = 1001 }},
		{"retry-delays", func(p *mq.RetryPolicy) { p.Customized = make([]time.Duration, 101) }},
		{"retry-delays", func(p *mq.RetryPolicy) { p.Customized = []time.Duration{1, -1} }},
		{"retry-delays", func(p *mq.RetryPolicy) { p.Customized = []time.Duration{mq.MaxRetryDelay + 1} }},
		{"retry-initial", func(p *mq.RetryPolicy) { p.Initial = 0 }},
		{"retry-initial", func(p *mq.RetryPolicy) { p.Initial = mq.MaxRetryDelay + 1 }},
		{"retry-max", func(p *mq.RetryPolicy) { p.Max = 0 }},
		{"retry-max", func(p *mq.RetryPolicy) { p.Max = mq.MaxRetryDelay + 1 }},
		{"retry-multiplier", func(p *mq.RetryPolicy) { p.Multiplier = 0.99 }},
		{"retry-multiplier", func(p *mq.RetryPolicy) { p.Multiplier = 100.1 }},
		{"retry-multiplier", func(p *mq.RetryPolicy) { p.Multiplier = math.NaN() }},
		{"retry-multiplier", func(p *mq.RetryPolicy) { p.Multiplier = math.Inf(1) }},
	} {
		p := exponential
		c.change(&p)
		err := p.Validate()
		require.ErrorIs(t, err, mq.ErrInvalid)
		var invalid *mq.InvalidError
		require.ErrorAs(t, err, &invalid)
		require.Equal(t, c.field, invalid.Field)
	}
}

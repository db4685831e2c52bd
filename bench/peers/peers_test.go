package peers

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/bench/figures"
	"github.com/perigee-mq/perigee/bench/server"
)

func TestWrongOptionsAreRefused(t *testing.T) {
	for _, bad := range [][]string{{"-only", "perigee,kafka"}, {"-rounds", "-1"}, {"-limit", "soon"}} {
		_, err := parse(bad, io.Discard)
		require.Error(t, err, bad)
	}
	o, err := parse([]string{"-short", "-only", "noop,perigee", "-rounds", "3"}, io.Discard)
	require.NoError(t, err)
	require.Equal(t, 3, o.plan.rounds)
	require.Equal(t, []string{"noop", "perigee"}, o.wanted())
}

func TestTheReportNamesWhatChangesTheMeasure(t *testing.T) {
	require.Equal(t, "-rounds 3", extraArgs([]string{"-short", "-out", "x", "-rounds", "3", "-busy", "much else ran"}))
}

func TestEachRoundBeginsWithAnotherServer(t *testing.T) {
	all := []string{"a", "b", "c"}
	require.Equal(t, []string{"a", "b", "c"}, rotated(all, 1))
	require.Equal(t, []string{"b", "c", "a"}, rotated(all, 2))
	require.Equal(t, []string{"a", "b", "c"}, rotated(all, 4))
	require.Empty(t, rotated([]string(nil), 2))
}

func TestNoRoundBeginsThatWouldEndTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lasts := []time.Duration{time.Second, 3 * time.Second, time.Second, time.Second}
		done := rounds(t.Context(), 4, time.Now().Add(6*time.Second), func(n int) { time.Sleep(lasts[n-1]) })
		require.Equal(t, 2, done)
		done = rounds(t.Context(), 4, time.Now(), func(int) { time.Sleep(time.Hour) })
		require.Equal(t, 1, done, "one there is always")
	})
}

func TestACallThatDoesNotEndIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		release := make(chan struct{})
		_, err := bounded(t.Context(), time.Second, func(context.Context) (int, error) {
			<-release
			return 0, nil
		})
		require.ErrorIs(t, err, errHangs)
		require.Equal(t, time.Second+hangs, time.Since(start))
		close(release)

		value, err := bounded(t.Context(), time.Second, func(ctx context.Context) (int, error) {
			<-ctx.Done()
			return 1, ctx.Err()
		})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 1, value)
	})
}

func TestClassesHaveTheServersThatAreInThem(t *testing.T) {
	k := kinds{perigee: &server.Perigee{}, noop: &server.Noop{}, rocketmq: &server.RocketMQ{}, jetstream: &server.JetStream{}, rabbitmq: &server.RabbitMQ{}}
	names := func(class string) (names []string) {
		for _, c := range k.contenders(class, 2) {
			names = append(names, c.name)
		}
		return names
	}
	require.Equal(t, []string{figures.Perigee, figures.RocketMQ, figures.RocketMQKV, figures.JetStream, figures.RabbitMQ}, names(figures.Fsync))
	require.Equal(t, []string{figures.Noop, figures.Perigee, figures.RocketMQ, figures.RocketMQKV, figures.JetStream}, names(figures.Cache))
	kind := k.contenders(figures.Fsync, 2)[2].kind.(server.RocketMQ)
	require.True(t, kind.Sync)
	require.True(t, kind.KV)
	require.Contains(t, kind.Topics, "load-2")
	require.Empty(t, kinds{}.contenders(figures.Fsync, 1))
}

func TestAServerThatFailsTooOftenIsLeftOut(t *testing.T) {
	c := &comparison{progress: io.Discard, record: &figures.Record{}}
	s := &contender{name: "one"}
	c.failed(s, errors.New("no"))
	require.False(t, s.gone)
	c.failed(s, context.Canceled)
	require.Equal(t, 1, s.failures, "the end of everything is no failure")
	c.failed(s, errors.New("no"))
	c.failed(s, errors.New("no"))
	require.True(t, s.gone)
	require.Contains(t, c.record.Notes[3], "left out")

	hanging := &contender{name: "other"}
	c.failed(hanging, errHangs)
	require.True(t, hanging.gone)
}

func TestAServerThatIsNotToBeHadIsANote(t *testing.T) {
	out := t.TempDir()
	err := Run(t.Context(), []string{"-short", "-only", "perigee", "-server", "/no/such/perigee", "-out", out}, server.Noop{}, io.Discard, io.Discard)
	require.ErrorContains(t, err, "nothing was measured")
	require.ErrorContains(t, err, "/no/such/perigee")
}

func TestAReportIsWrittenAgainFromItsSamples(t *testing.T) {
	out := t.TempDir()
	r := &figures.Record{Samples: []figures.Sample{{Class: figures.Fsync, Server: figures.Perigee, Row: figures.Send, InFlight: 1, Round: 1, Rate: 4321}}}
	require.NoError(t, r.WriteSamples(out))
	samples := filepath.Join(out, figures.PictureDir, figures.SamplesName)
	again := t.TempDir()
	require.NoError(t, Run(t.Context(), []string{"-render", samples, "-out", again}, server.Noop{}, io.Discard, io.Discard))
	text, err := os.ReadFile(filepath.Join(again, figures.ReportName))
	require.NoError(t, err)
	require.Contains(t, string(text), "4,321")
	require.Error(t, Run(t.Context(), []string{"-render", filepath.Join(out, "none"), "-out", again}, server.Noop{}, io.Discard, io.Discard))
}

func TestReasonsAreListedInOrder(t *testing.T) {
	require.Equal(t, "1 times b, 2 times a", reasons(map[string]int64{"a": 2, "b": 1}))
	require.True(t, strings.HasPrefix(reasons(map[string]int64{"x": 7}), "7 times"))
}

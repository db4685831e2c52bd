package loglimit_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/internal/loglimit"
)

func logger() (*slog.Logger, func() []string) {
	var out strings.Builder
	l := slog.New(loglimit.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
	return l, func() []string {
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		out.Reset()
		return lines
	}
}

func TestAMessageThatRepeatsIsBoundedAndTheRestCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, lines := logger()
		for i := range 1000 {
			l.With("client", i).Warn("client does not read", "n", i)
		}
		require.Len(t, lines(), 20)
		l.Warn("another")
		require.Len(t, lines(), 1, "others are not held up")
		time.Sleep(3 * time.Second)
		for i := range 10 {
			l.WithGroup("g").Warn("client does not read", "n", i)
		}
		got := lines()
		require.Len(t, got, 3)
		require.Contains(t, got[0], "suppressed=980")
		require.NotContains(t, got[1], "suppressed")
		time.Sleep(time.Hour)
		for range 100 {
			l.Warn("client does not read")
		}
		got = lines()
		require.Len(t, got, 20)
		require.Contains(t, got[0], "suppressed=7")
	})
}

func TestDebuggingIsNotBounded(t *testing.T) {
	l, lines := logger()
	for range 100 {
		l.Debug("a call has ended")
	}
	require.Len(t, lines(), 100)
}

func TestMessagesWithoutEndShareOneCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, lines := logger()
		for i := range 5000 {
			l.Error(fmt.Sprint("message ", i))
		}
		require.Len(t, lines(), 1000+20)
	})
}

package node

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// served returns the name under which Prometheus reads the metric.
func (f family) served() string {
	name := strings.ReplaceAll(f.name, ".", "_")
	if unit := map[string]string{seconds: "_seconds", bytes: "_bytes"}[f.unit]; unit != "" {
		name += unit
	}
	if f.kind == counter {
		name += "_total"
	}
	return name
}

func TestTheCatalogIsWhatIsServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, 10)
		s.topic("orders")
		s.send("orders", "1")
		require.Len(t, s.receive("orders", "g", 1, false), 1)
		list := own(s.scrape())
		for _, f := range catalog() {
			got := list[f.served()]
			require.NotNil(t, got, f.served())
			require.Equal(t, string(f.kind), strings.ToLower(got.GetType().String()), f.served())
			require.Equal(t, f.help, got.GetHelp(), f.served())
			want := slices.Sorted(slices.Values(f.labels))
			require.ElementsMatch(t, want, labelsOf(t, got), f.served())
			delete(list, f.served())
		}
		require.Empty(t, list, "served, but not in the catalog")
	})
}

// TestTheCatalogIsDocumented keeps docs/operations.md in step: it must hold the
// table that this test prints.
func TestTheCatalogIsDocumented(t *testing.T) {
	var table strings.Builder
	table.WriteString("| metric | kind | labels | meaning |\n| --- | --- | --- | --- |\n")
	for _, f := range catalog() {
		fmt.Fprintf(&table, "| `%s` | %s | %s | %s |\n", f.served(), f.kind, strings.Join(f.labels, ", "), f.help)
	}
	page, err := os.ReadFile("../../docs/operations.md")
	require.NoError(t, err)
	require.Contains(t, string(page), table.String(), "docs/operations.md must hold this table:\n%s", table.String())
}

func TestBeforeTheTiersAreOpenTheProcessIsServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, 10)
		s.metrics.store.Store(nil)
		s.metrics.proxy.Store(nil)
		s.metrics.router.Store(nil)
		got := figures(s.scrape())
		require.Zero(t, got["perigee_ready"])
		require.Contains(t, got, "perigee_disk_total_bytes")
		require.NotContains(t, got, "perigee_log_syncs_total")
	})
}

func TestAStoppedStoreSaysSoAndHasNoStaleFigures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, 10)
		s.topic("orders")
		s.send("orders", "1")
		require.Contains(t, figures(s.scrape()), "perigee_topic_in_messages_total{topic=orders}")
		require.NoError(t, s.store.Close())
		got := figures(s.scrape())
		require.NotContains(t, got, "perigee_topic_in_messages_total{topic=orders}")
		require.InDelta(t, 1, got["perigee_messages_appended_total"], 1e-9)
	})
}

func TestScrapesInOneSecondShareASurvey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, 10)
		s.topic("orders")
		s.send("orders", "1")
		const in = "perigee_topic_in_messages_total{topic=orders}"
		require.InDelta(t, 1, figures(s.scrape())[in], 1e-9)
		s.send("orders", "2")
		list, age := s.surveys.get()
		require.Equal(t, uint64(1), list[sceneShard].Topics[0].In)
		require.Zero(t, age)
		time.Sleep(surveyInterval)
		list, _ = s.surveys.get()
		require.Equal(t, uint64(2), list[sceneShard].Topics[0].In)
	})
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/bench/figures"
	"github.com/perigee-mq/perigee/bench/proc"
)

// TestMain makes the test binary the no-op server when a test starts it as one.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == noopArgument {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestEveryRowOfTheNoopServerIsMeasured(t *testing.T) {
	var stdout bytes.Buffer
	err := run(t.Context(), []string{"-server", withoutServer, "-duration", "20ms", "-runs", "1", "-messages", "640", "-json"}, &stdout, io.Discard)
	require.NoError(t, err)
	var printed struct {
		Machine proc.Machine
		Rows    []struct {
			Name    string
			Noop    map[string]*float64
			Perigee map[string]*float64
		}
	}
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &printed))
	require.NotZero(t, printed.Machine.Cores)
	var names []string
	for _, row := range printed.Rows {
		names = append(names, row.Name)
		require.Positive(t, *row.Noop["messages_per_second"])
		require.Positive(t, *row.Noop["allocs_per_message"])
		require.Nil(t, row.Noop["messages_per_sync"])
		require.Nil(t, row.Perigee)
	}
	require.Equal(t, []string{rowSend, rowSendBatch, rowReceive, rowAckBatch, rowAck}, names)
}

func TestAServerThatDoesNotStartIsAnError(t *testing.T) {
	_, err := startPerigee(t.Context(), options{Server: "/bin/false", Connections: 1}, "async")
	require.ErrorContains(t, err, "perigee: did not become ready")
	require.ErrorContains(t, err, "exit status 1")
}

func TestAnInterruptEndsTheComparison(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := run(ctx, []string{"-server", withoutServer, "-runs", "1", "-duration", "1h"}, io.Discard, io.Discard)
	require.Error(t, err)
}

func TestRatiosAreTakenWithinARun(t *testing.T) {
	r := report{
		noop:    results{rowSend: {{CPU: 10}, {CPU: 20}, {CPU: 30}}, rowSync: nil},
		perigee: results{rowSend: {{CPU: 20}, {CPU: 20}, {CPU: 90}}, rowSync: {{CPU: 5, PerSync: nan}}},
	}
	rows := r.rows()
	require.Len(t, rows, 2)
	require.Equal(t, number(20), rows[0].Noop.CPU)
	require.Equal(t, number(20), rows[0].Perigee.CPU)
	require.Equal(t, number(2), rows[0].Ratio)
	require.Nil(t, rows[1].Noop)
	require.True(t, math.IsNaN(float64(rows[1].Ratio)))

	var table strings.Builder
	require.NoError(t, r.writeTable(&table))
	require.Contains(t, table.String(), "the server does not export perigee_log_syncs_total")
}

func TestDeploymentsAreHeldAgainstTheServerInOneProcess(t *testing.T) {
	of := deployment{proxies: 2, stores: 2}.row(rowSend)
	r := report{
		Options: options{Tiers: true}, noop: results{rowSend: {{CPU: 10}}},
		perigee: results{rowSend: {{CPU: 20}}, of: {{CPU: 30}}},
	}
	rows := r.rows()
	require.Len(t, rows, 2)
	require.Equal(t, number(2), rows[0].Ratio)
	require.Equal(t, "send 1 KiB, 2 proxies, 2 stores", rows[1].Name)
	require.Nil(t, rows[1].Noop)
	require.Equal(t, number(1.5), rows[1].Ratio)
	var table strings.Builder
	require.NoError(t, r.writeTable(&table))
	require.Contains(t, table.String(), "in one process")
}

func TestWhatIsLargeHasRowsOfItsOwn(t *testing.T) {
	require.Empty(t, largeRows(options{}))
	require.Equal(t, []string{
		"send 1 KiB, lite topics: 1000", "receive 32, ack 1, lite topics: 1000",
		"send 1 KiB, lite topics: 5000", "receive 32, ack 1, lite topics: 5000",
		"send 1 KiB, delayed, pending: 0", "send 1 KiB, delayed, pending: 7",
	}, largeRows(options{Lites: 5000, Delays: 7}))
	for _, bad := range [][]string{{"-lites", "-1"}, {"-lites", "10000001"}, {"-delays", "-1"}} {
		require.Error(t, run(t.Context(), append(bad, "-server", withoutServer), io.Discard, io.Discard))
	}
	r := report{
		Options: options{Delays: 7}, Notes: []string{"a note"},
		perigee: results{rowDelayed(0): {{RSS: 12}}, rowDelayed(7): {{RSS: 34}}},
	}
	var table strings.Builder
	require.NoError(t, r.writeTable(&table))
	require.Regexp(t, `pending: 7 +perigee .* 34 `, table.String())
	require.Contains(t, table.String(), "\na note\n")
	h := &dto.Histogram{SampleCount: new(uint64(10)), Bucket: []*dto.Bucket{
		{CumulativeCount: new(uint64(5)), UpperBound: new(0.25)}, {CumulativeCount: new(uint64(9)), UpperBound: new(1.0)},
	}}
	require.Equal(t, "<= 250ms", quantileOf(h, 0.5))
	require.Equal(t, "<= 1s", quantileOf(h, 0.9))
	require.Equal(t, "more than can be told", quantileOf(h, 1))
}

func TestMediansOfEvenNumbersLieBetween(t *testing.T) {
	require.Equal(t, number(2.5), median([]float64{4, 1, 2, 3}))
	require.Equal(t, number(2), median([]float64{3, 1, 2}))
	require.True(t, math.IsNaN(float64(median(nil))))
}

// TestPeersAreComparedWithoutPeers runs the whole comparison with the server that does
// nothing and, where there is a binary, with Perigee.
func TestPeersAreComparedWithoutPeers(t *testing.T) {
	only, rows := "noop", 7
	if path := os.Getenv("PERIGEE_BIN"); path != "" {
		only, rows = "noop,perigee", 7+2*9
	}
	t.Setenv("TMPDIR", t.TempDir())
	out := t.TempDir()
	var stdout bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"peers", "-short", "-only", only, "-out", out, "-limit", "10m"}, &stdout, io.Discard))
	require.Equal(t, filepath.Join(out, "performance.md")+"\n", stdout.String())
	f, err := os.Open(filepath.Join(out, "performance", "measurements.csv"))
	require.NoError(t, err)
	defer f.Close()
	record, err := figures.Read(f)
	require.NoError(t, err)
	require.Empty(t, record.Notes)
	measured := 0
	for _, s := range record.Samples {
		if s.Row == figures.Start || s.Row == figures.Memory {
			require.Positive(t, s.Resident)
			continue
		}
		measured++
		require.Positive(t, s.Rate, s.Row)
		require.Positive(t, s.ServerCPU, s.Row)
		require.Zero(t, s.Errors, s.Row)
	}
	require.Equal(t, rows, measured)
	left, err := filepath.Glob(filepath.Join(os.Getenv("TMPDIR"), "*"))
	require.NoError(t, err)
	require.Empty(t, left, "folders of servers")
}

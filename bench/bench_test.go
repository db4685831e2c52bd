package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
)

// TestMain makes the test binary the no-op server when a test starts it as one.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == noopArgument {
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
		Machine machine
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

func TestCPUTimeIsUserAndSystemTime(t *testing.T) {
	const fields = " S 1 2 3 0 -1 4194560 100 0 0 0 150 50 7 8 20 0 9 0 12345 0 0"
	for _, name := range []string{"(perigee)", "(a b)", "(a) S 1)"} {
		cpu, err := parseStat("42 " + name + fields)
		require.NoError(t, err)
		require.Equal(t, 2*time.Second, cpu)
	}
	for _, bad := range []string{"", "42 (perigee) S 1", "42 (perigee) S 1 2 3 0 -1 4194560 100 0 0 0 x y"} {
		_, err := parseStat(bad)
		require.Error(t, err)
	}
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

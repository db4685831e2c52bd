package figures

import (
	"encoding/xml"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// sample returns a sample with a rate and a processor time.
func sample(class, server, row string, inFlight, round int, rate, cpu float64) Sample {
	return Sample{
		Class: class, Server: server, Row: row, InFlight: inFlight, Round: round, Messages: 1000, Seconds: 1,
		Rate: rate, ServerCPU: cpu, OwnCPU: 5, P50: 100, P99: 2000, P999: 3e6, Resident: 64, Private: NaN,
	}
}

func record() *Record {
	r := &Record{Notes: []string{"one did\nnot start"}}
	r.Set(KeyDate, "today")
	r.Set(KeyRate, "2000 messages per second")
	for round := 1; round <= 3; round++ {
		x := float64(round)
		r.Samples = append(r.Samples,
			sample(Fsync, Perigee, Send, 16, round, 1000*x, 10),
			sample(Fsync, JetStream, Send, 16, round, 500*x, 80),
			sample(Fsync, Perigee, Send, 64, round, 2000*x, 10),
			sample(Fsync, JetStream, Send, 64, round, 4000*x, 5),
			sample(Fsync, Perigee, Latency, 0, round, 1000, 10),
			sample(Cache, Noop, Send, 16, round, 9000*x, 3),
			sample(Cache, Noop, Send, 64, round, 3000*x, 3),
			sample("", Perigee, Start, 0, round, NaN, NaN),
			sample(Fsync, Perigee, Memory, 0, round, NaN, NaN),
		)
	}
	return r
}

func TestARecordIsReadAsItWasWritten(t *testing.T) {
	r := record()
	var file strings.Builder
	require.NoError(t, r.Write(&file))
	read, err := Read(strings.NewReader(file.String()))
	require.NoError(t, err)
	require.Equal(t, r.About, read.About)
	require.Equal(t, []string{"one did not start"}, read.Notes)
	require.Len(t, read.Samples, len(r.Samples))
	require.Equal(t, r.Samples[0].Rate, read.Samples[0].Rate)
	require.True(t, math.IsNaN(read.Samples[0].Private))
	var again strings.Builder
	require.NoError(t, read.Write(&again))
	require.Equal(t, file.String(), again.String())
}

func TestAFileThatIsNoRecordIsRefused(t *testing.T) {
	var file strings.Builder
	require.NoError(t, record().Write(&file))
	for _, bad := range []string{
		strings.Replace(file.String(), ",1000,", ",many,", 1),
		file.String() + "one,line\n",
	} {
		_, err := Read(strings.NewReader(bad))
		require.Error(t, err)
	}
}

func TestRatiosAreThoseOfTheSameRound(t *testing.T) {
	r := record()
	faster := r.ratio(Fsync, Perigee, JetStream, Send, 16, rate)
	require.Equal(t, Spread{N: 3, Median: 2, Lowest: 2, Highest: 2}, faster)
	r.Samples[0].Round = 9 // which the other did not have
	require.Equal(t, 2, r.ratio(Fsync, Perigee, JetStream, Send, 16, rate).N)
}

func TestASpreadLeavesOutWhatWasNotMeasured(t *testing.T) {
	require.Equal(t, Spread{N: 2, Median: 2, Lowest: 1, Highest: 3}, SpreadOf([]float64{3, NaN, 1, math.Inf(1)}))
	require.Equal(t, Spread{N: 3, Median: 2, Lowest: 1, Highest: 7}, SpreadOf([]float64{7, 2, 1}))
	none := SpreadOf(nil)
	require.Zero(t, none.N)
	require.True(t, math.IsNaN(none.Median))
	require.Equal(t, "–", none.cell(short))
}

func TestTheReportSaysWhereAPeerIsFaster(t *testing.T) {
	folder := t.TempDir()
	require.NoError(t, record().WriteAll(folder))
	text, err := os.ReadFile(filepath.Join(folder, ReportName))
	require.NoError(t, err)
	report := string(text)
	require.Contains(t, report, "| date | today |")
	require.Contains(t, report, "- send 1, 64 in flight, beside NATS JetStream: 0.50 of its messages per second; 2.00 times its processor time for each; the no-op server: 0.75\n")
	require.NotContains(t, report, "16 in flight, beside")
	require.Contains(t, report, "| send 1 | 16 | 2,000 (1,000–3,000) | 1,000 (500–1,500) |")
	require.Contains(t, report, "| send 1 | 16 | 2.00x; 8.00x |")
	require.Contains(t, report, "| Perigee | 100 µs (100 µs–100 µs) | 2.00 ms")
	require.Contains(t, report, "- one did not start\n")
	require.NotContains(t, report, "NaN")
}

func TestEveryPictureOfTheReportIsThere(t *testing.T) {
	folder := t.TempDir()
	require.NoError(t, record().WriteAll(folder))
	text, err := os.ReadFile(filepath.Join(folder, ReportName))
	require.NoError(t, err)
	pictures := 0
	for _, part := range strings.Split(string(text), "](")[1:] {
		name, _, _ := strings.Cut(part, ")")
		content, err := os.ReadFile(filepath.Join(folder, name))
		require.NoError(t, err)
		if !strings.HasSuffix(name, ".svg") {
			continue
		}
		pictures++
		require.NotContains(t, string(content), "NaN", name)
		decoder := xml.NewDecoder(strings.NewReader(string(content)))
		for {
			if _, err := decoder.Token(); err != nil {
				require.ErrorIs(t, err, io.EOF, name)
				break
			}
		}
	}
	require.Equal(t, 15, pictures)
}

func TestNumbersAreShort(t *testing.T) {
	for v, want := range map[float64]string{0.1234: "0.12", 9.994: "9.99", 12.34: "12.3", 99.96: "100", 1234.4: "1,234", 1234567: "1,234,567"} {
		require.Equal(t, want, short(v))
	}
	require.Equal(t, "–", short(NaN))
	require.Equal(t, "250 µs", duration(250))
	require.Equal(t, "1.50 ms", duration(1500))
	require.Equal(t, "2.25 s", duration(2.25e6))
}

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"

	"github.com/perigee-mq/perigee/bench/proc"
)

// report is what a comparison found.
type report struct {
	Machine proc.Machine
	Options options
	// Notes are what fits into no row.
	Notes []string

	noop, perigee results
}

// number is a measure; one that is not there is null in JSON and a dash in a table.
type number float64

// MarshalJSON writes null for what is not a number.
func (n number) MarshalJSON() ([]byte, error) {
	if math.IsNaN(float64(n)) || math.IsInf(float64(n), 0) {
		return []byte("null"), nil
	}
	return json.Marshal(math.Round(float64(n)*1000) / 1000)
}

func (n number) format(digits int) string {
	if math.IsNaN(float64(n)) || math.IsInf(float64(n), 0) {
		return "-"
	}
	return fmt.Sprintf("%.*f", digits, float64(n))
}

// side is the medians of one server in one row.
type side struct {
	CPU     number `json:"cpu_us_per_message"`
	Own     number `json:"generator_cpu_us_per_message"`
	Allocs  number `json:"allocs_per_message"`
	Rate    number `json:"messages_per_second"`
	P50     number `json:"p50_us"`
	P99     number `json:"p99_us"`
	PerSync number `json:"messages_per_sync"`
	RSS     number `json:"rss_mib"`
}

// row is one row of the report. Ratio is that of the CPU times of the same run, to the no-op
// server or, of a deployment, to the server in one process, the median over the runs.
type row struct {
	Name    string `json:"name"`
	Noop    *side  `json:"noop,omitempty"`
	Perigee *side  `json:"perigee,omitempty"`
	Ratio   number `json:"cpu_ratio"`
}

func (r report) rows() []row {
	var rows []row
	for _, name := range slices.Concat(rowNames, tierRows(), largeRows(r.Options)) {
		noop, perigee := r.noop[name], r.perigee[name]
		beside := noop
		if row, ok := standaloneRow(name); ok {
			beside = r.perigee[row]
		}
		if len(noop) == 0 && len(perigee) == 0 {
			continue
		}
		var ratios []float64
		for i := range min(len(beside), len(perigee)) {
			ratios = append(ratios, perigee[i].CPU/beside[i].CPU)
		}
		rows = append(rows, row{name, medians(noop), medians(perigee), median(ratios)})
	}
	return rows
}

func medians(runs []measure) *side {
	if len(runs) == 0 {
		return nil
	}
	of := func(field func(measure) float64) number {
		values := make([]float64, 0, len(runs))
		for _, m := range runs {
			values = append(values, field(m))
		}
		return median(values)
	}
	return &side{
		CPU:     of(func(m measure) float64 { return m.CPU }),
		Own:     of(func(m measure) float64 { return m.Own }),
		Allocs:  of(func(m measure) float64 { return m.Allocs }),
		Rate:    of(func(m measure) float64 { return m.Rate }),
		P50:     of(func(m measure) float64 { return m.P50 }),
		P99:     of(func(m measure) float64 { return m.P99 }),
		PerSync: of(func(m measure) float64 { return m.PerSync }),
		RSS:     of(func(m measure) float64 { return m.RSS }),
	}
}

func median(values []float64) number {
	if len(values) == 0 {
		return number(nan)
	}
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 0 {
		return number((sorted[middle-1] + sorted[middle]) / 2)
	}
	return number(sorted[middle])
}

func (r report) writeJSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(struct {
		Machine proc.Machine `json:"machine"`
		Options options      `json:"options"`
		Rows    []row        `json:"rows"`
		Notes   []string     `json:"notes"`
	}{r.Machine, r.Options, r.rows(), r.Notes})
}

func (r report) writeTable(w io.Writer) error {
	fmt.Fprintf(w, "%s, %d cores, Linux %s, %s, commit %s\n", r.Machine.CPU, r.Machine.Cores, r.Machine.Kernel, r.Machine.Go, r.Machine.Commit)
	fmt.Fprintf(w, "flush %s, %d calls in flight on %d connections, medians of %d runs\n\n",
		r.Options.Flush, r.Options.Concurrency, r.Options.Connections, r.Options.Runs)
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(out, "row\tserver\tCPU µs/msg\tallocs/msg\tmsgs/s\tp50 µs\tp99 µs\tRSS MiB\tgenerator CPU µs/msg\tCPU ratio\t")
	line := func(name, server string, s *side, ratio string) {
		if s != nil {
			fmt.Fprintf(out, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", name, server,
				s.CPU.format(2), s.Allocs.format(1), s.Rate.format(0), s.P50.format(0), s.P99.format(0), s.RSS.format(0), s.Own.format(2), ratio)
		}
	}
	rows := r.rows()
	for _, row := range rows {
		line(row.Name, "no-op", row.Noop, "1.00")
		line(row.Name, "perigee", row.Perigee, row.Ratio.format(2))
	}
	if err := out.Flush(); err != nil {
		return err
	}
	if r.Options.Tiers {
		fmt.Fprintf(w, "\nproxies and stores: CPU, allocs and RSS are those of all of them together, and the CPU ratio is the one to the server in one process\n")
	}
	for _, row := range rows {
		if row.Name != rowSync {
			continue
		}
		if text := row.Perigee.PerSync.format(1); text != "-" {
			fmt.Fprintf(w, "\n%s: %s messages per fsync\n", row.Name, text)
		} else {
			fmt.Fprintf(w, "\n%s: the server does not export %s\n", row.Name, syncsTotal)
		}
	}
	for _, note := range r.Notes {
		fmt.Fprintf(w, "\n%s\n", note)
	}
	return nil
}

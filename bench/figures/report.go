package figures

import (
	"embed"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
)

//go:embed report.md.tmpl
var files embed.FS

// The files of a report, in its folder.
const (
	ReportName  = "performance.md"
	PictureDir  = "performance"
	SamplesName = "measurements.csv"
)

// WriteAll writes the report, its pictures and the samples into a folder.
func (r *Record) WriteAll(folder string) error {
	pictures := filepath.Join(folder, PictureDir)
	if err := os.MkdirAll(pictures, 0o755); err != nil {
		return err
	}
	if err := r.WriteSamples(folder); err != nil {
		return err
	}
	for name, c := range r.charts() {
		if err := os.WriteFile(filepath.Join(pictures, name), []byte(c.svg()), 0o644); err != nil {
			return err
		}
	}
	text, err := r.report()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, ReportName), []byte(text), 0o644)
}

// WriteSamples writes the samples alone, which Read reads.
func (r *Record) WriteSamples(folder string) error {
	if err := os.MkdirAll(filepath.Join(folder, PictureDir), 0o755); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(folder, PictureDir, SamplesName))
	if err != nil {
		return err
	}
	if err := r.Write(f); err != nil {
		_ = f.Close() // the first error tells
		return err
	}
	return f.Close()
}

// report returns the text of the report.
func (r *Record) report() (string, error) {
	tmpl, err := template.New("report.md.tmpl").Funcs(template.FuncMap{
		"value": r.Value, "rates": r.rates, "cpu": r.cpu, "own": r.own, "latencies": r.latencies, "against": r.against,
		"behind": r.behind, "starts": r.starts, "rounds": r.rounds, "failures": r.failures,
	}).ParseFS(files, "report.md.tmpl")
	if err != nil {
		return "", err
	}
	var b strings.Builder
	err = tmpl.Execute(&b, struct {
		*Record
		Fsync, Cache, Directory string
		Classes                 []class
	}{r, Fsync, Cache, PictureDir, r.classes()})
	return b.String(), err
}

// table returns a table of Markdown.
func table(head []string, lines [][]string) string {
	var b strings.Builder
	row := func(cells []string) { fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | ")) }
	row(head)
	rule := slices.Repeat([]string{"---:"}, len(head))
	rule[0] = "---"
	row(rule)
	for _, line := range lines {
		row(line)
	}
	return b.String()
}

// matrix returns a table with a line for each row and number in flight, and a column for
// each server.
func (r *Record) matrix(class string, servers []string, cell func(server, row string, inFlight int) string) string {
	var lines [][]string
	for _, row := range loads() {
		for _, n := range r.inFlight(class, row) {
			line := []string{row, fmt.Sprint(n)}
			for _, server := range servers {
				line = append(line, cell(server, row, n))
			}
			lines = append(lines, line)
		}
	}
	return table(append([]string{"row", "in flight"}, servers...), lines)
}

func (r *Record) rates(class string) string {
	return r.matrix(class, r.servers(class), func(server, row string, n int) string {
		return r.spread(class, server, row, n, rate).cell(short)
	})
}

func (r *Record) cpu(class string) string {
	return r.matrix(class, r.servers(class), func(server, row string, n int) string {
		return r.spread(class, server, row, n, serverCPU).cell(short)
	})
}

func (r *Record) own(class string) string {
	return r.matrix(class, r.servers(class), func(server, row string, n int) string {
		return short(r.spread(class, server, row, n, ownCPU).Median)
	})
}

// peers returns the servers of a class that are neither Perigee nor its floor.
func (r *Record) peers(class string) []string {
	return slices.DeleteFunc(r.servers(class), func(name string) bool { return name == Perigee || name == Noop })
}

// against returns how many times the messages per second of each peer Perigee has, and
// how many times Perigee's processor time the peer takes.
func (r *Record) against(class string) string {
	return r.matrix(class, r.peers(class), func(peer, row string, n int) string {
		faster := r.ratio(class, Perigee, peer, row, n, rate)
		if faster.N == 0 {
			return "–"
		}
		return fmt.Sprintf("%sx; %sx", short(faster.Median), short(r.ratio(class, peer, Perigee, row, n, serverCPU).Median))
	})
}

// behind returns a list of the rows in which a peer has more messages per second, or
// takes less processor time for each, and how far a server gets there that only answers.
func (r *Record) behind(class string) string {
	var b strings.Builder
	for _, row := range loads() {
		for _, n := range r.inFlight(class, row) {
			for _, peer := range r.peers(class) {
				faster := r.ratio(class, Perigee, peer, row, n, rate)
				cheaper := r.ratio(class, peer, Perigee, row, n, serverCPU)
				var what []string
				if faster.Median < 1 {
					what = append(what, fmt.Sprintf("%s of its messages per second", short(faster.Median)))
				}
				if cheaper.Median < 1 {
					what = append(what, fmt.Sprintf("%s times its processor time for each", short(1/cheaper.Median)))
				}
				if what != nil {
					if floor := r.floor(class, peer, row, n); floor.N > 0 {
						what = append(what, fmt.Sprintf("the no-op server: %s", short(floor.Median)))
					}
					fmt.Fprintf(&b, "- %s, %d in flight, beside %s: %s\n", row, n, peer, strings.Join(what, "; "))
				}
			}
		}
	}
	if b.Len() == 0 {
		return "- none\n"
	}
	return b.String()
}

// floor returns how many times the messages per second of a peer the no-op server has. It
// keeps nothing, so what it has without an fsync it would have with one.
func (r *Record) floor(class, peer, row string, inFlight int) Spread {
	answers := r.spread(Cache, Noop, row, inFlight, rate)
	theirs := r.spread(class, peer, row, inFlight, rate)
	if answers.N == 0 || theirs.N == 0 {
		return SpreadOf(nil)
	}
	return SpreadOf([]float64{answers.Median / theirs.Median})
}

func (r *Record) latencies(class string) string {
	var lines [][]string
	for _, server := range r.servers(class) {
		of := func(value func(Sample) float64) Spread { return r.spread(class, server, Latency, 0, value) }
		if of(rate).N == 0 {
			continue
		}
		lines = append(lines, []string{
			server,
			of(func(s Sample) float64 { return s.P50 }).cell(duration),
			of(func(s Sample) float64 { return s.P99 }).cell(duration),
			of(func(s Sample) float64 { return s.P999 }).cell(duration),
			of(serverCPU).cell(short),
		})
	}
	return table([]string{"server", "p50", "p99", "p99.9", "server CPU µs for each message"}, lines)
}

func seconds(s Sample) float64  { return s.Seconds * 1e6 }
func resident(s Sample) float64 { return s.Resident }
func private(s Sample) float64  { return s.Private }

func (r *Record) starts() string {
	var lines [][]string
	for _, server := range Servers() {
		started := r.spread("", server, Start, 0, seconds)
		line := []string{
			server, started.cell(duration),
			r.spread("", server, Start, 0, resident).cell(short), r.spread("", server, Start, 0, private).cell(short),
		}
		measured := started.N > 0
		for _, class := range []string{Fsync, Cache} {
			loaded := r.spread(class, server, Memory, 0, resident)
			measured = measured || loaded.N > 0
			line = append(line, loaded.cell(short), r.spread(class, server, Memory, 0, private).cell(short))
		}
		if measured {
			lines = append(lines, line)
		}
	}
	return table([]string{
		"server", "start", "idle MiB", "of it private", "loaded MiB, fsync", "of it private", "loaded MiB, page cache", "of it private",
	}, lines)
}

// failures returns a list of rows in which something failed.
func (r *Record) failures() string {
	var b strings.Builder
	for _, s := range r.Samples {
		if s.Errors > 0 {
			fmt.Fprintf(&b, "- %s, %s, %s, %d in flight, round %d: %s of %s\n", s.Server, s.Class, s.Row, s.InFlight, s.Round,
				thousands(float64(s.Errors)), thousands(float64(s.Errors+s.Messages)))
		}
	}
	for _, note := range r.Notes {
		fmt.Fprintf(&b, "- %s\n", oneLine(note))
	}
	if b.Len() == 0 {
		return "- nothing\n"
	}
	return b.String()
}

// class is a class of durability in the report.
type class struct{ Name, Title, Prefix string }

// classes returns those that have samples.
func (r *Record) classes() []class {
	return slices.DeleteFunc([]class{
		{Fsync, "With an fsync before the answer", "fsync"}, {Cache, "Without an fsync before the answer", "page-cache"},
	}, func(c class) bool { return len(r.servers(c.Name)) == 0 })
}

// charts returns the pictures by their file names.
func (r *Record) charts() map[string]chart {
	charts := map[string]chart{}
	for _, c := range r.classes() {
		for row, name := range map[string]string{Send: "send", Batch: "batch", Receive: "receive"} {
			charts[c.Prefix+"-"+name+".svg"] = r.loadChart(c.Name, row, "messages per second", rate)
			charts[c.Prefix+"-"+name+"-cpu.svg"] = r.loadChart(c.Name, row, "server CPU µs for each message", serverCPU)
		}
		charts[c.Prefix+"-latency.svg"] = r.latencyChart(c.Name)
	}
	charts["start.svg"] = r.startChart()
	return charts
}

func (r *Record) loadChart(class, row, what string, value func(Sample) float64) chart {
	c := chart{
		title: fmt.Sprintf("%s: %s", row, what), format: short,
		note: fmt.Sprintf("%s; median of %d rounds, with the lowest and the highest", class, r.rounds(class)),
	}
	for _, n := range r.inFlight(class, row) {
		p := panel{title: fmt.Sprintf("%d in flight", n)}
		for _, server := range r.servers(class) {
			if s := r.spread(class, server, row, n, value); s.N > 0 {
				p.bars = append(p.bars, bar{server, color(server), s})
			}
		}
		c.panels = append(c.panels, p)
	}
	return c
}

func (r *Record) latencyChart(class string) chart {
	c := chart{
		title: fmt.Sprintf("from the intended send to the receive, %s", r.Value(KeyRate)), format: duration,
		note: fmt.Sprintf("%s; median of %d rounds, with the lowest and the highest", class, r.rounds(class)),
	}
	for _, q := range []struct {
		name  string
		value func(Sample) float64
	}{
		{"p50", func(s Sample) float64 { return s.P50 }},
		{"p99", func(s Sample) float64 { return s.P99 }},
		{"p99.9", func(s Sample) float64 { return s.P999 }},
	} {
		p := panel{title: q.name}
		for _, server := range r.servers(class) {
			if s := r.spread(class, server, Latency, 0, q.value); s.N > 0 {
				p.bars = append(p.bars, bar{server, color(server), s})
			}
		}
		c.panels = append(c.panels, p)
	}
	return c
}

func (r *Record) startChart() chart {
	c := chart{title: "start and memory", note: "from the start of the first process to the first acknowledged message; all processes of the server"}
	times, idle := panel{title: "start"}, panel{title: "idle memory"}
	for _, server := range Servers() {
		if s := r.spread("", server, Start, 0, seconds); s.N > 0 {
			times.bars = append(times.bars, bar{server, color(server), s})
			idle.bars = append(idle.bars, bar{server, color(server), r.spread("", server, Start, 0, resident)})
		}
	}
	loaded := panel{title: "memory after the loads, fsync"}
	other := panel{title: "memory after the loads, page cache"}
	for _, server := range Servers() {
		for class, p := range map[string]*panel{Fsync: &loaded, Cache: &other} {
			if s := r.spread(class, server, Memory, 0, resident); s.N > 0 {
				p.bars = append(p.bars, bar{server, color(server), s})
			}
		}
	}
	times.format, idle.format, loaded.format, other.format = duration, mib, mib, mib
	c.panels = []panel{times, idle, loaded, other}
	return c
}

func mib(v float64) string {
	if math.IsNaN(v) {
		return "–"
	}
	return short(v) + " MiB"
}

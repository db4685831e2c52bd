// Package figures keeps what was measured and shows it: as comma-separated values, as
// pictures and as a report. It measures nothing and knows the servers by their names
// only.
package figures

import (
	"encoding/csv"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Sample is one row of one server in one round. What was not measured is NaN.
type Sample struct {
	Class    string // of durability; "" where it is of no consequence
	Server   string
	Row      string
	InFlight int
	Round    int

	Messages  int64
	Errors    int64
	Seconds   float64 // that the load took, or the server to start
	Rate      float64 // messages per second
	ServerCPU float64 // microseconds for each message, of all processes of the server
	OwnCPU    float64 // microseconds for each message, of the load generator
	P50       float64 // microseconds
	P99       float64
	P999      float64
	Resident  float64 // MiB of all processes of the server
	Private   float64 // MiB, without pages of files
}

// NaN is what was not measured.
var NaN = math.NaN()

// Pair is a line of text with a name.
type Pair struct{ Key, Value string }

// Record is all that is known of a comparison.
type Record struct {
	// About says when, where and of what it is.
	About []Pair
	// Notes say what went wrong.
	Notes   []string
	Samples []Sample
}

// Value returns what the record says of key.
func (r *Record) Value(key string) string {
	for _, pair := range r.About {
		if pair.Key == key {
			return pair.Value
		}
	}
	return ""
}

// Set makes the record say something of key.
func (r *Record) Set(key, value string) {
	for i := range r.About {
		if r.About[i].Key == key {
			r.About[i].Value = value
			return
		}
	}
	r.About = append(r.About, Pair{key, value})
}

// column is a column of the file of samples.
type column struct {
	name string
	text *string
	int  *int64
	num  *float64
}

func (s *Sample) columns() []column {
	return []column{
		{name: "class", text: &s.Class},
		{name: "server", text: &s.Server},
		{name: "row", text: &s.Row},
		{name: "in_flight"}, // and
		{name: "round"},     // of type int
		{name: "messages", int: &s.Messages},
		{name: "errors", int: &s.Errors},
		{name: "seconds", num: &s.Seconds},
		{name: "messages_per_second", num: &s.Rate},
		{name: "server_cpu_us_per_message", num: &s.ServerCPU},
		{name: "generator_cpu_us_per_message", num: &s.OwnCPU},
		{name: "p50_us", num: &s.P50},
		{name: "p99_us", num: &s.P99},
		{name: "p99_9_us", num: &s.P999},
		{name: "resident_mib", num: &s.Resident},
		{name: "private_mib", num: &s.Private},
	}
}

func (s *Sample) integer(name string) *int {
	if name == "round" {
		return &s.Round
	}
	return &s.InFlight
}

// notePrefix and commentPrefix begin the lines of the file that are no samples.
const (
	notePrefix    = "# note: "
	commentPrefix = "# "
)

// Write writes the record: what it says of itself as comments, and a line for each sample.
func (r *Record) Write(w io.Writer) error {
	for _, pair := range r.About {
		if _, err := fmt.Fprintf(w, "%s%s: %s\n", commentPrefix, pair.Key, oneLine(pair.Value)); err != nil {
			return err
		}
	}
	for _, note := range r.Notes {
		if _, err := fmt.Fprintf(w, "%s%s\n", notePrefix, oneLine(note)); err != nil {
			return err
		}
	}
	out := csv.NewWriter(w)
	var head []string
	for _, c := range new(Sample).columns() {
		head = append(head, c.name)
	}
	if err := out.Write(head); err != nil {
		return err
	}
	for _, s := range r.Samples {
		var line []string
		for _, c := range s.columns() {
			switch {
			case c.text != nil:
				line = append(line, *c.text)
			case c.int != nil:
				line = append(line, strconv.FormatInt(*c.int, 10))
			case c.num == nil:
				line = append(line, strconv.Itoa(*s.integer(c.name)))
			case math.IsNaN(*c.num):
				line = append(line, "")
			default:
				line = append(line, strconv.FormatFloat(*c.num, 'g', 6, 64))
			}
		}
		if err := out.Write(line); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// Read reads what Write wrote.
func Read(r io.Reader) (*Record, error) {
	text, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	rec := &Record{}
	rest := string(text)
	for strings.HasPrefix(rest, commentPrefix) {
		line, after, _ := strings.Cut(rest, "\n")
		rest = after
		if note, ok := strings.CutPrefix(line, notePrefix); ok {
			rec.Notes = append(rec.Notes, note)
		} else if key, value, ok := strings.Cut(strings.TrimPrefix(line, commentPrefix), ": "); ok {
			rec.Set(key, value)
		}
	}
	lines, err := csv.NewReader(strings.NewReader(rest)).ReadAll()
	if err != nil {
		return nil, err
	}
	for i, line := range lines[min(1, len(lines)):] {
		var s Sample
		for k, c := range s.columns() {
			switch {
			case c.text != nil:
				*c.text = line[k]
			case c.int != nil:
				*c.int, err = strconv.ParseInt(line[k], 10, 64)
			case c.num == nil:
				*s.integer(c.name), err = strconv.Atoi(line[k])
			case line[k] == "":
				*c.num = NaN
			default:
				*c.num, err = strconv.ParseFloat(line[k], 64)
			}
			if err != nil {
				return nil, fmt.Errorf("sample %d, %s: %w", i+1, c.name, err)
			}
		}
		rec.Samples = append(rec.Samples, s)
	}
	return rec, nil
}

// Spread is the median of several measures and how far they lie apart.
type Spread struct {
	N               int
	Median          float64
	Lowest, Highest float64
}

// SpreadOf returns the spread of those of the values that are numbers.
func SpreadOf(values []float64) Spread {
	var sorted []float64
	for _, v := range values {
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			sorted = append(sorted, v)
		}
	}
	if len(sorted) == 0 {
		return Spread{Median: NaN, Lowest: NaN, Highest: NaN}
	}
	slices.Sort(sorted)
	n := len(sorted)
	return Spread{N: n, Median: (sorted[(n-1)/2] + sorted[n/2]) / 2, Lowest: sorted[0], Highest: sorted[n-1]}
}

package figures

import (
	"fmt"
	"slices"
)

// of returns the samples of a row of a server, in the order of their rounds.
func (r *Record) of(class, server, row string, inFlight int) (found []Sample) {
	for _, s := range r.Samples {
		if s.Class == class && s.Server == server && s.Row == row && s.InFlight == inFlight {
			found = append(found, s)
		}
	}
	slices.SortStableFunc(found, func(a, b Sample) int { return a.Round - b.Round })
	return found
}

// spread returns the spread of a value over the rounds.
func (r *Record) spread(class, server, row string, inFlight int, value func(Sample) float64) Spread {
	var values []float64
	for _, s := range r.of(class, server, row, inFlight) {
		values = append(values, value(s))
	}
	return SpreadOf(values)
}

// ratio returns the spread of the ratio of a value of one server to that of another, each
// of the same round.
func (r *Record) ratio(class, server, other, row string, inFlight int, value func(Sample) float64) Spread {
	var ratios []float64
	others := r.of(class, other, row, inFlight)
	for _, s := range r.of(class, server, row, inFlight) {
		if i := slices.IndexFunc(others, func(o Sample) bool { return o.Round == s.Round }); i >= 0 {
			ratios = append(ratios, value(s)/value(others[i]))
		}
	}
	return SpreadOf(ratios)
}

// servers returns those that have samples in a class.
func (r *Record) servers(class string) (found []string) {
	for _, name := range Servers() {
		if slices.ContainsFunc(r.Samples, func(s Sample) bool { return s.Class == class && s.Server == name }) {
			found = append(found, name)
		}
	}
	return found
}

// inFlight returns the numbers in flight that a row has in a class, in ascending order.
func (r *Record) inFlight(class, row string) (found []int) {
	for _, s := range r.Samples {
		if s.Class == class && s.Row == row && !slices.Contains(found, s.InFlight) {
			found = append(found, s.InFlight)
		}
	}
	slices.Sort(found)
	return found
}

// rounds says how many rounds the samples of a class are from.
func (r *Record) rounds(class string) (n int) {
	for _, s := range r.Samples {
		if s.Class == class {
			n = max(n, s.Round)
		}
	}
	return n
}

// loads are the rows that have a rate.
func loads() []string { return []string{Send, Batch, Receive, Each} }

func rate(s Sample) float64      { return s.Rate }
func serverCPU(s Sample) float64 { return s.ServerCPU }
func ownCPU(s Sample) float64    { return s.OwnCPU }

// cell writes a median with its spread.
func (s Spread) cell(format func(float64) string) string {
	switch s.N {
	case 0:
		return "–"
	case 1:
		return format(s.Median)
	default:
		return fmt.Sprintf("%s (%s–%s)", format(s.Median), format(s.Lowest), format(s.Highest))
	}
}

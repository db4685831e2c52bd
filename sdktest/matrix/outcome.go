package main

// A state is how a scenario went with a language.
type state string

const (
	pass       state = "pass"
	fail       state = "FAIL"
	fault      state = "fault"       // it fails, and it is the SDK that does not do what it should
	notOffered state = "not offered" // the SDK has nothing to run it with
	impossible state = "n/a"         // no client could
	skipped    state = "skipped"     // not this time: left out for its length, or a tool is missing
)

// An outcome is a cell of the matrix.
type outcome struct {
	State  state
	Reason string
}

// A column is everything about a language.
type column struct {
	Language Language
	Outcomes map[string]outcome // by scenario
	// Problems are what went wrong beside the scenarios: a build, another test of a suite,
	// a server that did not stop.
	Problems []string
	// Others is how many tests passed that no scenario names.
	Others int
	// Absent says why nothing was run.
	Absent string
}

func (c column) count(s state) (n int) {
	for _, o := range c.Outcomes {
		if o.State == s {
			n++
		}
	}
	return n
}

// failed is how much of the column has to be mended.
func (c column) failed() int { return c.count(fail) + len(c.Problems) }

// judge turns what a run says about scenarios into cells. A scenario of which it says
// nothing failed.
func judge(l Language, scenarios []Scenario, ran map[string]outcome) map[string]outcome {
	cells := map[string]outcome{}
	for _, s := range scenarios {
		switch got, ok := ran[s.Name]; {
		case len(l.Only) > 0 && !l.runs(s):
		case s.NotApplicable != "":
			cells[s.Name] = outcome{impossible, s.NotApplicable}
		case !l.runs(s):
			cells[s.Name] = outcome{notOffered, l.NotOffered[s.Name]}
		case !ok:
			cells[s.Name] = outcome{fail, "no result"}
		case got.State == fault && l.Faults[s.Name] == "":
			cells[s.Name] = outcome{fail, "the program says that the SDK is at fault, and nothing says how"}
		case got.State == fault:
			cells[s.Name] = outcome{fault, l.Faults[s.Name]}
		default:
			cells[s.Name] = got
		}
	}
	return cells
}

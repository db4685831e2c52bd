package main

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestThePlanFitsAndItsVersionsAreThosePinned(t *testing.T) {
	p, err := readPlan("..")
	require.NoError(t, err)
	for _, l := range slices.Concat(p.Languages, p.Integrations) {
		if l.Missing != "" {
			continue
		}
		content, err := os.ReadFile(filepath.Join("..", l.PinnedIn))
		require.NoError(t, err, l.Name)
		require.Contains(t, string(content), l.Version, l.Name)
	}
}

func TestAPlanThatDoesNotFitIsRefused(t *testing.T) {
	one := []Scenario{{Name: "start"}}
	for text, p := range map[string]plan{
		"twice":             {Scenarios: []Scenario{{Name: "start"}, {Name: "start"}}},
		"no scenario stop":  {Scenarios: one, Languages: []Language{{Faults: map[string]string{"stop": "because"}}}},
		"no test for start": {Scenarios: one, Languages: []Language{{Suite: "go"}}},
	} {
		require.ErrorContains(t, p.check(), text)
	}
}

func TestEventsOfGoTestBecomeOutcomes(t *testing.T) {
	tests, printed := map[string]outcome{}, map[string]*strings.Builder{}
	for _, line := range []string{
		`{"Action":"output","Package":"p","Test":"TestB/part","Output":"why\n"}`,
		`{"Action":"pass","Package":"p","Test":"TestA"}`,
		`{"Action":"fail","Package":"p","Test":"TestB/part"}`,
		`{"Action":"fail","Package":"p","Test":"TestB"}`,
		`{"Action":"skip","Package":"p","Test":"TestC"}`,
		`{"Action":"pass","Package":"p"}`,
		`{"Action":"fail","Package":"p"}`,
		`{"Action":"fail","Package":"q"}`,
		`not an event`,
	} {
		goTest(line, tests, printed, io.Discard)
	}
	require.Equal(t, map[string]outcome{
		"TestA": {pass, ""}, "TestB": {fail, "TestB failed"}, "TestC": {skipped, "left out of the short run"}, "q": {fail, "q failed"},
		"p": {skipped, "its tests say why it failed"},
	}, tests)
	require.Equal(t, "why\n", printed["TestB"].String())
}

func TestLinesOfTAPBecomeOutcomes(t *testing.T) {
	tests := map[string]outcome{}
	for _, line := range []string{
		"TAP version 13", "ok 1 - a message arrives", "not ok 2 - it comes at last", "    ok 1 - a part",
		"ok 3 - left out # SKIP no openssl", `ok 4 - with \# and \\`, "1..4",
	} {
		tapTest(line, tests)
	}
	require.Equal(t, map[string]outcome{
		"a message arrives": {pass, ""}, "it comes at last": {fail, "it comes at last: failed"}, "a part": {pass, ""},
		"left out": {skipped, "left out of this run"}, `with # and \`: {pass, ""},
	}, tests)
}

func TestAScenarioIsAsGoodAsTheWorstOfItsTests(t *testing.T) {
	l := Language{CoveredBy: map[string][]string{"a": {"1", "2"}, "b": {"2", "3"}, "c": {"1", "gone"}}}
	scenarios := []Scenario{{Name: "a"}, {Name: "b"}, {Name: "c"}}
	ran, problems, others := byScenario(l, scenarios, map[string]outcome{
		"1": {pass, ""}, "2": {skipped, "long"}, "3": {fail, "3 failed"}, "4": {pass, ""}, "5": {fail, "5 failed"},
	})
	require.Equal(t, map[string]outcome{"a": {skipped, "long"}, "b": {fail, "3 failed"}, "c": {fail, "there is no test gone"}}, ran)
	require.Equal(t, []string{"5 failed"}, problems)
	require.Equal(t, 1, others)
}

func TestOnlyWhatIsKnownOfTheSDKIsNoFailure(t *testing.T) {
	l := Language{NotOffered: map[string]string{"batch": "one message"}, Faults: map[string]string{"tls": "no roots", "lite": "may fail"}}
	var scenarios []Scenario
	for _, name := range []string{"start", "batch", "tls", "lite", "silent", "broken", "unexplained"} {
		scenarios = append(scenarios, Scenario{Name: name})
	}
	scenarios = append(scenarios, Scenario{Name: "login", NotApplicable: "no users"})
	cells := judge(l, scenarios, map[string]outcome{
		"start": {pass, ""}, "tls": {fault, ""}, "lite": {fail, "lost too"}, "broken": {fail, "lost"}, "unexplained": {fault, ""},
	})
	require.Equal(t, map[string]outcome{
		"start": {pass, ""}, "batch": {notOffered, "one message"}, "tls": {fault, "no roots"}, "lite": {fail, "lost too"},
		"unexplained": {fail, "the program says that the SDK is at fault, and nothing says how"},
		"silent":      {fail, "no result"}, "broken": {fail, "lost"}, "login": {impossible, "no users"},
	}, cells)
	text, failed := summary([]column{{Language: l, Outcomes: cells, Others: 3}, {Absent: "no cargo in PATH"}}, time.Second)
	require.Equal(t, 4, failed)
	require.Contains(t, text, "\n4 passed, 4 failed\n")
	require.Contains(t, text, "no cargo in PATH")
}

package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"
)

// matrix returns the page about a run.
func matrix(scenarios []Scenario, columns []column, o options, now time.Time) string {
	var b strings.Builder
	fmt.Fprintf(&b, `# Official SDKs

Every official RocketMQ 5 SDK, unmodified and in the version that its registry serves, against a Perigee server. This page is written by

    %s

on %s, commit %s, %s.

| | |
| --- | --- |
| pass | the scenario was run and went as it should |
| fault | it was run and fails, because of the SDK; the reason is below |
| - | the SDK does not offer it |
| n/a | no client could run it |
| FAIL | it was run and fails |

`, o.command, now.UTC().Format("2006-01-02"), o.commit, machine())
	present := slices.DeleteFunc(slices.Clone(columns), func(c column) bool { return c.Absent != "" })
	b.WriteString("| scenario |")
	for _, c := range present {
		fmt.Fprintf(&b, " %s |", c.Language.Name)
	}
	b.WriteString("\n| --- |" + strings.Repeat(" --- |", len(present)) + "\n| version |")
	for _, c := range present {
		fmt.Fprintf(&b, " %s |", c.Language.Version)
	}
	for _, s := range scenarios {
		if !slices.ContainsFunc(present, func(c column) bool { return c.Outcomes[s.Name].State != "" }) {
			continue
		}
		fmt.Fprintf(&b, "\n| `%s` |", s.Name)
		for _, c := range present {
			fmt.Fprintf(&b, " %s |", cell(c.Outcomes[s.Name]))
		}
	}
	b.WriteString("\n\n## Scenarios\n\n| | |\n| --- | --- |\n")
	for _, s := range scenarios {
		fmt.Fprintf(&b, "| `%s` | %s |\n", s.Name, s.Meaning)
	}
	b.WriteString("\n## Notes\n")
	for _, c := range columns {
		notes(&b, c, scenarios)
	}
	return b.String()
}

func cell(o outcome) string {
	switch o.State {
	case notOffered, "":
		return "-"
	case pass, fail, fault, impossible, skipped:
		return string(o.State)
	}
	return string(o.State)
}

func notes(b *strings.Builder, c column, scenarios []Scenario) {
	fmt.Fprintf(b, "\n**%s**, `%s` %s", c.Language.Name, c.Language.SDK, c.Language.Version)
	if c.Absent != "" {
		fmt.Fprintf(b, ": not run, %s\n", c.Absent)
		return
	}
	if c.Others > 0 {
		fmt.Fprintf(b, ": %d other tests passed", c.Others)
	}
	b.WriteString("\n\n")
	for _, s := range scenarios {
		if o := c.Outcomes[s.Name]; o.Reason != "" && o.State != impossible {
			fmt.Fprintf(b, "- `%s`: %s: %s\n", s.Name, o.State, strings.ReplaceAll(o.Reason, "\n", " "))
		}
	}
	for _, problem := range c.Problems {
		fmt.Fprintf(b, "- FAIL: %s\n", strings.ReplaceAll(problem, "\n", " "))
	}
}

// summary returns a screen about a run and how much of it failed.
func summary(columns []column, took time.Duration) (text string, failed int) {
	var b strings.Builder
	passed := 0
	b.WriteString("\n")
	fmt.Fprintf(&b, "%-26s %5s %5s %5s %5s %7s\n", "", "pass", "fail", "fault", "-", "skipped")
	for _, c := range columns {
		title := strings.TrimSpace(c.Language.Name + " " + c.Language.Version)
		if c.Absent != "" {
			fmt.Fprintf(&b, "%-26s not run: %s\n", title, c.Absent)
			continue
		}
		fmt.Fprintf(&b, "%-26s %5d %5d %5d %5d %7d\n", title, c.count(pass), c.failed(), c.count(fault), c.count(notOffered), c.count(skipped))
		passed += c.count(pass) + c.Others
		failed += c.failed()
		for name, o := range c.Outcomes {
			if o.State == fail {
				fmt.Fprintf(&b, "    %s: %s\n", name, o.Reason)
			}
		}
		for _, problem := range c.Problems {
			fmt.Fprintf(&b, "    %s\n", problem)
		}
	}
	fmt.Fprintf(&b, "in %.0f s\n%d passed, %d failed\n", took.Seconds(), passed, failed)
	return b.String(), failed
}

func commit() string {
	out, err := exec.Command("git", "rev-parse", "--short", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

// machine says on what the run was.
func machine() string {
	text := fmt.Sprintf("%d cores, %s/%s", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH)
	content, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return text
	}
	for line := range strings.Lines(string(content)) {
		if _, model, ok := strings.Cut(line, "model name\t: "); ok {
			return text + ", " + strings.TrimSpace(model)
		}
	}
	return text
}

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// suiteLimit is how long a test suite may take.
const suiteLimit = 15 * time.Minute

// failedLog is the file with what failed tests of a suite have printed.
const failedLog = "failed.log"

// A suite is a test suite that has more in it than the scenarios.
type suite struct {
	folder string // of this module
	dir    string // for what it prints
	binary string
	short  bool
	tiers  bool
}

// run runs the suite of a language and returns the outcome of each test.
func (s suite) run(ctx context.Context, l Language) (map[string]outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, suiteLimit)
	defer cancel()
	var err error
	tests := map[string]outcome{}
	switch l.Suite {
	case "go":
		err = s.goTests(ctx, tests)
	case "node":
		err = s.nodeTests(ctx, tests)
	default:
		return nil, fmt.Errorf("%s: no kind of suite %q", l.Name, l.Suite)
	}
	if len(tests) == 0 {
		return nil, errors.Join(errors.New("no test was run"), err)
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && slices.ContainsFunc(values(tests), func(o outcome) bool { return o.State == fail }) {
		err = nil // as the failed tests say
	}
	return tests, err
}

func (s suite) environment() []string {
	env := append(os.Environ(), "PERIGEE_BIN="+s.binary, "PERIGEE_TIERS=", "SHORT=")
	if s.tiers {
		env = append(env, "PERIGEE_TIERS=1")
	}
	if s.short {
		env = append(env, "SHORT=1")
	}
	return env
}

func (s suite) goTests(ctx context.Context, tests map[string]outcome) error {
	args := []string{"test", "-json", "-count=1", "-timeout", suiteLimit.String()}
	if s.short {
		args = append(args, "-short")
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "./...")...)
	cmd.Dir = s.folder
	printed := map[string]*strings.Builder{}
	err := s.listen(cmd, func(text string, log io.Writer) { goTest(text, tests, printed, log) })
	var failed strings.Builder
	for name, o := range tests {
		if o.State == fail && printed[name] != nil {
			failed.WriteString(printed[name].String())
		}
	}
	return errors.Join(err, s.keepFailed(failed.String()))
}

func (s suite) keepFailed(text string) error {
	if text == "" {
		return nil
	}
	return os.WriteFile(filepath.Join(s.dir, failedLog), []byte(text), 0o644)
}

// goTest takes in an event of go test. What a test with its parts prints is added to
// printed under its name.
func goTest(text string, tests map[string]outcome, printed map[string]*strings.Builder, log io.Writer) {
	var event struct{ Action, Test, Package, Output string }
	if json.Unmarshal([]byte(text), &event) != nil {
		fmt.Fprintln(log, text)
		return
	}
	fmt.Fprint(log, event.Output)
	name, _, part := strings.Cut(event.Test, "/")
	if name != "" && !part && event.Action == "fail" {
		tests[event.Package] = outcome{skipped, "its tests say why it failed"}
	}
	if event.Output != "" {
		if printed[name] == nil {
			printed[name] = &strings.Builder{}
		}
		printed[name].WriteString(event.Output)
	}
	if _, told := tests[event.Package]; name == "" && event.Action == "fail" && !told {
		name = event.Package // it did not build, or ended early
	}
	if name == "" || part {
		return
	}
	switch event.Action {
	case "pass":
		tests[name] = outcome{pass, ""}
	case "skip":
		tests[name] = outcome{skipped, "left out of the short run"}
	case "fail":
		tests[name] = outcome{fail, name + " failed"}
	}
}

func (s suite) nodeTests(ctx context.Context, tests map[string]outcome) error {
	const line = "exec node --test --test-force-exit --test-concurrency=4 --test-reporter=tap test/*.test.js"
	cmd := exec.CommandContext(ctx, "bash", "-c", line)
	cmd.Dir = filepath.Join(s.folder, "node")
	var failed strings.Builder
	failing := false
	err := s.listen(cmd, func(text string, log io.Writer) {
		fmt.Fprintln(log, text)
		if isTest, ok := tapTest(text, tests); isTest {
			failing = !ok
		}
		if failing { // its line, and what follows about it
			fmt.Fprintln(&failed, text)
		}
	})
	return errors.Join(err, s.keepFailed(failed.String()))
}

var tapLine = regexp.MustCompile(`^\s*(not )?ok \d+ - (.*?)(?: # (SKIP|TODO).*)?$`)

// tapTest takes in a line of the Test Anything Protocol. It reports whether that was how
// a test went, and whether the test did not fail.
func tapTest(text string, tests map[string]outcome) (isTest, ok bool) {
	m := tapLine.FindStringSubmatch(text)
	if m == nil {
		return false, false
	}
	name := strings.NewReplacer(`\#`, "#", `\\`, `\`).Replace(m[2])
	switch {
	case m[3] != "":
		tests[name] = outcome{skipped, "left out of this run"}
	case m[1] != "":
		tests[name] = outcome{fail, name + ": failed"}
		return true, false
	default:
		tests[name] = outcome{pass, ""}
	}
	return true, true
}

// listen runs a command and gives each line that it prints to take.
func (s suite) listen(cmd *exec.Cmd, take func(text string, log io.Writer)) error {
	log, err := os.Create(filepath.Join(s.dir, "program.log"))
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // it is for people, and the tests have said how they went
	cmd.Env, cmd.Stderr = s.environment(), log
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewScanner(stdout)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		take(lines.Text(), log)
	}
	return errors.Join(lines.Err(), cmd.Wait())
}

// byScenario says how scenarios went by the tests that cover them, and names the other
// tests that failed. Others is how many passed.
func byScenario(l Language, scenarios []Scenario, tests map[string]outcome) (ran map[string]outcome, problems []string, others int) {
	ran = map[string]outcome{}
	named := map[string]bool{}
	for _, s := range scenarios {
		for _, name := range l.CoveredBy[s.Name] {
			named[name] = true
			got, ok := tests[name]
			if !ok {
				got = outcome{fail, "there is no test " + name}
			}
			if now, ok := ran[s.Name]; !ok || now.State == pass || got.State == fail {
				ran[s.Name] = got
			}
		}
	}
	for name, got := range tests {
		switch {
		case named[name]:
		case got.State == fail:
			problems = append(problems, got.Reason)
		case got.State == pass:
			others++
		}
	}
	slices.Sort(problems)
	return ran, problems, others
}

func values(tests map[string]outcome) []outcome {
	var all []outcome
	for _, o := range tests {
		all = append(all, o)
	}
	return all
}

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The names of the checkers.
const (
	histories  = "histories" // simulated, with faults
	linear     = "linear"    // simulated histories of concurrent calls, checked by porcupine
	faults     = "faults"    // every operation of the file system fails, in one story
	damaged    = "damage"    // every file is damaged, in every way
	trimmed    = "trimmed"   // a log is trimmed, and crashes
	clocked    = "clock"     // the wall clock jumps
	theMachine = "machine"   // models and stories of store/machine
	theLog     = "log"       // crashes and damage of store/commitlog
	theShard   = "shard"     // tests of store/shard of what waits, is pulled, purged or filtered
	killed     = "kill"      // a real server that is killed
)

// A checker is a part of the tests that judges a product with a broken rule.
type checker struct {
	pkg  string   // whose tests they are
	run  string   // which, as of -test.run
	skip string   // which not
	env  []string // of the process
	// server says that the tests start a server, which is built with the rule broken.
	server bool
	// timeout ends tests that hang: many times what they take with the product as it is.
	timeout time.Duration
}

// Before it is known how long a checker takes it has longest; then patience times as long,
// and shortest at least.
const (
	longest  = 10 * time.Minute
	shortest = 2 * time.Minute
	patience = 8
)

const torturePkg = "internal/torture"

// fixed is the seed of everything: a run finds what the run before has found.
const fixed = 1

// checkers returns the checkers, each with its bound: histories is the number of simulated
// ones in each mode.
func checkers(n int) map[string]checker {
	seed := fmt.Sprint("PERIGEE_SEED=", fixed)
	simulated := []string{seed, fmt.Sprint("PERIGEE_HISTORIES=", n)}
	return map[string]checker{
		histories:  {pkg: torturePkg, run: "HistoriesWithFaults", env: simulated},
		linear:     {pkg: torturePkg, run: "ConcurrentCallsAreLinearizable", env: simulated},
		faults:     {pkg: torturePkg, run: "EveryFaultOfEveryOperation|NotSeenBeforeItIsDurable|LeasedAlready|UsedForTwoBodies|SlowDisk", env: []string{seed}},
		damaged:    {pkg: torturePkg, run: "DamageOfAnyFile", env: []string{seed}},
		clocked:    {pkg: torturePkg, run: "AClockThatWasSet"},
		trimmed:    {pkg: "store/shard", run: "LogIsTrimmed|HistoriesWithRetention|TrimmerDrops|EveryTopicKeeps|SegmentsGo|UnderDelivery|OutliveTheSegments|HoldsNothing|HoldTheLog", env: []string{seed}},
		theMachine: {pkg: "store/machine", run: "."},
		theLog:     {pkg: "store/commitlog", run: "."},
		theShard:   {pkg: "store/shard", run: ".", skip: "Stall|Overload"},
		killed: {
			pkg: "internal/crashtest", run: "Killed$|LeftAlone|Linearizable", server: true,
			env: []string{seed, "PERIGEE_KILLS=2", "PERIGEE_CALM=3"},
		},
	}
}

// inOneProcess are asked about a mutation that names no checkers.
var inOneProcess = []string{histories, linear, faults, theMachine}

// A finding is what a checker said about a mutation.
type finding struct {
	by    string
	after int    // histories, if it counts them
	text  string // the first line of what it found
}

// errMissed says that a checker has found nothing; errHung that it did not come to its end,
// which counts as nothing found.
var (
	errMissed = errors.New("not found")
	errHung   = fmt.Errorf("%w: it did not come to its end", errMissed)
)

// A bench builds the tests of a product that has all mutations in it, and runs them with one.
type bench struct {
	root, dir string
	overlay   string
	checkers  map[string]checker

	building sync.Mutex // one at a time: they share the work
	built    map[string]string
}

func newBench(root string, list []mutation, checkers map[string]checker) (*bench, error) {
	texts, err := woven(root, list)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "planted-")
	if err != nil {
		return nil, err
	}
	b := &bench{root: root, dir: dir, built: map[string]string{}, checkers: checkers}
	if b.overlay, err = writeOverlay(root, dir, texts); err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

func (b *bench) close() error { return os.RemoveAll(b.dir) }

// timed asks a checker about the product as it is, and gives it the time for others.
func (b *bench) timed(ctx context.Context, name string) error {
	c := b.checkers[name]
	pkgs := []string{c.pkg}
	if c.server {
		pkgs = append(pkgs, "cmd/perigee")
	}
	for _, pkg := range pkgs {
		if _, err := b.build(ctx, pkg); err != nil {
			return err
		}
	}
	start := time.Now()
	if f, err := b.ask(ctx, name, 0); !errors.Is(err, errMissed) {
		return errors.Join(fmt.Errorf("%s finds something wrong with the product as it is: %s", name, f.text), err)
	}
	c.timeout = max(patience*time.Since(start), shortest).Round(time.Second)
	b.checkers[name] = c
	return nil
}

// build builds a test binary, or the server, if that was not done before.
func (b *bench) build(ctx context.Context, pkg string) (string, error) {
	b.building.Lock()
	defer b.building.Unlock()
	if path := b.built[pkg]; path != "" {
		return path, nil
	}
	path := filepath.Join(b.dir, strings.ReplaceAll(pkg, "/", "-"))
	args := []string{"test", "-c", "-vet=off"}
	if strings.HasPrefix(pkg, "cmd/") {
		args = []string{"build"}
	}
	args = append(args, "-ldflags", "-s -w", "-o", path, "-overlay", b.overlay)
	cmd := exec.CommandContext(ctx, "go", append(args, "./"+pkg)...)
	cmd.Dir = b.root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s does not build: %w\n%s", pkg, err, out)
	}
	b.built[pkg] = path
	return path, nil
}

// ask runs a checker with a mutation. It returns errMissed when that finds nothing wrong.
func (b *bench) ask(ctx context.Context, name string, number int) (finding, error) {
	c := b.checkers[name]
	path, err := b.build(ctx, c.pkg)
	if err != nil {
		return finding{}, err
	}
	env := append(os.Environ(), c.env...)
	env = append(env, "PERIGEE_RESULTS=", fmt.Sprintf("%s=%d", switchEnv, number))
	if c.server {
		server, err := b.build(ctx, "cmd/perigee")
		if err != nil {
			return finding{}, err
		}
		env = append(env, "PERIGEE_BIN="+server)
	}
	timeout := cmp.Or(c.timeout, longest)
	args := []string{"-test.run", c.run, "-test.v", "-test.failfast", "-test.short", "-test.timeout", timeout.String()}
	if c.skip != "" {
		args = append(args, "-test.skip", c.skip)
	}
	if c.pkg == "store/machine" {
		args = append(args, "-rapid.nofailfile", "-rapid.seed", fmt.Sprint(fixed), "-rapid.checks", "60")
	}
	ctx, cancel := context.WithTimeout(ctx, timeout+time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir, cmd.Env = filepath.Join(b.root, c.pkg), env
	said := &listener{cancel: cancel}
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = said, said, 5*time.Second
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return finding{}, errMissed
	case !errors.As(err, &exit):
		return finding{}, err
	}
	text := said.text.String()
	if strings.Contains(text, "panic: test timed out") || errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return finding{}, errHung // a machine with much to do looks like that, too
	}
	return found(name, text), nil
}

// A listener keeps what tests print, and ends them when they have found something: what
// they would do from then on may take for ever.
type listener struct {
	text   strings.Builder
	cancel func()
	ends   bool
}

// Write implements io.Writer.
func (l *listener) Write(p []byte) (int, error) {
	l.text.Write(p)
	if !l.ends && (seedOf.Match(p) || failing.Match(p)) {
		l.ends = true
		time.AfterFunc(200*time.Millisecond, l.cancel) // there may be more to it
	}
	return len(p), nil
}

var (
	seedOf   = regexp.MustCompile(`PERIGEE_SEED=(\d+) PERIGEE_HISTORIES=1:`)
	panicked = regexp.MustCompile(`(?m)^(panic: .*|fatal error: .*|.*BUG:.*)$`)
	failed   = regexp.MustCompile(`(?m)^\s+\w+_test\.go:\d+: .*$`)
	failing  = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)
)

// found reads what the tests have printed.
func found(by, out string) finding {
	f := finding{by: by}
	if m := seedOf.FindStringSubmatch(out); m != nil {
		if seed, err := strconv.Atoi(m[1]); err == nil {
			f.after = seed - fixed + 1
		}
	}
	if m := failing.FindStringSubmatch(out); m != nil {
		f.text = m[1]
	}
	for _, re := range []*regexp.Regexp{panicked, failed} {
		for _, line := range re.FindAllString(out, -1) {
			told := strings.Contains(line, "PERIGEE_SEED=") && !seedOf.MatchString(line) || strings.Contains(line, "[rapid] OK") ||
				strings.Contains(line, "without -short") || strings.Contains(line, "{acked:")
			if !told {
				f.text += " " + strings.TrimSpace(line)
				return f
			}
		}
	}
	return f
}

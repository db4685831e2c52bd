package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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
	calm       = "calm"      // a real server that nothing happens to
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
	// bound is the time of a processor, and longest the time, after which tests hang: many
	// times what they take with the product as it is.
	bound, longest time.Duration
}

// Before it is known how long a checker takes it has longest; then patience times as much,
// and shortest at least. Nobody who works is idle for so long. A bubble has bubblePatience.
const (
	longest        = 10 * time.Minute
	shortest       = 15 * time.Second
	patience       = 3
	idle           = 20 * time.Second
	bubblePatience = "4s"
)

const (
	torturePkg = "internal/torture"
	crashPkg   = "internal/crashtest"
)

// soon is for how long clients of a real server wait for what they have not got: the lease
// of what a killed one had, and some.
const soon = "PERIGEE_DRAIN=30s"

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
		calm:       {pkg: crashPkg, run: "LeftAlone", server: true, env: []string{seed, "PERIGEE_CALM=3", soon}},
		killed:     {pkg: crashPkg, run: "Killed$", server: true, env: []string{seed, "PERIGEE_KILLS=2", soon}},
	}
}

// inOneProcess are asked about a mutation that names no checkers.
var inOneProcess = []string{histories, linear, faults, theMachine}

// A finding is what a checker said about a mutation.
type finding struct {
	by    string
	after int    // histories, if it counts them
	text  string // the first line of what it found
	used  time.Duration
}

// errMissed says that a checker has found nothing; errHung that one which waits for others did
// not come to its end, which counts as nothing found.
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
	f, err := b.ask(ctx, name, 0)
	if !errors.Is(err, errMissed) || errors.Is(err, errHung) {
		return errors.Join(fmt.Errorf("%s finds something wrong with the product as it is: %s", name, f.text), err)
	}
	c.bound = max(patience*f.used, shortest).Round(time.Second)
	if c.server { // what takes its time are others
		c.longest = max(patience*time.Since(start), time.Minute).Round(time.Second)
	}
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
	env = append(env, "PERIGEE_RESULTS=", "PERIGEE_PATIENCE="+bubblePatience, fmt.Sprintf("%s=%d", switchEnv, number))
	if c.server {
		server, err := b.build(ctx, "cmd/perigee")
		if err != nil {
			return finding{}, err
		}
		env = append(env, "PERIGEE_BIN="+server)
	}
	args := []string{"-test.run", c.run, "-test.v", "-test.failfast", "-test.short", "-test.timeout", "0"}
	if c.skip != "" {
		args = append(args, "-test.skip", c.skip)
	}
	if c.pkg == "store/machine" {
		args = append(args, "-rapid.nofailfile", "-rapid.seed", fmt.Sprint(fixed), "-rapid.checks", "60")
	}
	k := child{server: c.server, path: path, dir: filepath.Join(b.root, c.pkg), args: args, env: env, longest: cmp.Or(c.longest, longest)}
	if !c.server {
		k.bound, k.idle = cmp.Or(c.bound, longest), idle
	}
	o, err := k.watch(ctx)
	switch {
	case err != nil || ctx.Err() != nil:
		return finding{}, errors.Join(err, ctx.Err())
	case o.hangs == "" && !o.failed:
		return finding{used: o.used}, errMissed
	case o.hangs != "" && !seedOf.MatchString(o.said) && !failing.MatchString(o.said) && c.server:
		return finding{}, errHung // a machine with much to do looks like that, too
	}
	return found(name, &o), nil
}

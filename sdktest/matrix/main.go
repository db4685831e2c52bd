// Command matrix runs the scenarios of scenarios.json with each official SDK of
// languages.json against a server, and says which work. It builds and runs what the
// folders of the languages hold, starts and ends the servers, and writes the matrix. It
// knows nothing of the protocol.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// atOnce is how many languages run at the same time. Tests wait for the most part.
	atOnce     = 3
	buildLimit = 20 * time.Minute
	logTail    = 8 << 10
)

type options struct {
	folder       string // of this module
	binary       string
	work         string // for everything that does not outlast the run
	short        bool
	tiers        bool
	integrations bool
	languages    []string
	out          string
	command      string
	commit       string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	failed, err := run(ctx, os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "matrix:", err)
		os.Exit(2)
	}
	if failed > 0 {
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) (failed int, err error) {
	var o options
	var languages, only string
	flags := flag.NewFlagSet("matrix", flag.ContinueOnError)
	flags.BoolVar(&o.short, "short", false, "leave out what takes long")
	flags.BoolVar(&o.tiers, "tiers", false, "run against a deployment in several processes")
	flags.BoolVar(&o.integrations, "integrations", false, "run what is built on the SDKs, and not the SDKs")
	flags.StringVar(&languages, "languages", "", "run only these, separated by spaces")
	flags.StringVar(&only, "scenarios", "", "let programs run only these, separated by spaces; suites run whole")
	flags.StringVar(&o.out, "out", "", "the file to write the matrix to")
	flags.StringVar(&o.command, "command", "go run ./matrix", "how the run was started, for the matrix")
	if err := flags.Parse(args); err != nil {
		return 0, err
	}
	o.languages = strings.Fields(languages)
	if o.folder, err = os.Getwd(); err != nil {
		return 0, err
	}
	if o.binary, err = binary(o.folder); err != nil {
		return 0, err
	}
	p, err := readPlan(o.folder)
	if err != nil {
		return 0, err
	}
	if o.work, err = os.MkdirTemp("", "sdktest-"); err != nil {
		return 0, err
	}

	chosen := p.Languages
	if o.integrations {
		chosen = p.Integrations
	}
	if len(o.languages) > 0 {
		chosen = slices.DeleteFunc(slices.Clone(chosen), func(l Language) bool { return !slices.Contains(o.languages, l.ID) })
	}
	if len(chosen) == 0 {
		return 0, fmt.Errorf("no such language: %s", languages)
	}
	if names := strings.Fields(only); len(names) > 0 {
		for i := range chosen {
			chosen[i].Only = append(chosen[i].Only, names...)
		}
	}
	start := time.Now()
	o.commit = commit()
	columns := o.runAll(ctx, chosen, p.Scenarios)
	if o.out != "" {
		if err := os.WriteFile(o.out, []byte(matrix(p.Scenarios, columns, o, time.Now())), 0o644); err != nil {
			return 0, err
		}
	}
	text, failed := summary(columns, time.Since(start))
	fmt.Print(text)
	if failed == 0 {
		return 0, errors.Join(os.RemoveAll(o.work), ctx.Err())
	}
	fmt.Println("all logs are in", o.work)
	return failed, ctx.Err()
}

func binary(folder string) (string, error) {
	path := os.Getenv("PERIGEE_BIN")
	if path == "" {
		path = filepath.Join(folder, "..", "bin", "perigee")
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("no server to test: %w; run make build, or name a binary in PERIGEE_BIN", err)
	}
	return filepath.Abs(path)
}

// runAll runs the languages, some at the same time, and returns their columns in order.
func (o options) runAll(ctx context.Context, languages []Language, scenarios []Scenario) []column {
	columns := make([]column, len(languages))
	places := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	for i, l := range languages {
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			start := time.Now()
			columns[i] = o.column(ctx, l, scenarios)
			c := columns[i]
			if c.Absent != "" {
				return // the summary says why
			}
			fmt.Printf("%-12s %d passed, %d failed (%.0f s)\n", l.Name, c.count(pass)+c.Others, c.failed(), time.Since(start).Seconds())
			if c.failed() > 0 {
				o.printLogs(l)
			}
		})
	}
	wg.Wait()
	return columns
}

// column builds and runs a language.
func (o options) column(ctx context.Context, l Language, scenarios []Scenario) column {
	c := column{Language: l, Absent: l.Missing}
	for _, command := range l.Needs {
		if _, err := exec.LookPath(command); err != nil {
			c.Absent = "no " + command + " in PATH"
		}
	}
	if c.Absent != "" {
		return c
	}
	folder, dir := filepath.Join(o.folder, l.folder()), filepath.Join(o.work, l.ID)
	cache, err := cacheOf(l)
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err == nil {
		err = o.build(ctx, l, folder, dir, cache)
	}
	if err != nil {
		c.Problems = []string{fmt.Sprintf("build: %v", err)}
		return c
	}
	var ran map[string]outcome
	if l.Suite != "" {
		var tests map[string]outcome
		tests, err = suite{folder: o.folder, dir: dir, binary: o.binary, short: o.short, tiers: o.tiers}.run(ctx, l)
		ran, c.Problems, c.Others = byScenario(l, scenarios, tests)
	} else {
		ran, err = o.programs(ctx, l, scenarios, folder, dir, cache)
	}
	if err != nil {
		c.Problems = append(c.Problems, err.Error())
	}
	c.Outcomes = judge(l, scenarios, ran)
	return c
}

// programs runs the program of a language for each of the servers that its scenarios need,
// at the same time.
func (o options) programs(ctx context.Context, l Language, scenarios []Scenario, folder, dir, cache string) (map[string]outcome, error) {
	shares := map[string][]Scenario{}
	for _, s := range scenarios {
		if !l.runs(s) {
			continue
		}
		name := s.Server
		if name == ownServer {
			name = s.Name
		} else if !o.tiers {
			name = commonServer
		}
		shares[name] = append(shares[name], s)
	}
	var mu sync.Mutex // guards all, errs
	var errs []error
	all := map[string]outcome{}
	var wg sync.WaitGroup
	for name, share := range shares {
		p := &program{
			language: l, scenarios: share, dir: filepath.Join(dir, "server-"+name), folder: folder, cache: cache,
			binary: o.binary, stores: o.stores(name),
		}
		wg.Go(func() {
			ran, err := p.run(ctx)
			mu.Lock()
			defer mu.Unlock()
			for scenario, got := range ran {
				all[scenario] = got
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", strings.TrimPrefix(filepath.Base(p.dir), "server-"), err))
			}
		})
	}
	wg.Wait()
	return all, errors.Join(errs...)
}

func (o options) stores(server string) int {
	switch {
	case !o.tiers:
		return 0
	case server == oneShardServer:
		return 1
	default:
		return 2
	}
}

// cacheOf returns a folder of a language that outlasts the run, as what a compiler made.
func cacheOf(l Language) (string, error) {
	caches, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(caches, "perigee-sdktest", l.ID)
	return dir, os.MkdirAll(dir, 0o755)
}

func (o options) build(ctx context.Context, l Language, folder, dir, cache string) error {
	if l.Build == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, buildLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-ec", expand([]string{l.Build}, cache, dir)[0])
	cmd.Dir = folder
	out, err := cmd.CombinedOutput()
	return errors.Join(err, os.WriteFile(filepath.Join(dir, "build.log"), out, 0o644))
}

// printLogs prints the ends of what the processes of a language have printed.
func (o options) printLogs(l Language) {
	for _, pattern := range []string{"build.log", failedLog, "server-*/program.log", "server-*/server.log"} {
		files, _ := filepath.Glob(filepath.Join(o.work, l.ID, pattern))
		for _, file := range files {
			content, err := os.ReadFile(file)
			if err != nil || len(content) == 0 {
				continue
			}
			name, _ := filepath.Rel(o.work, file)
			fmt.Printf("--- the end of %s\n%s\n", name, content[max(0, len(content)-logTail):])
		}
	}
}

// Package peers measures Perigee beside other queues on the same machine, in the same
// run, and writes the report. It decides what is measured and in which order; package
// server starts the servers, package drive loads them, package figures writes.
package peers

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/perigee-mq/perigee/bench/figures"
	"github.com/perigee-mq/perigee/bench/proc"
	"github.com/perigee-mq/perigee/bench/server"
)

// options are what the command line says.
type options struct {
	perigee string
	out     string
	cache   string
	render  string
	only    string
	busy    string
	limit   time.Duration
	short   bool

	plan plan
}

// plan is what is measured.
type plan struct {
	rounds   int
	starts   int           // rounds of starts
	row      time.Duration // that a row of sends or receives lasts
	warmUp   time.Duration // before each of them
	latency  time.Duration // that the row of latencies lasts
	rate     float64       // of its messages, per second
	inFlight []int
	// warmFresh and warmLasting are the times that servers are loaded for before they are
	// measured: those that start anew for each round, and those that do not.
	warmFresh, warmLasting time.Duration
	// fill is the time in which what is to be received is sent, where no row of sends
	// was before.
	fill time.Duration
}

func fullPlan() plan {
	return plan{
		rounds: 5, starts: 5, row: 550 * time.Millisecond, warmUp: 120 * time.Millisecond,
		latency: 2500 * time.Millisecond, rate: 2000, inFlight: []int{1, 16, 64, 500},
		warmFresh: time.Second, warmLasting: 12 * time.Second, fill: 3 * time.Second,
	}
}

func shortPlan() plan {
	return plan{
		rounds: 1, starts: 1, row: 200 * time.Millisecond, warmUp: 50 * time.Millisecond,
		latency: time.Second, rate: 1000, inFlight: []int{1, 64},
		warmFresh: 200 * time.Millisecond, warmLasting: 3 * time.Second, fill: 500 * time.Millisecond,
	}
}

// The numbers in flight of the rows that have but one.
const (
	eachInFlight = 64
	fillInFlight = 16
)

// Run measures, and writes the report into a folder. self is the command that is the
// server that does nothing, which its address is added to.
func Run(ctx context.Context, args []string, self server.Noop, stdout, stderr io.Writer) error {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	if o.render != "" {
		return render(o.render, o.out)
	}
	if err := server.Sweep(); err != nil {
		return err
	}
	began := time.Now()
	c := &comparison{options: o, progress: stderr, record: &figures.Record{}}
	c.describe(began, args)
	kinds := c.install(ctx, self)
	c.deadline = time.Now().Add(o.limit)
	limited, cancel := context.WithTimeout(ctx, o.limit+limitGrace)
	defer cancel()
	err = c.measure(limited, kinds)
	if errors.Is(err, context.DeadlineExceeded) {
		c.note("the time was over before everything was measured")
		err = nil
	}
	c.record.Set(figures.KeyTook, "this run took "+time.Since(began).Round(time.Second).String())
	if len(c.record.Samples) == 0 {
		return errors.Join(errors.New("nothing was measured"), err, errors.New(strings.Join(c.record.Notes, "\n")))
	}
	if writeErr := c.record.WriteAll(o.out); writeErr != nil {
		return errors.Join(err, writeErr)
	}
	fmt.Fprintln(stdout, filepath.Join(o.out, figures.ReportName))
	return err
}

// limitGrace is how much longer than its time a run may take to end in order.
const limitGrace = 30 * time.Second

func parse(args []string, stderr io.Writer) (o options, err error) {
	o.perigee = os.Getenv("PERIGEE_BIN")
	if o.perigee == "" {
		o.perigee = "../bin/perigee"
	}
	flags := flag.NewFlagSet("bench peers", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.perigee, "server", o.perigee, "`path` of perigee")
	flags.StringVar(&o.out, "out", "../docs", "`folder` for the report")
	flags.StringVar(&o.cache, "cache", "../bin/peers", "`folder` for what is built or found once")
	flags.StringVar(&o.render, "render", "", "`file` of samples to write the report of, without measuring")
	flags.StringVar(&o.only, "only", "", "`servers` to measure, separated by commas: perigee, rocketmq, jetstream, rabbitmq, noop; empty: all")
	flags.StringVar(&o.busy, "busy", "", "`sentence` that the report begins with, such as what else the machine did")
	flags.DurationVar(&o.limit, "limit", 0, "`time` after which no round begins; 0: 18m30s, with -short 150s")
	flags.BoolVar(&o.short, "short", false, "measure little, to see that it works")
	rounds := flags.Int("rounds", 0, "`number` of rounds; 0: 5, with -short 1")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	o.plan = fullPlan()
	usual := 18*time.Minute + 30*time.Second
	if o.short {
		o.plan, usual = shortPlan(), 150*time.Second
	}
	if o.limit == 0 {
		o.limit = usual
	}
	if *rounds < 0 {
		return o, fmt.Errorf("rounds %d: must not be negative", *rounds)
	}
	if *rounds > 0 {
		o.plan.rounds, o.plan.starts = *rounds, *rounds
	}
	for _, name := range o.wanted() {
		if !slices.Contains(names(), name) {
			return o, fmt.Errorf("only %q: must be some of %s", name, strings.Join(names(), ", "))
		}
	}
	for _, path := range []*string{&o.perigee, &o.out, &o.cache} {
		// Servers run in folders of their own.
		if *path, err = filepath.Abs(*path); err != nil {
			return o, err
		}
	}
	return o, nil
}

// The names of servers on the command line.
const (
	namePerigee   = "perigee"
	nameRocketMQ  = "rocketmq"
	nameJetStream = "jetstream"
	nameRabbitMQ  = "rabbitmq"
	nameNoop      = "noop"
)

func names() []string {
	return []string{namePerigee, nameRocketMQ, nameJetStream, nameRabbitMQ, nameNoop}
}

// wanted returns the names of the servers to measure.
func (o options) wanted() []string {
	if o.only == "" {
		return names()
	}
	return strings.Split(o.only, ",")
}

func render(samples, out string) error {
	f, err := os.Open(samples)
	if err != nil {
		return err
	}
	record, err := figures.Read(f)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("%s: %w", samples, err)
	}
	return record.WriteAll(out)
}

// describe writes down when, where and of what the comparison is.
func (c *comparison) describe(began time.Time, args []string) {
	r, m := c.record, proc.ThisMachine()
	if c.busy != "" {
		r.Set(figures.KeyBusy, c.busy)
	}
	r.Set(figures.KeyDate, began.UTC().Format("2006-01-02 15:04 UTC"))
	r.Set(figures.KeyMachine, fmt.Sprintf("%s, %d cores, %d GiB", m.CPU, m.Cores, m.Memory>>30))
	r.Set(figures.KeySystem, fmt.Sprintf("Linux %s, %s", m.Kernel, m.Go))
	r.Set(figures.KeyCommit, m.Commit)
	command := "make bench-peers"
	if c.short {
		command += " SHORT=1"
	}
	if extra := extraArgs(args); extra != "" {
		command += fmt.Sprintf(" ARGS=%q", extra)
	}
	r.Set(figures.KeyCommand, command)
	r.Set(figures.KeyRow, c.plan.row.String())
	r.Set(figures.KeyWarmUp, fmt.Sprintf("%v of load, other servers %v", c.plan.warmLasting, c.plan.warmFresh))
	r.Set(figures.KeyRate, fmt.Sprintf("%.0f messages per second for %v", c.plan.rate, c.plan.latency))
}

// extraArgs returns the arguments but for those that the Makefile gives and those that do
// not change what is measured.
func extraArgs(args []string) string {
	var extra []string
	for i := 0; i < len(args); i++ {
		switch strings.TrimLeft(args[i], "-") {
		case "short":
		case "out", "cache", "server", "busy":
			i++
		default:
			extra = append(extra, args[i])
		}
	}
	return strings.Join(extra, " ")
}

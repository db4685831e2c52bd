// Command bench compares a Perigee server with a server of the same protocol
// that does nothing: what is above that is what the queue costs.
//
// Both are processes of their own and get the same load in turn, in every run.
// Messages per second depend on the machine and on what else it does; the
// server's CPU time per message, and its ratio within a run, much less.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/perigee-mq/perigee/internal/loadgen"
)

// The first argument may say that the process is something else: the no-op server, at the
// address that may follow, or the comparison with other queues.
const (
	noopArgument  = "serve-noop"
	peersArgument = "peers"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return
		}
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

// options are what the command line says.
type options struct {
	Server      string        `json:"server"`
	Flush       string        `json:"flush"`
	Duration    time.Duration `json:"-"`
	Seconds     float64       `json:"seconds"`
	Runs        int           `json:"runs"`
	Messages    int64         `json:"messages"`
	Concurrency int           `json:"concurrency"`
	Connections int           `json:"connections"`
	Lites       int64         `json:"lite_topics"`
	Delays      int64         `json:"delayed_messages"`
	Tiers       bool          `json:"tiers"`
	json        bool
}

// withoutServer is the server's path that means the no-op server alone.
const withoutServer = "none"

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	switch {
	case len(args) == 1 && args[0] == noopArgument:
		return serveNoop(ctx, "127.0.0.1:0", stdout)
	case len(args) == 2 && args[0] == noopArgument:
		return serveNoop(ctx, args[1], stdout)
	case len(args) > 0 && args[0] == peersArgument:
		return comparePeers(ctx, args[1:], stdout, stderr)
	}
	var o options
	path := os.Getenv("PERIGEE_BIN")
	if path == "" {
		path = "../bin/perigee"
	}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.Server, "server", path, "`path` of perigee; none: only the no-op server")
	flags.StringVar(&o.Flush, "flush", "async", "flush `mode` of the server: sync or async")
	flags.DurationVar(&o.Duration, "duration", 3*time.Second, "`time` for each row of sends")
	flags.IntVar(&o.Runs, "runs", 3, "`number` of runs; the medians are shown")
	flags.Int64Var(&o.Messages, "messages", 100_000, "`number` of messages to receive and to acknowledge")
	flags.IntVar(&o.Concurrency, "concurrency", 64, "`number` of calls in flight")
	flags.IntVar(&o.Connections, "connections", 4, "`number` of connections")
	flags.Int64Var(&o.Lites, "lites", 1_000_000, "`number` of lite topics of the rows about many, which take minutes; 0: leave them out")
	flags.Int64Var(&o.Delays, "delays", 1_000_000, "`number` of delayed messages of the rows about many, which take minutes; 0: leave them out")
	flags.BoolVar(&o.Tiers, "tiers", true, "measure deployments in several processes too")
	flags.BoolVar(&o.json, "json", false, "print JSON")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if o.Runs < 1 || o.Messages < 64 {
		return errors.New("at least one run and 64 messages are needed")
	}
	if o.Lites < 0 || o.Lites > loadgen.MaxGroups || o.Delays < 0 {
		return fmt.Errorf("lites %d, delays %d: must not be negative, and lites not above %d", o.Lites, o.Delays, loadgen.MaxGroups)
	}
	o.Seconds = o.Duration.Seconds()
	report, err := compare(ctx, o, stderr)
	if err != nil {
		return err
	}
	if o.json {
		return report.writeJSON(stdout)
	}
	return report.writeTable(stdout)
}

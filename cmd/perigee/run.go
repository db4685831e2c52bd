package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"github.com/perigee-mq/perigee/internal/config"
)

// The exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
	// exitSignaled is that of a process that a second signal has ended at once.
	exitSignaled = 130
)

// run runs one command line, the name of the program first, and returns its exit
// code.
func run(ctx context.Context, args, env []string, stdin io.Reader, stdout, stderr io.Writer) int {
	a := &app{program: args[0], env: env, stdin: stdin, stdout: stdout, stderr: stderr, serve: serveNode}
	return a.run(ctx, args[1:])
}

// app is what the commands share.
type app struct {
	program        string // as it was called
	env            []string
	stdin          io.Reader
	stdout, stderr io.Writer
	serve          serveFunc

	json     bool
	endpoint endpointFlags
}

// serveFunc runs a server until ctx ends, and calls ready once it serves.
type serveFunc func(ctx context.Context, cfg config.Config, logger *slog.Logger, ready func(serverInfo)) error

// serverInfo is where a server serves.
type serverInfo struct {
	GRPCAddr  string   `json:"grpc_addr,omitempty"`
	Listeners []string `json:"listeners,omitempty"` // further ones
	HTTPAddr  string   `json:"http_addr"`
	DataDir   string   `json:"data_dir"`
	TierAddr  string   `json:"tier_addr,omitempty"` // for other tiers
}

func (a *app) run(ctx context.Context, args []string) int {
	root := a.rootCommand()
	root.SetArgs(args)
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	a.printError(err)
	if errors.As(err, new(*usageError)) {
		return exitUsage
	}
	return exitFailed
}

func (a *app) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "perigee",
		Short:         "A message queue that speaks the RocketMQ 5 protocol",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noSubcommand,
		RunE:          showHelp,
	}
	root.PersistentFlags().BoolVar(&a.json, "json", false, "print JSON, one object per line")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err} })
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(a.serverCommands()...)
	root.AddCommand(
		a.topicCommand(),
		a.groupCommand(),
		a.clientCommand(),
		a.dlqCommand(),
		a.timerCommand(),
		a.transactionCommand(),
		a.clusterCommand(),
		a.shardCommand(),
		a.sendCommand(),
		a.receiveCommand(),
		a.benchCommand(),
		a.healthCommand(),
		a.backupCommand(),
		a.restoreCommand(),
		a.checkCommand(),
		a.dumpCommand(),
		a.restoreViewsCommand(),
		a.restoreRevisionCommand(),
		a.versionCommand(),
	)
	return root
}

// showHelp runs a command that only holds others.
func showHelp(cmd *cobra.Command, _ []string) error { return cmd.Help() }

// noSubcommand refuses arguments of a command that only holds others.
func noSubcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return &usageError{fmt.Errorf("unknown command %q for %q; see %s --help", args[0], cmd.CommandPath(), cmd.CommandPath())}
}

// arguments refuses more or fewer arguments than the named ones; a name in
// brackets may be left out.
func arguments(names ...string) cobra.PositionalArgs {
	required := 0
	for _, name := range names {
		if !strings.HasPrefix(name, "[") {
			required++
		}
	}
	return func(cmd *cobra.Command, args []string) error {
		if required <= len(args) && len(args) <= len(names) {
			return nil
		}
		return &usageError{fmt.Errorf("%s takes %s, got %d arguments; see %s --help",
			cmd.CommandPath(), describe(names), len(args), cmd.CommandPath())}
	}
}

// atLeast is like arguments for a last argument that may come several times: there must be
// n at least.
func atLeast(n int, names string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) >= n {
			return nil
		}
		return &usageError{fmt.Errorf("%s takes %s, got %d arguments; see %s --help", cmd.CommandPath(), names, len(args), cmd.CommandPath())}
	}
}

func describe(names []string) string {
	if len(names) == 0 {
		return "no arguments"
	}
	return strings.Join(names, " ")
}

// getenv returns the value of an environment variable, or fallback when it is
// not set.
func (a *app) getenv(name, fallback string) string {
	for _, e := range a.env {
		if value, ok := strings.CutPrefix(e, name+"="); ok {
			return value
		}
	}
	return fallback
}

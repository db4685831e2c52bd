// Command perigee is the Perigee message queue: the server, and a command line
// for topics, consumer groups, messages and measurements.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// version is set when a release is linked.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	// A second signal then ends the process at once.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args, os.Environ(), os.Stdin, os.Stdout, os.Stderr))
}

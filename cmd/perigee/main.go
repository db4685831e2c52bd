// Command perigee is the Perigee message queue: the server, and a command line
// for topics, consumer groups, messages and measurements.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// version is set when a release is linked.
var version = "dev"

func main() {
	ctx, stop := context.WithCancel(context.Background())
	// Room for two: none is lost while the first one is taken.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		<-signals
		stop()
		second := <-signals
		fmt.Fprintf(os.Stderr, "perigee: a second signal: %v\n", second)
		os.Exit(exitSignaled)
	}()
	os.Exit(run(ctx, os.Args, os.Environ(), os.Stdin, os.Stdout, os.Stderr))
}

// Command perigee is the Perigee message queue: the server, and a command line
// for topics, consumer groups, messages and measurements.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// version is set when a release is linked.
var version = "dev"

func main() {
	ctx, stop := context.WithCancel(context.Background())
	// Room for two: none is lost while the first one is taken.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		second := secondOf(signals, stop)
		fmt.Fprintf(os.Stderr, "perigee: a second signal: %v\n", second)
		os.Exit(exitSignaled)
	}()
	os.Exit(run(ctx, os.Args, os.Environ(), os.Stdin, os.Stdout, os.Stderr))
}

// sameSignal is how long a repeated signal counts as the one before: supervisors
// signal a process and then its group, which is the same process again.
const sameSignal = 500 * time.Millisecond

// secondOf calls stop at the first signal and returns the second.
func secondOf(signals <-chan os.Signal, stop func()) os.Signal {
	<-signals
	first := time.Now()
	stop()
	for {
		if s := <-signals; time.Since(first) >= sameSignal {
			return s
		}
	}
}

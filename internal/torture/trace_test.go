package main

import (
	"fmt"
	"log/slog"
	"os"
	"time"
)

// trace prints what happens in a history, for whoever looks for the cause of a failure:
// PERIGEE_TRACE=all go test -run Histories ./internal/torture, with the seed that a failed
// run has printed.
func trace(format string, args ...any) {
	if os.Getenv("PERIGEE_TRACE") != "" {
		fmt.Println(time.Now().Format(stamp), fmt.Sprintf(format, args...))
	}
}

// tracer returns what the store logs to; nil for nothing.
func tracer() *slog.Logger {
	if os.Getenv("PERIGEE_TRACE") == "" {
		return nil
	}
	return slog.New(slog.NewTextHandler(os.Stdout, nil))
}

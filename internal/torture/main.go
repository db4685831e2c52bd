// Command torture prints the figures of the tests that `make torture` runs, as one
// table: those of this package, which run histories with faults in fake time on a file
// system in memory, and those of internal/crashtest, which kill real processes.
//
// Its tests are what it is about. One story of everything that a node does is told
// while each operation of the file system fails in turn, or the machine crashes after
// it; every file of a node is damaged in every way; and random histories of clients,
// crashes and failures are judged by what the clients were told. A history mixes what its
// seed says: ordinary, FIFO and delayed messages, transactions, priorities, lite topics,
// groups that are moved, sends that come again. A failed run prints the seed that repeats it,
// up to the order of goroutines; with PERIGEE_TRACE=all it says what happened. A history
// that does not come to its end is a failure, too.
package main

import (
	"fmt"
	"os"

	"github.com/perigee-mq/perigee/internal/torture/table"
)

// The columns and rows of the table, in order.
var (
	columns = []string{"simulated, sync", "simulated, async", "simulated, no faults", "killed, sync", "killed, async", "not killed", "deployed, sync", "deployed, async", "deployed, no router", "one node away"}
	rows    = []string{
		"histories", "simulated hours", "answers in a linear order", "planted bugs found", "faults: each operation in turn", "faults: damaged files",
		"faults: process killed", "faults: machine crashed", "faults: crashed in a write", "faults: one operation failed", "faults: disk gone for good",
		"faults: disk full for a while", "faults: fsync failed, data gone", "faults: slow operations", "faults: reads gone wrong", "faults: clock set", "kills", "killed: 1 of 2 proxies", "killed: 2 of 2 proxies", "killed: store node", "killed: store node and proxy", "killed: router", "killed: without producers",
		"acknowledged messages", "of them FIFO", "of them delayed", "of them half messages", "of them with a priority", "of them to lite topics",
		"sends repeated", "recalls answered OK", "transactions ended", "questions to producers", "groups moved",
		"deliveries", "violations", "lost", "stuck", "deliveries after an OK ack", "two holders at once", "delivered early",
		"seen against a recall or rollback", "out of order", "duplicates per million deliveries", "duplicates without faults", "other faults", "worst redelivery lateness",
		"repeats stored on another shard too", "given back at a proxy's death", "until clients went on, max", "until a store node was found again, max", "recovery, median", "recovery, max", "log replayed after one kill", "recovery per GiB replayed",
	}
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: torture RESULTS")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "torture:", err)
		os.Exit(1)
	}
}

func run(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	if err := table.Print(os.Stdout, f, columns, rows); err != nil {
		_ = f.Close() // it was only read
		return err
	}
	return f.Close()
}

package main

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// longestBubble is how much of a processor's time a bubble may take: hundreds of times what
// one takes that comes to its end. PERIGEE_PATIENCE changes it.
const longestBubble = time.Minute

// longestIdle is how long, in real time, a bubble may use less than a second of a processor.
const longestIdle = 5 * time.Minute

// bubble runs fn in a bubble, as synctest.Test does. A bubble that does not come to its end
// is something wrong: where stands in what is said of it, with what its goroutines do, and
// the process ends, as nothing else ends a goroutine that goes round and round.
//
// It goes by the time that the process has had of its processors, which does not depend on
// what else a machine has to do. One in which everybody waits for something that does not
// end the bubble, as for a sync.Mutex, uses next to none, of which the looking is a part.
func bubble(t *testing.T, where string, fn func(t *testing.T)) {
	t.Helper()
	patience := longestBubble
	if text := os.Getenv("PERIGEE_PATIENCE"); text != "" {
		var err error
		patience, err = time.ParseDuration(text)
		require.NoError(t, err)
	}
	end := used(t) + patience*time.Duration(runtime.GOMAXPROCS(0))
	done := make(chan struct{})
	defer close(done)
	go func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		idle, since := used(t), time.Now()
		for now := idle; now < end && time.Since(since) < longestIdle; now = used(t) {
			if now > idle+time.Second {
				idle, since = now, time.Now()
			}
			select {
			case <-done:
				return
			case <-tick.C:
			}
		}
		select {
		case <-done:
			return
		default:
		}
		_, _ = os.Stderr.Write(atWork())
		panic(fmt.Sprintf("%s: it hangs: %v of a processor's time, or %v without any, were not enough", where, patience, longestIdle))
	}()
	synctest.Test(t, fn)
}

// used returns how long the process has had a processor.
func used(t *testing.T) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Error(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// atWork returns what the goroutines of bubbles do that wait for nothing.
func atWork() []byte {
	stacks := make([]byte, 16<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	list := bytes.Split(stacks, []byte("\n\n"))
	list = slices.DeleteFunc(list, func(g []byte) bool {
		head, _, _ := bytes.Cut(g, []byte("\n"))
		return !bytes.Contains(head, []byte("synctest bubble")) || bytes.Contains(head, []byte("(durable)"))
	})
	return append(bytes.Join(list, []byte("\n\n")), '\n')
}

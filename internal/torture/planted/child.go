package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A child is a process of tests that is watched until it ends, is ended because it has found
// something, or hangs.
type child struct {
	path, dir string
	args, env []string
	// bound is how much of a processor's time it may take, and idle for how long it may take
	// none: 0 for any. A process that waits for others takes none.
	bound, idle time.Duration
	// server says that it has processes of its own, which it ends itself.
	server bool
	// longest ends it whatever it does.
	longest time.Duration
}

// An outcome is how a child has ended.
type outcome struct {
	said   string
	failed bool
	hangs  string // why it was ended that had found nothing; empty if it was not
	used   time.Duration
}

// tick is how often a child is looked at.
const tick = 200 * time.Millisecond

// watch runs the child. It goes by the time that it has had of the processors, which is the
// same however much else a machine has to do.
func (c *child) watch(ctx context.Context) (o outcome, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.longest)
	defer cancel()
	cmd := exec.Command(c.path, c.args...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = c.dir, c.env, 5*time.Second
	said := &listener{}
	cmd.Stdout, cmd.Stderr = said, said
	if err := cmd.Start(); err != nil {
		return o, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	look := time.NewTicker(tick)
	defer look.Stop()
	end := func(s os.Signal) {
		_ = cmd.Process.Signal(s) // it may have ended meanwhile
	}
	stop := ctx.Done()
	last, since, late := time.Duration(0), time.Now(), 0
	for {
		select {
		case err = <-ended:
			o.used = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
			o.said = said.text()
			var exit *exec.ExitError
			o.failed = errors.As(err, &exit)
			if o.failed || errors.Is(err, exec.ErrWaitDelay) {
				err = nil
			}
			return o, err
		case <-stop:
			stop = nil
			if o.hangs == "" {
				o.hangs = fmt.Sprintf("%v were not enough", c.longest)
			}
			end(syscall.SIGKILL)
		case <-look.C:
		}
		used, known := usedBy(cmd.Process.Pid)
		if used > last {
			last, since = used, time.Now()
		}
		switch {
		case o.hangs != "":
			if late++; late > 25 {
				end(syscall.SIGKILL) // SIGQUIT did not
			}
		case said.found():
			if late++; late > 2 && !c.server || late > 50 { // there may be more to it
				end(syscall.SIGKILL)
			}
		case known && c.bound > 0 && used > c.bound:
			o.hangs = fmt.Sprintf("%v of a processor's time were not enough", c.bound)
			end(syscall.SIGQUIT)
		case known && c.idle > 0 && time.Since(since) > c.idle:
			o.hangs = fmt.Sprintf("it does nothing for %v", c.idle)
			end(syscall.SIGQUIT)
		}
	}
}

// perTick is how many of the ticks that /proc counts in are in a second, on every Linux.
const perTick = time.Second / 100

// usedBy returns how long a process has had a processor, where the system says so.
func usedBy(pid int) (used time.Duration, known bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(fields) < 13 {
		return 0, false
	}
	for _, f := range fields[11:13] { // in user mode, and in the kernel
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, false
		}
		used += time.Duration(n) * perTick
	}
	return used, true
}

// A listener keeps what tests print, and notices when they have found something: what they
// would do from then on may take for ever.
type listener struct {
	mu   sync.Mutex
	b    bytes.Buffer
	told bool
}

// Write implements io.Writer.
func (l *listener) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told = l.told || seedOf.Match(p) || failing.Match(p)
	return l.b.Write(p)
}

func (l *listener) found() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.told
}

func (l *listener) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

var (
	seedOf   = regexp.MustCompile(`PERIGEE_SEED=(\d+) PERIGEE_HISTORIES=1:`)
	panicked = regexp.MustCompile(`(?m)^(panic: .*|fatal error: .*|.*BUG:.*)$`)
	failed   = regexp.MustCompile(`(?m)^\s+\w+_test\.go:\d+: .*$`)
	failing  = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)
	running  = regexp.MustCompile(`(?m)^=== (?:RUN|CONT)\s+(\S+)`)
	inside   = regexp.MustCompile(`(?m)^github\.com/perigee-mq/perigee/((?:store|proxy|router|mq|receipt)\S*)\(`)
	busy     = regexp.MustCompile(`(?m)^goroutine \d+ .*\[(running|runnable)[^\]]*\]:$`)
)

// found reads what the tests have printed.
func found(by string, o *outcome) finding {
	f := finding{by: by}
	if m := seedOf.FindStringSubmatch(o.said); m != nil {
		if seed, err := strconv.Atoi(m[1]); err == nil {
			f.after = seed - fixed + 1
		}
	}
	if o.hangs != "" {
		f.text = fmt.Sprintf("%s hangs%s: %s", lastOf(running, o.said), where(o.said), o.hangs)
		return f
	}
	if m := failing.FindStringSubmatch(o.said); m != nil {
		f.text = m[1]
	}
	for _, re := range []*regexp.Regexp{panicked, failed} {
		for _, line := range re.FindAllString(o.said, -1) {
			told := strings.Contains(line, "PERIGEE_SEED=") && !seedOf.MatchString(line) || strings.Contains(line, "[rapid] OK") ||
				strings.Contains(line, "without -short") || strings.Contains(line, "{acked:")
			if !told {
				if f.text += " " + strings.TrimSpace(line); strings.Contains(line, "it hangs") {
					f.text += where(o.said)
				}
				return f
			}
		}
	}
	return f
}

// lastOf returns what the expression finds last.
func lastOf(re *regexp.Regexp, text string) string {
	if all := re.FindAllStringSubmatch(text, -1); len(all) > 0 {
		return all[len(all)-1][1]
	}
	return ""
}

// where says in which function of the product a goroutine goes round and round, by the
// stacks in the text.
func where(text string) string {
	for at := range strings.SplitSeq(text, "\n\n") {
		if busy.MatchString(at) {
			if m := inside.FindStringSubmatch(at); m != nil {
				return " in " + m[1]
			}
		}
	}
	return ""
}

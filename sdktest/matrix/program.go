package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/perigee-mq/perigee/sdktest/internal/harness"
)

// programLimit is how long a program may take with all its scenarios. Each of them waits
// for a minute at most.
const programLimit = 6 * time.Minute

// dumpLimit is how long a program may take to say where it hangs.
const dumpLimit = 5 * time.Second

// How long a group may take to settle what it has, and how often that is looked at. A
// message whose acknowledgment got lost comes again first.
const (
	settleLimit = 30 * time.Second
	settlePause = 200 * time.Millisecond
)

// serverFlags make leases and polls short, and let the server ask early about half messages.
var serverFlags = []string{
	"--renew-slice", "6s", "--long-polling-max", "4s",
	"--transactions-first-check", "1s", "--transactions-check-interval", "1s", "--transactions-max-check-interval", "1s",
}

// A line is what a program prints: how a scenario went, or a wish about the server, which
// is answered with a line, "ok" or what went wrong.
type line struct {
	Scenario string `json:"scenario"`
	Result   string `json:"result"` // "pass", "fail", or "fault" when it has shown what the SDK does wrong
	Reason   string `json:"reason"`
	Ask      string `json:"ask"` // "kill", "stop" or "start" it, or wait until all is "settled"
}

// A program is one run of a language's program against a server of its own.
type program struct {
	language  Language
	scenarios []Scenario
	dir       string // for the server, what the program prints, and its home
	folder    string // of the language's project
	cache     string
	binary    string
	stores    int

	server *harness.Server
	ran    map[string]outcome
}

// run returns how the scenarios went, and what went wrong beside them.
func (p *program) run(ctx context.Context) (map[string]outcome, error) {
	home := filepath.Join(p.dir, "home")
	if err := os.MkdirAll(home, 0o755); err != nil {
		return nil, err
	}
	var err error
	p.server, err = harness.Open(ctx, harness.Options{Binary: p.binary, Dir: p.dir, Flags: serverFlags, Stores: p.stores})
	if err != nil {
		return nil, err
	}
	p.ran = map[string]outcome{}
	if err = p.create(ctx); err == nil {
		err = p.converse(ctx, home)
		p.awaitSettled(ctx)
	}
	err = errors.Join(err, p.stop())
	return p.ran, err
}

func (p *program) stop() error {
	if err := p.server.Close(); err != nil {
		return err
	}
	if strings.Contains(p.server.Log(0), "cut off") {
		return errors.New("the server waited for what clients held open when it stopped")
	}
	return nil
}

// create makes the topics and groups of the scenarios.
func (p *program) create(ctx context.Context) error {
	for _, s := range p.scenarios {
		if _, err := p.server.Perigee(ctx, append([]string{"topic", "create", s.Name}, s.Topic...)...); err != nil {
			return err
		}
		for _, group := range s.groups() {
			if _, err := p.server.Perigee(ctx, append([]string{"group", "create", group}, s.Group...)...); err != nil {
				return err
			}
		}
	}
	return nil
}

// converse runs the program and hears what it says until it ends.
func (p *program) converse(ctx context.Context, home string) error {
	ctx, cancel := context.WithTimeout(ctx, programLimit)
	defer cancel()
	argv := expand(p.language.Run, p.cache, home)
	if strings.Contains(argv[0], "/") && !filepath.IsAbs(argv[0]) {
		argv[0] = filepath.Join(p.folder, argv[0])
	}
	argv = append(argv, p.server.Endpoint())
	for _, s := range p.scenarios {
		argv = append(argv, s.Name)
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = p.folder
	// A program that hangs is asked where, which Java tells, before it is killed.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGQUIT) }
	cmd.WaitDelay = dumpLimit
	// SDKs that check certificates have no option for whom to trust. The gRPC libraries of
	// Python and Node.js read the first variable, OpenSSL and Rust the second.
	cmd.Env = append(os.Environ(), "HOME="+home, "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH="+p.certificate(), "SSL_CERT_FILE="+p.certificate())
	log, err := os.Create(filepath.Join(p.dir, "program.log"))
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // it is for people, and a run has said how it went
	cmd.Stderr = log
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewScanner(stdout)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var l line
		if json.Unmarshal(lines.Bytes(), &l) != nil || l.Scenario == "" {
			fmt.Fprintln(log, lines.Text())
			continue
		}
		p.hear(ctx, l, stdin)
	}
	err = errors.Join(lines.Err(), cmd.Wait())
	if ctx.Err() != nil {
		return fmt.Errorf("it did not end within %v", programLimit)
	}
	return err
}

func (p *program) hear(ctx context.Context, l line, stdin io.Writer) {
	if l.Ask == "" {
		switch state(l.Result) {
		case pass, fault:
			p.ran[l.Scenario] = outcome{state(l.Result), ""}
		default:
			p.ran[l.Scenario] = outcome{fail, l.Reason}
		}
		return
	}
	var err error
	switch l.Ask {
	case "kill":
		err = p.server.Kill()
	case "stop":
		err = p.stop()
	case "start":
		err = p.server.Start(ctx)
	case "settled":
		i := slices.IndexFunc(p.scenarios, func(s Scenario) bool { return s.Name == l.Scenario })
		if i < 0 {
			err = fmt.Errorf("no scenario %s runs here", l.Scenario)
			break
		}
		err = p.settled(ctx, p.scenarios[i])
	default:
		err = fmt.Errorf("no wish %q is known", l.Ask)
	}
	answer := "ok"
	if err != nil {
		answer = strings.ReplaceAll(err.Error(), "\n", " ")
	}
	fmt.Fprintln(stdin, answer) // a program that has ended needs none
}

// certificate is the file with the certificate of the server, which is self-signed.
func (p *program) certificate() string {
	for _, pattern := range []string{"data/*.pem", "data/proxy/*.pem"} {
		if found, _ := filepath.Glob(filepath.Join(p.dir, pattern)); len(found) > 0 {
			return found[0]
		}
	}
	return ""
}

// awaitSettled lets those scenarios fail whose groups are left with messages that nobody
// settles: they would come again.
func (p *program) awaitSettled(ctx context.Context) {
	for _, s := range p.scenarios {
		if s.Unsettled || p.ran[s.Name].State != pass {
			continue
		}
		if err := p.settled(ctx, s); err != nil {
			p.ran[s.Name] = outcome{fail, err.Error()}
		}
	}
}

// settled waits until the groups of a scenario have settled all messages of its topic.
func (p *program) settled(ctx context.Context, s Scenario) error {
	ctx, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	tick := time.NewTicker(settlePause)
	defer tick.Stop()
	for _, group := range s.groups() {
		if err := p.pass(ctx, s, group); err != nil {
			return err
		}
		for {
			left, err := p.left(ctx, group, s.Name)
			if err == nil && left == 0 {
				break
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				if err != nil {
					return err
				}
				return fmt.Errorf("group %s has %d messages left", group, left)
			}
		}
	}
	return nil
}

// pass carries a group that has a filter past what it does not want: that is left for the next
// consumer where the last one went before it had looked at it.
func (p *program) pass(ctx context.Context, s Scenario, group string) error {
	if len(s.Filter) == 0 {
		return nil
	}
	out, err := p.server.Perigee(ctx, append([]string{"receive", s.Name, "--group", group, "--wait", "3s", "--json"}, s.Filter...)...)
	if err == nil && out != "" {
		err = fmt.Errorf("group %s has not settled %s", group, out)
	}
	return err
}

// left is how many messages of a topic a group has not settled.
func (p *program) left(ctx context.Context, group, topic string) (int64, error) {
	out, err := p.server.Perigee(ctx, "group", "describe", group, "--json")
	if err != nil {
		return 0, err
	}
	var described struct {
		Topics []struct {
			Topic    string `json:"topic"`
			Ready    int64  `json:"ready"`
			InFlight int64  `json:"in_flight"`
			Blocked  int64  `json:"blocked"`
		} `json:"topics"`
	}
	if err := json.Unmarshal([]byte(out), &described); err != nil {
		return 0, err
	}
	for _, t := range described.Topics {
		if t.Topic == topic {
			return t.Ready + t.InFlight + t.Blocked, nil
		}
	}
	return 0, nil
}

// expand replaces the names of folders.
func expand(words []string, cache, home string) []string {
	var out []string
	for _, w := range words {
		out = append(out, strings.NewReplacer("{cache}", cache, "{home}", home).Replace(w))
	}
	return out
}

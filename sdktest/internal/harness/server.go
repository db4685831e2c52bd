// Package harness runs the real server for tests: as a process of its own, or as the
// processes of a deployment, on loopback ports that survive a restart. It also holds a
// TCP forwarder, the port mapping of a container.
//
// It knows no SDK and asserts nothing.
package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	// readyLimit bounds a start with its recovery.
	readyLimit = 30 * time.Second
	// stopLimit bounds an orderly stop, in which calls under way finish.
	stopLimit = 20 * time.Second
	// probePause is the time between two looks at a server that starts.
	probePause = 20 * time.Millisecond
	// probeLimit bounds the wait of a balancer for a proxy.
	probeLimit = 2 * time.Second
	// openTries is how often ports are chosen when others take them first.
	openTries = 5
	// logName is the file in the server's folder that gets what its processes print.
	logName = "server.log"
)

// Options say what to start.
type Options struct {
	Binary string
	Dir    string // for data and the log
	// Flags are those of the standalone command, but for ports and data. In a deployment
	// each goes to the tiers that know it.
	Flags []string
	// Stores is how many store nodes the deployment has: a router and a proxy come beside
	// them. 0: no deployment, but all tiers in one process.
	Stores int
}

// A Server is a server process, or the processes of a deployment, or several one after
// the other that share ports and data. Its methods may be called from one goroutine at a
// time, but for Endpoint, Perigee and Log, which may overlap with everything.
type Server struct {
	opts     Options
	endpoint string
	parts    []*part   // in the order in which they start; the last one serves clients
	proxies  []string  // their addresses, with hosts
	balancer *balancer // to them, as long as the server is not closed
}

// A part is a process of a server.
type part struct {
	tier    string // the command
	args    []string
	in      []string // what runs it on its host; none: it runs on this one
	http    string
	process *process // of the moment, or the last one; nil before the first
}

// Open starts a server and returns once it is ready. The caller must Close it.
func Open(ctx context.Context, opts Options) (*Server, error) {
	s := &Server{opts: opts}
	var err error
	for range openTries {
		s.closeBalancer()
		if err = s.place(); err != nil {
			return nil, err
		}
		if err = s.Start(ctx); err == nil {
			if err = s.awaitShards(ctx); err != nil {
				err = errors.Join(err, s.Kill())
			}
			return s, err
		}
		if !errors.Is(err, syscall.EADDRINUSE) && !strings.Contains(s.Log(0), "address already in use") {
			break
		}
	}
	return nil, err
}

// Attach returns a server that something else has started at endpoint. It can
// neither be stopped nor started, and has no log.
func Attach(binary, endpoint string) *Server {
	return &Server{opts: Options{Binary: binary}, endpoint: endpoint}
}

// Endpoint returns the host:port for clients. It stays the same over restarts.
func (s *Server) Endpoint() string { return s.endpoint }

// Proxies returns the addresses of the proxies themselves; none where clients have one address.
func (s *Server) Proxies() []string { return s.proxies }

// Start starts again what has been killed, with the same ports and data, and returns
// once it is ready.
func (s *Server) Start(ctx context.Context) error { return s.StartTier(ctx, "") }

// StartTier does so with the processes of one tier of a deployment.
func (s *Server) StartTier(ctx context.Context, tier string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	if len(s.proxies) > 0 && s.balancer == nil {
		if s.balancer, err = openBalancer(s.endpoint, s.proxies); err != nil {
			return err
		}
	}
	for _, p := range s.parts {
		if p.running() || tier != "" && p.tier != tier {
			continue
		}
		if err := p.start(ctx, s.opts); err != nil {
			return errors.Join(err, s.Kill())
		}
	}
	return nil
}

// keepAll lets a store remove nothing and refuse nothing for want of disk space: what else is
// on the disk is no part of a test.
var keepAll = []string{"--retention-disk-clean=100%", "--retention-disk-force=100%", "--retention-disk-refuse=100%"}

func (p *part) running() bool {
	if p.process == nil {
		return false
	}
	select {
	case <-p.process.ended:
		return false
	default:
		return true
	}
}

func (p *part) start(ctx context.Context, opts Options) (err error) {
	command := slices.Concat(p.in, []string{opts.Binary, p.tier}, p.args)
	if p.tier == store || p.tier == standalone {
		command = append(command, keepAll...)
	}
	p.process, err = startProcess(filepath.Join(opts.Dir, logName), command)
	if err != nil {
		return err
	}
	tick := time.NewTicker(probePause)
	defer tick.Stop()
	for {
		if _, err := get(ctx, p.http, "/readyz"); err == nil {
			return nil
		}
		select {
		case <-p.process.ended:
			return fmt.Errorf("%s ended before it was ready: %w", p.tier, p.process.err)
		case <-ctx.Done():
			return fmt.Errorf("%s not ready: %w", p.tier, ctx.Err())
		case <-tick.C:
		}
	}
}

// Metrics returns what the process that serves clients shows to Prometheus; with several,
// what each does, one after the other.
func (s *Server) Metrics(ctx context.Context) (all string, err error) {
	last := s.parts[len(s.parts)-1].tier
	for _, p := range s.parts {
		if p.tier != last {
			continue
		}
		one, err := get(ctx, p.http, "/metrics")
		if err != nil {
			return "", err
		}
		all += one
	}
	return all, nil
}

func get(ctx context.Context, address, path string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", err
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s", path, resp.Status)
	}
	return string(content), nil
}

// Kill ends all processes as a crash of the machine does, and returns once they are gone.
func (s *Server) Kill() error { return s.kill("") }

// KillTier does so with the processes of one tier of a deployment.
func (s *Server) KillTier(tier string) error { return s.kill(tier) }

// KillOne does so with one process of a tier, by its number from 0 on.
func (s *Server) KillOne(tier string, number int) error {
	for _, p := range s.parts {
		if p.tier != tier {
			continue
		}
		if number--; number < 0 {
			return kill(p)
		}
	}
	return fmt.Errorf("no such %s", tier)
}

// Count returns how many processes of a tier there are.
func (s *Server) Count(tier string) (n int) {
	for _, p := range s.parts {
		if p.tier == tier {
			n++
		}
	}
	return n
}

func (s *Server) kill(tier string) (err error) {
	for _, p := range slices.Backward(s.parts) {
		if tier == "" || p.tier == tier {
			err = errors.Join(err, kill(p))
		}
	}
	return err
}

func kill(p *part) error {
	if p.process == nil {
		return nil
	}
	if err := p.process.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", p.tier, err)
	}
	<-p.process.ended
	return nil
}

// Close stops the server in order, the proxy first, and returns once it is gone. An error
// says that it did not stop by itself, or that it did not do so cleanly.
func (s *Server) Close() (err error) {
	for _, p := range slices.Backward(s.parts) {
		err = errors.Join(err, p.close())
	}
	s.closeBalancer()
	return err
}

func (s *Server) closeBalancer() {
	if s.balancer != nil {
		s.balancer.close()
		s.balancer = nil
	}
}

func (p *part) close() error {
	if p.process == nil {
		return nil
	}
	if err := p.process.cmd.Process.Signal(syscall.SIGTERM); errors.Is(err, os.ErrProcessDone) {
		<-p.process.ended
		return nil
	}
	limit := time.NewTimer(stopLimit)
	defer limit.Stop()
	select {
	case <-p.process.ended:
		if p.process.err != nil {
			return fmt.Errorf("%s stopped: %w", p.tier, p.process.err)
		}
		return nil
	case <-limit.C:
		_ = p.process.cmd.Process.Kill() // it may have ended just now
		<-p.process.ended
		return fmt.Errorf("%s still runs %v after it was told to stop", p.tier, stopLimit)
	}
}

// Perigee runs a command of the binary, such as topic create, against the
// server and returns what it printed. An error holds its error output.
func (s *Server) Perigee(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, s.opts.Binary, append(args, "--endpoint", s.endpoint)...)
	cmd.Env = environment()
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("perigee %s: %w: %s", strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String(), nil
}

// Log returns what the server has printed after the first skip bytes.
func (s *Server) Log(skip int) string {
	content, err := os.ReadFile(filepath.Join(s.opts.Dir, logName))
	if err != nil || s.opts.Dir == "" || skip >= len(content) {
		return ""
	}
	return string(content[skip:])
}

// A process is one run of the binary. err may be read once ended is closed.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{}
	err   error
}

func startProcess(logFile string, command []string) (*process, error) {
	out, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(command[0], command[1:]...), ended: make(chan struct{})}
	p.cmd.Env = environment()
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = endWithParent()
	// The process has a descriptor of its own.
	if err := errors.Join(p.cmd.Start(), out.Close()); err != nil {
		return nil, fmt.Errorf("start server: %w", err)
	}
	go func() { // ends with the process, which Kill and Close wait for
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// environment returns the environment without what would configure the server.
func environment() []string {
	var kept []string
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "PERIGEE_") {
			kept = append(kept, entry)
		}
	}
	return kept
}

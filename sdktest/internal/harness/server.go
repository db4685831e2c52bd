// Package harness runs the real server for tests: as a process of its own, on
// loopback ports that survive a restart. It also holds a TCP forwarder, the
// port mapping of a container.
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
	// openTries is how often ports are chosen when others take them first.
	openTries = 5
	// logName is the file in the server's folder that gets what it prints.
	logName = "server.log"
)

// A Server is a server process, or several one after the other that share
// ports and data. Its methods may be called from one goroutine at a time, but
// for Endpoint, Perigee and Log, which may overlap with everything.
type Server struct {
	binary   string
	dir      string
	flags    []string
	endpoint string
	http     string

	process *process
}

// Open starts the binary with flags in addition to those for its ports and its
// data, which it keeps in dir, and returns once the server is ready. The caller
// must Close it.
func Open(ctx context.Context, binary, dir string, flags ...string) (*Server, error) {
	s := &Server{binary: binary, dir: dir, flags: flags}
	var err error
	for range openTries {
		var ports []string
		if ports, err = freeAddresses(2); err != nil {
			return nil, err
		}
		s.endpoint, s.http = ports[0], ports[1]
		if err = s.Start(ctx); err == nil {
			return s, nil
		}
		if !strings.Contains(s.Log(0), "address already in use") {
			break
		}
	}
	return nil, err
}

// Attach returns a server that something else has started at endpoint. It can
// neither be stopped nor started, and has no log.
func Attach(binary, endpoint string) *Server {
	return &Server{binary: binary, endpoint: endpoint}
}

// Endpoint returns the host:port for clients. It stays the same over restarts.
func (s *Server) Endpoint() string { return s.endpoint }

// Start starts the server again after Kill, with the same ports and data, and
// returns once it is ready.
func (s *Server) Start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	args := append([]string{
		"standalone", "--data-dir", filepath.Join(s.dir, "data"),
		"--grpc-listen", s.endpoint, "--http-listen", s.http,
	}, s.flags...)
	p, err := startProcess(s.binary, filepath.Join(s.dir, logName), args)
	if err != nil {
		return err
	}
	s.process = p
	if err := s.awaitReady(ctx); err != nil {
		return errors.Join(err, s.Kill())
	}
	return nil
}

func (s *Server) awaitReady(ctx context.Context) error {
	tick := time.NewTicker(probePause)
	defer tick.Stop()
	for {
		if err := s.probe(ctx); err == nil {
			return nil
		}
		select {
		case <-s.process.ended:
			return fmt.Errorf("server ended before it was ready: %w", s.process.err)
		case <-ctx.Done():
			return fmt.Errorf("server not ready: %w", ctx.Err())
		case <-tick.C:
		}
	}
}

func (s *Server) probe(ctx context.Context) error {
	_, err := s.get(ctx, "/readyz")
	return err
}

// Metrics returns what the server shows to Prometheus.
func (s *Server) Metrics(ctx context.Context) (string, error) { return s.get(ctx, "/metrics") }

func (s *Server) get(ctx context.Context, path string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.http+path, nil)
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

// Kill ends the process as a crash does, and returns once it is gone.
func (s *Server) Kill() error {
	if err := s.process.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill server: %w", err)
	}
	<-s.process.ended
	return nil
}

// Close stops the server in order and returns once it is gone. An error says
// that it did not stop by itself, or that it did not do so cleanly.
func (s *Server) Close() error {
	if s.process == nil {
		return nil
	}
	if err := s.process.cmd.Process.Signal(syscall.SIGTERM); errors.Is(err, os.ErrProcessDone) {
		<-s.process.ended
		return nil
	}
	limit := time.NewTimer(stopLimit)
	defer limit.Stop()
	select {
	case <-s.process.ended:
		if s.process.err != nil {
			return fmt.Errorf("server stopped: %w", s.process.err)
		}
		return nil
	case <-limit.C:
		return errors.Join(fmt.Errorf("server still runs %v after it was told to stop", stopLimit), s.Kill())
	}
}

// Perigee runs a command of the binary, such as topic create, against the
// server and returns what it printed. An error holds its error output.
func (s *Server) Perigee(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, s.binary, append(args, "--endpoint", s.endpoint)...)
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
	content, err := os.ReadFile(filepath.Join(s.dir, logName))
	if err != nil || s.dir == "" || skip >= len(content) {
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

func startProcess(binary, logFile string, args []string) (*process, error) {
	out, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(binary, args...), ended: make(chan struct{})}
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

package crashtest

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// binary returns the server to test: the one in PERIGEE_BIN, or a new one.
func binary(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("PERIGEE_BIN"); path != "" {
		path, err := filepath.Abs(path)
		require.NoError(t, err)
		require.FileExists(t, path, "PERIGEE_BIN")
		return path
	}
	path := filepath.Join(t.TempDir(), "perigee")
	cmd := exec.Command("go", "build", "-o", path, "../../cmd/perigee")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "go build: %s", out)
	return path
}

// A process is one life of the server.
type process struct {
	cmd   *exec.Cmd
	ready chan string // the address, once
	ended chan struct{}
}

func startProcess(s *server) (*process, error) {
	words := slices.Concat(s.in, []string{s.bin}, s.command, []string{"--json", "--data-dir", s.dataDir, "--http-listen", "127.0.0.1:0"})
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Stderr = s.log
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, ready: make(chan string, 1), ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		var info struct {
			GRPCAddr string `json:"grpc_addr"`
			TierAddr string `json:"tier_addr"`
		}
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			if json.Unmarshal(lines.Bytes(), &info) != nil {
				continue
			}
			if address := cmp.Or(info.GRPCAddr, info.TierAddr); address != "" {
				p.ready <- address
				break
			}
		}
		_ = cmd.Wait() // ends with a signal, as a rule
	}()
	return p, nil
}

// kill ends the process at once and waits until it has.
func (p *process) kill() {
	_ = p.cmd.Process.Signal(syscall.SIGKILL) // it may have ended already
	<-p.ended
}

// A server is the process of the moment and the way to it.
type server struct {
	bin, dataDir string
	command      []string // with its flags, but for those that every server gets
	log          *os.File
	in           []string // what runs it on another host; empty: it runs on this one
	// dial connects clients to it; nil: as usual.
	dial func(ctx context.Context, address string) (net.Conn, error)

	mu struct {
		sync.Mutex
		process *process
		conn    *grpc.ClientConn
		up      chan struct{} // closed while conn is good
	}
}

// newServer returns a server with all tiers.
func newServer(t *testing.T, bin, flush string, args ...string) *server {
	t.Helper()
	return newProcess(t, bin, append([]string{
		"standalone", "--flush", flush, "--grpc-listen", "127.0.0.1:0", "--tls-mode", "disabled",
	}, args...)...)
}

// keepAll lets a store remove nothing and refuse nothing for want of disk space: what else is
// on the disk is no part of a test.
var keepAll = []string{"--retention-disk-clean", "100%", "--retention-disk-force", "100%", "--retention-disk-refuse", "100%"}

// newProcess returns a server that runs a command.
func newProcess(t *testing.T, bin string, command ...string) *server {
	t.Helper()
	if command[0] == "standalone" || command[0] == "store" {
		command = slices.Concat(command, keepAll)
	}
	dir := t.TempDir()
	log, err := os.Create(filepath.Join(dir, "server.log"))
	require.NoError(t, err)
	s := &server{bin: bin, dataDir: filepath.Join(dir, "data"), command: slices.Clip(command), log: log}
	s.mu.up = make(chan struct{})
	t.Cleanup(func() {
		s.down()
		if t.Failed() {
			if b, err := os.ReadFile(log.Name()); err == nil {
				t.Logf("the log of the %s ends with\n%s", command[0], b[max(0, len(b)-4000):])
			}
		}
		_ = log.Close()
	})
	return s
}

// start starts the server and waits until it serves, which took so long.
func (s *server) start() (time.Duration, error) {
	began := time.Now()
	p, err := startProcess(s)
	if err != nil {
		return 0, err
	}
	var address string
	timer := time.NewTimer(time.Minute)
	defer timer.Stop()
	select {
	case address = <-p.ready:
	case <-p.ended:
		return 0, errors.New("the server ended before it was ready")
	case <-timer.C:
		p.kill()
		return 0, errors.New("the server was not ready within a minute")
	}
	took := time.Since(began)
	opts := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableRetry(), grpc.WithDisableServiceConfig()}
	if s.dial != nil {
		opts = append(opts, grpc.WithContextDialer(s.dial))
	}
	conn, err := grpc.NewClient("passthrough:///"+address, opts...)
	if err != nil {
		p.kill()
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.process, s.mu.conn = p, conn
	close(s.mu.up)
	return took, nil
}

// down kills the server that runs, if one does.
func (s *server) down() {
	s.mu.Lock()
	p, conn := s.mu.process, s.mu.conn
	s.mu.process = nil
	if p != nil {
		s.mu.up = make(chan struct{})
	}
	s.mu.Unlock()
	if p != nil {
		p.kill()
		_ = conn.Close()
	}
}

// terminate asks the server to close and gives it so long before it is killed.
func (s *server) terminate(grace time.Duration) {
	s.mu.Lock()
	p := s.mu.process
	s.mu.Unlock()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.ended:
	}
	s.down()
}

// killStarting starts the server and kills it after so long, ready or not.
func (s *server) killStarting(after time.Duration) error {
	p, err := startProcess(s)
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	timer := time.NewTimer(after)
	defer timer.Stop()
	<-timer.C
	p.kill()
	return nil
}

// running reports whether the server has been started and not been killed.
func (s *server) running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.process != nil
}

// current returns the way to the server, nil when there is none.
func (s *server) current() *grpc.ClientConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.process == nil {
		return nil
	}
	return s.mu.conn
}

// client returns where a client makes its calls, and settles what it receives.
func (s *server) client(int) (calls, settles way) { return s, nil }

// prepare does nothing: a server is ready when it has started.
func (s *server) prepare(*testing.T) {}

// shards returns the names of the shards: one, whose name does not matter.
func (s *server) shards() []string { return nil }

// check runs `perigee check` on what the last kill has left.
func (s *server) check(t *testing.T) checkedShard {
	t.Helper()
	out, err := exec.Command(s.bin, "check", "--json", "--data-dir", s.dataDir).CombinedOutput()
	require.NoError(t, err, "perigee check: %s", out)
	var line struct {
		Shard checkedShard `json:"shard"`
	}
	first, _, _ := bytes.Cut(out, []byte("\n"))
	require.NoError(t, json.Unmarshal(first, &line), "%s", out)
	return line.Shard
}

// checkedShard is what a check says of a shard.
type checkedShard struct {
	End       int64 `json:"end_position"`
	AppliedTo int64 `json:"applied_position"`
	Derived   bool  `json:"derived"`
}

// checkAll runs `perigee check` on every data directory.
func (s *server) checkAll(t *testing.T) { s.check(t) }

// connection returns the way to the server, and waits while there is none.
func (s *server) connection(ctx context.Context) (*grpc.ClientConn, error) {
	for {
		s.mu.Lock()
		up, conn := s.mu.up, s.mu.conn
		s.mu.Unlock()
		select {
		case <-up:
			return conn, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

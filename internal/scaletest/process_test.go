package scaletest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/internal/client"
)

// binary returns the server that is measured: the one in PERIGEE_BIN.
func binary(t *testing.T) string {
	t.Helper()
	onlyFull(t)
	path, err := filepath.Abs(os.Getenv("PERIGEE_BIN"))
	require.NoError(t, err)
	require.FileExists(t, path, "PERIGEE_BIN")
	return path
}

// A process is one life of a server.
type process struct {
	t       *testing.T
	bin     string
	cmd     *exec.Cmd
	address string
	http    string
	started time.Duration // from the start until it served
}

// start starts the server in dir, with more arguments and variables, and waits
// until it serves.
func start(t *testing.T, bin, dir string, args, env []string) *process {
	t.Helper()
	return startAs(t, exec.Command(bin), dir, args, env)
}

// startAs is start with a command that ends in the path of the server.
func startAs(t *testing.T, cmd *exec.Cmd, dir string, args, env []string) *process {
	t.Helper()
	p := &process{t: t, cmd: cmd, bin: cmd.Args[len(cmd.Args)-1]}
	p.cmd.Args = append(append(p.cmd.Args,
		"standalone", "--json", "--data-dir", dir, "--tls-mode", "disabled", "--log-level", "warn",
		"--grpc-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0",
	), args...)
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	began := time.Now()
	require.NoError(t, p.cmd.Start())
	t.Cleanup(p.kill)
	line, err := bufio.NewReader(out).ReadBytes('\n')
	p.started = time.Since(began)
	require.NoError(t, err, "the server did not become ready")
	var info struct {
		GRPC string `json:"grpc_addr"`
		HTTP string `json:"http_addr"`
	}
	require.NoError(t, json.Unmarshal(line, &info))
	p.address, p.http = info.GRPC, info.HTTP
	return p
}

// kill ends the process at once.
func (p *process) kill() {
	if p.cmd.ProcessState != nil {
		return
	}
	_ = p.cmd.Process.Signal(syscall.SIGKILL) // it may have ended by itself
	_ = p.cmd.Wait()                          // with the signal, as a rule
}

// stop ends the process in order.
func (p *process) stop() {
	require.NoError(p.t, p.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(p.t, p.cmd.Wait())
}

func (p *process) rss() int64         { return residentOf(p.cmd.Process.Pid) }
func (p *process) cpu() time.Duration { return cpuTimeOf(p.cmd.Process.Pid) }

// peak returns the most memory the process has had.
func (p *process) peak() int64 { return statusOf(p.cmd.Process.Pid, "VmHWM:") }

// dial returns a connection to the server, with a session.
func (p *process) dial() *client.Conn {
	p.t.Helper()
	conn, err := client.Dial(client.Options{Endpoint: p.address, Version: "5.1.4", FixedHeaders: true})
	require.NoError(p.t, err)
	p.t.Cleanup(func() { _ = conn.Close() }) // the server may have gone
	return conn
}

// gauge returns a number of the server's metrics, summed over its labels.
func (p *process) gauge(name string) (sum float64) {
	p.t.Helper()
	resp, err := http.Get("http://" + p.http + "/metrics")
	require.NoError(p.t, err)
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), name); ok && strings.ContainsAny(rest[:1], "{ ") {
			n, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
			require.NoError(p.t, err)
			sum += n
		}
	}
	require.NoError(p.t, lines.Err())
	return sum
}

// run runs a command of the binary against the server.
func (p *process) run(args ...string) {
	p.t.Helper()
	cmd := exec.Command(p.bin, append(args, "--endpoint", p.address)...)
	out, err := cmd.CombinedOutput()
	require.NoError(p.t, err, "%s: %s", strings.Join(args, " "), out)
}

// cpuTime is what this process has used.
func cpuTime() time.Duration { return cpuTimeOf(os.Getpid()) }

// cpuTimeOf is what a process has used, in steps of 10 ms; 0 where the system
// does not tell.
func cpuTimeOf(pid int) time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The name, in parentheses, may hold anything; the times are 12 and 13 behind it.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

func residentOf(pid int) int64 { return statusOf(pid, "VmRSS:") }

// statusOf returns a number of /proc/PID/status that is in KiB; 0 where there is none.
func statusOf(pid int, key string) int64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, key); ok {
			kib, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return kib << 10
		}
	}
	return 0
}

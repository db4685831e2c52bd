package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/perigee-mq/perigee/internal/client"
	"github.com/perigee-mq/perigee/internal/loadgen"
)

// addresses are what a server prints when it is ready.
type addresses struct {
	GRPC string `json:"grpc_addr"`
	HTTP string `json:"http_addr"`
}

// stopTimeout is how long a server may take to stop.
const stopTimeout = 15 * time.Second

// server is a process under load.
type server struct {
	name   string
	at     addresses
	cmd    *exec.Cmd
	folder string // removed at the end; holds its log
	target *loadgen.Target
}

func startNoop(ctx context.Context, o options) (*server, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return start(ctx, "no-op", o, func(string) *exec.Cmd { return exec.Command(self, noopArgument) })
}

func startPerigee(ctx context.Context, o options, flush string) (*server, error) {
	return start(ctx, "perigee", o, func(folder string) *exec.Cmd {
		return exec.Command(o.Server, "standalone", "--json", "--data-dir", filepath.Join(folder, "data"),
			"--grpc-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--flush", flush, "--log-level", "warn")
	})
}

// start starts a server, waits until it is ready and connects to it.
func start(ctx context.Context, name string, o options, command func(folder string) *exec.Cmd) (_ *server, err error) {
	s := &server{name: name}
	if s.folder, err = os.MkdirTemp("", "perigee-bench-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%s: %w", name, err), s.stop())
		}
	}()
	log, err := os.Create(filepath.Join(s.folder, "log"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // the server has its own descriptor
	cmd := command(s.folder)
	cmd.Stderr = log
	// It outlives an interrupt at the terminal, to be stopped in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s.cmd = cmd
	stopWaiting := context.AfterFunc(ctx, func() { _ = out.Close() })
	line, err := bufio.NewReader(out).ReadBytes('\n')
	stopWaiting()
	if err != nil {
		text, _ := os.ReadFile(log.Name()) // what there is of it
		return nil, fmt.Errorf("did not become ready: %w\n%s", err, text)
	}
	if err := json.Unmarshal(line, &s.at); err != nil {
		return nil, fmt.Errorf("printed %q: %w", line, err)
	}
	s.target, err = loadgen.Dial(client.Options{Endpoint: s.at.GRPC, Version: "5.1.4"}, o.Connections)
	return s, err
}

// stop ends the process and removes its data.
func (s *server) stop() error {
	if s.target != nil {
		s.target.Close()
	}
	var err error
	if s.cmd != nil {
		_ = s.cmd.Process.Signal(syscall.SIGTERM) // when it has ended already, Wait says so
		kill := time.AfterFunc(stopTimeout, func() { _ = s.cmd.Process.Kill() })
		if err = s.cmd.Wait(); err != nil {
			err = fmt.Errorf("%s: %w", s.name, err)
		}
		kill.Stop()
	}
	return errors.Join(err, os.RemoveAll(s.folder))
}

// sample is what a process has used up to a moment.
type sample struct {
	cpu     time.Duration // of the server
	own     time.Duration // of this process
	mallocs float64
	syncs   float64 // NaN when the server does not count them
	rss     int64   // bytes of the server's memory
}

// The names of the counters.
const (
	mallocsTotal = "go_memstats_mallocs_total"
	syncsTotal   = "perigee_log_syncs_total"
)

func (s *server) sample() (sample, error) {
	mallocs, syncs, err := s.counters()
	if err != nil {
		return sample{}, fmt.Errorf("%s: metrics: %w", s.name, err)
	}
	cpu, err := cpuTime(s.cmd.Process.Pid)
	if err != nil {
		return sample{}, err
	}
	rss, err := residentSize(s.cmd.Process.Pid)
	if err != nil {
		return sample{}, err
	}
	own, err := cpuTime(os.Getpid())
	return sample{cpu, own, mallocs, syncs, rss}, err
}

// metrics returns what the server exports.
func (s *server) metrics() (map[string]*dto.MetricFamily, error) {
	resp, err := http.Get("http://" + s.at.HTTP + "/metrics")
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(resp.Body)
}

func (s *server) counters() (mallocs, syncs float64, err error) {
	families, err := s.metrics()
	if err != nil {
		return 0, 0, err
	}
	sum := func(name string) float64 {
		metrics := families[name].GetMetric()
		if len(metrics) == 0 {
			return nan
		}
		total := 0.0
		for _, m := range metrics {
			total += m.GetCounter().GetValue()
		}
		return total
	}
	return sum(mallocsTotal), sum(syncsTotal), nil
}

// clockTick is the unit of CPU times in /proc, on every Linux port Go has.
const clockTick = time.Second / 100

// cpuTime returns the user and system time of a process.
func cpuTime(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	return parseStat(string(stat))
}

func parseStat(stat string) (time.Duration, error) {
	// The second field is the command's name, in brackets, and may hold anything.
	_, rest, ok := strings.Cut(stat[max(strings.LastIndexByte(stat, ')'), 0):], ") ")
	fields := strings.Fields(rest)
	const user, system = 11, 12 // counted from the third field
	if !ok || len(fields) <= system {
		return 0, fmt.Errorf("unexpected /proc stat %q", stat)
	}
	var ticks time.Duration
	for _, i := range []int{user, system} {
		n, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("unexpected /proc stat %q: %w", stat, err)
		}
		ticks += time.Duration(n)
	}
	return ticks * clockTick, nil
}

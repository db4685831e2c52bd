package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/perigee-mq/perigee/bench/proc"
	"github.com/perigee-mq/perigee/internal/client"
	"github.com/perigee-mq/perigee/internal/loadgen"
)

// addresses are what a process prints when it is ready.
type addresses struct {
	GRPC  string `json:"grpc_addr"`
	HTTP  string `json:"http_addr"`
	Tiers string `json:"tier_addr"`
}

// stopTimeout is how long a server may take to stop.
const stopTimeout = 15 * time.Second

// server is a process under load, or several.
type server struct {
	name   string
	at     addresses // of the process that serves clients, or of the first such one
	parts  []part    // in the order in which they were started
	folder string    // removed at the end; holds logs
	target *loadgen.Target
}

// part is a process of a server.
type part struct {
	cmd *exec.Cmd
	at  addresses
	// idle: it has no part in sending and receiving, and is not measured.
	idle bool
}

func startNoop(ctx context.Context, o options) (*server, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return start("no-op", o, func(s *server) error { return s.run(ctx, exec.Command(self, noopArgument), false) })
}

func startPerigee(ctx context.Context, o options, flush string) (*server, error) {
	return start("perigee", o, func(s *server) error {
		return s.run(ctx, s.perigee(o, "standalone", "data", "--grpc-listen", "127.0.0.1:0", "--flush", flush), false)
	})
}

// perigee is a command of perigee that serves, with its data in a folder of the server's.
func (s *server) perigee(o options, command, folder string, args ...string) *exec.Cmd {
	return exec.Command(o.Server, append([]string{
		command, "--json", "--data-dir", filepath.Join(s.folder, folder), "--http-listen", "127.0.0.1:0", "--log-level", "warn",
	}, args...)...)
}

// start starts the processes of a server and connects to those that serve clients.
func start(name string, o options, processes func(s *server) error) (_ *server, err error) {
	s := &server{name: name}
	if s.folder, err = os.MkdirTemp("", "perigee-bench-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%s: %w", name, err), s.stop())
		}
	}()
	if err := processes(s); err != nil {
		return nil, err
	}
	var targets []*loadgen.Target
	for _, p := range s.parts {
		if p.at.GRPC == "" {
			continue
		}
		if len(targets) == 0 {
			s.at = p.at
		}
		t, err := loadgen.Dial(client.Options{Endpoint: p.at.GRPC, Version: "5.1.4"}, o.Connections)
		if err != nil {
			return nil, err
		}
		targets = append(targets, t)
	}
	s.target = loadgen.Join(targets...)
	return s, nil
}

// run starts a process and waits until it is ready.
func (s *server) run(ctx context.Context, cmd *exec.Cmd, idle bool) error {
	log, err := os.Create(filepath.Join(s.folder, fmt.Sprint("log", len(s.parts))))
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the process has its own descriptor
	cmd.Stderr = log
	// It outlives an interrupt at the terminal, to be stopped in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	s.parts = append(s.parts, part{cmd: cmd, idle: idle})
	stopWaiting := context.AfterFunc(ctx, func() { _ = out.Close() })
	line, err := bufio.NewReader(out).ReadBytes('\n')
	stopWaiting()
	if err != nil {
		text, _ := os.ReadFile(log.Name()) // what there is of it
		return fmt.Errorf("did not become ready: %w\n%s", err, text)
	}
	if err := json.Unmarshal(line, &s.parts[len(s.parts)-1].at); err != nil {
		return fmt.Errorf("printed %q: %w", line, err)
	}
	return nil
}

// stop ends the processes, the last one first, and removes their data.
func (s *server) stop() error {
	if s.target != nil {
		s.target.Close()
	}
	var errs []error
	for _, p := range slices.Backward(s.parts) {
		_ = p.cmd.Process.Signal(syscall.SIGTERM) // when it has ended already, Wait says so
		kill := time.AfterFunc(stopTimeout, func() { _ = p.cmd.Process.Kill() })
		if err := p.cmd.Wait(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.name, err))
		}
		kill.Stop()
	}
	return errors.Join(append(errs, os.RemoveAll(s.folder))...)
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

// sample adds up what the processes have used that are measured.
func (s *server) sample() (all sample, err error) {
	all.syncs = nan
	for _, p := range s.parts {
		if p.idle {
			continue
		}
		mallocs, syncs, err := p.counters()
		if err != nil {
			return sample{}, fmt.Errorf("%s: metrics: %w", s.name, err)
		}
		cpu, err := proc.CPU(p.cmd.Process.Pid)
		if err != nil {
			return sample{}, err
		}
		memory, err := proc.MemoryOf(p.cmd.Process.Pid)
		if err != nil {
			return sample{}, err
		}
		all.cpu, all.mallocs, all.rss = all.cpu+cpu, all.mallocs+mallocs, all.rss+memory.Resident
		if math.IsNaN(all.syncs) {
			all.syncs = syncs
		} else if !math.IsNaN(syncs) {
			all.syncs += syncs
		}
	}
	all.own, err = proc.CPU(os.Getpid())
	return all, err
}

// metrics returns what the process exports.
func (p part) metrics() (map[string]*dto.MetricFamily, error) {
	resp, err := http.Get("http://" + p.at.HTTP + "/metrics")
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(resp.Body)
}

func (p part) counters() (mallocs, syncs float64, err error) {
	families, err := p.metrics()
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

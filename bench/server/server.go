// Package server starts the servers that are compared with each other, each in
// processes and a folder of its own, and says what they use. It knows how each kind is
// configured and not what is done with it: whether a server answers is for its caller to
// find out, who loads it.
//
// Whatever ends the comparison, no process stays: a server is killed with all that
// descends from it, and the kernel kills its processes when the process that started
// them ends. What such an end leaves on disk the next one removes, with Sweep.
package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/perigee-mq/perigee/bench/proc"
)

// Kind is a kind of server with its settings.
type Kind interface {
	// processes returns what to start, in order; s has a folder already.
	processes(s *Server) ([]command, error)
}

// command is a process to start.
type command struct {
	*exec.Cmd
	// when, if set, says whether what the process needs is there. It is asked again and
	// again.
	when func() bool
}

// Server is a server that runs, in one process or several.
type Server struct {
	// Name is for people.
	Name string
	// Endpoint is host:port of what clients connect to.
	Endpoint string

	folder  folder
	running []*process
}

type process struct {
	cmd   *exec.Cmd
	log   string
	ended chan struct{} // closed after cmd has been waited for
	err   error         // of the wait; read after ended
}

// startTimeout bounds the wait for what a process of a server needs of another.
const startTimeout = 60 * time.Second

// Start starts the processes of a server; it may not serve yet. The caller calls Stop.
func Start(ctx context.Context, name string, k Kind) (_ *Server, err error) {
	s := &Server{Name: name}
	if s.folder, err = newFolder(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%s: %w", name, err), s.Stop())
		}
	}()
	commands, err := k.processes(s)
	if err != nil {
		return nil, err
	}
	for _, c := range commands {
		if err := s.await(ctx, c.when); err != nil {
			return nil, err
		}
		if err := s.start(c.Cmd); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *Server) await(ctx context.Context, ready func() bool) error {
	if ready == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for !ready() {
		if err := s.Failed(); err != nil {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("the next process has nothing to connect to: %w", ctx.Err())
		}
	}
	return nil
}

func (s *Server) start(cmd *exec.Cmd) error {
	p := &process{cmd: cmd, log: filepath.Join(s.folder.path, fmt.Sprint("log", len(s.running))), ended: make(chan struct{})}
	log, err := os.Create(p.log)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the process has its own descriptor
	cmd.Stdout, cmd.Stderr = log, log
	if cmd.Dir == "" {
		cmd.Dir = s.folder.path
	}
	// It does not get an interrupt at the terminal, and does not outlive this process.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	s.running = append(s.running, p)
	go func() {
		p.err = cmd.Wait()
		close(p.ended)
	}()
	return nil
}

// logTail is how much of a log goes into an error.
const logTail = 2000

// Failed returns an error with the end of its log when a process of the server has ended.
func (s *Server) Failed() error {
	for _, p := range s.running {
		select {
		case <-p.ended:
		default:
			continue
		}
		text, _ := os.ReadFile(p.log) // what there is of it
		text = text[max(0, len(text)-logTail):]
		return fmt.Errorf("%s: %s ended: %w\n%s", s.Name, filepath.Base(p.cmd.Path), errors.Join(p.err, errEnded), strings.TrimSpace(string(text)))
	}
	return nil
}

var errEnded = errors.New("it should run on")

// Stop kills all processes of the server, waits for them and removes its folder. It is
// not the server's way to stop; nothing that it keeps is wanted any more.
func (s *Server) Stop() error {
	// The last one first: an Erlang node starts its port mapper again when that is gone.
	for _, pid := range slices.Backward(s.pids()) {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
	}
	for _, p := range s.running {
		<-p.ended
	}
	folder := s.folder
	s.running, s.folder.path = nil, ""
	return folder.remove()
}

// pids returns the processes of the server and what descends from them.
func (s *Server) pids() (pids []int) {
	for _, p := range s.running {
		tree, err := proc.Tree(p.cmd.Process.Pid)
		if err != nil {
			tree = []int{p.cmd.Process.Pid}
		}
		pids = append(pids, tree...)
	}
	return pids
}

// Pause stops all processes of the server until Resume: they use no processor.
func (s *Server) Pause() error { return s.signal(syscall.SIGSTOP) }

// Resume lets a server go on that was paused.
func (s *Server) Resume() error { return s.signal(syscall.SIGCONT) }

func (s *Server) signal(signal syscall.Signal) error {
	pids := s.pids()
	if signal == syscall.SIGCONT {
		slices.Reverse(pids)
	}
	var errs []error
	for _, pid := range pids {
		if err := syscall.Kill(pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
			errs = append(errs, fmt.Errorf("%s: %v to process %d: %w", s.Name, signal, pid, err))
		}
	}
	return errors.Join(errs...)
}

// Usage is what a server has used up to a moment, all its processes together.
type Usage struct {
	CPU time.Duration
	proc.Memory
}

// Usage returns what the processes of the server use that run now.
func (s *Server) Usage() (u Usage, err error) {
	if err := s.Failed(); err != nil {
		return Usage{}, err
	}
	for _, pid := range s.pids() {
		cpu, cpuErr := proc.CPU(pid)
		memory, memoryErr := proc.MemoryOf(pid)
		if err := errors.Join(cpuErr, memoryErr); err != nil {
			if syscall.Kill(pid, 0) != nil {
				continue // a helper of the server that has ended since
			}
			return Usage{}, fmt.Errorf("%s: %w", s.Name, err)
		}
		u.CPU += cpu
		u.Resident += memory.Resident
		u.Private += memory.Private
	}
	return u, nil
}

// path returns the path of a file in the server's folder.
func (s *Server) path(elements ...string) string {
	return filepath.Join(append([]string{s.folder.path}, elements...)...)
}

// write writes a file in the server's folder, with the folders it is in.
func (s *Server) write(content string, elements ...string) (path string, err error) {
	path = s.path(elements...)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	return path, os.WriteFile(path, []byte(content), 0o600)
}

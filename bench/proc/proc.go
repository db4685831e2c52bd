// Package proc reads from Linux what processes have used: processor time, memory and
// which processes a process has started. It changes nothing and starts nothing; the
// comparisons in bench call it.
package proc

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// CPU returns the user and system time that a process has used, all its threads
// together, also those that have ended. It has the kernel's resolution, nanoseconds.
func CPU(pid int) (time.Duration, error) {
	var used unix.Timespec
	// The clock of another process has its number, inverted, above three bits that say
	// which clock of it is meant: the one of the scheduler.
	const scheduled = 2
	clock := int32(^pid)<<3 | scheduled
	if err := unix.ClockGettime(clock, &used); err != nil {
		return 0, fmt.Errorf("processor time of process %d: %w", pid, err)
	}
	return time.Duration(used.Nano()), nil
}

// Memory is what a process has in memory, in bytes.
type Memory struct {
	Resident int64 // pages of files that it has mapped included
	Private  int64 // without those of files and of shared memory
}

// MemoryOf returns what a process has in memory.
func MemoryOf(pid int) (Memory, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return Memory{}, err
	}
	m, err := parseStatus(string(status))
	if err != nil {
		return Memory{}, fmt.Errorf("process %d: %w", pid, err)
	}
	return m, nil
}

func parseStatus(status string) (m Memory, err error) {
	found := 0
	for line := range strings.Lines(status) {
		fields := strings.Fields(line)
		if len(fields) != 3 {
			continue
		}
		var into *int64
		switch fields[0] {
		case "VmRSS:":
			into = &m.Resident
		case "RssAnon:":
			into = &m.Private
		default:
			continue
		}
		kib, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil {
			return Memory{}, fmt.Errorf("unexpected line %q: %w", line, err)
		}
		*into, found = kib<<10, found+1
	}
	if found != 2 {
		return Memory{}, fmt.Errorf("no VmRSS and RssAnon in its status")
	}
	return m, nil
}

// Tree returns a process and all that descend from it, itself first. A process whose
// parent has ended is not found.
func Tree(pid int) ([]int, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	children := map[int][]int{}
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		child, parent, err := parseParent(string(stat))
		if err != nil {
			return nil, err
		}
		children[parent] = append(children[parent], child)
	}
	tree := []int{pid}
	for i := 0; i < len(tree); i++ {
		tree = append(tree, children[tree[i]]...)
	}
	return tree, nil
}

// parseParent returns the number of a process and that of its parent.
func parseParent(stat string) (pid, parent int, err error) {
	// The second field is the command's name, in brackets, and may hold anything.
	first, _, _ := strings.Cut(stat, " ")
	rest := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(rest) < 2 {
		return 0, 0, fmt.Errorf("unexpected /proc stat %q", stat)
	}
	if pid, err = strconv.Atoi(first); err == nil {
		parent, err = strconv.Atoi(rest[1])
	}
	if err != nil {
		return 0, 0, fmt.Errorf("unexpected /proc stat %q: %w", stat, err)
	}
	return pid, parent, nil
}

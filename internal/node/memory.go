package node

import (
	"errors"
	"io/fs"
	"math"
	"path"
	"strconv"
	"strings"
)

// A memoryPlan says how much memory each part of the process may use. All of it
// follows from one number.
type memoryPlan struct {
	// limit is what the process should stay below; 0: nobody said.
	limit int64
	// set says that the runtime has to be told of it.
	set bool

	cache    int64 // blocks of the views
	memTable int64 // effects on their way into the views, up to four times
	sends    int64 // bytes of sends under way, in the proxy and again in the store
	waiting  int   // receives that may wait
	// deliveries bounds the stored bytes of messages on their way to consumers; each
	// is in memory twice. 0: as configured.
	deliveries int64
	// known bounds what the store knows messages by that are sent again.
	known int64
	// settings bounds what clients say about themselves and is kept for them.
	settings int64
}

// Bounds and shares of the parts. Without a limit each part gets what serves a
// machine of a few gigabytes well.
const (
	defaultCache    = 32 << 20
	defaultMemTable = 32 << 20
	defaultSends    = 256 << 20
	defaultSettings = 64 << 20
	defaultKnown    = 256 << 20

	// waitingReceive is what one takes, with its gRPC stream.
	waitingReceive = 16 << 10
	// ofContainer is the part of a container's memory that the process plans with:
	// the runtime goes a little beyond its limit, and the kernel's buffers count.
	ofContainer = 0.9
)

// planMemory divides the memory: configured is the operator's own limit, runtime
// that of GOMEMLIMIT, container that of the control group; 0 where there is none.
// machine is all the memory there is, 0 where that is not known: without a limit it
// bounds the receives that wait, the one part that is not small beside it.
// waiting is how many receives may wait if there is memory for them, 0: any number.
func planMemory(configured, runtime, container, machine int64, waiting int) memoryPlan {
	p := memoryPlan{cache: defaultCache, memTable: defaultMemTable, sends: defaultSends, settings: defaultSettings, known: defaultKnown, waiting: waiting}
	switch {
	case configured > 0:
		p.limit, p.set = configured, true
	case runtime > 0:
		p.limit = runtime
	case container > 0:
		p.limit, p.set = int64(float64(container)*ofContainer), true
	default:
		if machine > 0 {
			p.waiting = waitingIn(machine, waiting)
		}
		return p
	}
	p.cache = between(p.limit/16, 4<<20, 1<<30)
	p.memTable = between(p.limit/64, 2<<20, defaultMemTable)
	p.sends = between(p.limit/8, 8<<20, 1<<30)
	p.deliveries = between(p.limit/16, 8<<20, 1<<30)
	p.known = between(p.limit/16, 8<<20, 1<<30)
	p.settings = between(p.limit/64, 2<<20, defaultSettings)
	p.waiting = waitingIn(p.limit, waiting)
	return p
}

// waitingIn returns how many of the receives that may wait fit into a quarter of the
// memory.
func waitingIn(memory int64, waiting int) int {
	return min(waiting, int(between(memory/4/waitingReceive, 1, math.MaxInt32)))
}

// deliveryMemory returns what deliveries may take where so much is configured.
func (p memoryPlan) deliveryMemory(configured int64) int64 {
	if p.deliveries == 0 {
		return configured
	}
	return min(configured, p.deliveries)
}

func between(v, low, high int64) int64 { return min(max(v, low), high) }

// machineMemory returns how much memory the machine has; 0 where it does not say. root
// is the file system from "/" on.
func machineMemory(root fs.FS) int64 {
	text, err := fs.ReadFile(root, "proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		// MemTotal:       16384256 kB
		fields := strings.Fields(line)
		if len(fields) != 3 || fields[0] != "MemTotal:" || fields[2] != "kB" {
			continue
		}
		if n, err := strconv.ParseInt(fields[1], 10, 64); err == nil && n < math.MaxInt64>>10 {
			return n << 10
		}
	}
	return 0
}

// containerMemory returns the memory limit of the control group that the process
// is in, and of those above it; 0 where there is none. root is the file system
// from "/" on.
func containerMemory(root fs.FS) int64 {
	groups, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return 0 // no control groups here
	}
	limit := int64(math.MaxInt64)
	for line := range strings.Lines(string(groups)) {
		// hierarchy:controllers:path; version 2 has no controllers.
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(parts) != 3:
		case parts[1] == "":
			limit = min(limit, lowestLimit(root, "sys/fs/cgroup", parts[2], "memory.max"))
		case strings.Contains(","+parts[1]+",", ",memory,"):
			limit = min(limit, lowestLimit(root, "sys/fs/cgroup/memory", parts[2], "memory.limit_in_bytes"))
		}
	}
	// Version 1 says "no limit" with a number near the greatest.
	if limit > 1<<60 {
		return 0
	}
	return limit
}

// lowestLimit reads the file in the group's directory and in all above it. In a
// container the path may be that of the host, which is not there: its root then
// is the group.
func lowestLimit(root fs.FS, mount, group, file string) int64 {
	limit := int64(math.MaxInt64)
	for dir := path.Join("/", group); ; dir = path.Dir(dir) {
		text, err := fs.ReadFile(root, path.Join(mount, dir, file))
		if err == nil {
			if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil {
				limit = min(limit, n)
			}
		} else if !errors.Is(err, fs.ErrNotExist) {
			return limit
		}
		if dir == "/" {
			return limit
		}
	}
}
